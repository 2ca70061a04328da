"""The stream reader as Spark calls it, in Spark's order, against a broker in memory."""

from __future__ import annotations

import json
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.waiting import until
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark_evenq.brokers.cluster import BrokersAway
from pyspark_evenq.member.member import QueueTaken
from pyspark_evenq.source.stream import StreamReader

from evenq.errors import ConnectionFailed, Forbidden, IllegalOffset, PreconditionFailed, SettingsError
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from tests.unit.pyspark_evenq.fake_groups import FakeGroups
from tests.unit.pyspark_evenq.spark_logs import SparkLogs

ALL = ReadAllAvailable()


@pytest.fixture
def made(stream_reader: Any) -> Any:
    given = {"startingOffsets": "earliest", "commitIntervalMs": "1", "readTimeoutMs": "2000"}
    return lambda **more: stream_reader(**given | more)


def rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Plan in the runner, read in a worker."""
    planned = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    worker = pickle.loads(pickle.dumps(reader))
    return [
        body.decode() for task in planned for batch in worker.read(task) for body in batch.column("body").to_pylist()
    ]


def wire(offset: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(json.dumps(offset))
    return result


def test_batches_follow_each_other_and_nothing_new_is_the_same_offset(broker: Any, made: Any) -> None:
    reader = made()
    broker.send("a", queue=0)
    start = wire(reader.initialOffset())
    first = wire(reader.latestOffset(start, ALL))
    assert wire(reader.initialOffset()) == start
    assert rows(reader, start, first) == ["a"]
    assert json.dumps(reader.latestOffset(first, ALL)) == json.dumps(first)
    broker.send("b", queue=1)
    broker.send("c", queue=0)
    second = wire(reader.latestOffset(first, ALL))
    assert sorted(rows(reader, first, second)) == ["b", "c"]
    assert "from" in first
    assert "from" not in second


def test_the_first_batch_replayed_by_another_process_reads_the_same(broker: Any, made: Any) -> None:
    one = made(startingOffsets="latest")
    broker.send("before")
    start = wire(one.initialOffset())
    broker.send("a")
    end = wire(one.latestOffset(start, ALL))
    broker.send("b")
    two = made(startingOffsets="latest")
    assert rows(two, wire(two.initialOffset()), end) == ["a"]


def test_a_group_without_progress_is_pinned_so_that_latest_survives_a_crash(broker: Any, made: Any) -> None:
    broker.send("before")
    made(startingOffsets="group").initialOffset()
    broker.send("a")
    again = made(startingOffsets="group")
    start = wire(again.initialOffset())
    assert rows(again, start, wire(again.latestOffset(start, ALL))) == ["a"]


def test_a_limit_holds_except_when_the_trigger_wants_everything(broker: Any, made: Any) -> None:
    for number in range(20):
        broker.send(str(number), queue=number % 2)
    reader = made(maxOffsetsPerTrigger="6")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    start = wire(reader.initialOffset())
    end = wire(reader.latestOffset(start, limit))
    assert len(rows(reader, start, end)) == 6
    assert len(rows(reader, end, wire(reader.latestOffset(end, ALL)))) == 14


def test_available_now_ends_at_what_was_there_and_leaves_no_lag(broker: Any, made: Any) -> None:
    for number in range(10):
        broker.send(str(number), queue=number % 2)
    reader = made(maxOffsetsPerTrigger="4", commitIntervalMs="3600000")
    reader.prepareForTriggerAvailableNow()
    start = wire(reader.initialOffset())
    broker.send("later")
    seen: list[str] = []
    while (end := wire(reader.latestOffset(start, reader.getDefaultReadLimit()))) != start:
        seen += rows(reader, start, end)
        start = end
    assert sorted(seen) == sorted(str(number) for number in range(10))
    assert broker.progress("g") == {0: 5, 1: 5}


def test_progress_reaches_the_broker_only_for_what_spark_has_logged(broker: Any, made: Any) -> None:
    broker.send("a")
    reader = made()
    start = wire(reader.initialOffset())
    first = wire(reader.latestOffset(start, ALL))
    assert broker.progress("g") == {0: 0, 1: 0}
    reader.latestOffset(first, ALL)
    reader.stop()
    assert broker.progress("g")[0] == 1


@pytest.mark.parametrize("done", [True, False])
def test_a_stop_reports_a_batch_that_spark_has_finished_and_no_other(
    broker: Any, made: Any, tmp_path: Path, done: bool
) -> None:
    logs = SparkLogs(tmp_path / "checkpoint")
    broker.send("a", queue=0)
    reader = made(checkpointLocation=f"file:{logs.folder}")
    start = wire(reader.initialOffset())
    end = wire(reader.latestOffset(start, ALL))
    reader.partitions(start, end)
    logs.plan(0, end)
    if done:
        logs.commit(0)
    reader.stop()
    assert broker.progress("g")[0] == (1 if done else 0)


def test_a_query_whose_checkpoint_is_elsewhere_does_not_begin(broker: Any, made: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="checkpointLocation"):
        made(checkpointLocation=str(tmp_path)).initialOffset()


@pytest.mark.slow
def test_a_broker_that_refuses_progress_does_not_stop_the_query(broker: Any, made: Any) -> None:
    broker.refuse_commits = True
    broker.send("a")
    reader = made(commitIntervalMs="100000")
    start = wire(reader.initialOffset())
    end = wire(reader.latestOffset(start, ALL))
    reader.commit(end)
    assert rows(reader, start, end) == ["a"]
    broker.refuse_commits = False


def test_a_broker_that_goes_away_stops_nobody_and_growth_is_seen_when_it_is_back(broker: Any, made: Any) -> None:
    broker.send("a")
    reader = made()
    start = wire(reader.initialOffset())
    end = wire(reader.latestOffset(start, ALL))
    broker.stop()
    assert wire(reader.latestOffset(end, ALL)) == end
    broker.send("b")
    broker.start()
    assert rows(reader, end, next_batch(reader, end)) == ["b"]


def test_growth_wakes_a_waiting_trigger(broker: Any, made: Any) -> None:
    reader = made(idleWaitMs="20000")
    start = wire(reader.initialOffset())
    assert wire(reader.latestOffset(start, ALL)) == start  # the first call asks without waiting
    timer = threading.Timer(0.2, broker.send, args=("a",))
    timer.start()
    assert rows(reader, start, wire(reader.latestOffset(start, ALL))) == ["a"]
    timer.join()


def test_messages_trimmed_before_they_were_planned_are_data_loss(broker: Any, made: Any) -> None:
    for number in range(10):
        broker.send(str(number))
    strict = made(maxOffsetsPerTrigger="2", idleWaitMs="10000")  # the broker answers at once, when it has its turn
    lenient = made(failOnDataLoss="false", group="h", idleWaitMs="10000")
    start = wire(strict.initialOffset())
    end = wire(strict.latestOffset(start, ReadMaxRows(2)))
    broker.low[0] = 5
    with pytest.raises(IllegalOffset, match=r"flights@broker-a:0 was to be read at offset 2, .* 5 to 10"):
        strict.latestOffset(end, ALL)
    assert rows(lenient, end, wire(lenient.latestOffset(end, ALL))) == ["5", "6", "7", "8", "9"]


def test_a_queue_that_the_checkpoint_does_not_know_is_read_from_its_beginning(broker: Any, made: Any) -> None:
    broker.send("old")
    reader = made()
    start = wire(reader.initialOffset())
    end = wire(reader.latestOffset(start, ALL))
    broker.queues[2], broker.low[2] = [], 0
    broker.send("new", queue=2)
    restarted = made()
    following = wire(restarted.latestOffset(end, ALL))
    assert rows(restarted, end, following) == ["new"]
    assert following["from"] == {"flights": {"broker-a": {"2": 0}}}


def test_a_queue_that_comes_later_begins_at_the_groups_progress_if_it_has_one(broker: Any, made: Any) -> None:
    reader = made()
    broker.send("old")
    end = wire(reader.latestOffset(wire(reader.initialOffset()), ALL))
    broker.queues[2], broker.low[2] = [], 0
    for number in range(4):
        broker.send(str(number), queue=2)
    broker.committed["g", 2] = 3
    restarted = made()
    assert rows(restarted, end, wire(restarted.latestOffset(end, ALL))) == ["3"]


@pytest.mark.parametrize("available_now", [True, False])
def test_a_topic_made_anew_that_has_grown_past_the_old_offset_is_noticed(
    broker: Any, made: Any, available_now: bool
) -> None:
    broker.uid = "old"
    for number in range(3):
        broker.send(f"old {number}")
    first = made()
    end = wire(first.latestOffset(wire(first.initialOffset()), ALL))
    first.latestOffset(end, ALL)
    first.stop()
    broker.uid, broker.queues, broker.committed = "new", {0: [], 1: []}, {}
    for number in range(5):
        broker.send(f"new {number}")
    strict, lenient = made(), made(failOnDataLoss="false")
    if available_now:
        strict.prepareForTriggerAvailableNow()
        lenient.prepareForTriggerAvailableNow()
    with pytest.raises(IllegalOffset, match=r"flights@broker-a:0 was to be read at offset 3, but .* created again"):
        strict.latestOffset(end, ALL)
    strict.stop()
    assert broker.committed == {}, "the old progress is none of the new topic's"
    following = wire(lenient.latestOffset(end, ALL))
    assert rows(lenient, end, following) == [f"new {number}" for number in range(5)]
    assert following["lost"] == {"flights": {"broker-a": {"0": 0, "1": 0}}}
    assert following["uid"] == {"flights": {"broker-a": "new"}}
    assert wire(lenient.latestOffset(following, ALL)) == following


@pytest.mark.parametrize("available_now", [True, False])
def test_a_lost_tail_is_an_error_or_reading_goes_on_at_what_is_left(
    broker: Any, made: Any, available_now: bool
) -> None:
    for number in range(9):
        broker.send(str(number))
    first = made()
    end = wire(first.latestOffset(wire(first.initialOffset()), ALL))
    del broker.queues[0][4:]
    strict, lenient = made(readTimeoutMs="200"), made(readTimeoutMs="200", failOnDataLoss="false")
    if available_now:
        strict.prepareForTriggerAvailableNow()
        lenient.prepareForTriggerAvailableNow()

    with pytest.raises(IllegalOffset, match=r"flights@broker-a:0 was to be read at offset 9, .* 0 to 4"):
        next_batch(strict, end)
    assert next_batch(lenient, end)["q"] == {"flights": {"broker-a": {"0": 4, "1": 0}}}


@pytest.mark.parametrize("came", [0, 1, 2])
@pytest.mark.parametrize("available_now", [True, False])
@pytest.mark.slow
def test_what_came_in_place_of_a_lost_tail_is_read_before_it_has_grown_past_the_old_offset(
    broker: Any, made: Any, available_now: bool, came: int
) -> None:
    broker.tells_marks = True
    for number in range(9):
        broker.send(f"old {number}")
    first = made()
    end = wire(first.latestOffset(wire(first.initialOffset()), ALL))
    del broker.queues[0][4:]
    for number in range(came):
        broker.send(f"new {number}")
    broker.stored_later[101] = 4
    reader = made(readTimeoutMs="200", failOnDataLoss="false")
    if available_now:
        reader.prepareForTriggerAvailableNow()
    following = next_batch(reader, end)
    assert following["from"] == {"flights": {"broker-a": {"0": 4}}}
    assert following["lost"] == {"flights": {"broker-a": {"0": 0}}}, "the tail had been read"
    last = f"new {came - 1}" if came else "old 3"
    assert following["mark"]["flights"]["broker-a"]["0"] == [4 + came, "64." + last.encode().hex()]
    assert rows(reader, end, following) == [f"new {number}" for number in range(came)]
    assert wire(reader.latestOffset(following, ALL)) == following, "reported once"
    broker.send("more")
    if not available_now:
        assert rows(reader, following, next_batch(reader, following)) == ["more"]


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(2)])
@pytest.mark.parametrize("available_now", [True, False])
def test_a_lost_tail_that_has_grown_past_the_old_offset_is_noticed(
    broker: Any, made: Any, available_now: bool, limit: Any
) -> None:
    broker.tells_marks = True
    for number in range(6):
        broker.send(f"old {number}")
    first = made()
    end = wire(first.latestOffset(wire(first.initialOffset()), ALL))
    assert end["mark"] == {"flights": {"broker-a": {"0": [6, "64." + b"old 5".hex()]}}}
    del broker.queues[0][4:]
    for number in range(5):
        broker.send(f"new {number}")
    broker.stored_later[101] = 4
    strict, lenient = made(), made(failOnDataLoss="false")
    if available_now:
        strict.prepareForTriggerAvailableNow()
        lenient.prepareForTriggerAvailableNow()
    with pytest.raises(IllegalOffset, match=r"flights@broker-a:0 was read up to offset 6, but .* lost the end"):
        next_batch(strict, end, limit)
    following = next_batch(lenient, end, limit)
    assert following["from"] == {"flights": {"broker-a": {"0": 4}}}
    assert following["lost"] == {"flights": {"broker-a": {"0": 0}}}
    result = rows(lenient, end, following)
    while len(result) < 5:
        start, following = following, next_batch(lenient, following, limit)
        assert "lost" not in following
        result += rows(lenient, start, following)
    assert result == [f"new {number}" for number in range(5)]
    assert following["mark"]["flights"]["broker-a"]["0"] == [9, "64." + b"new 4".hex()]


def test_what_was_noted_is_compared_when_the_broker_answers_again(
    broker: Any, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.tells_marks = True
    broker.send("old 0")
    broker.send("old 1")
    reader = made()
    end = wire(reader.latestOffset(wire(reader.initialOffset()), ALL))
    del broker.queues[0][1:]
    for number in range(3):
        broker.send(f"new {number}")

    def away(address: str, places: Any) -> Any:
        raise ConnectionFailed("no answer")

    with monkeypatch.context() as patched:
        patched.setattr("pyspark_evenq.brokers.cluster.marks", away)
        end = next_batch(reader, end)
    assert end["q"] == {"flights": {"broker-a": {"0": 4, "1": 0}}}
    assert end["mark"] == {"flights": {"broker-a": {"0": [2, "64." + b"old 1".hex()]}}}
    broker.send("more")
    with pytest.raises(IllegalOffset, match="lost the end of the queue"):
        next_batch(reader, end)


def test_a_broker_that_tells_no_marks_is_believed(broker: Any, made: Any) -> None:
    broker.send("a")
    reader = made()
    end = wire(reader.latestOffset(wire(reader.initialOffset()), ALL))
    assert "mark" not in end
    broker.tells_marks = True
    broker.send("b")
    end = next_batch(reader, end)
    assert end["mark"]["flights"]["broker-a"] == {"0": [2, "64." + b"b".hex()]}
    broker.low[0] = 2  # what was noted is trimmed, and nothing is lost
    broker.send("c")
    assert next_batch(reader, end)["mark"]["flights"]["broker-a"] == {"0": [3, "64." + b"c".hex()]}


def test_a_tail_that_is_back_in_a_moment_is_no_loss_for_available_now(broker: Any, made: Any) -> None:
    for number in range(9):
        broker.send(str(number))
    first = made()
    end = wire(first.latestOffset(wire(first.initialOffset()), ALL))
    tail = broker.queues[0][4:]
    del broker.queues[0][4:]
    again = made(readTimeoutMs="20000")
    again.prepareForTriggerAvailableNow()
    timer = threading.Timer(0.3, broker.queues[0].extend, args=(tail,))
    timer.start()
    assert wire(again.latestOffset(end, ALL)) == end
    timer.join()


def test_available_now_fails_for_queues_without_a_broker_or_leaves_them_out(broker: Any, made: Any) -> None:
    broker.away = {"broker-b": 2}
    broker.send("a")
    with pytest.raises(BrokersAway, match=r"flights on broker-b \(queues 0, 1\)"):
        made(readTimeoutMs="200").prepareForTriggerAvailableNow()
    lenient = made(readTimeoutMs="200", failOnUnavailable="false")
    lenient.prepareForTriggerAvailableNow()
    start = wire(lenient.initialOffset())
    end = wire(lenient.latestOffset(start, ALL))
    assert rows(lenient, start, end) == ["a"]
    assert end["away"] == {"flights": {"broker-b": [0, 1]}}


def test_an_offset_of_an_older_checkpoint_and_an_older_broker_are_taken_as_they_are(broker: Any, made: Any) -> None:
    broker.whole = False
    for number in range(4):
        broker.send(str(number))
    reader = made()
    old = {"v": 1, "q": {"flights": {"broker-a": {"0": 2, "1": 0}}}}
    end = wire(reader.latestOffset(old, ALL))
    assert rows(reader, old, end) == ["2", "3"]
    assert "uid" not in end


def test_the_report_tells_the_newest_offsets_whatever_the_limit(broker: Any, made: Any) -> None:
    for number in range(5):
        broker.send(str(number))
    reader = made(maxOffsetsPerTrigger="1")
    reader.latestOffset(wire(reader.initialOffset()), ReadMaxRows(1))
    assert reader.reportLatestOffset()["q"] == {"flights": {"broker-a": {"0": 5, "1": 0}}}


def test_two_sigterms_in_a_row_do_not_cut_off_the_last_progress(broker: Any) -> None:
    """Spark stops a query's runner that way."""
    program = f"""
        import os, signal, sys
        from evenq.columns.arrow_schema import OutputColumn
        from pyspark_evenq.options.source import ReadOptions
        from pyspark_evenq.source.stream import StreamReader
        given = {{"endpoints": "{broker.endpoint}", "subscribe": "flights", "group": "g",
                 "startingOffsets": "earliest", "commitIntervalMs": "3600000"}}
        reader = StreamReader(ReadOptions.parse(given, streaming=True), (OutputColumn("body", nullable=True),))
        reader.initialOffset()
        reader.commit({{"v": 1, "q": {{"flights": {{"broker-a": {{"0": 1}}}}}}}})
        print("ready", flush=True)
        signal.pause()
    """
    broker.send("a")
    broker.commit_pause = 0.5
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as runner:
        assert runner.stdout is not None
        assert runner.stdout.readline() == b"ready\n"
        before = broker.calls.count("CommitOffsets")
        runner.send_signal(signal.SIGTERM)
        while broker.calls.count("CommitOffsets") == before:
            assert runner.poll() is None
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(60) == -signal.SIGTERM
    assert broker.progress("g")[0] == 1


