"""From filters of a query to what must be read."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark_evenq.options.source import ReadOptions, SchemaStyle
from pyspark_evenq.source.pushdown import PushdownReader, narrowing

from evenq.columns.arrow_schema import OutputColumn
from evenq.columns.extra_columns import partition_of

OURS, KAFKAS = SchemaStyle.EVENQ, SchemaStyle.KAFKA


def at(micros: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)


MS = int(at(0).timestamp() * 1000)


@pytest.mark.parametrize(
    ("one", "low", "end"),
    [
        (GreaterThan(("storeTimestamp",), at(0)), MS + 1, None),
        (GreaterThan(("storeTimestamp",), at(1)), MS + 1, None),
        (GreaterThanOrEqual(("storeTimestamp",), at(0)), MS, None),
        (GreaterThanOrEqual(("storeTimestamp",), at(1)), MS + 1, None),
        (LessThan(("storeTimestamp",), at(0)), None, MS),
        (LessThan(("storeTimestamp",), at(1)), None, MS + 1),
        (LessThanOrEqual(("storeTimestamp",), at(0)), None, MS + 1),
        (LessThanOrEqual(("storeTimestamp",), at(999)), None, MS + 1),
        (EqualTo(("storeTimestamp",), at(0)), MS, MS + 1),
        (GreaterThan(("storeTimestamp",), dt.datetime(2026, 1, 1)), None, None),  # noqa: DTZ001  a time of no zone
        (In(("queueOffset",), (7, 3)), 3, 8),
        (In(("queueOffset",), ()), None, 0),
        (EqualNullSafe(("queueOffset",), None), None, None),
        (Not(EqualTo(("queueOffset",), 3)), None, None),
        (IsNotNull(("queueOffset",)), None, None),
    ],
)
def test_a_range_holds_all_that_fits_and_little_else(one: Filter, low: int | None, end: int | None) -> None:
    narrow = narrowing([one], OURS)
    name = "queueOffset" if "queueOffset" in str(one) else "storeTimestamp"
    assert (narrow.low.get(name), narrow.end.get(name)) == (low, end)


def test_filters_hold_together() -> None:
    narrow = narrowing([GreaterThan(("queueOffset",), 3), GreaterThan(("queueOffset",), 5), In(("tag",), ("a", "b")),
                        EqualTo(("tag",), "b"), LessThan(("queueOffset",), 9)], OURS)  # fmt: skip
    assert (narrow.low, narrow.end, narrow.only) == ({"queueOffset": 6}, {"queueOffset": 9}, {"tag": frozenset("b")})


@pytest.fixture
def planned(broker: Any) -> Any:
    for number in range(20):
        broker.send(str(number), queue=number % 2, tag="even" if number % 4 < 2 else "odd")

    def planned(*filters: Filter, **more: str) -> dict[int, tuple[int, int]]:
        given = {"endpoints": broker.endpoint, "subscribe": "flights", "gcFreeze": "false"} | more
        reader = PushdownReader(ReadOptions.parse(given, streaming=False), (OutputColumn("body", nullable=True),))
        assert reader.pushFilters(list(filters)) == list(filters), "Spark evaluates all of them again"
        return {
            piece.part.queue.queue_id: (piece.part.start, piece.part.end)
            for task in reader.partitions()
            for piece in task.pieces  # type: ignore[attr-defined]  # Spark's type names the base class
        }

    return planned


def test_queues_and_ranges_are_left_out(planned: Any, broker: Any) -> None:
    assert planned() == {0: (0, 10), 1: (0, 10)}
    assert planned(EqualTo(("queueId",), 1), GreaterThanOrEqual(("queueOffset",), 4)) == {1: (4, 10)}
    assert planned(LessThan(("queueId",), 1)) == {0: (0, 10)}
    assert planned(EqualTo(("topic",), "other")) == planned(In(("brokerName",), ("broker-b",))) == {}
    assert planned(LessThan(("queueOffset",), 0)) == {}
    assert planned(GreaterThan(("storeTimestamp",), at(0))) == {0: (1, 10), 1: (1, 10)}, "as the broker says"
    assert planned(LessThan(("storeTimestamp",), at(0))) == {0: (0, 1), 1: (0, 1)}
    assert planned(EqualTo(("body",), b"3")) == planned()


def test_columns_of_kafka_narrow_as_well(planned: Any, broker: Any) -> None:
    result = planned(
        EqualTo(("partition",), partition_of(broker.queue(1))), LessThan(("offset",), 3), schemaStyle="kafka"
    )
    assert result == {1: (0, 3)}
    assert planned(LessThan(("queueOffset",), 3), schemaStyle="kafka") == planned()


@pytest.mark.parametrize(
    ("tags", "expected", "pushed"),
    [
        ("", "even", "even"),
        ("even || odd", "even", "even"),
        ("odd", "even", None),
        ("", "a || b", ""),
        ("", "*", ""),
    ],
)
def test_tags_go_to_the_broker_where_they_can_be_said(
    tags: str, expected: str, pushed: str | None, broker: Any
) -> None:
    broker.send("0", tag="odd")
    given = {"endpoints": broker.endpoint, "subscribe": "flights", "tags": tags}
    reader = PushdownReader(ReadOptions.parse(given, streaming=False), (OutputColumn("body", nullable=True),))
    reader.pushFilters([EqualTo(("tag",), expected)])
    if pushed is None:
        assert reader.partitions() == []
    else:
        assert reader._options.tags == pushed


def test_who_reads_records_alone_gets_all_tags_and_spark_filters(broker: Any) -> None:
    """12c: brokers choose by tags among messages, so every task failed."""
    broker.sends_records = True
    broker.send("0", tag="odd")
    broker.send("1", tag="even")
    given = {"endpoints": broker.endpoint, "subscribe": "flights", "format": "log"}
    reader = PushdownReader(ReadOptions.parse(given, streaming=False), (OutputColumn("tag", nullable=True),))
    filters = [EqualTo(("tag",), "odd")]
    assert list(reader.pushFilters(filters)) == filters
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert [tag for batch in batches for tag in batch.column("tag").to_pylist()] == ["odd", "even"]
