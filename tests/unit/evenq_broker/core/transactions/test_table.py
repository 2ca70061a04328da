"""The first decision wins, whatever comes when: decisions, checks, failed appends, restarts."""

from __future__ import annotations

import pytest
from evenq_broker.core.state.records import HalfPut, HalvesEnded, decode, encode
from evenq_broker.core.transactions.half_messages import HalfHeader
from evenq_broker.core.transactions.table import (
    SWEEP_MS,
    ZOMBIE_MS,
    DecisionStatus,
    TimerAction,
    TransactionOutcome,
    TransactionTable,
)
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from evenq.errors import InvalidTransition, TooManyRequests
from tests.unit.evenq_broker.conftest import users_of

HEADER = HalfHeader(None, 0, 0, 0, "c")
COMMITTED, ROLLED_BACK = TransactionOutcome.COMMITTED, TransactionOutcome.ROLLED_BACK


def table(**limits: int) -> TransactionTable:
    fields = {"open_max": 100, "decisions_max": 100, "checks_max": 3, "age_max_ms": 1_000_000, **limits}
    return TransactionTable(**fields)


def begun(made: TransactionTable, *numbers: int) -> TransactionTable:
    for number in numbers:
        made.begin(number, 1, first_ms=0, due_ms=6_000)
    return made


def decided(made: TransactionTable, number: int, outcome: TransactionOutcome) -> DecisionStatus:
    verdict = made.decide(number, outcome)
    if verdict is DecisionStatus.FIRST:
        made.settle(number, outcome)
    made.check()
    return verdict


@pytest.mark.parametrize("first", [COMMITTED, ROLLED_BACK])
def test_the_first_decision_wins_and_the_same_again_is_told_apart_from_another(first: TransactionOutcome) -> None:
    made = begun(table(), 5)
    other = ROLLED_BACK if first is COMMITTED else COMMITTED
    assert decided(made, 5, first) is DecisionStatus.FIRST
    assert decided(made, 5, first) is DecisionStatus.SAME
    assert decided(made, 5, other) is DecisionStatus.OTHER
    assert made.outcome(5) is first
    assert made.fire(5, 5, HEADER, 1, now_ms=0) is TimerAction.END


def test_nobody_may_decide_while_somebody_does() -> None:
    made = begun(table(), 5)
    assert made.decide(5, COMMITTED) is DecisionStatus.FIRST
    with pytest.raises(InvalidTransition):
        made.decide(5, ROLLED_BACK)
    assert made.fire(5, 5, HEADER, 1, now_ms=0) is TimerAction.WAIT
    made.undo(5)
    assert made.decide(5, ROLLED_BACK) is DecisionStatus.FIRST


def test_a_decision_that_did_not_reach_the_log_leaves_it_open() -> None:
    made = begun(table(), 5)
    half = made.get(5)
    assert half is not None
    made.decide(5, COMMITTED)
    made.settle(5, COMMITTED)
    made.reopen(5, half)
    made.check()
    assert made.outcome(5) is None
    assert decided(made, 5, ROLLED_BACK) is DecisionStatus.FIRST


def test_of_the_decided_ones_the_newest_are_remembered_and_the_others_are_long_ago() -> None:
    made = begun(table(decisions_max=2), 1, 2, 3)
    for number in (1, 2, 3):
        decided(made, number, COMMITTED)
    assert decided(made, 1, ROLLED_BACK) is DecisionStatus.LONG_AGO
    assert decided(made, 2, ROLLED_BACK) is DecisionStatus.OTHER


def test_checks_that_were_made_count_and_those_that_met_nobody_do_not() -> None:
    made = begun(table(checks_max=2), 5)
    for at in range(10):
        assert made.fire(5, 5 + at, HEADER, 1, now_ms=at) is TimerAction.CHECK
        made.missed(5)
    for at in range(2):
        assert made.fire(5, 20 + at, HEADER, 1, now_ms=at) is TimerAction.CHECK
        made.checked(5)
    assert made.fire(5, 30, HEADER, 1, now_ms=50) is TimerAction.GIVE_UP
    assert made.fire(5, 30, HEADER, 1, now_ms=50) is TimerAction.GIVE_UP, "the store could not take it: the same again"
    assert made.decide(5, COMMITTED) is DecisionStatus.GIVEN_UP


def test_without_producers_it_is_given_up_at_the_age_limit() -> None:
    made = begun(table(age_max_ms=1_000), 5)
    assert made.fire(5, 5, HEADER, 1, now_ms=999) is TimerAction.CHECK
    assert made.fire(5, 6, HEADER, 1, now_ms=1_000) is TimerAction.GIVE_UP