def known(broker: Any) -> FakeGroups:
    groups: FakeGroups = broker.know_groups()
    return groups


def next_batch(reader: StreamReader, start: dict[str, Any], limit: Any = ALL) -> dict[str, Any]:
    """The end of the next batch, when there is one."""

    def grown() -> dict[str, Any]:
        end: dict[str, Any] = wire(reader.latestOffset(start, limit))
        return end if end != start else {}

    return until(grown, "there is a batch")


def test_a_stream_that_runs_follows_a_move_and_reports_nothing_until_it_is_logged(broker: Any, made: Any) -> None:
    groups = known(broker)
    for number in range(5):
        broker.send(str(number))
    reader = made()
    start = wire(reader.initialOffset())
    first = wire(reader.latestOffset(start, ALL))
    assert rows(reader, start, first) == [str(number) for number in range(5)]
    reader.commit(first)
    groups.move("g", 0, 2)
    second = next_batch(reader, first)
    assert (second["from"], second["gen"]) == ({"flights": {"broker-a": {"0": 2}}}, 1)
    reader.commit(first)
    assert broker.progress("g")[0] == 2, "progress from before the move is none any more"
    assert groups.moved, "the broker is reported only when Spark has the batch"
    assert rows(reader, first, second) == ["2", "3", "4"]
    assert not groups.moved
    assert rows(made(group="", schemaStyle="kafka"), first, second) == ["2", "3", "4"], "so does every replay"


