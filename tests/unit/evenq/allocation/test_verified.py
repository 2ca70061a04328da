"""The check of what a strategy gave."""

from __future__ import annotations

import pytest

from evenq.allocation import coverage, verified
from evenq.errors import BadRequest
from evenq.model import MessageQueue

QUEUES = [MessageQueue("T", "b", index) for index in range(3)]
QUEUES_of_cover = [MessageQueue("T", "r1@b", 0), MessageQueue("T", "r2@b", 0), MessageQueue("T", "r2@b", 1)]


def test_what_is_right_comes_back_for_all_members_in_their_order() -> None:
    assert verified({"b": (QUEUES[1],), "a": [QUEUES[0]]}, QUEUES, ["a", "b", "c"]) == {
        "a": [QUEUES[0]],
        "b": [QUEUES[1]],
        "c": [],
    }


@pytest.mark.parametrize(
    ("shares", "result"),
    [
        ({"x": []}, r"'MINE' gave queues to 'x', not a member; fix the strategy: give only to the ids"),
        ({"a": [MessageQueue("T", "b", 9)]}, r"'MINE' gave T@b:9 to 'a', which is not among the 3 queues"),
        ({"a": ["T@b:0"]}, r"'MINE' gave 'T@b:0' to 'a', which is not among"),
        ({"a": [QUEUES[0]], "b": [QUEUES[0]]}, r"'MINE' gave queue T@b:0 twice, to 'a' and 'b'; fix"),
        ({"a": [QUEUES[0], QUEUES[0]]}, r"'MINE' gave queue T@b:0 twice, to 'a' and 'a'"),
        ({"a": None}, r"'MINE' gave 'a' a NoneType; fix the strategy: give a list"),
        ({"a": "T@b:0"}, r"'MINE' gave 'a' a str"),
        ([QUEUES], r"'MINE' gave a list; fix the strategy: give a dict"),
        ({"x" * 500: []}, "…, not a member"),
    ],
)
def test_what_is_wrong_is_told_with_strategy_thing_and_fix(shares, result) -> None:
    with pytest.raises(BadRequest, match=result) as info:
        verified(shares, QUEUES, ["a", "b"], strategy="MINE")
    assert len(str(info.value)) < 400


def test_a_whole_allocation_is_complete_and_has_nothing_to_tell() -> None:
    seen = coverage(QUEUES_of_cover, {"a": QUEUES_of_cover[:1], "b": QUEUES_of_cover[1:]})
    assert seen.complete
    assert seen.idle == seen.uncovered_rooms == ()


def test_a_room_with_one_owned_queue_is_not_uncovered() -> None:
    assert coverage(QUEUES_of_cover, {"a": QUEUES_of_cover[:2]}).uncovered_rooms == ()
    assert coverage(QUEUES_of_cover, {"a": QUEUES_of_cover[:1]}).uncovered_rooms == ("r2",)


def test_zones_are_rooms_where_they_are_told() -> None:
    queues = [MessageQueue("T", broker, 0) for broker in ("a", "b", "r9@c")]
    seen = coverage(queues, {"m": queues[:1]}, {"a": "z1", "b": "z2"})
    assert seen.uncovered_rooms == ("r9", "z2")


def test_a_group_without_members_owns_nothing() -> None:
    assert coverage(QUEUES_of_cover, {}).unowned == tuple(QUEUES_of_cover)
