"""R22: a leader whose disk is full lets a copy in sync that has room lead, seldom, and only if enough copies have room."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from evenq_broker.core.replication.actions import Action, CompareAndSet, HandedOver, Send
from evenq_broker.core.replication.messages import FollowerProgress, Nomination
from evenq_broker.core.replication.record import Seen
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import NOTHING, Role
from group import PAIRS, confirm, envelope, fetching, only, ready, records, seen, starting

MINUTE_MS = 60_000


def say(leader: Replica, id_: int, *, has_room: bool = True, end: int = 10, now_ms: int = 0, store_id: str = "") -> list[Action]:  # fmt: skip
    progress = FollowerProgress(end, end, wants=False, has_room=has_room)
    return leader.receive(envelope(id_, progress, store_id=store_id), now_ms)


def full(*roomy: int) -> Replica:
    """A leader of epoch 1 since 0 ms; these followers have room."""
    one = ready()
    for id_ in roomy:
        say(one, id_)
    return one


def test_a_copy_with_room_leads_once_the_leader_has_led_for_a_minute() -> None:
    one = full(1, 2)
    assert one.leader.relief(MINUTE_MS - 1) == NOTHING
    assert one.leader.relief(MINUTE_MS) == 1
    (send,) = only(one.leader.drain(MINUTE_MS, to=1, within_ms=2_000), Send)
    assert (send.to, send.envelope.body) == (1, Nomination(10))


def test_after_a_copy_that_did_not_take_over_a_minute_goes_by_before_the_next_is_asked() -> None:
    one = full(1, 2)
    one.leader.drain(MINUTE_MS, to=1, within_ms=2_000)
    assert one.leader.relief(2 * MINUTE_MS) == NOTHING, "while it hands over"
    for id_ in (1, 2):
        say(one, id_, now_ms=MINUTE_MS + 2_000)
    assert only(one.tick(MINUTE_MS + 2_000), HandedOver) == [HandedOver(-1, 1)]
    one.leader.resume()
    assert one.leader.relief(2 * MINUTE_MS - 1) == NOTHING
    assert one.leader.relief(2 * MINUTE_MS) == 1


def test_as_many_copies_must_have_room_as_are_needed() -> None:
    """Else those without would fill to their last byte and fall out of sync, and not even acknowledgements were taken."""
    one = full(1)
    assert one.leader.relief(MINUTE_MS) == NOTHING
    say(one, 2)
    assert one.leader.relief(MINUTE_MS) == 1
    say(one, 1, has_room=False)
    assert one.leader.relief(MINUTE_MS) == NOTHING


@pytest.mark.parametrize("isr", [PAIRS[:2], PAIRS[:1]])
def test_a_copy_that_is_not_in_sync_does_not_count(isr: tuple) -> None:  # type: ignore[type-arg]
    one = full(1, 2)
    one.observed(seen(9, epoch=1, leader=0, isr=isr), 0)
    assert one.leader.relief(MINUTE_MS) == NOTHING


def test_a_copy_that_is_silent_does_not_count() -> None:
    one = full(1, 2)
    for now_ms in range(0, 4_000, 500):
        say(one, 1, now_ms=now_ms)
        for call in only(one.tick(now_ms), CompareAndSet):
            if call.proposed.isr != PAIRS:
                continue  # that copy 2 is out of the set is not written yet
            one.cas_done(call.number, Seen(call.proposed, str(now_ms)), now_ms)
        assert one.leader.relief(MINUTE_MS) == (1 if now_ms <= 3_000 else NOTHING)


def test_another_store_of_the_same_copy_says_nothing_for_the_one_in_sync() -> None:
    one = full(1)
    say(one, 2, store_id="e" * 32)
    assert one.leader.relief(MINUTE_MS) == NOTHING
    assert one.copies.roomy == {PAIRS[1]}


def test_the_copy_with_most_of_the_log_is_asked() -> None:
    one = full(1, 2)
    one.appended(1, 20)
    say(one, 2, end=20)
    assert one.leader.relief(MINUTE_MS) == 2


def test_a_copy_that_says_nothing_of_its_disk_has_no_room() -> None:
    one = ready()
    confirm(one, 1, 10)
    confirm(one, 2, 10)
    assert one.leader.relief(MINUTE_MS) == NOTHING


def test_a_leader_that_does_not_serve_yet_and_one_whose_setting_is_0_name_no_copy() -> None:
    one = starting()
    say(one, 1)
    assert one.leader.relief(MINUTE_MS) == NOTHING
    one = full(1, 2)
    one.own.config = replace(one.config, timing=replace(one.config.timing, relief_ms=0))
    assert one.leader.relief(MINUTE_MS) == NOTHING


def test_what_followers_said_is_of_one_epoch() -> None:
    one = full(1, 2)
    one.tick(30_000)
    one.observed(seen(9, epoch=2, leader=1), 30_000)
    assert one.role is Role.FENCED
    one.epoch_persisted(2)
    assert one.leader.relief(MINUTE_MS * 9) == NOTHING


def test_a_follower_says_with_each_report_whether_its_disk_has_room() -> None:
    one = fetching()
    for has_room in (True, False):
        assert one.disk_measured(has_room=has_room) == []
        (send,) = only(one.receive(envelope(0, records(10, 10)), 0), Send)
        assert send.envelope.body.has_room is has_room
