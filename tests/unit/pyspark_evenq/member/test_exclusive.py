"""All queues are the query's: what it reports, and where its next batch begins, against a broker in memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark_evenq.brokers.made_group import MadeGroup
from pyspark_evenq.brokers.watch import QueueWatch
from pyspark_evenq.member import exclusive
from pyspark_evenq.member import member as member_module
from pyspark_evenq.member.exclusive import Committer, ExclusiveQueues, OffsetConflict, differ
from pyspark_evenq.member.holding import HeldQueues
from pyspark_evenq.member.member import QueueTaken
from pyspark_evenq.options.member import OnConflict
from pyspark_evenq.options.source import ReadOptions
from pyspark_evenq.plan.offsets import Positions, StreamOffset, place_of

from evenq.errors import ConnectionFailed, PreconditionFailed
from evenq.model.queue import MessageQueue
from tests.unit.pyspark_evenq.fake_groups import FakeGroups

QUEUE, OTHER = (MessageQueue("flights", "broker-a", number) for number in (0, 1))
LONG = 20_000


class Broker:
    """Takes progress, or fails as often as set up."""

    def __init__(self, *, failures: int = 0, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or ConnectionFailed("no server there")
        self.sent: list[dict[MessageQueue, int]] = []
        self.arrived = threading.Event()

    def __call__(self, positions: Positions) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error
        self.sent.append(dict(positions))
        self.arrived.set()


def test_progress_is_sent_without_being_asked_for() -> None:
    broker = Broker()
    committer = Committer(broker, interval_ms=10)
    committer.offer({QUEUE: 5})
    assert broker.arrived.wait(60)
    assert broker.sent == [{QUEUE: 5}]
    committer.close(timeout_ms=LONG)


def test_only_the_newest_offset_of_a_queue_is_sent_and_never_an_older_or_equal_one() -> None:
    broker = Broker()
    committer = Committer(broker, interval_ms=3_600_000)
    committer.offer({QUEUE: 1})
    assert broker.arrived.wait(60)  # the first goes at once, the next within the interval
    for offset in (5, 9, 7):
        committer.offer({QUEUE: offset, OTHER: 2})
    assert committer.flush(timeout_ms=LONG)
    committer.offer({QUEUE: 9})
    assert committer.flush(timeout_ms=LONG)
    assert broker.sent == [{QUEUE: 1}, {QUEUE: 9, OTHER: 2}]
    committer.close(timeout_ms=LONG)


def test_a_failure_is_counted_and_tried_again_and_never_raised() -> None:
    for error in (ConnectionFailed("away"), ValueError("a bug of ours")):
        broker = Broker(failures=2, error=error)
        committer = Committer(broker, interval_ms=1)
        committer.offer({QUEUE: 5})
        assert committer.flush(timeout_ms=LONG)
        assert committer.failures == 2
        assert broker.sent == [{QUEUE: 5}]
        committer.close(timeout_ms=LONG)


def test_a_flush_ends_in_time_when_the_broker_stays_away() -> None:
    committer = Committer(Broker(failures=1 << 30), interval_ms=1)
    committer.offer({QUEUE: 5})
    assert not committer.flush(timeout_ms=50)
    assert not committer.close(timeout_ms=1)


def test_without_progress_there_is_no_thread() -> None:
    before = threading.active_count()
    committer = Committer(Broker(), interval_ms=1)
    committer.offer({})
    assert committer.close(timeout_ms=LONG)
    assert threading.active_count() == before


def test_what_was_offered_of_a_queue_that_is_forgotten_is_not_sent_again() -> None:
    """Its topic was made anew while the old progress was on its way."""
    failing, go = threading.Event(), threading.Event()
    sent: list[dict[MessageQueue, int]] = []

    def send(positions: Positions) -> None:
        if not failing.is_set():
            failing.set()
            assert go.wait(60)
            raise ConnectionFailed("no server there")
        sent.append(dict(positions))

    committer = Committer(send, interval_ms=1)
    committer.offer({QUEUE: 9, OTHER: 2})
    assert failing.wait(60)
    committer.forget([QUEUE])
    go.set()
    assert committer.flush(timeout_ms=LONG)
    committer.offer({QUEUE: 4})
    assert committer.flush(timeout_ms=LONG)
    assert sent == [{OTHER: 2}, {QUEUE: 4}]
    committer.close(timeout_ms=LONG)


@pytest.fixture
def groups(broker: Any) -> FakeGroups:
    made: FakeGroups = broker.know_groups()
    return made


@pytest.fixture
def made(broker: Any, groups: FakeGroups, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(member_module, "GHOST_MS", 0)
    queues: list[ExclusiveQueues] = []
    watches: list[QueueWatch] = []

    def make(**more: str) -> ExclusiveQueues:
        given = {"endpoints": broker.endpoint, "subscribe": "flights", "group": "g", "readTimeoutMs": "20000"} | more
        options = ReadOptions.parse(given, streaming=True)
        watches.append(QueueWatch(options))
        watches[-1].look()
        queues.append(ExclusiveQueues(MadeGroup(options), watches[-1]))
        return queues[-1]

    yield make
    for one in queues:
        one.close()
    for watch in watches:
        watch.close()


def offset(broker: Any, *ends: int, uid: str = "", **starts: int) -> StreamOffset:
    """`q0=3`: the batch begins there."""
    queues = [broker.queue(number) for number in range(len(ends))]
    return StreamOffset(
        ends=dict(zip(queues, ends, strict=True)),
        starts={broker.queue(int(name[1:])): start for name, start in starts.items()},
        uids=dict.fromkeys(map(place_of, queues), uid) if uid else {},
    )


@pytest.mark.parametrize(
    ("choice", "expected"), [(OnConflict.CHECKPOINT, False), (OnConflict.BROKER, True), (OnConflict.FAIL, None)]
)
def test_a_difference_is_decided_as_the_option_says_and_told(
    broker: Any, choice: OnConflict, expected: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    group, checkpoint = {broker.queue(0): 7}, {broker.queue(0): 5}
    text = "flights@broker-a:0 is at 7 in the group and at 5 in the checkpoint"
    if expected is None:
        with pytest.raises(OffsetConflict, match=f"{text}.*set onOffsetConflict"):
            differ(choice, "g", group, checkpoint)
        return
    with caplog.at_level(logging.WARNING):
        assert differ(choice, "g", group, checkpoint) is expected
    assert text in caplog.text


def test_progress_is_reported_of_what_was_logged_but_not_where_it_counts_other_messages(
    broker: Any, groups: FakeGroups, made: Any
) -> None:
    broker.uid = "new"
    for number in range(2):
        broker.send("x", queue=number)
    queues = made()
    queues.begin(offset(broker, 0, 0, uid="new"), first=True, frozen=None)
    queues.offer(offset(broker, 1, 1, uid="old"))
    queues.flush()
    assert broker.progress("g") == {}, "of a topic that was made anew"
    queues.offer(offset(broker, 1, 1, uid="new"), but=[broker.queue(1)])
    queues.flush()
    assert broker.progress("g") == {0: 1}


def test_progress_that_another_member_makes_impossible_puts_the_locks_in_doubt(
    broker: Any, groups: FakeGroups, made: Any
) -> None:
    broker.send("x")
    queues = made()
    queues.begin(offset(broker, 0, 0), first=True, frozen=None)
    groups.join("g", "zombie's heir", topics=["flights"], holds=[0, 1])
    with pytest.raises(PreconditionFailed):
        queues._send({broker.queue(0): 1})
    with pytest.raises(QueueTaken):
        queues.begin(offset(broker, 0, 0), first=False, frozen=None)


def test_a_start_goes_by_the_group_where_that_is_chosen_and_differs(broker: Any, groups: FakeGroups, made: Any) -> None:
    for number in (0, 0, 0, 1, 1, 1):
        broker.send("x", queue=number)
    broker.committed |= {("g", 0): 2, ("g", 1): 1}
    queues = made(onOffsetConflict="broker")
    replayed = offset(broker, 3, 3, q1=1)
    queues.logged(offset(broker, 3, 1), replayed)
    start = offset(broker, 3, 3)
    queues.begin(start, first=False, frozen=None)
    held = queues.hold(start)
    assert held.moved == {broker.queue(0): 2}, "the other one is where its logged batch begins"
    assert held.ends == {broker.queue(0): 2, broker.queue(1): 3}
    later = queues.without(start, held, [broker.queue(0)])
    assert (later.moved, later.ends) == ({}, start.ends)


def test_a_group_that_agrees_with_the_checkpoint_moves_nothing(broker: Any, groups: FakeGroups, made: Any) -> None:
    broker.committed |= {("g", 0): 0}
    queues = made(onOffsetConflict="fail")
    start = offset(broker, 0, 0)
    queues.begin(start, first=False, frozen=None)
    assert queues.hold(start) == HeldQueues(
        queues=frozenset({broker.queue(0), broker.queue(1)}), ends=start.ends, moved={}
    )
    assert queues.has(broker.queue(0))
    assert queues.planned(start)


def test_a_move_is_followed_once_and_nothing_is_reported_before_its_batch_is_logged(
    broker: Any, groups: FakeGroups, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        broker.send("x")
    queues = made()
    start = offset(broker, 5, 0)
    queues.begin(start, first=True, frozen=None)
    groups.move("g", 0, 2)
    while not queues.member.resets():
        queues.wait(start)
    commit, reported = exclusive.cluster.commit, list[MessageQueue]()

    def noted(address: str, group: str, positions: Any, **more: Any) -> None:
        reported.extend(positions)
        commit(address, group, positions, **more)

    monkeypatch.setattr(exclusive.cluster, "commit", noted)
    queues.offer(start)
    queues.flush()
    assert reported == [broker.queue(1)], "the old progress would undo the move"
    queues.begin(start, first=False, frozen=None)
    assert queues.hold(start).moved == {broker.queue(0): 2}
    queues.logged(start, offset(broker, 5, 0, q0=2))
    groups.until(lambda: (0, 2) in groups.pulls)


def test_what_was_reported_last_is_stored_before_the_locks_are_let_go(
    broker: Any, groups: FakeGroups, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        broker.send("x")
    queues = made()
    queues.begin(offset(broker, 0, 0), first=True, frozen=None)
    held: list[bool] = []
    monkeypatch.setattr(
        exclusive.cluster, "commit", lambda *_, **__: held.append(queues.client_id in groups.holders.values())
    )
    queues.offer(offset(broker, 5, 0))
    queues.close()
    assert held[-1:] == [True]
