"""Planning of batch reads."""

from __future__ import annotations

import itertools
import json
import pickle
import tempfile
import uuid
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.source import reader as reader_module
from pyspark_evenq.source.reader import BatchReader

from evenq.columns.arrow_schema import OutputColumn
from evenq.errors import ConnectionFailed, IllegalOffset, SettingsError


def planned(broker: Any, **more: str) -> list[tuple[int, int, int]]:
    given = {"endpoints": broker.endpoint, "subscribe": "flights"} | more
    reader = BatchReader(ReadOptions.parse(given, streaming=False), (OutputColumn("body", nullable=True),))
    return [
        (piece.part.queue.queue_id, piece.part.start, piece.part.end)
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


def test_a_plan_that_another_query_uses_again_is_told_of_and_a_narrowed_one_is_refused(
    filled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """12b: Spark keeps the plan of a Python source with its DataFrame or view."""
    query = ["1"]
    monkeypatch.setattr(reader_module, "_execution", lambda: query[0])
    given = {"endpoints": filled.endpoint, "subscribe": "flights"}
    reader = BatchReader(ReadOptions.parse(given, streaming=False), (OutputColumn("body", nullable=True),))

    def rows() -> int:
        tasks = reader.partitions()
        return sum(batch.num_rows for task in tasks for batch in pickle.loads(pickle.dumps(reader)).read(task))

    for query[0], warnings in (("1", 0), ("1", 0), ("", 0), ("2", 1), ("2", 0), ("3", 1)):
        caplog.clear()
        assert rows() == 30
        assert caplog.text.count("is used again: it was planned at 20") == warnings, query
    reader.narrowed = True
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(reader_module, "PLANS_MAX", 2)
    assert rows() == rows() == 30, "the same query"
    query[0] = "4"
    for _ in range(2):  # Spark tries a task again, in another worker
        monkeypatch.setattr(reader_module, "_executions", {})
        with pytest.raises(SettingsError, match="whose filters narrowed it"):
            rows()
    for _ in range(3):
        reader._plan = uuid.uuid4().hex
        rows()
    [folder] = tmp_path.iterdir()
    assert len(list(folder.iterdir())) == 2
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    assert rows() == 30, "a host without a place for it"


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


@pytest.fixture
def copied(filled: Any, follower: Any) -> tuple[Any, Any]:
    """A broker, and a follower that knows all but the last three messages of each queue."""
    filled.followers = (follower.endpoint,)
    for number in range(24):
        follower.send(str(number), queue=number % 2)
    return filled, follower


def lonely(broker: Any) -> None:
    """It goes on to answer for routes, and its queues are silent."""

    def refuse(_request: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    broker._offsets = refuse
    broker.stop()
    broker.start()


@pytest.mark.spec("HA-9")
def test_a_follower_plans_what_it_knows_while_the_leader_does_not_answer(copied: tuple[Any, Any]) -> None:
    leader, follower = copied
    assert planned(leader, readFrom="any") == [(0, 0, 15), (1, 0, 15)], "the leader is asked first"
    assert follower.calls == []
    lonely(leader)
    follower.low[1] = 4
    assert planned(leader, readFrom="any") == [(0, 0, 12), (1, 4, 12)]
    follower.low[1] = 0
    assert planned(leader, readFrom="any", startingTimestamp="5") == [(0, 1, 12), (1, 1, 12)]
    assert planned(leader, readFrom="any", endingOffsets=at(q0=7, q1=-1)) == [(0, 0, 7), (1, 0, 12)]
    assert planned(leader, readFrom="any", startingOffsets="latest") == []
    with pytest.raises(ConnectionFailed, match="no broker answers for"):
        planned(leader, readTimeoutMs="200")


@pytest.mark.parametrize(
    "more",
    [
        {"endingOffsets": at(q0=15)}, {"startingOffsets": at(q0=13)}, {"startingTimestamp": "7"},
        {"endingTimestamp": "7"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("lenient", ["true", "false"])
def test_what_a_follower_does_not_know_is_asked_of_the_leader_and_is_no_loss(
    copied: tuple[Any, Any], more: dict[str, str], lenient: str
) -> None:
    """An offset behind its end, and a time at or after which it has no message: the leader may have more."""
    leader, follower = copied
    follower.stored_later[7] = 12
    leader.stored_later[7] = 14
    assert planned(leader, readFrom="any", **more)
    lonely(leader)
    with pytest.raises(ConnectionFailed, match=r"its follower knows offsets 0 to 12"):
        planned(leader, readFrom="any", readTimeoutMs="200", failOnDataLoss=lenient, **more)


def test_progress_is_asked_of_the_leader_alone(copied: tuple[Any, Any]) -> None:
    leader, follower = copied
    lonely(leader)
    with pytest.raises(ConnectionFailed, match="the progress of group g is known to the leader only"):
        planned(leader, readFrom="any", readTimeoutMs="200", startingOffsets="group", group="g")
    assert follower.calls == []


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
    result = read(failOnDataLoss="false")
    assert len(result) == 32
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

    monkeypatch.setattr("pyspark_evenq.brokers.cluster.marks", away)
    assert sum(rows.num_rows for task in tasks for rows in reader.read(task)) == 30
    assert reader.partitions(), "nor is a plan without marks an error"


def test_long_ranges_are_split_but_not_those_of_an_ordered_topic(filled: Any) -> None:
    for options in ({"maxRecordsPerPartition": "5"}, {"minPartitions": "6"}):
        assert len(planned(filled, **options)) == 6
        filled.takes_groups = True
        assert planned(filled, **options) == [(0, 0, 15), (1, 0, 15)]
        filled.takes_groups = False
