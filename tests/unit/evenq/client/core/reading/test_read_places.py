"""A reader of any copy: the leader first, a follower while it is away or far ahead, and none that has just failed."""

from __future__ import annotations

import random

import pytest

from evenq.client.core.reading.read_places import (
    BEHIND_MS,
    FOLLOWER_FIRST_MS,
    FOLLOWER_MAX_MS,
    LEADER_FIRST_MS,
    LEADER_MAX_MS,
    ReadPlace,
    ReadPlaces,
)

LEADER = ReadPlace("leader:1", leads=True)
FIRST, SECOND = ReadPlace("first:1", leads=False), ReadPlace("second:1", leads=False)
FOLLOWERS = (FIRST.address, SECOND.address)


def next_of(
    places: ReadPlaces, now_ms: int, *, leader: str = LEADER.address, followers: tuple[str, ...] = FOLLOWERS
) -> ReadPlace | None:
    return places.next(leader, followers, now_ms)


@pytest.mark.spec("HA-9")
def test_a_reader_that_keeps_up_asks_the_leader() -> None:
    places = ReadPlaces()
    for now_ms in range(0, 10_000, 500):
        assert next_of(places, now_ms) == LEADER
        places.answered(LEADER, empty=now_ms % 1_000 == 0, far_behind=False, now_ms=now_ms)


def test_followers_stand_in_for_a_leader_that_failed_until_it_is_due_again() -> None:
    places = ReadPlaces()
    places.failed(LEADER, 100)
    assert places.leader_is_away
    assert next_of(places, 100) == FIRST
    places.answered(FIRST, empty=True, far_behind=False, now_ms=110)
    assert next_of(places, 99 + LEADER_FIRST_MS) == FIRST, "an empty answer is no reason to ask the leader sooner"
    assert next_of(places, 100 + LEADER_FIRST_MS) == LEADER
    places.answered(LEADER, empty=True, far_behind=False, now_ms=100 + LEADER_FIRST_MS)
    assert not places.leader_is_away
    assert next_of(places, 101 + LEADER_FIRST_MS) == LEADER


def test_a_leader_that_fails_on_is_asked_more_seldom_but_never_left() -> None:
    places, now_ms, pauses = ReadPlaces(), 0, []
    for _ in range(8):
        places.failed(LEADER, now_ms)
        due_ms = next(at for at in range(now_ms, now_ms + 60_000, 100) if next_of(places, at) == LEADER)
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (LEADER_FIRST_MS, LEADER_MAX_MS)


def test_a_leader_at_another_address_is_asked_at_once() -> None:
    places = ReadPlaces()
    for now_ms in range(5):
        places.failed(LEADER, now_ms)
    assert next_of(places, 10) == FIRST
    assert next_of(places, 10, leader="second:9") == ReadPlace("second:9", leads=True)


def test_a_follower_that_failed_is_left_alone_and_the_one_that_answered_is_kept() -> None:
    places = ReadPlaces()
    places.failed(LEADER, 0)
    places.failed(FIRST, 10)
    assert next_of(places, 10) == SECOND
    places.answered(SECOND, empty=False, far_behind=False, now_ms=20)
    places.failed(LEADER, 20 + FOLLOWER_FIRST_MS)
    assert next_of(places, 21 + FOLLOWER_FIRST_MS) == SECOND, "the first would be usable again"
    places.failed(SECOND, 22 + FOLLOWER_FIRST_MS)
    assert next_of(places, 23 + FOLLOWER_FIRST_MS) == FIRST


def test_without_a_usable_follower_the_leader_is_asked_and_without_both_nobody() -> None:
    places = ReadPlaces()
    places.failed(LEADER, 0)
    assert next_of(places, 1, followers=()) == LEADER
    assert next_of(places, 1, leader="", followers=()) is None
    assert next_of(places, 1, leader="") == FIRST


@pytest.mark.spec("HA-9", "LQ-69")
def test_a_reader_far_behind_reads_a_follower_until_that_has_no_more() -> None:
    places = ReadPlaces()
    places.answered(LEADER, empty=False, far_behind=True, now_ms=0)
    assert next_of(places, 1) == FIRST
    places.answered(FIRST, empty=False, far_behind=False, now_ms=2)
    assert next_of(places, BEHIND_MS - 1) == FIRST
    assert next_of(places, BEHIND_MS) == LEADER, "and now and then the leader says whether it is still so"
    places.answered(LEADER, empty=False, far_behind=True, now_ms=BEHIND_MS)
    places.answered(FIRST, empty=True, far_behind=False, now_ms=BEHIND_MS + 1)
    assert next_of(places, BEHIND_MS + 2) == LEADER, "the follower has given all that it knows"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_a_leader_is_asked_again_within_bounds(seed: int) -> None:
    """Random answers and failures; a leader that is known is never silent for longer than the longest pause."""
    numbers, places, now_ms, asked_ms = random.Random(seed), ReadPlaces(), 0, 0
    for _ in range(2_000):
        now_ms += numbers.randrange(400)
        place = next_of(places, now_ms, followers=FOLLOWERS[: numbers.randrange(3)])
        assert place is not None
        if place.leads:
            asked_ms = now_ms
        assert now_ms - asked_ms <= max(BEHIND_MS, LEADER_MAX_MS) + 400
        if numbers.random() < 0.5:
            places.failed(place, now_ms)
        else:
            far = place.leads and numbers.random() < 0.3
            places.answered(place, empty=numbers.random() < 0.5, far_behind=far, now_ms=now_ms)


def test_a_follower_that_cannot_be_reached_is_tried_more_and_more_seldom() -> None:
    """Readers may be kept from the address of followers: then each try costs a whole deadline."""
    places, now_ms, pauses = ReadPlaces(), 0, []
    for _ in range(8):
        places.failed(LEADER, now_ms)
        places.failed(FIRST, now_ms)
        due_ms = next(
            at for at in range(now_ms, now_ms + 99_000, 500) if next_of(places, at, leader="", followers=("first:1",))
        )
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (FOLLOWER_FIRST_MS, FOLLOWER_MAX_MS)
    places.answered(FIRST, empty=False, far_behind=False, now_ms=now_ms)
    places.failed(FIRST, now_ms)
    assert next_of(places, now_ms + FOLLOWER_FIRST_MS, leader="", followers=("first:1",)) == FIRST
