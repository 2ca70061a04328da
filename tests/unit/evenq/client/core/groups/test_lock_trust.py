"""Locks after silences and breaks, played with a broker that takes them away."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evenq.client.core.groups.lock_trust import LockState, LockTrust

LEASE_MS = 1_000
TRUST_MS = 500


def joined(now_ms: int = 0) -> LockTrust:
    trust = LockTrust()
    trust.welcome(now_ms, lease_ms=LEASE_MS)
    assert trust.confirm(now_ms, suspicions=trust.suspicions)
    return trust


def test_nothing_is_trusted_before_the_first_session_and_nothing_is_suspect() -> None:
    trust = LockTrust()
    assert trust.state is LockState.AWAY
    assert trust.sure(0)
    assert not trust.trusted(0, trust_ms=TRUST_MS)
    trust.end(5)
    assert not trust.trusted(5, trust_ms=TRUST_MS), "there was no session that could end"


def test_a_session_that_begins_must_ask_for_its_locks() -> None:
    trust = LockTrust()
    trust.welcome(10, lease_ms=LEASE_MS)
    assert trust.state is LockState.SUSPECT
    assert not trust.sure(10)
    assert trust.confirm(11, suspicions=1)
    assert trust.state is LockState.HELD
    assert trust.trusted(11, trust_ms=0)


def test_a_silence_of_a_lease_makes_suspect_before_anybody_noticed() -> None:
    trust = joined()
    assert trust.sure(LEASE_MS - 1)
    assert not trust.sure(LEASE_MS), "time alone"
    assert trust.speak(LEASE_MS)
    assert not trust.sure(LEASE_MS), "having spoken does not bring them back"
    assert not trust.speak(LEASE_MS + 1)
    assert not trust.sure(LEASE_MS + 1)
    assert trust.confirm(LEASE_MS + 2, suspicions=trust.suspicions)
    assert trust.sure(LEASE_MS + 2)


def test_an_answer_to_an_older_question_confirms_nothing() -> None:
    trust = joined()
    asked = trust.suspicions
    assert trust.speak(LEASE_MS)
    assert not trust.confirm(LEASE_MS, suspicions=asked)
    assert not trust.sure(LEASE_MS)
    assert not trust.confirm(2 * LEASE_MS, suspicions=trust.suspicions), "silent again while it was on its way"


@pytest.mark.parametrize("ended_ms", [0, 400])
def test_locks_outlive_a_break_for_the_trust_time(ended_ms: int) -> None:
    trust = joined()
    trust.end(ended_ms)
    assert trust.state is LockState.AWAY
    assert trust.trusted(ended_ms + TRUST_MS, trust_ms=TRUST_MS)
    assert not trust.trusted(ended_ms + TRUST_MS + 1, trust_ms=TRUST_MS)
    assert trust.sure(ended_ms + 10 * LEASE_MS), "no more is known than that it ended"
    trust.end(ended_ms + 100)
    assert not trust.trusted(ended_ms + TRUST_MS + 1, trust_ms=TRUST_MS), "an end is one end"


def test_a_break_after_a_silence_or_under_suspicion_leaves_nothing_to_trust() -> None:
    slept = joined()
    slept.end(LEASE_MS)
    assert slept.state is LockState.AWAY_SUSPECT
    assert not slept.trusted(LEASE_MS, trust_ms=TRUST_MS)
    fresh = LockTrust()
    fresh.welcome(0, lease_ms=LEASE_MS)
    fresh.end(1)
    assert fresh.state is LockState.AWAY_SUSPECT
    assert not fresh.sure(1)
    assert not fresh.confirm(1, suspicions=fresh.suspicions), "no broker can have answered"


def test_without_a_lease_silence_means_nothing() -> None:
    trust = LockTrust()
    trust.welcome(0, lease_ms=0)
    assert trust.confirm(0, suspicions=1)
    assert trust.sure(1 << 40)
    assert not trust.speak(1 << 40)


class MemberAndBroker(RuleBasedStateMachine):
    """A broker that hears what the member says at once, and gives its locks away after a silence of a lease, or
    `TRUST_MS` after the session's end. The member hears of that only by asking, and answers may be on their way while
    more happens.
    """

    @initialize()
    def begin(self) -> None:
        self.now_ms = 0
        self.trust = LockTrust()
        self.heard_ms: int | None = None
        self.ended_ms: int | None = None
        self.holds = False
        """What is true at the broker: the member has the locks that it thinks it has."""
        self.asked_under: int | None = None

    def broker_acts(self) -> None:
        dropped = self.heard_ms is not None and self.now_ms - self.heard_ms >= LEASE_MS
        forgotten = self.ended_ms is not None and self.now_ms - self.ended_ms > TRUST_MS
        if dropped or forgotten:
            self.holds = False

    @rule(ms=st.sampled_from([1, TRUST_MS, TRUST_MS + 1, LEASE_MS - 1, LEASE_MS]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        self.broker_acts()

    @rule()
    def somebody_else_takes_over(self) -> None:
        """An operator moves the queue while no session stands: the member cannot know."""
        if self.heard_ms is None and not self.trust.trusted(self.now_ms, trust_ms=TRUST_MS):
            self.holds = False

    @precondition(lambda self: self.heard_ms is None)
    @rule()
    def session_begins(self) -> None:
        self.heard_ms, self.ended_ms = self.now_ms, None
        self.trust.welcome(self.now_ms, lease_ms=LEASE_MS)

    @precondition(lambda self: self.heard_ms is not None)
    @rule()
    def member_speaks(self) -> None:
        self.broker_acts()
        self.trust.speak(self.now_ms)
        self.heard_ms = self.now_ms

    @precondition(lambda self: self.heard_ms is not None)
    @rule()
    def session_breaks(self) -> None:
        self.broker_acts()
        self.trust.end(self.now_ms)
        self.heard_ms, self.ended_ms = None, self.now_ms
        self.asked_under = None

    @precondition(lambda self: self.heard_ms is not None)
    @rule()
    def member_asks(self) -> None:
        """The broker takes the question as a word, and gives the locks back; what it cannot give is let go."""
        self.member_speaks()
        self.holds = True
        self.asked_under = self.trust.suspicions

    @precondition(lambda self: self.asked_under is not None)
    @rule()
    def answer_arrives(self) -> None:
        assert self.asked_under is not None
        self.trust.confirm(self.now_ms, suspicions=self.asked_under)
        self.asked_under = None

    @invariant()
    def what_is_trusted_is_held(self) -> None:
        if self.trust.trusted(self.now_ms, trust_ms=TRUST_MS):
            assert self.holds


MemberAndBroker.TestCase.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)
TestMemberAndBroker = pytest.mark.slow(MemberAndBroker.TestCase)  # 400 histories
