"""One attempt of a task: all of its rows are staged, or it fails and what it staged is dropped."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark_evenq.options.sink import WriteOptions
from pyspark_evenq.sink import cluster as sink_cluster
from pyspark_evenq.sink.blocks import checksum_of
from pyspark_evenq.sink.staging import Staged, TaskAttempt, stage

from evenq.errors import BadRequest, PreconditionFailed, SettingsError
from evenq.wire.stubs.evenq.v1 import staging_pb2

_numbers = itertools.count(1)


def rows(*bodies: str, **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array(bodies), **columns})


def staged(broker: Any, *batches: pa.RecordBatch, query: str = "", batch: int = 0, **more: str) -> Staged | None:
    given = {"endpoints": broker.endpoint, "topic": "flights", "blockRows": "2", "inFlight": "2"} | more
    options = WriteOptions.parse({name: value for name, value in given.items() if value})
    query = query or f"query-{next(_numbers)}"
    return stage(options, TaskAttempt(query_id=query, batch_id=batch, partition_id=3, attempt_id=0), iter(batches))


def test_all_rows_are_staged_under_one_token_and_numbered(broker: Any) -> None:
    result = staged(broker, rows("a", "b", "c"), rows("d"))
    assert result is not None
    blocks = sorted(broker.sink.staged, key=lambda block: block.sequence)
    assert [(block.sequence, block.rows.first_row, bytes(block.rows.bodies)) for block in blocks] == [
        (0, 0, b"ab"), (1, 2, b"c"), (2, 3, b"d"),
    ]  # fmt: skip
    assert {(block.token, block.partition_id, block.coordinator) for block in blocks} == {(result.token, 3, "broker-a")}
    assert (result.rows, result.brokers, result.topics) == (4, ("broker-a",), ("flights",))
    assert result.checksum == checksum_of(rows("d", "c", "b", "a"))
    assert broker.sink.abandoned == []


@pytest.mark.parametrize("sequence", [0, 1, 2])
def test_a_block_that_is_refused_fails_the_task_and_drops_the_others(broker: Any, sequence: int) -> None:
    """43: also one of the last, whose answers come when all rows were handed over."""
    broker.sink.refuses = lambda request: isinstance(request, staging_pb2.StageRequest) and request.sequence == sequence
    with pytest.raises(BadRequest, match="refused by the test"):
        staged(broker, rows("a", "b"), rows("c", "d"), rows("e"), inFlight="1")  # no other is on its way then
    assert [list(one.tokens) for one in broker.sink.abandoned] == [[broker.sink.staged[0].token]]


def test_a_task_whose_rows_end_with_an_error_drops_what_it_staged(broker: Any) -> None:
    def failing() -> Any:
        yield rows("a", "b")
        while not broker.sink.staged:
            time.sleep(0.001)
        raise ValueError("this attempt fails")

    with pytest.raises(ValueError, match="this attempt fails"):
        stage(
            WriteOptions.parse({"endpoints": broker.endpoint, "topic": "flights"}),
            TaskAttempt(query_id="fails", batch_id=0, partition_id=0, attempt_id=0),
            failing(),
        )
    assert len(broker.sink.abandoned) == 1


def test_rows_of_a_decided_batch_are_counted_and_not_sent(broker: Any) -> None:
    broker.sink.last_batches["decided"] = 4
    result = staged(broker, rows("a", "b"), rows("c"), query="decided", batch=4)
    assert result is not None
    assert (result.rows, result.brokers, result.checksum) == (3, (), checksum_of(rows("c", "a", "b")))
    assert broker.sink.staged == []


def test_what_the_query_writes_to_and_does_with_decided_batches_is_said_when_it_begins(broker: Any) -> None:
    staged(broker, rows("a"), onDecidedBatch="write")
    topics = pa.array(["flights"])
    staged(broker, rows("a", topic=topics), topic="")
    fixed, named = broker.sink.begun[0], broker.sink.begun[-1]
    assert (list(fixed.topics), fixed.fixed_topics, fixed.on_decided) == (["flights"], True, 2)
    assert (list(named.topics), named.fixed_topics, named.on_decided) == (["flights"], False, 0)


def test_a_broker_that_cannot_write_a_batch_again_is_not_taken_to_have_done_so(broker: Any) -> None:
    broker.sink.last_batches["older"] = 4
    with pytest.raises(PreconditionFailed, match=r"cannot write batch 4 again .*: upgrade the brokers first"):
        staged(broker, rows("a"), query="older", batch=4, onDecidedBatch="write")


def test_a_process_asks_for_a_querys_coordinator_once_unless_it_says_something_else_of_it(broker: Any) -> None:
    for _ in range(2):
        staged(broker, rows("a"), query="known")
    assert [one.coordinator for one in broker.sink.begun] == ["", "broker-a", "broker-a"]
    staged(broker, rows("a"), query="known", onDecidedBatch="skip")
    assert [one.coordinator for one in broker.sink.begun[3:]] == ["", "broker-a"]


def test_rows_without_a_topic_are_an_error_and_a_task_without_rows_has_nothing_to_decide(broker: Any) -> None:
    assert staged(broker, rows(topic=pa.array([], pa.string())), topic="") is None
    with pytest.raises(SettingsError, match="a row has no topic"):
        staged(broker, rows("a", topic=pa.array([None], pa.string())), topic="")


def test_a_broker_that_left_the_topic_is_called_through_another_one() -> None:
    assert sink_cluster.address_of({"a": "h:1"}, "a") == "h:1"
    assert sink_cluster.address_of({"a": "h:1"}, "gone") == "h:1#gone"
