"""The table keeps its invariants under any sequence of events, and settles once the events stop."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from evenq.client.core.groups.rebalance import (
    OVERLAP_MS,
    Command,
    FindStart,
    Lock,
    Overlaps,
    RebalanceTable,
    RetrySoon,
    Start,
    Stop,
    Unlock,
)
from evenq.errors import InvalidTransition
from evenq.model import MessageQueue, QueueOffset

QUEUES = [MessageQueue(topic, "b", number) for topic in ("t", "u") for number in range(4)]
some = st.sets(st.sampled_from(QUEUES))
ONE, TWO = MessageQueue("t", "b", 1), MessageQueue("u", "b", 1)


class Loop(RuleBasedStateMachine):
    """Carries commands out in any order, as the loop does, and watches who is pulled and who holds a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RebalanceTable()
        self.locking: list[MessageQueue] = []
        self.finding: list[MessageQueue] = []
        self.leaving: list[MessageQueue] = []
        self.held: set[MessageQueue] = set()
        self.pulled: set[MessageQueue] = set()

    def perform(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Lock(queue):
                    assert queue not in self.locking
                    self.locking.append(queue)
                case FindStart(queue):
                    self.finding.append(queue)
                case Start(queue, offset):
                    assert queue in self.held, "pulled without a lock"
                    assert queue not in self.pulled, "two process queues of one queue"
                    assert offset >= 0
                    self.pulled.add(queue)
                case Stop(queue):
                    self.pulled.remove(queue)
                    self.leaving.append(queue)
                case Unlock(queue):
                    self.held.discard(queue)
                case _:
                    pass

    @rule(wanted=some)
    def assign(self, wanted: set[MessageQueue]) -> None:
        for topic in ("t", "u"):
            self.perform(self.table.assign(topic, {queue for queue in wanted if queue.topic == topic}))

    @rule(granted=st.booleans(), committed=st.integers(-2, 5))
    def answer_lock(self, granted: bool, committed: int) -> None:
        if self.locking:
            queue = self.locking.pop(0)
            if granted:
                self.held.add(queue)
            self.perform(self.table.locked(queue, granted=granted, committed=committed))

    @rule(offset=st.one_of(st.none(), st.integers(-1, 9)))
    def answer_start(self, offset: int | None) -> None:
        if self.finding:
            result = None if offset is None else QueueOffset(offset)
            self.perform(self.table.start_found(self.finding.pop(0), result))

    @rule()
    def leave(self) -> None:
        if self.leaving:
            queue = self.leaving.pop(0)
            self.held.discard(queue)
            self.perform(self.table.left(queue))

    @rule(queue=st.sampled_from(QUEUES))
    def lose(self, queue: MessageQueue) -> None:
        self.held.discard(queue) if queue in self.pulled else None
        self.perform(self.table.lost(queue))

    @rule(broker=st.sampled_from(sorted({queue.broker_name for queue in QUEUES})))
    def vacate(self, broker: str) -> None:
        self.perform(self.table.vacate([queue for queue in QUEUES if queue.broker_name == broker]))

    @rule(topic=st.sampled_from(["t", "u"]), up=st.booleans())
    def retake(self, topic: str, up: bool) -> None:
        self.perform(self.table.retake(topic, reachable=lambda _: up))

    @invariant()
    def holds(self) -> None:
        self.table.check()
        assert self.table.working() == self.pulled

    def teardown(self) -> None:
        self.perform(self.table.close())
        while self.locking or self.finding or self.leaving:
            self.answer_lock(True, 3)
            self.answer_start(0)
            self.leave()
        assert self.table.empty
        assert not self.held
        assert not self.pulled


Loop.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTable = Loop.TestCase


def test_a_move_that_cannot_be_tells_the_story_of_the_queue() -> None:
    table = RebalanceTable()
    table.assign("t", [QUEUES[0]])
    table.locked(QUEUES[0], granted=True, committed=1)
    with pytest.raises(InvalidTransition, match=r"locking.*active"):
        table.left(QUEUES[0])


def test_what_a_leaving_broker_has_is_committed_let_go_and_taken_anew() -> None:
    table = RebalanceTable()
    table.assign("t", [QUEUES[0]])
    table.locked(QUEUES[0], granted=True, committed=1)
    assert table.vacate(QUEUES) == [Stop(QUEUES[0])]
    assert table.vacate(QUEUES) == []
    assert table.left(QUEUES[0]) == [Lock(QUEUES[0])]


def test_what_was_refused_is_taken_again_once_its_broker_is_up_and_nothing_else_is() -> None:
    table = RebalanceTable()
    here, there = MessageQueue("t", "b", 0), MessageQueue("t", "c", 0)
    table.assign("t", [here, there, QUEUES[1]])
    table.locked(QUEUES[1], granted=True, committed=1)
    for queue in (here, there):
        assert table.locked(queue, granted=False) == [RetrySoon()]
    assert table.brokers() == {"b", "c"}
    assert table.retake("t", reachable=lambda broker: broker == "c") == [Lock(there)]
    assert table.retake("t", reachable=lambda _: True) == [Lock(here)]
    assert table.retake("t", reachable=lambda _: True) == []
    assert table.retake("u", reachable=lambda _: True) == []


def test_brokers_are_those_of_what_is_wanted_and_of_what_is_left_behind() -> None:
    table = RebalanceTable()
    left = MessageQueue("t", "old", 0)
    table.assign("t", [left])
    table.locked(left, granted=True, committed=1)
    table.assign("t", [QUEUES[0]])
    assert table.brokers() == {"b", "old"}
    table.left(left)
    assert table.brokers() == {"b"}


def test_a_queue_that_is_refused_for_two_minutes_is_told_of_once() -> None:
    overlaps = Overlaps()
    times = (5, OVERLAP_MS + 4, OVERLAP_MS + 5, OVERLAP_MS + 6, 9 * OVERLAP_MS)
    assert [overlaps.refused(ONE, now_ms) for now_ms in times] == [False, False, True, False, False]


def test_each_queue_counts_for_itself_and_from_the_last_time_that_it_was_ours_or_not_wanted() -> None:
    overlaps = Overlaps()
    assert not overlaps.refused(ONE, 0)
    assert not overlaps.refused(TWO, OVERLAP_MS // 2)
    overlaps.assigned("u", [])
    overlaps.assigned("t", [ONE])
    assert overlaps.refused(ONE, OVERLAP_MS)
    assert not overlaps.refused(TWO, 2 * OVERLAP_MS)
    overlaps.over(ONE)
    assert not overlaps.refused(ONE, 3 * OVERLAP_MS)
    assert overlaps.refused(ONE, 4 * OVERLAP_MS)
