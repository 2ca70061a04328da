"""A context about which nothing is known."""

from __future__ import annotations

from evenq.allocation import Context, Sticky, divide
from evenq.model import MessageQueue


def test_everything_is_optional_and_each_context_has_facts_of_its_own() -> None:
    assert Context() == Context(owners={}, zone_of_broker={}, zone_of_member={}, moves_max=0)
    assert Context().owners is not Context().owners


def test_owners_that_are_no_members_and_queues_that_are_gone_do_not_matter() -> None:
    queues = [MessageQueue("T", "b", index) for index in range(2)]
    context = Context(owners={queues[0]: "gone", MessageQueue("T", "old", 9): "a"})
    assert divide(Sticky(), "g", queues, ["a"], context) == {"a": queues}