def test_a_move_does_not_wait_for_a_minimum_of_messages(broker: Any, made: Any) -> None:
    groups = known(broker)
    for number in range(5):
        broker.send(str(number))
    reader = made(minOffsetsPerTrigger="5")
    start = wire(reader.initialOffset())
    first = wire(reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert rows(reader, start, first) == [str(number) for number in range(5)]
    groups.move("g", 0, 4)
    assert rows(reader, first, next_batch(reader, first, reader.getDefaultReadLimit())) == ["4"]


def test_a_move_to_what_is_not_known_yet_is_followed_when_it_is(
    broker: Any, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = known(broker)
    reader = made()
    broker.send("a", queue=1)
    start = wire(reader.initialOffset())
    first = wire(reader.latestOffset(start, ALL))
    bounds = reader._runner.watch.bounds
    monkeypatch.setattr(reader._runner.watch, "refresh", lambda _: None)
    for number in range(3):
        broker.send(str(number))
    groups.move("g", 0, 2)
    while not reader._runner.queues.member.resets():
        reader._runner.queues.member.hold(reader._runner.watch.route())
    assert wire(reader.latestOffset(first, ALL)) == first
    monkeypatch.undo()
    second = next_batch(reader, first)
    assert bounds[broker.queue(0)].high == 3
    assert second["from"] == {"flights": {"broker-a": {"0": 2}}}
    assert rows(reader, first, second) == ["2"]
    assert not groups.moved


@pytest.mark.parametrize("available_now", [True, False])
@pytest.mark.parametrize(("how", "seen"), [("checkpoint", []), ("broker", ["1", "2"]), ("fail", None)])
def test_a_start_whose_group_was_moved_goes_by_what_was_chosen(
    broker: Any, made: Any, how: str, seen: list[str] | None, available_now: bool
) -> None:
    known(broker)
    for number in range(3):
        broker.send(str(number))
    one = made()
    end = wire(one.latestOffset(wire(one.initialOffset()), ALL))
    one.latestOffset(end, ALL)
    one.stop()
    assert broker.progress("g") == {0: 3, 1: 0}
    broker.committed["g", 0] = 1
    two = made(onOffsetConflict=how)
    if available_now:
        two.prepareForTriggerAvailableNow()
    if seen is None:
        with pytest.raises(PreconditionFailed, match=r"flights@broker-a:0 is at 1 in the group and at 3"):
            two.latestOffset(end, ALL)
        return
    following = wire(two.latestOffset(end, ALL))
    assert ([] if following == end else rows(two, end, following)) == seen
    assert wire(two.latestOffset(following, ALL)) == following


def test_progress_of_a_queue_that_somebody_has_taken_is_refused_and_ends_the_query(broker: Any, made: Any) -> None:
    groups = known(broker)
    reader = made()
    broker.send("a")
    first = wire(reader.latestOffset(wire(reader.initialOffset()), ALL))
    groups.holders["g", "flights", 0] = "host@7@other"
    broker.committed["g", 0] = 0
    with pytest.raises(QueueTaken, match="host@7@other has it"):
        next_batch(reader, first)
    assert broker.progress("g")[0] == 0


def test_a_prefix_makes_a_group_that_is_deleted_when_the_query_stops(broker: Any, made: Any) -> None:
    groups = known(broker)
    broker.send("before")
    reader = made(group="", groupIdPrefix="nightly", startingOffsets="latest", queryName="delays")
    start = wire(reader.initialOffset())
    (group,) = groups.made
    assert re.fullmatch(r"nightly-[0-9a-f]{16}", group)
    ((client_id, join),) = groups.joins.items()
    assert (join.group, "@spark-delays@" in client_id) == (group, True)
    broker.send("a")
    first = wire(reader.latestOffset(start, ALL))
    assert rows(reader, start, first) == ["a"]
    assert broker.progress(group) == {0: 1, 1: 0}
    reader.stop()
    assert (groups.made, groups.deleted, groups.joins) == ([group], [group], {})


def test_a_restart_goes_on_from_its_checkpoint_under_another_made_group(broker: Any, made: Any) -> None:
    groups = known(broker)
    broker.send("a")
    one, two = (made(group="", groupIdPrefix="nightly", startingOffsets="earliest") for _ in range(2))
    end = wire(one.latestOffset(wire(one.initialOffset()), ALL))
    one.stop()
    broker.send("b")
    assert rows(two, end, next_batch(two, end)) == ["b"]
    assert len(set(groups.made)) == 2


def test_a_query_that_may_not_make_its_group_says_so(broker: Any, made: Any, caplog: pytest.LogCaptureFixture) -> None:
    groups = known(broker)
    groups.refuses = definition_pb2.Status(code=definition_pb2.Code.FORBIDDEN, message="spark may not CREATE nightly-1")
    with pytest.raises(Forbidden, match="may not CREATE"):
        made(group="", groupIdPrefix="nightly").initialOffset()
    groups.refuses = None
    reader = made(group="", groupIdPrefix="nightly")
    reader.initialOffset()
    groups.refuses = definition_pb2.Status(code=definition_pb2.Code.FORBIDDEN, message="spark may not DELETE nightly-2")
    reader.stop()
    assert f"delete it with `evenq group delete {groups.made[-1]}`" in caplog.text


def test_without_a_group_and_a_prefix_nothing_is_made(broker: Any, made: Any) -> None:
    groups = known(broker)
    reader = made(group="", schemaStyle="kafka")
    reader.latestOffset(wire(reader.initialOffset()), ALL)
    reader.stop()
    assert (groups.made, groups.deleted, groups.joins, broker.committed) == ([], [], {}, {})
