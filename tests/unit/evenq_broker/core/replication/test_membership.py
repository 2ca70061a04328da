"""Copies that come and go (R15 to R18): every refusal in words, and what a leader and a removed copy do."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from evenq_broker.core.replication.actions import CompareAndSet, Fence, Send, SendRecords
from evenq_broker.core.replication.config import ReplicationConfig
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.membership import AddCopy, CopyChange, RemoveCopy, SetMinimum, is_done
from evenq_broker.core.replication.record import Pair, Seen
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role
from group import PAIRS, STORES, confirm, fetching, only, ready, seen

NEW = Pair(3, "d" * 32)


def carry_out(one: Replica, change: CopyChange) -> None:
    (call,) = only(one.leader.change_copies(change), CompareAndSet)
    one.cas_done(call.number, Seen(call.proposed, str(call.proposed.version)), 0)
    assert one.record is not None
    assert is_done(one.record, change)


def silent(one: Replica, *numbers: int) -> Replica:
    one.copies.silent = frozenset(PAIRS[number] for number in numbers)
    return one


def test_who_is_added_counts_only_once_it_has_all() -> None:
    one = ready()
    carry_out(one, AddCopy(3, "db3:8083"))
    one.appended(1, 40)
    one.synced(40)
    confirm(one, 1, 40)
    confirm(one, 2, 40)
    assert one.log.hw == 40, "nothing waits for a copy that was only just added"
    confirm(one, 3, 20, store_id=NEW.store_id)
    assert one.leader.propose((*PAIRS, NEW)) == []
    confirm(one, 3, 40, store_id=NEW.store_id)
    (call,) = only(one.leader.propose((*PAIRS, NEW)), CompareAndSet)
    assert call.proposed.isr == (*PAIRS, NEW)


def test_who_is_removed_is_out_of_the_group_and_of_what_is_in_sync_in_one_write() -> None:
    one = ready()
    (call,) = only(one.leader.change_copies(RemoveCopy(2)), CompareAndSet)
    assert (call.proposed.members, call.proposed.isr) == ((0, 1), PAIRS[:2])
    one.appended(1, 40)
    one.synced(40)
    confirm(one, 1, 40)
    assert one.log.hw == 10, "until the answer is known both sets count (R7)"
    one.cas_done(call.number, Seen(call.proposed, "3"), 0)
    assert one.log.hw == 40


def test_what_a_removed_copy_confirmed_is_forgotten_and_nothing_is_sent_to_it() -> None:
    one = ready()
    confirm(one, 2, 10, wants=True)
    carry_out(one, RemoveCopy(2))
    assert [sent.to for sent in only(one.appended(1, 40), SendRecords)] == []
    assert PAIRS[2] not in one.copies.acks
    assert all(PAIRS[2] not in wish for wish in one.copies.changes(frozenset()))
    assert one.leader.propose(PAIRS) == []


def test_a_removed_copy_says_nothing_to_anybody_until_it_is_added_again() -> None:
    one = fetching(2)
    record = seen(3, epoch=1, leader=0, isr=PAIRS[:2]).record
    one.observed(Seen(replace(record, members=(0, 1)), "3"), 0)
    assert only(one.tick(10_000), Send) == []
    assert one.election.stand() == []
    one.observed(Seen(replace(record, version=4), "4"), 0)
    assert [sent.to for sent in only(one.tick(20_000), Send)] == [0]


@pytest.mark.parametrize(
    ("one", "change", "said"),
    [
        (fetching(1), RemoveCopy(2), "copy 1 does not lead"),
        (ready(), AddCopy(2, "db3:8083"), "copy 2 belongs to the group already"),
        (ready(), AddCopy(3, "db3"), "must be host:port"),
        (ready(), RemoveCopy(0), "copy 0 leads; let another copy lead first"),
        (silent(ready(), 1), RemoveCopy(2), "fewer than the 2 copies that are needed would be in sync; not in sync: copy 1"),
        (silent(ready(), 1), SetMinimum(3), "2 of the 3 copies are in sync; not in sync: copy 1"),
        (ready(), SetMinimum(4), "4 copies cannot be needed of the 3 that the group has"),
        (ready(), SetMinimum(0), "0 copies cannot be needed"),
    ],
)  # fmt: skip
def test_every_refusal_says_why(one: Replica, change: CopyChange, said: str) -> None:
    assert said in one.copies.why_not_changed(change)
    assert one.leader.change_copies(change) == []


def test_a_group_has_as_many_copies_as_are_needed_and_nine_at_most() -> None:
    one = ready()
    carry_out(one, RemoveCopy(2))
    assert "1 copy would be left and 2 are needed" in one.copies.why_not_changed(RemoveCopy(1))
    for number in range(2, 9):
        carry_out(one, AddCopy(number, f"db{number}:8083"))
    assert "9 copies, the most" in one.copies.why_not_changed(AddCopy(9, "db9:8083"))


def test_a_copy_that_is_not_in_sync_may_go_although_others_are_missing() -> None:
    one = ready()
    (call,) = only(one.leader.propose(PAIRS[:2]), CompareAndSet)
    one.cas_done(call.number, Seen(call.proposed, "3"), 0)
    assert one.copies.why_not_changed(RemoveCopy(2)) == ""
    silent(one, 1)
    assert one.copies.why_not_changed(RemoveCopy(2)) == ""
    assert "not in sync: copy 2" in one.copies.why_not_changed(RemoveCopy(1))


def test_one_change_at_a_time() -> None:
    one = ready()
    assert len(one.leader.change_copies(RemoveCopy(2))) == 1
    assert one.leader.change_copies(AddCopy(3, "db3:8083")) == []


def test_a_draining_leader_changes_nothing() -> None:
    one = ready()
    one.leader.drain(0)
    assert "hands over" in one.copies.why_not_changed(RemoveCopy(2))


def test_a_lower_minimum_needs_nobody() -> None:
    one = silent(ready(), 1, 2)
    assert not one.leader.may_append()
    carry_out(one, SetMinimum(1))
    assert one.leader.may_append()


def alone(*, adopts: bool = True) -> Replica:
    """A broker whose log [0, 30) was written without copies, in epoch 1. Its settings name the copies that come later."""
    config = ReplicationConfig(cluster="c", broker_id=0, members=(0, 1, 2), min_isr=2, founds=True, adopts=adopts)
    one = Replica(config, store_id=STORES[0], epoch_seen=0, session=10)
    one.recovered(EpochTable(0, (EpochStart(1, 0),)), 30, 0)
    return one


def test_a_log_that_was_written_without_copies_founds_a_group_and_keeps_all_of_it() -> None:
    one = alone()
    (call,) = only(one.absent(), CompareAndSet)
    first = call.proposed
    assert (first.epoch, first.leader, first.isr, first.members) == (1, 0, PAIRS[:1], (0,))
    assert first.min_isr == 1, "no other copy has anything"
    one.cas_done(call.number, Seen(first, "1"), 0)
    one.epoch_persisted(1)
    (call,) = only(one.tick(0), CompareAndSet)
    assert (call.proposed.epoch, call.proposed.leader) == (2, 0)
    one.cas_done(call.number, Seen(call.proposed, "2"), 0)
    one.epoch_persisted(2)
    one.appended(2, 40)
    one.synced(40)
    assert (one.role, one.log.hw, one.log.table.entries) == (Role.READY, 40, (EpochStart(1, 0), EpochStart(2, 30)))


def test_a_founder_that_died_before_it_led_goes_on_with_its_own_record() -> None:
    one = alone()
    (call,) = only(one.absent(), CompareAndSet)
    again = alone()
    assert not only(again.observed(Seen(call.proposed, "1"), 0), Fence)
    again.epoch_persisted(1)
    assert only(again.tick(0), CompareAndSet)[0].proposed.epoch == 2


def test_a_log_that_was_written_without_copies_is_of_no_group_that_is_there() -> None:
    one = alone()
    (fence,) = only(one.observed(seen(5, epoch=3, leader=1, isr=PAIRS[1:]), 0), Fence)
    assert "R19" in str(fence.error)
    assert "begins with an empty folder" in str(fence.error)


def test_a_folder_without_records_founds_the_group_as_it_is_to_be() -> None:
    config = ReplicationConfig(cluster="c", broker_id=0, members=(0, 1, 2), min_isr=2, founds=True, adopts=True)
    one = Replica(config, store_id=STORES[0], epoch_seen=0, session=10)
    one.recovered(EpochTable(0, ()), 0, 0)
    (call,) = only(one.absent(), CompareAndSet)
    assert (call.proposed.members, call.proposed.min_isr) == ((0, 1, 2), 2)


def test_a_log_that_was_written_without_copies_founds_nothing_unasked() -> None:
    assert only(alone(adopts=False).absent(), CompareAndSet) == []
