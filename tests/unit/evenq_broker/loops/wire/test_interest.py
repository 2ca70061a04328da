"""The line for waiting polls: what goes in comes out."""

from __future__ import annotations

from evenq_broker.core.polls.interest import Want
from evenq_broker.loops.wire.interest import interest_hello, interest_of, notices, notices_of, waiting_polls

PULL, PUSH = Want("g", "t"), Want("g", "t", push=True)


def test_the_first_request_names_the_broker_and_an_ended_line_nobody() -> None:
    assert interest_of(interest_hello("a")) == ("a", [])
    assert interest_of(b"") == ("", [])


def test_polls_come_back_with_their_counts_also_those_that_ended() -> None:
    assert interest_of(waiting_polls({PULL: 3, PUSH: 0})).counts == [(PULL, 3), (PUSH, 0)]


def test_notices_come_back_in_order_and_as_often_as_they_were_given() -> None:
    assert notices_of(notices([PUSH, PULL, PULL])) == [PUSH, PULL, PULL]