def test_a_timer_that_nobody_knows_is_open_with_the_counts_it_carries() -> None:
    made = table(checks_max=3)
    header = HalfHeader(7, 100, 2, 1, "c")
    assert made.fire(7, 70, header, 1, now_ms=200) is TimerAction.CHECK
    half = made.get(7)
    assert half is not None
    assert (half.timer_id, half.first_ms, half.checks, half.missed) == (70, 100, 2, 1)


def test_a_full_table_refuses_and_one_without_a_timer_makes_room() -> None:
    made = begun(table(open_max=2), 1, 2)
    with pytest.raises(TooManyRequests, match="transactions_max"):
        made.make_room(6_000, 1)
    assert made.make_room(6_001 + ZOMBIE_MS, 1) == [1, 2]
    assert len(made) == 0


def test_a_full_table_is_swept_once_in_a_while_also_after_the_clock_was_set_back() -> None:
    made = begun(table(open_max=1), 1)
    late_ms = 6_001 + ZOMBIE_MS
    with pytest.raises(TooManyRequests):
        made.make_room(late_ms - 1, 1)  # a sweep, one moment too early to find something
    with pytest.raises(TooManyRequests):
        made.make_room(late_ms, 1)
    assert made.make_room(late_ms - 1 + SWEEP_MS, 1) == [1]

    back = begun(table(open_max=1), 1)
    assert back.drop_zombies(6_000) == []
    assert back.drop_zombies(100 * ZOMBIE_MS) == [1]
    begun(back, 2)
    assert back.make_room(late_ms, 1) == [2], "as far from the last sweep as a clock that went on"


def test_a_tenant_leaves_open_transactions_to_others() -> None:
    names = {1: "a-1", 2: "a-2", 3: "b-1", 4: ""}
    users = users_of(a="topic:a-* publish", b="topic:b-* publish")
    made = TransactionTable(
        open_max=8, decisions_max=9, checks_max=3, age_max_ms=1_000_000, users=lambda: users,
        name_of=names.__getitem__,
    )  # fmt: skip
    for number, topic_id in enumerate((1, 2, 1, 2, 1, 2)):
        assert made.make_room(0, topic_id) == []
        made.begin(number, topic_id, first_ms=0, due_ms=6_000)
    for topic_id in (1, 2):
        with pytest.raises(TooManyRequests, match=r"6 open transactions, 6 of them under the grants of user a.*commit"):
            made.make_room(0, topic_id)
    assert made.make_room(0, 3) == []
    made.begin(6, 3, first_ms=0, due_ms=6_000)
    decided(made, 0, COMMITTED)
    with pytest.raises(TooManyRequests, match="5 of them"):
        made.make_room(0, 1)
    decided(made, 2, ROLLED_BACK)
    assert made.make_room(0, 1) == []
    assert made.make_room(0, 4) == [], "its topic is gone"
    made.check()


def test_a_full_share_is_swept_like_a_full_table() -> None:
    users = users_of(a="topic:a publish")
    made = TransactionTable(
        open_max=4, decisions_max=9, checks_max=3, age_max_ms=1_000_000, users=lambda: users,
        name_of=lambda _: "a",
    )  # fmt: skip
    begun(made, 1, 2, 3)
    with pytest.raises(TooManyRequests, match="user a"):
        made.make_room(0, 1)
    assert made.make_room(6_001 + ZOMBIE_MS, 1) == [1, 2, 3]
    made.check()


def test_only_those_whose_timer_is_overdue_by_an_hour_are_dropped_and_none_that_is_being_decided() -> None:
    made = begun(table(), 1, 2)
    made.renewed(2, 20, 6_001)
    made.begin(3, 1, first_ms=0, due_ms=6_000)
    assert made.decide(3, COMMITTED) is DecisionStatus.FIRST
    assert made.drop_zombies(6_000 + ZOMBIE_MS) == []
    assert made.drop_zombies(6_001 + ZOMBIE_MS) == [1], "2 was due later, 3 is being decided"
    assert made.drop_zombies(6_002 + ZOMBIE_MS) == [2]
    made.settle(3, COMMITTED)
    made.check()


def test_a_renewed_timer_keeps_the_one_before_until_it_fires() -> None:
    made = begun(table(), 5)
    for _ in range(2):  # the same twice is as good as once
        made.renewed(5, 50, 36_000)
        half = made.get(5)
        assert half is not None
        assert (half.timer_id, half.previous_id, half.due_ms) == (50, 5, 36_000)
    assert made.fire(5, 50, HEADER, 1, now_ms=36_000) is TimerAction.CHECK
    assert (half.timer_id, half.previous_id) == (50, -1)


