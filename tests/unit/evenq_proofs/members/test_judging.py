"""Judging a run with members that come and go."""

from __future__ import annotations

from evenq_proofs.members.judging import Delivery, End, Hidden, hidden_times, late, lost, repeats

SECOND = 1_000_000


def delivered(*told: tuple[int, str, str]) -> list[Delivery]:
    return [Delivery(at * SECOND, member, body) for at, member, body in told]


def test_what_never_came_is_lost() -> None:
    assert lost({"s:0": 1, "s:1": 2}, delivered((3, "a", "s:1"))) == ["s:0"]


def test_a_first_delivery_behind_a_later_message_is_late_and_a_repeat_is_not() -> None:
    deliveries = delivered((1, "a", "s:0"), (2, "a", "s:2"), (3, "b", "s:1"), (4, "b", "s:0"), (5, "b", "t:0"))
    assert late(deliveries) == ["s:1 after 2"]
    assert repeats(deliveries) == 1


def test_the_order_is_that_of_the_listeners_and_not_of_the_lines() -> None:
    assert late(delivered((2, "a", "s:1"), (1, "b", "s:0"))) == []


def test_a_message_is_hidden_from_its_members_end_to_another_members_delivery() -> None:
    deliveries = delivered((1, "a", "s:0"), (12, "b", "s:0"), (1, "b", "t:0"), (13, "c", "t:0"))
    assert hidden_times(End(2 * SECOND, "a"), {"s:0": 0, "t:0": 0}, deliveries).held == [Hidden("s:0", 10_000)]


def test_what_was_finished_or_redelivered_before_is_not_hidden() -> None:
    deliveries = delivered((1, "a", "s:0"), (1, "a", "s:1"), (2, "b", "s:1"), (9, "c", "s:1"))
    assert hidden_times(End(3 * SECOND, "a"), {"s:0": 0, "s:1": 0}, deliveries).held == []


def test_what_was_stored_before_an_end_and_comes_first_after_it_was_waiting() -> None:
    deliveries = delivered((7, "b", "s:0"), (8, "b", "s:1"))
    seen = hidden_times(End(4 * SECOND, "a"), {"s:0": 3 * SECOND, "s:1": 5 * SECOND}, deliveries)
    assert (seen.held, seen.waiting) == ([], [Hidden("s:0", 3_000)])
