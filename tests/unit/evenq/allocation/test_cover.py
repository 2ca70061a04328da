"""What `coverage` tells beyond tests/spec/test_allocation.py."""

from __future__ import annotations

from evenq.allocation import coverage
from evenq.model import MessageQueue

QUEUES = [MessageQueue("T", "r1@b", 0), MessageQueue("T", "r2@b", 0), MessageQueue("T", "r2@b", 1)]


def test_a_whole_allocation_is_complete_and_has_nothing_to_tell() -> None:
    seen = coverage(QUEUES, {"a": QUEUES[:1], "b": QUEUES[1:]})
    assert seen.complete
    assert seen.idle == seen.uncovered_rooms == ()


def test_a_room_with_one_owned_queue_is_not_uncovered() -> None:
    assert coverage(QUEUES, {"a": QUEUES[:2]}).uncovered_rooms == ()
    assert coverage(QUEUES, {"a": QUEUES[:1]}).uncovered_rooms == ("r2",)


def test_zones_are_rooms_where_they_are_told() -> None:
    queues = [MessageQueue("T", broker, 0) for broker in ("a", "b", "r9@c")]
    seen = coverage(queues, {"m": queues[:1]}, {"a": "z1", "b": "z2"})
    assert seen.uncovered_rooms == ("r9", "z2")


def test_a_group_without_members_owns_nothing() -> None:
    assert coverage(QUEUES, {}).unowned == tuple(QUEUES)