def test_misses_are_counted_in_a_row() -> None:
    made = begun(table(), 5)
    half = made.get(5)
    assert half is not None
    for count in (1, 2, 3):
        made.missed(5)
        assert (half.checks, half.missed) == (0, count)
    made.checked(5)
    assert (half.checks, half.missed) == (1, 0)
    made.missed(5)
    assert (half.checks, half.missed) == (1, 1)


def test_every_field_of_an_open_one_and_every_decision_is_the_same_after_a_replay() -> None:
    made = begun(table(), 1, 2, 3, 4)
    made.missed(1)
    made.missed(1)
    made.checked(2)
    made.renewed(2, 22, 36_000)
    decided(made, 3, ROLLED_BACK)
    made.forget(4)
    again = table()
    for op in [*made.dump(), *made.dump()]:
        assert isinstance(op, HalfPut | HalvesEnded)
        again.apply(op)
    assert again.dump() == made.dump()
    assert again.op(1) == HalfPut(1, 1, 1, -1, 0, 6_000, 0, 2)
    assert again.op(2) == HalfPut(2, 1, 22, 2, 0, 36_000, 1, 0)
    assert (again.outcome(3), again.outcome(4), again.get(4)) == (ROLLED_BACK, None, None)
    again.check()


def test_in_a_replay_the_last_word_counts() -> None:
    made = begun(table(), 1, 2)
    opened = made.op(1)
    assert opened is not None
    made.apply(HalvesEnded((1, 2), (COMMITTED, TransactionOutcome.FORGOTTEN)))
    assert (len(made), made.outcome(1), made.outcome(2)) == (0, COMMITTED, None)
    assert decided(made, 2, ROLLED_BACK) is DecisionStatus.LONG_AGO
    made.apply(opened)  # its decision did not reach the log
    assert made.outcome(1) is None
    assert decided(made, 1, ROLLED_BACK) is DecisionStatus.FIRST


def test_what_is_decided_again_by_a_replay_is_the_newest() -> None:
    made = begun(table(decisions_max=2), 1, 2, 3)
    for number in (1, 2):
        decided(made, number, COMMITTED)
    made.apply(HalvesEnded((1,), (COMMITTED,)))
    decided(made, 3, COMMITTED)
    assert (made.outcome(1), made.outcome(2), made.outcome(3)) == (COMMITTED, None, COMMITTED)


def test_what_was_committed_before_its_message_could_be_read_is_delivered_by_its_timer() -> None:
    made = begun(table(), 5)
    made.decide(5, COMMITTED)
    made.settle(5, TransactionOutcome.TO_COMMIT)
    assert made.decide(5, COMMITTED) is DecisionStatus.SAME
    assert made.decide(5, ROLLED_BACK) is DecisionStatus.OTHER
    assert made.fire(5, 9, HEADER, 1, now_ms=0) is TimerAction.DELIVER


