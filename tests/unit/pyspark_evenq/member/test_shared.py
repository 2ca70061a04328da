"""A query that shares its group, as Spark calls it, against a broker in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.waiting import until
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_evenq.member.exclusive import OffsetConflict
from pyspark_evenq.plan.offsets import StreamOffset
from pyspark_evenq.plan.planner import batch_ranges
from pyspark_evenq.source.stream import StreamReader

from tests.unit.pyspark_evenq.fake_groups import FakeGroups
from tests.unit.pyspark_evenq.spark_logs import SparkLogs

ALL = ReadAllAvailable()
OTHER = "zzz"
"""Behind all client ids, so the strategy AVG gives it the second queue."""


@pytest.fixture
def groups(broker: Any) -> FakeGroups:
    made: FakeGroups = broker.know_groups()
    return made


@pytest.fixture
def made(stream_reader: Any, groups: FakeGroups) -> Any:
    given = {"startingOffsets": "earliest", "assignment": "shared", "readTimeoutMs": "20000"}
    return lambda **more: stream_reader(**given | more)


def following(reader: StreamReader, start: dict[str, Any], sizes: dict[int, int]) -> dict[str, Any]:
    """The next offset, once its batch has this number of messages of each queue; others may come before."""
    read: dict[int, int] = {}

    def enough() -> bool:
        nonlocal start
        end = json.loads(json.dumps(reader.latestOffset(start, ALL)))
        if end != start:  # an offset names its own batch, which was counted when it was new
            for part in batch_ranges(StreamOffset.from_json(start), StreamOffset.from_json(end)):
                read[part.queue.queue_id] = read.get(part.queue.queue_id, 0) + part.count
            reader.partitions(start, end)
        start = end
        return read == sizes

    until(enough, lambda: f"{read} and not {sizes} were read, up to {start}")
    return start


def begun(reader: StreamReader) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(reader.initialOffset()))
    return found


def test_alone_it_reads_everything_and_reports_after_each_batch(broker: Any, groups: Any, made: Any) -> None:
    broker.send("a", queue=0)
    broker.send("b", queue=1)
    reader = made(commitIntervalMs="3600000", memberWeight="3", queryName="delays")
    end = following(reader, begun(reader), {0: 1, 1: 1})
    ((client_id, join),) = groups.joins.items()
    assert "@spark-delays@" in client_id
    assert (join.member.capacity, join.hands_over) == (3, True)
    assert broker.progress("g") == {0: 0, 1: 0}, "the batch is not in Spark's log"
    reader.latestOffset(end, ALL)
    until(lambda: broker.progress("g") == {0: 1, 1: 1})
    reader.stop()
    groups.until(lambda: not groups.joins and not groups.holders)


def test_a_queue_leaves_when_the_batch_that_reads_it_is_logged(broker: Any, groups: Any, made: Any) -> None:
    broker.send("a", queue=0)
    broker.send("b", queue=1)
    reader = made()
    end = following(reader, begun(reader), {0: 1, 1: 1})
    groups.join("g", OTHER, topics=["flights"])
    asked = groups.waits("g", 1, OTHER)
    assert not asked.is_set(), "a batch reads it"
    reader.latestOffset(end, ALL)
    assert asked.wait(60)
    assert broker.progress("g")[1] == 1, "who gets it begins behind the batch"
    broker.send("c", queue=1)
    broker.send("d", queue=0)
    end = following(reader, end, {0: 1})
    assert list(end["q"]["flights"]["broker-a"]) == ["0"], "the offset names its own queues"


@pytest.mark.parametrize("done", [True, False])
def test_a_stop_reports_a_batch_that_spark_has_finished_and_no_other(
    broker: Any, groups: Any, made: Any, tmp_path: Path, done: bool
) -> None:
    logs = SparkLogs(tmp_path / "checkpoint")
    broker.send("a", queue=0)
    broker.send("b", queue=1)
    reader = made(checkpointLocation=str(logs.folder))
    end = following(reader, begun(reader), {0: 1, 1: 1})
    logs.plan(0, end)
    if done:
        logs.commit(0)
    reader.stop()
    groups.until(lambda: not groups.joins and not groups.holders)
    assert broker.progress("g") == ({0: 1, 1: 1} if done else {0: 0, 1: 0})


def test_a_queue_leaves_before_the_next_trigger_once_the_checkpoint_has_the_batch(
    broker: Any, groups: Any, made: Any, tmp_path: Path
) -> None:
    logs = SparkLogs(tmp_path / "checkpoint")
    broker.send("a", queue=0)
    broker.send("b", queue=1)
    reader = made(checkpointLocation=str(logs.folder))
    end = following(reader, begun(reader), {0: 1, 1: 1})
    logs.plan(0, end)
    groups.join("g", OTHER, topics=["flights"])
    asked = groups.waits("g", 1, OTHER)
    assert not asked.wait(1.0), "the batch is not done"
    logs.commit(0)
    assert asked.wait(60)
    assert broker.progress("g")[1] == 1
    broker.send("c", queue=1)
    broker.send("d", queue=0)
    end = following(reader, end, {0: 1})
    assert list(end["q"]["flights"]["broker-a"]) == ["0"]
    reader.stop()
    assert broker.progress("g")[1] == 1, "what others have is not this query's to report"


def test_a_queue_leaves_when_no_report_of_it_is_on_its_way_any_more(
    broker: Any, groups: Any, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker.send("a", queue=0)
    broker.send("b", queue=1)
    reader = made()
    end = following(reader, begun(reader), {0: 1, 1: 1})
    groups.join("g", OTHER, topics=["flights"])
    asked = groups.waits("g", 1, OTHER)
    broker.many_pause = 1.0
    reader.latestOffset(end, ALL)
    assert asked.wait(60)
    until(lambda: broker.progress("g") == {0: 1, 1: 1})
    assert "another member has the queue" not in caplog.text


def test_a_batch_begins_when_the_one_before_is_reported(broker: Any, groups: Any, made: Any) -> None:
    broker.send("a", queue=0)
    broker.send("b", queue=1)
    reader = made()
    end = following(reader, begun(reader), {0: 1, 1: 1})
    broker.many_pause = 0.1
    broker.send("c", queue=0)
    assert until(lambda: (new := reader.latestOffset(end, ALL)) != end and new)
    assert broker.progress("g") == {0: 1, 1: 1}


def test_a_queue_that_comes_back_begins_where_the_group_is(broker: Any, groups: Any, made: Any) -> None:
    broker.send("a", queue=0)
    broker.send("b", queue=1)
    reader = made()
    end = following(reader, begun(reader), {0: 1, 1: 1})
    groups.join("g", OTHER, topics=["flights"])
    asked = groups.waits("g", 1, OTHER)
    until(lambda: reader.latestOffset(end, ALL) is not None and asked.is_set())
    for body in "cdef":
        broker.send(body, queue=1)
    broker.committed["g", 1] = 4
    groups.leave(OTHER)
    end = following(reader, end, {1: 1})
    assert end["from"] == {"flights": {"broker-a": {"1": 4}}}


def test_where_others_have_read_on_a_restart_begins_behind_them(broker: Any, groups: Any, made: Any) -> None:
    for body in "abcd":
        broker.send(body, queue=0)
    broker.committed |= {("g", 0): 3, ("g", 1): 0}
    checkpoint = {"v": 1, "q": {"flights": {"broker-a": {"0": 1, "1": 0}}}}
    reader = made()
    end = following(reader, checkpoint, {0: 1})
    assert end["from"]["flights"]["broker-a"]["0"] == 3


@pytest.mark.parametrize("conflict", ["checkpoint", "broker", "fail"])
def test_what_a_killed_run_could_not_report_is_not_read_again(
    broker: Any, groups: Any, made: Any, conflict: str
) -> None:
    for body in "abcd":
        broker.send(body, queue=0)
    broker.committed |= {("g", 0): 1, ("g", 1): 0}
    checkpoint = {"v": 1, "q": {"flights": {"broker-a": {"0": 3, "1": 0}}}}
    reader = made(onOffsetConflict=conflict)
    if conflict == "fail":
        with pytest.raises(OffsetConflict, match="at 1 in the group and at 3 in the checkpoint"):
            following(reader, checkpoint, {0: 1})
        return
    following(reader, checkpoint, {0: 1 if conflict == "checkpoint" else 3})


def test_a_reset_begins_a_queue_anew(broker: Any, groups: Any, made: Any) -> None:
    for body in "abc":
        broker.send(body, queue=0)
    reader = made()
    end = following(reader, begun(reader), {0: 3})
    until(lambda: reader.latestOffset(end, ALL) is not None and broker.progress("g")[0] == 3)
    groups.move("g", 0, 1)
    end = following(reader, end, {0: 2})
    assert end["from"] == {"flights": {"broker-a": {"0": 1}}}
    until(lambda: reader.latestOffset(end, ALL) is not None and broker.progress("g")[0] == 3)


def test_a_run_with_an_end_reads_its_share_up_to_there(broker: Any, groups: Any, made: Any) -> None:
    for number in range(6):
        broker.send(str(number), queue=number % 2)
    reader = made()
    reader.prepareForTriggerAvailableNow()
    start = begun(reader)
    broker.send("later")
    end = following(reader, start, {0: 3, 1: 3})
    assert json.loads(json.dumps(reader.latestOffset(end, ALL))) == end
    until(lambda: broker.progress("g") == {0: 3, 1: 3})
