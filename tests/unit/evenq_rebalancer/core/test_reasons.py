"""Sentences for people."""

from __future__ import annotations

import pytest
from evenq_rebalancer.core.holds import Hold
from evenq_rebalancer.core.inputs import Inputs
from evenq_rebalancer.core.modes import RequestMode, RequestModeSetting
from evenq_rebalancer.core.reasons import difference, idleness, instead, mismatch, waiting
from evenq_rebalancer.core.reports import MemberFact

from evenq.model import MessageQueue
from evenq.model.balance import BalancePolicy

QUEUES = tuple(MessageQueue("T", "b", index) for index in range(4))
HOLD = Hold(client_id="c", place="instance web-2", until_ms=9, until_wall_ms=1_700_000_000_500)


def inputs(ids: str = "ab", queues=QUEUES, strategy: str = "AVG", zones=(), **rest) -> Inputs:
    members = tuple(MemberFact(client_id=own, topics=("T",), zone=dict(zones).get(own, "")) for own in ids)
    return Inputs(**{"strategy": strategy, "mode": None, "queues": queues, "members": members, "topic": "T"} | rest)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (inputs("abc"), "c joined"),
        (inputs("b"), "a left"),
        (inputs("cdefg"), "c, d, e and 2 more joined; a, b left"),
        (inputs(queues=QUEUES[:3]), "queues changed from 4 to 3"),
        (inputs(strategy="STICKY"), "strategy changed from AVG to STICKY"),
        (inputs(mode=RequestModeSetting(mode=RequestMode.PULL)), "the request mode was set"),
        (inputs(balance=BalancePolicy(moves_max=1)), "the group's balance policy was set"),
        (inputs(zones=[("a", "z1")]), "zones changed"),
        (inputs(held={QUEUES[0]: HOLD}), "queues held for successors of c"),
        (inputs(), "computed again"),
    ],
)
def test_a_difference_is_one_phrase(now: Inputs, words: str) -> None:
    assert difference(inputs(), now) == words


def test_the_end_of_a_hold_is_a_reason() -> None:
    assert difference(inputs(held={QUEUES[0]: HOLD}), inputs()) == "queues held for successors of c given out"


def test_a_held_queue_says_for_whom_and_until_when() -> None:
    result = waiting(HOLD)
    assert result == (
        "c left and instance web-2 is being refilled: held for its successor until 2023-11-14T22:13:20.500+00:00"
    )


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (inputs("abcdef"), "6 members share 4 queues; add queues, or run 4 members at most"),
        (inputs("abcd", held={QUEUES[0]: HOLD}), "1 of them held for successors"),
        (inputs(queues=()), "the topic has no readable queue"),
        (inputs(strategy="CONSISTENT_HASH"), "CONSISTENT_HASH gives it none of the 4 queues"),
    ],
)
def test_an_idle_member_learns_why(now: Inputs, words: str) -> None:
    assert words in idleness(now, "a")


def test_rg_8_a_stranger_is_named_and_learns_why_it_is_idle() -> None:
    members = (MemberFact(client_id="a", topics=("T",)), MemberFact(client_id="b", topics=("U",)))
    now = Inputs(strategy="AVG", mode=None, queues=QUEUES, members=members, topic="T")
    assert mismatch("T", now) == "; b does not subscribe to T, though all members of a group should"
    assert idleness(now, "b") == "it does not subscribe to T, which others in the group do"
    assert mismatch("T", inputs()) == ""


def test_another_strategy_in_place_of_the_groups_own_is_told() -> None:
    assert instead(inputs(), "unknown") == ""
    assert (
        instead(inputs(strategy="STICKY", instead_of="OWN"), "unknown") == "; STICKY divides in place of OWN: unknown"
    )