class Story(RuleBasedStateMachine):
    """A store of timers and a journal in the small; any order of what may happen to a few transactions."""

    @initialize()
    def begin(self) -> None:
        self.made = table(checks_max=2, decisions_max=1_000)
        self.now_ms = 0
        self.log: list[int] = []  # place -> number of the timer there
        self.pending: set[int] = set()
        self.unwritten: set[int] = set()  # appended, not readable yet
        self.journal: list[HalfPut | HalvesEnded] = []
        self.first: dict[int, TransactionOutcome] = {}
        self.delivered: dict[int, int] = {}
        self.given_up: dict[int, int] = {}

    def append(self, number: int) -> int:
        place = len(self.log)
        self.log.append(place if number < 0 else number)
        self.pending.add(place)
        return place

    def record(self, number: int) -> None:
        op = self.made.op(number)
        if op is not None:
            self.journal.append(op)

    @rule(lost=st.booleans())
    def send(self, lost: bool) -> None:
        number = self.append(-1)
        if not lost:
            self.made.begin(number, 1, first_ms=self.now_ms, due_ms=self.now_ms)
            self.record(number)

    @rule(
        data=st.data(),
        commit=st.booleans(),
        fate=st.sampled_from(["good", "good", "good", "undone", "failed", "unreadable"]),
    )
    def decide(self, data: st.DataObject, commit: bool, fate: str) -> None:
        if not self.log:
            return
        number = data.draw(
            st.sampled_from(sorted({n for n in self.log if self.made.get(n) or n in self.first}))
            if any(self.made.get(n) or n in self.first for n in self.log)
            else st.none()
        )
        if number is None:
            return
        outcome = COMMITTED if commit else ROLLED_BACK
        verdict = self.made.decide(number, outcome)
        if verdict is not DecisionStatus.FIRST:
            known = self.first[number]
            wanted = {outcome: DecisionStatus.SAME, TransactionOutcome.GIVEN_UP: DecisionStatus.GIVEN_UP}.get(
                known, DecisionStatus.OTHER
            )
            assert verdict is wanted
            return
        assert number not in self.first
        if fate == "undone":
            self.made.undo(number)
            return
        half = self.made.get(number)
        assert half is not None
        readable = [
            place
            for place in (half.timer_id, half.previous_id)
            if 0 <= place < len(self.log) and self.log[place] == number and place not in self.unwritten
        ]
        if fate == "unreadable":
            readable = []
        if not readable and commit:
            outcome = TransactionOutcome.TO_COMMIT
        self.made.settle(number, outcome)
        if fate == "failed":
            self.made.reopen(number, half)
            self.record(number)
            return
        self.first[number] = COMMITTED if commit else ROLLED_BACK
        self.journal.append(HalvesEnded((number,), (outcome,)))
        if outcome is COMMITTED:
            self.deliver(number)
        self.pending -= set(readable[:1])

    def deliver(self, number: int) -> None:
        self.delivered[number] = self.delivered.get(number, 0) + 1

    @rule(data=st.data(), reached=st.booleans(), fate=st.sampled_from(["good", "slow", "slow", "failed", "unrecorded"]))
    def fire(self, data: st.DataObject, reached: bool, fate: str) -> None:
        due = sorted(self.pending - self.unwritten)
        if not due:
            return
        place = data.draw(st.sampled_from(due))
        number = self.log[place]
        header = HalfHeader(None if place == number else number, 0, 0, 0, "c")
        firing = self.made.fire(number, place, header, 1, now_ms=self.now_ms)
        if firing in {TimerAction.CHECK, TimerAction.WAIT}:
            if firing is TimerAction.CHECK and reached:
                self.made.checked(number)
            elif firing is TimerAction.CHECK:
                self.made.missed(number)
            if fate == "failed":
                self.made.renewed(number, len(self.log), self.now_ms)  # a place that another message will have
                self.record(number)
                return
            self.pending.discard(place)
            renewed = self.append(number)
            if fate == "slow":
                self.unwritten.add(renewed)
            if fate != "unrecorded":
                self.made.renewed(number, renewed, self.now_ms)
                self.record(number)
            return
        if firing is TimerAction.GIVE_UP:
            assert self.first.setdefault(number, TransactionOutcome.GIVEN_UP) is TransactionOutcome.GIVEN_UP
            self.journal.append(HalvesEnded((number,), (TransactionOutcome.GIVEN_UP,)))
            if fate == "failed":
                return
            self.given_up[number] = self.given_up.get(number, 0) + 1
        elif fate == "failed":
            return
        elif firing is TimerAction.DELIVER:
            self.deliver(number)
        self.pending.discard(place)

    @rule()
    def write(self) -> None:
        self.unwritten.clear()

    @rule(snapshot=st.booleans())
    def restart(self, snapshot: bool) -> None:
        self.unwritten.clear()
        if snapshot:
            self.journal = list(self.made.dump())
        self.made = table(checks_max=2, decisions_max=1_000)
        for op in decode(encode(self.journal)):
            assert isinstance(op, HalfPut | HalvesEnded)
            self.made.apply(op)

    @invariant()
    def nothing_twice(self) -> None:
        if not hasattr(self, "made"):
            return
        self.made.check()
        assert max(self.delivered.values(), default=0) <= 1
        assert max(self.given_up.values(), default=0) <= 1
        for number, outcome in self.first.items():
            assert not (self.delivered.get(number) and outcome is not COMMITTED)
            assert not (self.given_up.get(number) and outcome is not TransactionOutcome.GIVEN_UP)
        open_timers = [self.log[place] for place in self.pending if self.log[place] not in self.first]
        assert len(open_timers) == len(set(open_timers)), "an open transaction has one timer"

    def teardown(self) -> None:
        if not hasattr(self, "made"):
            return
        self.unwritten.clear()
        for _ in range(4):
            for place in sorted(self.pending):
                number = self.log[place]
                header = HalfHeader(number, 0, 0, 0, "c")
                match self.made.fire(number, place, header, 1, now_ms=self.now_ms):
                    case TimerAction.DELIVER:
                        self.deliver(number)
                        self.pending.discard(place)
                    case TimerAction.END | TimerAction.GIVE_UP:
                        self.pending.discard(place)
                    case _:
                        self.made.checked(number)
        assert not self.pending, "everything ends"
        assert all(self.delivered.get(n) == 1 for n, outcome in self.first.items() if outcome is COMMITTED)


TestStory = pytest.mark.slow(Story.TestCase)  # 200 histories
TestStory.settings = hypothesis_settings(max_examples=200, stateful_step_count=40, deadline=None)
