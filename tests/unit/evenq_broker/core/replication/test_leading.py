"""A leader: what is committed, who is in sync, and how it hands over."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from evenq_broker.core.replication.actions import (
    Action,
    AppendEpochStart,
    ClosePeer,
    CommitAdvanced,
    CompareAndSet,
    Fence,
    HandedOver,
    PersistEpoch,
    RecordTooOld,
    Send,
    SendRecords,
    Serve,
    StopServing,
)
from evenq_broker.core.replication.config import Mode
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.messages import (
    EpochsReply,
    EpochsRequest,
    FollowerProgress,
    Nomination,
    Records,
    Refusal,
)
from evenq_broker.core.replication.record import NO_LEADER, Pair, Seen
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role
from group import PAIRS, confirm, envelope, fetching, only, ready, replica, seen, starting, watch

NEW = Pair(2, "d" * 32)


def test_a_leader_serves_when_every_in_sync_copy_has_its_first_record() -> None:
    one = starting()
    assert confirm(one, 1, 10) == []
    assert not one.leader.may_append()
    actions = confirm(one, 2, 10)
    assert [CommitAdvanced(10), Serve(1)] == actions
    assert (one.log.hw, one.leader.may_append()) == (10, True)


def test_what_the_leader_has_not_synced_is_not_committed() -> None:
    one = ready()
    one.appended(1, 20)
    confirm(one, 1, 20)
    confirm(one, 2, 20)
    assert one.log.hw == 10
    assert CommitAdvanced(20) in one.synced(20)


def test_in_memory_mode_written_is_enough() -> None:
    one = ready(mode=Mode.REPL_MEMORY)
    one.appended(1, 20)
    confirm(one, 1, 20)
    assert CommitAdvanced(20) in confirm(one, 2, 20)


def test_both_sets_count_until_the_answer_of_a_compare_and_set_is_known() -> None:
    one = ready()
    (call,) = only(one.leader.propose(PAIRS[:2]), CompareAndSet)
    one.cas_unknown(call.number)
    one.appended(1, 20)
    one.synced(20)
    confirm(one, 1, 20)
    assert one.log.hw == 10
    assert call in one.tick(600)  # the same proposal again, not another
    assert one.leader.propose(PAIRS) == []
    assert CommitAdvanced(20) in one.cas_done(call.number, Seen(call.proposed, "3"), 600)


def test_a_conflict_without_a_record_tells_nothing() -> None:
    one = ready()
    (call,) = only(one.leader.propose(PAIRS[:2]), CompareAndSet)
    one.cas_conflict(call.number, None, 0)
    assert one.group.cas == call
    one.observed(Seen(call.proposed, "3"), 0)
    assert one.group.cas is None


@pytest.mark.parametrize("confirmed", [None, 5])
def test_who_has_not_confirmed_all_that_is_committed_is_not_admitted(confirmed: int | None) -> None:
    one = ready()
    if confirmed is not None:
        confirm(one, 2, confirmed, store_id=NEW.store_id)
    assert one.leader.propose((*PAIRS[:2], NEW)) == []
    confirm(one, 2, 10, store_id=NEW.store_id)
    assert one.leader.propose((*PAIRS[:2], NEW)) != []


def test_the_in_sync_set_never_shrinks_below_the_floor_but_a_copy_may_be_swapped() -> None:
    one = ready()
    (call,) = only(one.leader.propose(PAIRS[:2]), CompareAndSet)
    one.cas_done(call.number, Seen(call.proposed, "3"), 0)
    assert one.leader.propose(PAIRS[:1]) == []
    assert only(one.leader.propose((PAIRS[0], PAIRS[2])), CompareAndSet)


def test_a_replaced_store_is_swapped_for_the_old_one_and_the_old_one_no_longer_counts() -> None:
    one = ready()
    confirm(one, 2, 10, store_id=NEW.store_id)
    assert one.copies.changes(frozenset())[0] == (*PAIRS[:2], NEW)


def test_a_store_that_was_replaced_in_an_idle_group_does_not_come_back() -> None:
    """It confirmed all that there is before its disk was lost, and its broker is heard: the two took turns for ever."""
    one = ready()
    confirm(one, 2, 10, store_id=NEW.store_id)
    (call,) = only(one.tick(100), CompareAndSet)
    assert call.proposed.isr == (*PAIRS[:2], NEW)
    one.cas_done(call.number, Seen(call.proposed, "3"), 100)
    for now_ms in range(150, 30_000, 50):
        confirm(one, 1, 10, now_ms=now_ms)
        confirm(one, 2, 10, now_ms=now_ms, store_id=NEW.store_id)
        for call in only(one.tick(now_ms), CompareAndSet):
            assert call.proposed.isr == (*PAIRS[:2], NEW), "nothing but signs of life"
            one.cas_done(call.number, Seen(call.proposed, str(now_ms)), now_ms)


def test_the_disk_that_was_replaced_may_be_put_back() -> None:
    one = ready()
    confirm(one, 2, 10, store_id=NEW.store_id)
    (call,) = only(one.tick(100), CompareAndSet)
    one.cas_done(call.number, Seen(call.proposed, "3"), 100)
    confirm(one, 2, 10, now_ms=200)
    (call,) = only(one.tick(200), CompareAndSet)
    assert call.proposed.isr == PAIRS


def test_a_silent_follower_leaves_the_in_sync_set_after_three_seconds_and_comes_back() -> None:
    one = ready()
    one.tick(0)
    one.tick(1_500)
    confirm(one, 1, 10, now_ms=2_900)
    (call,) = only(one.tick(2_999), CompareAndSet)
    assert call.proposed.isr == PAIRS  # a sign of life
    one.cas_done(call.number, Seen(call.proposed, "3"), 2_999)
    (call,) = only(one.tick(3_001), CompareAndSet)
    assert call.proposed.isr == PAIRS[:2]
    one.cas_done(call.number, Seen(call.proposed, "4"), 3_001)
    confirm(one, 2, 10, now_ms=3_100)
    (call,) = only(one.tick(3_200), CompareAndSet)
    assert call.proposed.isr == PAIRS


def test_a_leader_that_was_paused_hears_what_came_meanwhile_before_it_counts_anybody_as_silent() -> None:
    one = ready()
    one.tick(0)
    (call,) = only(one.tick(30_000), CompareAndSet)
    assert call.proposed.isr == PAIRS, "a sign of life, and all are in sync"
    assert one.leader.may_append()
    one.cas_done(call.number, Seen(call.proposed, "3"), 30_000)
    confirm(one, 1, 10, now_ms=30_010)
    assert only(one.tick(31_000), CompareAndSet) == []
    (call,) = only(one.tick(31_600), CompareAndSet)
    assert call.proposed.isr == PAIRS[:2], "who says nothing then is silent: of the pause 1.5 s count"


def test_a_link_that_broke_while_the_leader_was_paused_makes_that_copy_silent_at_once() -> None:
    one = ready()
    one.tick(0)
    (call,) = only(one.lost(2, 30_000), CompareAndSet)
    assert call.proposed.isr == PAIRS[:2]


def test_a_leader_that_too_few_hear_gives_no_signs_of_life() -> None:
    one = starting(isr=PAIRS[:2])
    one.tick(1_000)
    confirm(one, 1, 10, now_ms=2_000)
    renewed: list[int] = []
    for now_ms in range(2_100, 8_000, 1_000):
        for call in only(one.tick(now_ms), CompareAndSet):
            assert call.proposed.isr == PAIRS[:2]
            one.cas_done(call.number, Seen(call.proposed, str(now_ms)), now_ms)
            renewed.append(now_ms)
    assert renewed == [2_100, 4_100, 6_100]
    assert only(one.tick(8_100), CompareAndSet) == []  # broker 1 was last heard of over 6 s ago
    confirm(one, 1, 10, now_ms=8_200)
    assert only(one.tick(8_300), CompareAndSet)


def test_a_confirmation_over_the_own_end_closes_the_link() -> None:
    (action,) = confirm(ready(), 1, 11)
    assert isinstance(action, ClosePeer)
    assert "ends at 11" in action.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [({"cluster": "d"}, "cluster 'd'"), ({"store_id": "x"}, "store id 'x'"), ({"epoch": 2_000_000}, "at most 1000000")],
)
def test_a_message_that_no_replica_of_the_group_sends_closes_the_link(change: dict[str, object], said: str) -> None:
    one = ready()
    (action,) = one.receive(envelope(1, FollowerProgress(10, 10, True), **change), 0)  # type: ignore[arg-type]
    assert isinstance(action, ClosePeer)
    assert said in action.reason
    assert one.role is Role.READY


def test_a_stranger_and_numbers_that_cannot_be_close_the_link() -> None:
    one = ready()
    for message in (
        envelope(5, Refusal(), store_id="e" * 32),
        envelope(0, Refusal()),
        envelope(1, FollowerProgress(5, 6, True)),
        envelope(1, FollowerProgress(5, 5, True, -1)),
        envelope(1, FollowerProgress(5, 5, True, 1, -1)),
        envelope(1, EpochsReply(1, 1, EpochTable(9), 3)),
    ):
        (action,) = one.receive(message, 0)
        assert isinstance(action, ClosePeer), message


def test_a_message_of_a_lower_epoch_is_refused_and_a_higher_one_stops_a_leader() -> None:
    one = ready()
    (action,) = one.receive(envelope(1, FollowerProgress(10, 10, True), epoch=0), 0)
    assert isinstance(action, Send)
    assert isinstance(action.envelope.body, Refusal)
    assert only(one.receive(envelope(1, Refusal(), epoch=2), 0), StopServing)
    assert one.role is Role.FENCED


def test_a_higher_epoch_in_the_record_is_synced_before_anything_else() -> None:
    one = ready()
    actions = one.observed(seen(3, epoch=2, leader=1), 0)
    assert actions[-1] == PersistEpoch(2)
    assert one.receive(envelope(1, EpochsRequest(1), epoch=2), 0) == []


def test_records_go_to_who_waits_and_carry_what_is_committed() -> None:
    one = ready()
    confirm(one, 1, 10, wants=True)
    actions = one.appended(1, 20)
    assert actions == [SendRecords(1, 10, 20)]
    message = one.leader.records(SendRecords(1, 10, 20), 20, b"x")
    assert message is not None
    assert (message.body.start, message.body.end, message.body.previous_epoch, message.body.committed) == (
        10,
        20,
        1,
        10,
    )  # type: ignore[union-attr]
    one.observed(seen(3, epoch=2, leader=1), 0)
    assert one.leader.records(SendRecords(1, 10, 20), 20, b"x") is None


def test_who_asks_for_epochs_before_the_elected_leads_is_answered_when_it_does() -> None:
    """Others may hear of an election first. The repeat, 500 ms later, would be the pause of a planned hand-over."""
    one = replica(0)
    one.recovered(EpochTable(), 0, 0)
    one.observed(seen(), 0)
    (call,) = only(one.election.stand(), CompareAndSet)
    assert only(one.receive(envelope(1, EpochsRequest(7)), 0), Send) == [], "it does not know that it won"
    one.cas_done(call.number, Seen(call.proposed, "2"), 0)
    assert one.receive(envelope(2, EpochsRequest(8)), 0) == [], "its epoch is not on disk"
    one.epoch_persisted(1)
    assert one.receive(envelope(2, EpochsRequest(9)), 0) == [], "nor is its first record"
    sent = only(one.appended(1, 10), Send)
    assert [(send.to, send.envelope.body.number) for send in sent] == [(1, 7), (2, 9)]
    assert one.appended(1, 20) == [], "once"


def test_who_asked_for_epochs_of_another_term_is_not_answered_by_it() -> None:
    one = replica(0)
    one.recovered(EpochTable(), 0, 0)
    one.observed(seen(), 0)
    one.receive(envelope(1, EpochsRequest(7), epoch=5), 0)
    (call,) = only(one.election.stand(), CompareAndSet)
    one.cas_done(call.number, Seen(call.proposed, "2"), 0)
    one.epoch_persisted(1)
    assert only(one.appended(1, 10), Send) == []
    assert one.leader.asked == {}


def test_what_is_committed_goes_with_the_next_records_or_tick_and_each_repeat_says_it_again() -> None:
    one = ready()
    one.appended(1, 20)
    one.synced(20)
    confirm(one, 1, 20, wants=True)
    actions = confirm(one, 2, 20, wants=True)
    assert actions == [CommitAdvanced(20)], "no message of its own for each commit"
    assert one.tick(0) == [], "more records may come soon, and say it"
    said = one.tick(1)
    assert said == [SendRecords(1, 20, 20), SendRecords(2, 20, 20)]
    assert [records_of(one, action).committed for action in said] == [20, 20]
    assert one.tick(2) == [], "they know it"
    assert one.tick(one.config.timing.retry_ms)[-2:] == said


def records_of(one: Replica, action: SendRecords) -> Records:
    message = one.leader.records(action, action.end, b"")
    assert message is not None
    assert isinstance(message.body, Records)
    return message.body


def behind(one: Replica, end: int, **more: object) -> list[Action]:
    """Broker 1 says where it is, and takes 50 ahead."""
    return one.receive(envelope(1, FollowerProgress(end, end, False, 50, **more)), 0)  # type: ignore[arg-type]


def test_records_are_sent_before_they_are_asked_for_until_enough_is_on_the_way() -> None:
    one = ready()
    assert behind(one, 10, again=True) == []
    for end in (20, 30, 40):
        assert one.appended(1, end) == [SendRecords(1, end - 10, end)], "nothing was reported meanwhile"
        records_of(one, SendRecords(1, end - 10, end))
    assert one.appended(1, 50) == one.appended(1, 60) == [], "three messages are on their way"
    assert behind(one, 20, queued=20) == [SendRecords(1, 40, 60)], "what waited leaves together"


def test_small_groups_gather_while_one_is_on_its_way_and_large_ones_leave_at_once() -> None:
    one = ready()
    one.own.config = replace(one.config, gather=25)
    behind(one, 10, again=True)
    assert one.appended(1, 20) == [SendRecords(1, 10, 20)], "a follower that waits gets what there is"
    records_of(one, SendRecords(1, 10, 20))
    assert one.appended(1, 30) == one.appended(1, 40) == []
    assert one.appended(1, 45) == [SendRecords(1, 20, 45)], "so much does not wait"
    records_of(one, SendRecords(1, 20, 45))
    assert one.appended(1, 55) == []
    assert behind(one, 45) == [SendRecords(1, 45, 55)], "all was written, so what gathered leaves"


def test_no_more_is_on_the_way_than_the_follower_takes_but_one_message_goes_over_it() -> None:
    one = ready()
    behind(one, 10, again=True)
    assert one.appended(1, 90) == [SendRecords(1, 10, 90)]
    records_of(one, SendRecords(1, 10, 80))
    assert one.leader.more_for(1) == []
    assert behind(one, 10, queued=70) == []
    assert behind(one, 80) == [SendRecords(1, 80, 90)]


def test_what_was_lost_is_sent_again_when_the_follower_says_so_and_not_before() -> None:
    one = ready()
    behind(one, 10, again=True)
    one.appended(1, 20)
    records_of(one, SendRecords(1, 10, 20))
    assert behind(one, 10) == [], "it may be on its way"
    assert behind(one, 10, again=True) == [SendRecords(1, 10, 20)]


def test_records_that_were_read_for_another_place_are_not_sent() -> None:
    one = ready()
    behind(one, 10, again=True)
    one.appended(1, 30)
    records_of(one, SendRecords(1, 10, 20))
    assert one.leader.records(SendRecords(1, 10, 20), 20, b"") is None, "they were sent"
    one.leader.not_sent(1)
    assert one.leader.records(SendRecords(1, 20, 30), 30, b"") is None
    assert one.appended(1, 40) == [], "it says first where it is"
    assert behind(one, 20) == [SendRecords(1, 20, 40)]


def test_a_report_that_comes_late_moves_nothing_back() -> None:
    one = ready()
    behind(one, 10, again=True)
    one.appended(1, 30)
    records_of(one, SendRecords(1, 10, 30))
    behind(one, 30)
    assert behind(one, 10) == []
    assert one.appended(1, 40) == [SendRecords(1, 30, 40)]


def test_a_follower_that_takes_nothing_ahead_is_sent_one_message_each_time_that_it_asks() -> None:
    """As those of older versions are."""
    one = ready()
    one.appended(1, 30)
    assert confirm(one, 1, 10, wants=True) == [SendRecords(1, 10, 30)]
    records_of(one, SendRecords(1, 10, 20))
    assert one.leader.more_for(1) == one.appended(1, 40) == []
    assert confirm(one, 1, 20, wants=False) == []
    assert confirm(one, 1, 20, wants=True) == [SendRecords(1, 20, 40)]


def test_a_follower_cannot_have_more_than_its_leader() -> None:
    (action,) = behind(ready(), 10, queued=1)
    assert isinstance(action, ClosePeer)


def test_a_follower_that_ends_below_the_first_record_is_told_where_the_log_begins() -> None:
    one = ready()
    one.trimmed(8)
    (action,) = confirm(one, 1, 5, wants=True)
    assert action == SendRecords(1, 8, 8)


def test_retention_of_what_is_not_committed_fences() -> None:
    one = ready()
    one.appended(1, 20)
    one.trimmed(15)
    assert one.role is Role.CRASHED


def test_pairs_of_one_broker_are_bounded() -> None:
    one = ready()
    for number in range(50):
        confirm(one, 2, 10, store_id=f"{number:032x}")
    assert len([pair for pair in one.copies.acks if pair.broker_id == 2]) <= 4


def test_a_drain_waits_for_the_others_nominates_the_best_and_tells_who_leads() -> None:
    one = ready()
    one.appended(1, 20)
    one.synced(20)
    confirm(one, 1, 20)
    assert only(one.leader.drain(0), Send) == []
    assert not one.leader.may_append()
    (send,) = only(confirm(one, 2, 20), Send)
    assert (send.to, send.envelope.body) == (1, Nomination(20))
    actions = one.observed(seen(3, epoch=2, leader=1), 100)
    assert HandedOver(1, 2) in actions


def test_a_drain_nominates_the_next_if_the_first_does_not_stand_and_ends_in_time() -> None:
    one = ready()
    one.leader.drain(0)
    (send,) = only(one.tick(600), Send)
    assert send.to == 2
    assert HandedOver(NO_LEADER, 1) in one.tick(10_600)


def test_a_hand_over_asks_the_named_copy_and_no_other_again_and_again() -> None:
    one = ready()
    (send,) = only(one.leader.drain(0, to=2, within_ms=2_000), Send)
    assert (send.to, send.envelope.body) == (2, Nomination(10))
    for now_ms in (600, 1_200, 1_800):
        assert [again.to for again in only(one.tick(now_ms), Send) if isinstance(again.envelope.body, Nomination)] == [
            2
        ]
    assert HandedOver(NO_LEADER, 1) in one.tick(2_400)


def test_a_hand_over_that_failed_is_taken_back_and_the_leader_goes_on() -> None:
    one = ready()
    one.leader.drain(0, to=2, within_ms=2_000)
    assert not one.leader.may_append()
    one.leader.resume()
    assert one.role is Role.READY
    assert one.leader.may_append()
    one.appended(1, 30)
    one.synced(30)
    confirm(one, 1, 30)
    assert CommitAdvanced(30) in confirm(one, 2, 30)
    (send,) = only(one.leader.drain(5_000), Send)
    assert send.to == 1, "the next drain may go to anybody"


def test_a_nominee_that_wins_after_all_ends_the_term_of_a_leader_that_went_on() -> None:
    one = ready()
    one.leader.drain(0, to=2, within_ms=2_000)
    one.leader.resume()
    actions = one.observed(seen(3, epoch=2, leader=2), 2_500)
    assert only(actions, StopServing)
    assert not only(actions, HandedOver), "nothing waits for it any more"


def test_only_a_draining_leader_resumes() -> None:
    one = ready()
    assert one.leader.resume() == []
    assert one.role is Role.READY
    follower = fetching()
    follower.leader.resume()
    assert follower.role is Role.FETCHING


def test_the_founder_of_a_new_group_writes_the_first_record_and_nobody_else_does() -> None:
    other, founder = replica(1), replica(0, founds=True)
    for one in (other, founder):
        one.recovered(EpochTable(), 0, 0)
    assert other.absent() == []
    (call,) = only(founder.absent(), CompareAndSet)
    assert (call.expected, call.proposed.isr) == (None, PAIRS[:1])
    founder.cas_done(call.number, Seen(call.proposed, "1"), 0)
    assert only(watch(founder, 0, 6_000), CompareAndSet)


def test_a_founder_whose_log_has_something_does_not_begin_a_second_history() -> None:
    one = replica(0, founds=True, epoch_seen=3)
    one.recovered(EpochTable(), 0, 0)
    assert one.absent() == [RecordTooOld(0, 3)]


def test_a_founder_with_a_restored_log_leads_at_once_above_all_old_epochs_and_only_once() -> None:
    one = replica(0, founds=True, epoch_seen=7, restored_epoch=7)
    one.recovered(EpochTable(0, (EpochStart(5, 0), EpochStart(7, 900))), 1_000, 0)
    (call,) = only(one.absent(), CompareAndSet)
    assert (call.expected, call.proposed.epoch, call.proposed.leader, call.proposed.isr) == (None, 8, 0, PAIRS[:1])
    one.cas_done(call.number, Seen(call.proposed, "1"), 0)
    assert only(one.epoch_persisted(8), AppendEpochStart)
    assert one.role is Role.ELECTED
    later = replica(0, founds=True, epoch_seen=8, restored_epoch=7)
    later.recovered(EpochTable(0, (EpochStart(5, 0), EpochStart(8, 1_000))), 1_200, 0)
    assert later.absent() == [RecordTooOld(0, 8)], "a record that is lost later is lost"
    assert replica(1, restored_epoch=7).absent() == []


def test_a_copy_whose_link_broke_is_dropped_at_once_and_the_minimum_stays() -> None:
    one = ready()
    (call,) = only(one.lost(2, 100), CompareAndSet)
    assert call.proposed.isr == PAIRS[:2]
    one.cas_done(call.number, Seen(call.proposed, "3"), 100)
    assert only(one.lost(1, 200), CompareAndSet) == []
    assert not one.leader.may_append()
    assert one.copies.count_in_sync() == 1
    confirm(one, 1, one.log.end, now_ms=300)
    one.tick(400)
    assert one.leader.may_append()


# What goes wrong with disks; more of it in the table of docs/internals/replication.md.


def test_a_follower_whose_disk_is_full_leaves_the_set_and_writes_go_on_and_it_comes_back() -> None:
    """It copies nothing (`not_copied`) and says how far it is: it is behind, and after `lag_ms` it does not count."""
    one = ready()
    one.appended(1, 20)
    one.synced(20)
    confirm(one, 1, 20)
    one.tick(1_000)
    confirm(one, 2, 10, now_ms=1_000, wants=True)
    assert one.log.hw == 10, "both others are in sync yet"
    for now_ms in range(2_000, 5_000, 1_000):
        confirm(one, 1, 20, now_ms=now_ms)
        confirm(one, 2, 10, now_ms=now_ms, wants=True)
        for call in only(one.tick(now_ms), CompareAndSet):
            assert call.proposed.isr == PAIRS
            one.cas_done(call.number, Seen(call.proposed, str(now_ms)), now_ms)
    (call,) = only(one.tick(5_000), CompareAndSet)
    assert call.proposed.isr == PAIRS[:2]
    one.cas_done(call.number, Seen(call.proposed, "9"), 5_000)
    assert (one.log.hw, one.leader.may_append()) == (20, True)
    confirm(one, 2, 20, now_ms=6_000, wants=True)
    (call,) = only(one.tick(6_000), CompareAndSet)
    assert call.proposed.isr == PAIRS


def test_a_leader_with_a_broken_invariant_stops_at_once_and_writes_nothing_more() -> None:
    """Appends that wait for a commit fail as unknown before the process ends; others elect, as at any death."""
    one = ready()
    actions = one.synced(1 << 60)
    assert [type(action) for action in actions] == [StopServing, Fence]
    assert (one.role, one.leader.may_append()) == (Role.CRASHED, False)
    assert confirm(one, 1, 10) == one.tick(60_000) == one.election.stand() == []
