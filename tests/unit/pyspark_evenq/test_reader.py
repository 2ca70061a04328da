"""Planning of batch reads."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from pyspark_evenq.arrow_schema import OutputColumn
from pyspark_evenq.options import ReadOptions
from pyspark_evenq.reader import BatchReader

from evenq.errors import ConnectionFailed, IllegalOffset


def planned(broker: Any, **more: str) -> list[tuple[int, int, int]]:
    given = {"endpoints": broker.endpoint, "subscribe": "flights"} | more
    reader = BatchReader(ReadOptions.parse(given, streaming=False), (OutputColumn("body", nullable=True),))
    return [
        (piece.wanted.queue.queue_id, piece.wanted.start, piece.wanted.end)
        for task in reader.partitions()
        for piece in task.pieces  # type: ignore[attr-defined]  # Spark's type names the base class
    ]


@pytest.fixture
def filled(broker: Any) -> Any:
    for number in range(30):
        broker.send(str(number), queue=number % 2)
    return broker


def at(**offsets: int) -> str:
    return json.dumps({"flights": {"broker-a": {name[1:]: offset for name, offset in offsets.items()}}})


def test_a_read_goes_from_the_earliest_to_the_latest(filled: Any) -> None:
    filled.low[1] = 4
    assert planned(filled) == [(0, 0, 15), (1, 4, 15)]


def test_words_and_offsets_say_where(filled: Any) -> None:
    filled.committed["g", 0] = 9
    assert planned(filled, startingOffsets="group", group="g") == [(0, 9, 15), (1, 0, 15)]
    assert planned(filled, startingOffsets="latest") == []
    assert planned(filled, startingOffsets=at(q0=3, q1=-1), endingOffsets=at(q0=5)) == [(0, 3, 5)]
    assert planned(filled, startingTimestamp="5") == [(0, 1, 15), (1, 1, 15)]


def test_offsets_that_the_broker_does_not_have_are_data_loss_or_cut(filled: Any) -> None:
    filled.low[0] = 5
    for bad in ({"startingOffsets": at(q0=3)}, {"endingOffsets": at(q0=99)}):
        with pytest.raises(IllegalOffset, match="5 to 15"):
            planned(filled, **bad)
        assert planned(filled, failOnDataLoss="false", **bad)[0] == (0, 5, 15)


def test_an_end_that_is_lost_and_grows_again_before_it_is_read_is_told_or_counted(filled: Any, caplog: Any) -> None:
    filled.tells_marks = True
    numbers = itertools.count()

    def read(**more: str) -> list[str]:
        given = {"endpoints": filled.endpoint, "subscribe": "flights", "gcFreeze": "false"} | more
        reader = BatchReader(ReadOptions.parse(given, streaming=False), (OutputColumn("body", nullable=True),))
        tasks = reader.partitions()
        lost, filled.queues[0][9:] = filled.queues[0][9:], []
        for _ in range(len(lost) + 1):
            filled.send(f"new {next(numbers)}")
        return [body.decode() for task in tasks for rows in reader.read(task) for body in rows["body"].to_pylist()]

    with pytest.raises(IllegalOffset, match=r"flights@broker-a:0 was read up to offset 15, but .* lost the end"):
        read()
    with pytest.raises(IllegalOffset, match="lost the end"):
        read(maxRecordsPerPartition="4")
    found = read(failOnDataLoss="false")
    assert len(found) == 32
    assert "evenq: lost messages=0 of flights@broker-a:0" in caplog.text
    filled.tells_marks = False
    assert len(read()) == 33, "a broker from before is believed"


def test_an_end_that_nobody_tells_any_more_was_read_all_the_same(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.tells_marks = True
    given = {"endpoints": filled.endpoint, "subscribe": "flights", "gcFreeze": "false"}
    reader = BatchReader(ReadOptions.parse(given, streaming=False), (OutputColumn("body", nullable=True),))
    tasks = reader.partitions()

    def away(*_: Any) -> Any:
        raise ConnectionFailed("no answer")

    monkeypatch.setattr("pyspark_evenq.cluster.marks", away)
    assert sum(rows.num_rows for task in tasks for rows in reader.read(task)) == 30
    assert reader.partitions(), "nor is a plan without marks an error"


def test_long_ranges_are_split_but_not_those_of_an_ordered_topic(filled: Any) -> None:
    for options in ({"maxRecordsPerPartition": "5"}, {"minPartitions": "6"}):
        assert len(planned(filled, **options)) == 6
        filled.takes_groups = True
        assert planned(filled, **options) == [(0, 0, 15), (1, 0, 15)]
        filled.takes_groups = False
