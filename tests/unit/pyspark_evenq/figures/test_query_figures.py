"""What progress events add up to."""

from __future__ import annotations

import pytest
from pyspark_evenq.figures.query_figures import Failure, Lag, QueryFigures, failure_of

from evenq.model.queue import MessageQueue
from tests.unit.pyspark_evenq.progress import QUERY, RUN, nested, offset, progress, source


def queue(number: int, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue("flights", broker, number)


@pytest.fixture
def query() -> QueryFigures:
    made = QueryFigures("delays")
    made.begin(QUERY)
    return made


def test_the_lag_of_each_queue_is_what_the_batch_leaves_of_the_newest_offsets(query: QueryFigures) -> None:
    start, end, latest = offset({0: 0, 1: 0, 2: 0}), offset({0: 10, 1: 7, 2: 5}), offset({0: 10, 1: 10, 2: 15, 3: 9})
    assert query.take(progress(source(start, end, latest, rows=22), batch=4)) is not None
    assert query.lags == {queue(0): 0, queue(1): 3, queue(2): 10}
    assert query.lag == Lag(total=13, least=0, most=10, mean=13 / 3)
    assert query.lag_by_topic() == {"flights": 13}
    assert query.furthest_behind(1) == [(queue(2), 10)]
    assert query.furthest_behind(9) == [(queue(2), 10), (queue(1), 3)]
    assert (query.batch, query.rows, query.rows_in, query.rows_through) == (4, 22, 11.0, 44.0)
    assert query.durations_ms == {"addBatch": 50, "triggerExecution": 70}


def test_without_newest_offsets_or_behind_them_there_is_no_lag(query: QueryFigures) -> None:
    query.take(progress(source(offset({0: 0}), offset({0: 10}), None)))
    assert query.lags == {queue(0): 0}
    query.take(progress(source(offset({0: 0}), offset({0: 12}), offset({0: 11}))))
    assert query.lags == {queue(0): 0}


def test_what_a_batch_lost_and_follows_counts_once_however_often_spark_tells_of_it(query: QueryFigures) -> None:
    end = offset({0: 10, 1: 5}, lost=nested({0: 30, 1: 0}), gen=2)
    result = progress(source(offset({0: 0, 1: 0}, gen=1), end, end))
    change = query.take(result)
    assert change is not None
    assert change.lost == {queue(0): 30, queue(1): 0}
    assert change.resets == 1
    again = query.take(result)
    assert again is not None
    assert (again.lost, again.resets) == ({}, 0)
    query.end(None)
    query.begin(QUERY)  # a restart in the same driver runs its last batch once more
    query.take(result)
    assert (query.lost, query.losses, query.resets) == (30, 2, 1)
    query.begin("another query of that name, with a checkpoint of its own")
    query.take(result)
    assert (query.lost, query.losses, query.resets) == (60, 4, 2)


def test_queues_without_a_broker_are_told_when_they_go_and_when_they_are_back(query: QueryFigures) -> None:
    away = {"flights": {"broker-b": [0, 1]}}
    gone = query.take(progress(source(offset({0: 0}), offset({0: 1}, away=away), None)))
    still = query.take(progress(source(offset({0: 1}), offset({0: 2}, away=away), None)))
    assert gone is not None
    assert still is not None
    assert gone.away == {queue(0, "broker-b"), queue(1, "broker-b")}
    assert not still.away
    assert len(query.away) == 2
    back = query.take(progress(source(offset({0: 2}), offset({0: 3}), None)))
    assert back is not None
    assert back.back == gone.away
    assert not query.away


def test_queues_that_come_and_go_between_batches_are_counted(query: QueryFigures) -> None:
    first = query.take(progress(source(None, offset({0: 1, 1: 1}), None)))
    assert first is not None
    assert not first.gained
    moved = query.take(progress(source(offset({0: 1, 1: 1}), offset({1: 2, 2: 1}), None)))
    assert moved is not None
    assert (moved.gained, moved.left) == ({queue(2)}, {queue(0)})
    assert (query.gained, query.left) == (1, 1)


@pytest.mark.parametrize(
    "other", [None, "null", "", "17", "no JSON", '{"flights":{"0":5}}', '{"v":9,"q":{}}', '{"q":7}']
)
def test_sources_of_others_are_passed_over(query: QueryFigures, other: str | None) -> None:
    assert query.take(progress(source(other, other, other, rows=5))) is None
    ours = source(offset({0: 0}), offset({0: 10}), offset({0: 12}), rows=10)
    assert query.take(progress(source(other, other, other, rows=5), ours)) is not None
    assert query.rows == 10
    assert query.lag.total == 2


def test_rates_that_are_no_numbers_are_none(query: QueryFigures) -> None:
    fields = source(None, offset({0: 1}), None)
    fields |= {"inputRowsPerSecond": float("nan"), "processedRowsPerSecond": float("inf")}
    query.take(progress(fields))
    assert (query.rows_in, query.rows_through) == (0.0, 0.0)


def test_an_ended_query_has_no_lag_and_keeps_its_counts(query: QueryFigures) -> None:
    query.take(progress(source(offset({0: 0}), offset({0: 10}), offset({0: 12}), rows=10)))
    query.end(Failure.QUEUE_TAKEN)
    assert not query.active
    assert (query.lags, query.rows, query.failures) == ({}, 10, {Failure.QUEUE_TAKEN: 1})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[X] Traceback ...\npyspark_evenq.member.QueueTaken: [40301] queue f@a:0 is not yours", Failure.QUEUE_TAKEN),
        ("evenq.errors.Forbidden: no\n\npyspark_evenq.member.GroupBusy: busy", Failure.GROUP_BUSY),
        ("pyspark_evenq.plan.positions.DataLost: data loss", Failure.DATA_LOST),
        ("pyspark_evenq.brokers.cluster.BrokersAway: none", Failure.BROKERS_AWAY),
        ("pyspark_evenq.source.stream.OffsetConflict: differ", Failure.OFFSET_CONFLICT),
        ("evenq.errors.Forbidden: you may not", Failure.OTHER),
        ("java.lang.OutOfMemoryError", None),
        ("", None),
    ],
)
def test_an_error_of_ours_is_known_by_its_class(text: str, why: Failure | None) -> None:
    assert failure_of(text) is why
    assert RUN != QUERY
