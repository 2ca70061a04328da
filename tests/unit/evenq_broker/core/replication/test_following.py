"""A follower: matching its log with the leader's, copying, and standing for election."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from evenq_broker.core.replication.actions import (
    Action,
    AppendRecords,
    CommitAdvanced,
    CompareAndSet,
    Fence,
    PersistEpoch,
    ReadRecord,
    RecordTooOld,
    Reset,
    Send,
    StopServing,
    Truncate,
)
from evenq_broker.core.replication.config import Mode
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.following import QUEUED_MAX
from evenq_broker.core.replication.messages import EpochsReply, EpochsRequest, FollowerProgress, Nomination
from evenq_broker.core.replication.record import Pair, Seen
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import InvariantBroken, Role
from group import PAIRS, config, envelope, fetching, only, records, replica, seen, watch

TABLE = EpochTable(0, (EpochStart(1, 0),))


def matching(log: EpochTable, end: int) -> Replica:
    """Broker 1, restarted with a log, about to match it with broker 0's in epoch 3."""
    one = replica(1, epoch_seen=2)
    one.recovered(log, end, 0)
    one.observed(seen(5, epoch=3, leader=0), 0)
    (request,) = only(one.epoch_persisted(3), Send)
    assert isinstance(request.envelope.body, EpochsRequest)
    return one


def reply(one: Replica, table: EpochTable, end: int, *, number: int = 0, session: int = 11):  # type: ignore[no-untyped-def]
    return one.receive(envelope(0, EpochsReply(number or one.follower.request, session, table, end), epoch=3), 0)


def test_a_tail_of_another_epoch_is_cut_and_the_rest_is_confirmed() -> None:
    one = matching(EpochTable(0, (EpochStart(1, 0), EpochStart(2, 10))), 20)
    assert reply(one, EpochTable(0, (EpochStart(1, 0), EpochStart(3, 15))), 30) == [Truncate(10)]
    (send,) = one.truncated(10)
    assert isinstance(send, Send)
    assert send.envelope.body == FollowerProgress(10, 10, True)


def test_a_log_that_shares_nothing_begins_where_the_leaders_does() -> None:
    one = matching(TABLE, 5)
    assert reply(one, EpochTable(40, (EpochStart(2, 40),)), 90) == [Reset(40)]
    (send,) = one.emptied(40)
    assert isinstance(send, Send)
    assert send.envelope.body == FollowerProgress(40, 40, True)
    body = records(40, 50, epochs=(EpochStart(2, 40),), previous=0)
    assert one.receive(envelope(0, body, epoch=3), 0) == [AppendRecords(body)]


def test_a_new_copy_takes_records_of_epochs_that_the_leaders_table_no_longer_has() -> None:
    """Else a group could get no new copy any more once its log has more epochs than a table."""
    one = matching(EpochTable(), 0)
    assert reply(one, EpochTable(0, (EpochStart(7, 20), EpochStart(9, 30))), 40) == [Reset(0)]
    one.emptied(0)
    for body in (records(0, 10, previous=0), records(10, 15, previous=0)):
        assert one.receive(envelope(0, body, epoch=3), 0) == [AppendRecords(body)]
        one.copied(body.end)
    assert one.log.table.entries == ()
    body = records(15, 35, epochs=(EpochStart(7, 20), EpochStart(9, 30)), previous=0)
    assert one.receive(envelope(0, body, epoch=3), 0) == [AppendRecords(body)]
    one.copied(35)
    assert one.log.table.entries == (EpochStart(7, 20), EpochStart(9, 30))


def test_a_log_of_which_no_epoch_is_known_yet_begins_anew_when_it_is_matched() -> None:
    one = matching(EpochTable(), 15)
    assert reply(one, EpochTable(0, (EpochStart(7, 20), EpochStart(9, 30))), 40) == [Reset(0)]


@pytest.mark.parametrize(("number", "session"), [(99, 11), (0, 10)])
def test_a_reply_to_another_request_or_another_start_is_not_used(number: int, session: int) -> None:
    one = matching(TABLE, 20)
    assert reply(one, TABLE, 5, number=number, session=session) == []
    assert reply(one, TABLE, 20) == [Truncate(20)]
    assert reply(one, TABLE, 5) == []  # the same once more


def test_a_cut_below_what_is_committed_fences() -> None:
    one = fetching()
    one.receive(envelope(0, records(10, 10, committed=10)), 0)
    assert one.log.hw == 10
    one.observed(seen(3, epoch=2, leader=0), 0)
    one.epoch_persisted(2)
    actions = one.receive(envelope(0, EpochsReply(one.follower.request, 11, TABLE, 5), epoch=2), 0)
    assert [type(action) for action in actions] == [StopServing, Fence]
    assert isinstance(actions[1], Fence)
    assert isinstance(actions[1].error, InvariantBroken)
    assert one.role is Role.CRASHED
    assert one.tick(99_999) == []


def test_with_disks_only_what_is_synced_is_confirmed_and_in_memory_what_is_written() -> None:
    for mode, confirmed in ((Mode.REPL_SYNC, 10), (Mode.REPL_MEMORY, 20)):
        one = fetching(mode=mode)
        one.receive(envelope(0, records(10, 20)), 0)
        (send,) = one.copied(20)
        assert isinstance(send, Send)
        assert send.envelope.body == FollowerProgress(20, confirmed, True)
    (send,) = fetching_with_tail().synced(20)
    assert isinstance(send, Send)
    assert send.envelope.body == FollowerProgress(20, 20, False)


def test_what_is_copied_and_synced_in_one_step_is_confirmed_with_one_report() -> None:
    one = fetching()
    one.receive(envelope(0, records(10, 20)), 0)
    (send,) = one.copied(20, synced=True)
    assert isinstance(send, Send)
    assert send.envelope.body == FollowerProgress(20, 20, True)
    assert one.synced(20) == []


def fetching_with_tail() -> Replica:
    one = fetching()
    one.receive(envelope(0, records(10, 20)), 0)
    one.copied(20)
    return one


@pytest.mark.parametrize("body", [records(0, 10, previous=0), records(0, 5)])
def test_records_that_begin_below_the_end_are_not_copied(body) -> None:  # type: ignore[no-untyped-def]
    assert fetching().receive(envelope(0, body), 0) == []


@pytest.mark.parametrize("ahead", [0, 50])
def test_records_behind_a_gap_are_not_copied_and_what_is_missing_is_asked_for_once(ahead: int) -> None:
    one = fetching(ahead=ahead)
    (send,) = one.receive(envelope(0, records(20, 30)), 0)
    assert isinstance(send, Send)
    assert send.envelope.body == FollowerProgress(10, 10, True, ahead, 0, ahead > 0)
    assert one.receive(envelope(0, records(30, 40)), 0) == [], "it was on its way as well"
    body = records(10, 20)
    assert one.receive(envelope(0, body), 0) == [AppendRecords(body)]


def progress(actions: list[Action]) -> list[FollowerProgress]:
    return [send.envelope.body for send in only(actions, Send)]


def test_records_that_begin_below_the_end_and_go_on_behind_it_are_asked_for_and_not_copied() -> None:
    (send,) = fetching().receive(envelope(0, records(0, 15, previous=0)), 0)
    assert isinstance(send, Send)
    assert send.envelope.body == FollowerProgress(10, 10, True)


def test_of_records_that_overlap_what_it_received_the_rest_is_asked_for_at_once() -> None:
    """A repeat crossed with records, so the leader sent them again with more behind them: it would wait for the next one."""
    one = fetching(ahead=200)
    first = records(10, 20)
    assert one.receive(envelope(0, first), 0) == [AppendRecords(first)]
    assert one.receive(envelope(0, records(10, 20)), 0) == [], "only what is there"
    assert progress(one.receive(envelope(0, records(10, 40)), 0)) == [FollowerProgress(10, 10, False, 200, 10, True)]
    assert one.receive(envelope(0, records(10, 50)), 0) == [], "it has asked"


def test_records_that_come_while_others_are_written_wait_and_are_written_next() -> None:
    one = fetching(ahead=200)
    first, second, third = records(10, 20), records(20, 30), records(30, 40, committed=20)
    assert one.receive(envelope(0, first), 0) == [AppendRecords(first)]
    assert one.receive(envelope(0, second), 0) == []
    assert one.receive(envelope(0, third), 0) == []
    actions = one.copied(20, synced=True)
    assert progress(actions) == [FollowerProgress(20, 20, False, 200, 20, False)]
    assert actions[-1] == AppendRecords(second)
    assert one.copied(30) == [AppendRecords(third)], "the last of them has a report"
    actions = one.copied(40, synced=True)
    assert progress(actions) == [FollowerProgress(40, 40, True, 200, 0, False)]
    assert CommitAdvanced(20) in actions


def test_much_that_is_written_is_reported_although_more_has_come_so_that_the_leader_sends_on() -> None:
    one = fetching(ahead=160)
    for start in (10, 20, 30):
        one.receive(envelope(0, records(start, start + 10)), 0)
    assert progress(one.copied(20)) == [FollowerProgress(20, 10, False, 160, 20, False)]


def test_what_came_ahead_is_bounded_by_size_and_by_number() -> None:
    one = fetching(ahead=15)
    for start in (10, 20, 30):
        one.receive(envelope(0, records(start, start + 10)), 0)
    assert [body.start for body in one.follower.queued] == [20], "one message goes over it, no more"
    one = fetching(ahead=1_000)
    for start in range(10, 110):
        one.receive(envelope(0, records(start, start + 1)), 0)
    assert len(one.follower.queued) == QUEUED_MAX


def test_what_came_ahead_and_does_not_follow_in_its_epoch_makes_it_match_the_logs_again() -> None:
    one = fetching(ahead=50)
    one.receive(envelope(0, records(10, 20, epochs=(EpochStart(2, 15),))), 0)
    assert one.receive(envelope(0, records(20, 30, previous=2)), 0) == []
    (send,) = one.receive(envelope(0, records(30, 40, previous=1)), 0)
    assert isinstance(send.envelope.body, EpochsRequest)  # type: ignore[union-attr]
    assert (one.role, one.follower.queued) == (Role.TRUNCATING, ())


def test_what_came_ahead_is_forgotten_with_a_new_epoch_and_with_records_that_were_not_written() -> None:
    one = fetching(ahead=50)
    one.receive(envelope(0, records(10, 20)), 0)
    one.receive(envelope(0, records(20, 30)), 0)
    one.observed(seen(3, epoch=2, leader=2), 0)
    assert one.follower.queued == ()
    assert one.copied(20) == []
    one = fetching(ahead=50)
    one.receive(envelope(0, records(10, 20)), 0)
    one.receive(envelope(0, records(20, 30)), 0)
    one.not_copied()
    assert (one.follower.writing, one.follower.queued) == (None, ())
    assert progress(one.tick(500)) == [FollowerProgress(10, 10, True, 50, 0, True)]


def test_of_a_copy_that_ended_early_the_rest_and_what_came_behind_it_are_asked_for_again() -> None:
    one = fetching(ahead=50)
    one.receive(envelope(0, records(10, 30)), 0)
    one.receive(envelope(0, records(30, 40)), 0)
    assert progress(one.copied(20, synced=True)) == [FollowerProgress(20, 20, True, 50, 0, True)]


def test_a_repeat_asks_again_only_for_what_is_not_there() -> None:
    one = fetching(ahead=50)
    one.receive(envelope(0, records(10, 20)), 0)
    one.receive(envelope(0, records(20, 30)), 0)
    assert progress(one.tick(500)) == [FollowerProgress(10, 10, False, 50, 20, False)], "it writes yet"


def test_what_is_committed_is_learned_while_it_writes() -> None:
    one = fetching(ahead=50)
    one.receive(envelope(0, records(10, 20)), 0)
    assert one.receive(envelope(0, records(20, 20, committed=20)), 0) == [CommitAdvanced(10)]


def test_records_behind_another_epoch_make_it_match_the_logs_again() -> None:
    one = fetching()
    (send,) = one.receive(envelope(0, records(10, 20, previous=0)), 0)
    assert isinstance(send, Send)
    assert isinstance(send.envelope.body, EpochsRequest)
    assert one.role is Role.TRUNCATING


def test_a_leader_whose_log_begins_later_makes_it_match_the_logs_again() -> None:
    one = fetching()
    one.receive(envelope(0, records(30, 30, previous=0)), 0)
    assert one.role is Role.TRUNCATING


def test_records_of_who_does_not_lead_are_not_copied() -> None:
    assert fetching().receive(envelope(2, records(10, 20)), 0) == []


def test_what_is_committed_is_known_as_far_as_the_own_log_goes() -> None:
    one = fetching()
    one.receive(envelope(0, records(10, 20, committed=50)), 0)
    assert CommitAdvanced(20) in one.copied(20)


def test_a_partial_copy_counts_as_far_as_it_went() -> None:
    one = fetching()
    one.receive(envelope(0, records(10, 30, epochs=(EpochStart(2, 25),))), 0)
    one.copied(20)
    assert (one.log.end, one.log.table.last_epoch) == (20, 1)


def test_a_follower_stands_after_the_record_was_still_for_so_long_and_the_worse_one_later() -> None:
    one = fetching()
    assert elections(watch(one, 0, 5_900)) == []
    assert elections(one.tick(5_999)) == []
    (call,) = elections(one.tick(6_000))
    assert (call.proposed.epoch, call.proposed.leader, call.proposed.isr) == (2, 1, PAIRS)
    worse = fetching()
    worse.receive(envelope(0, records(10, 10, rank=1)), 0)
    assert elections(watch(worse, 0, 6_400)) == []
    assert elections(worse.tick(6_500))


def test_in_a_group_that_no_copy_ever_led_its_founder_stands_at_once() -> None:
    founder, other = replica(0, founds=True), replica(1)
    for one in (founder, other):
        one.recovered(EpochTable(), 0, 0)
    (call,) = elections(founder.absent())
    first = Seen(call.proposed, "1")
    founder.cas_done(call.number, first, 0)
    assert elections(founder.tick(9_000)) == [], "it has not read the record since, and another may lead by now"
    founder.observed(first, 9_100)
    other.observed(first, 9_100)
    (call,) = elections(founder.tick(9_100))
    assert (call.proposed.epoch, call.proposed.leader, call.proposed.isr) == (1, 0, PAIRS[:1])
    assert elections(other.tick(9_100)) == []


@pytest.mark.parametrize("isr", [PAIRS[:1], (PAIRS[0], Pair(1, "e" * 32))])
def test_who_is_not_in_sync_with_this_store_does_not_stand(isr: tuple[Pair, ...]) -> None:
    one = fetching()
    one.observed(seen(3, epoch=1, leader=0, isr=isr), 0)
    assert one.election.stand() == []


def test_an_election_of_the_last_life_is_not_led_but_won_anew_at_once() -> None:
    one = replica(1, epoch_seen=3)
    one.recovered(TABLE, 10, 0)
    one.observed(seen(5, epoch=3, leader=1), 0)
    assert one.role is Role.TRUNCATING
    assert one.group.leader_id() == -1
    (call,) = only(one.tick(1), CompareAndSet)
    assert call.proposed.epoch == 4


def test_an_election_that_lands_after_a_restart_is_followed_by_a_new_one() -> None:
    one = replica(1, epoch_seen=3)
    one.recovered(TABLE, 10, 0)
    one.observed(seen(6, epoch=4, leader=1), 0)
    assert one.role is Role.FENCED
    one.epoch_persisted(4)
    (call,) = only(one.tick(1), CompareAndSet)
    assert call.proposed.epoch == 5


def test_a_late_record_of_a_lower_epoch_is_not_followed() -> None:
    one = replica(1, epoch_seen=3)
    one.recovered(TABLE, 10, 0)
    assert one.observed(seen(4, epoch=2, leader=0), 0) == [RecordTooOld(2, 3)]
    assert one.observed(seen(5, epoch=3, leader=0), 0) != []


def test_a_nominated_follower_stands_at_once_if_it_has_all() -> None:
    assert only(fetching().receive(envelope(0, Nomination(10)), 0), CompareAndSet)
    assert fetching().receive(envelope(0, Nomination(20)), 0) == []


def test_a_winner_appends_only_when_its_epoch_is_synced() -> None:
    one = fetching()
    (call,) = only(one.election.stand(), CompareAndSet)
    assert one.cas_done(call.number, Seen(call.proposed, "9"), 0) == [PersistEpoch(2)]
    assert not one.leads


def test_what_was_lost_is_asked_for_again() -> None:
    one = fetching()
    actions = one.tick(600)
    assert ReadRecord() in actions
    assert [send.envelope.body for send in only(actions, Send)] == [FollowerProgress(10, 10, True)]


def test_a_writer_that_reports_what_cannot_be_fences() -> None:
    for broken in (lambda one: one.copied(20), lambda one: one.synced(11), lambda one: one.truncated(11)):
        one = fetching()
        (_, fence) = broken(one)
        assert isinstance(fence, Fence)


def elections(actions: list[Action]) -> list[CompareAndSet]:
    return only(actions, CompareAndSet)


def test_a_follower_that_lost_its_leader_waits_for_one_sign_of_life() -> None:
    one = fetching()
    one.observed(seen(3, epoch=1, leader=0), 1_000)
    watch(one, 1_000, 1_500)
    assert one.lost(2, 1_500) == []
    assert elections(watch(one, 1_500, 6_900)) == [], "another follower's link says nothing of the leader"
    one = fetching()
    one.observed(seen(3, epoch=1, leader=0), 1_000)
    watch(one, 1_000, 2_000)
    assert one.lost(0, 2_000) == []
    assert elections(watch(one, 2_000, 4_900)) == []
    assert elections(watch(one, 4_900, 5_000))


def test_a_sign_of_life_after_the_link_broke_restores_its_patience() -> None:
    one = fetching()
    one.observed(seen(3, epoch=1, leader=0), 1_000)
    one.lost(0, 2_000)
    one.observed(seen(4, epoch=1, leader=0), 3_000)
    assert elections(watch(one, 3_000, 8_900)) == []
    assert elections(watch(one, 8_900, 9_000))


# The record's place is away, or this process was. The last sign of life of broker 0 in the record was at 2 s, and it is
# read until 3 s; a leader would have renewed it at 4 s.


def away(until_ms: int, *, hears: bool) -> Replica:
    """A follower whose record is away from 3 s on."""
    one = fetching()
    watch(one, 0, 2_000)
    one.observed(seen(3, epoch=1, leader=0), 2_000)
    assert elections(watch(one, 2_000, 3_000, hears=True)) == []
    assert elections(watch(one, 3_000, until_ms, reads=False, hears=hears)) == [], (
        "it would be carried out at the return"
    )
    return one


@pytest.mark.parametrize("until_ms", [6_000, 9_000, 21_000])
def test_after_an_outage_of_the_record_a_leader_that_was_heard_of_has_all_its_time_to_renew_it(until_ms: int) -> None:
    one = away(until_ms, hears=True)
    assert elections(watch(one, until_ms, until_ms + 6_000, hears=True)) == []
    (call,) = elections(watch(one, until_ms + 6_000, until_ms + 6_100, hears=True))
    assert call.proposed.epoch == 2, "who does not renew it then is replaced, however well it is heard of"


def test_after_an_outage_a_leader_that_renews_the_record_is_followed_as_before() -> None:
    one = away(21_000, hears=True)
    assert elections(watch(one, 21_000, 25_000, hears=True)) == []
    one.observed(seen(4, epoch=1, leader=0), 25_000)
    assert elections(watch(one, 25_000, 30_900)) == [], "no longer by its messages, as the record says it"
    assert elections(watch(one, 30_900, 31_000))


def test_each_outage_that_a_renewal_came_before_leaves_the_leader_all_its_time() -> None:
    one = away(21_000, hears=True)
    watch(one, 21_000, 25_000, hears=True)
    one.observed(seen(4, epoch=1, leader=0), 25_000)
    watch(one, 25_000, 26_000, hears=True)
    watch(one, 26_000, 40_000, reads=False, hears=True)
    assert elections(watch(one, 40_000, 46_000, hears=True)) == []
    assert elections(watch(one, 46_000, 46_100, hears=True))


def test_after_an_outage_a_leader_that_was_not_heard_of_is_replaced_at_once() -> None:
    assert elections(watch(away(21_000, hears=False), 21_000, 21_100))


def test_after_an_outage_a_leader_whose_link_broke_is_replaced_at_once_and_one_that_is_heard_of_again_is_not() -> None:
    one = away(15_000, hears=True)
    one.lost(0, 15_000)
    watch(one, 15_000, 20_000, reads=False)
    assert elections(watch(one, 20_000, 20_100))
    one = away(15_000, hears=True)
    one.lost(0, 15_000)
    watch(one, 15_000, 20_000, reads=False, hears=True)
    assert elections(watch(one, 20_000, 26_000, hears=True)) == []


def test_a_leader_that_hangs_before_the_record_is_back_is_replaced_as_late_as_any_other() -> None:
    one = away(15_000, hears=True)
    watch(one, 15_000, 18_000, reads=False)
    assert elections(watch(one, 18_000, 20_900)) == []
    assert elections(watch(one, 20_900, 21_000)), "6 s after it was last heard of"


def test_a_link_that_breaks_after_an_outage_leaves_the_leader_time_for_one_sign_of_life() -> None:
    one = away(15_000, hears=True)
    watch(one, 15_000, 16_000, hears=True)
    one.lost(0, 16_000)
    assert elections(watch(one, 16_000, 18_900)) == []
    assert elections(watch(one, 18_900, 19_000))


def test_a_leader_that_never_renews_is_replaced_although_the_record_comes_and_goes() -> None:
    """Or is so slow that each look at it takes long: each counts for something."""
    one = away(15_000, hears=True)
    looks: list[int] = []
    for at_ms in range(15_000, 35_000, 4_000):
        did = watch(one, at_ms, at_ms + 100, hears=True)
        did += watch(one, at_ms + 100, at_ms + 4_000, reads=False, hears=True)
        looks += [at_ms] * bool(elections(did))
    assert looks[0] == 23_000, "2 s of each time between two looks"


def test_a_short_time_without_the_record_counts_as_silence() -> None:
    """Else each lost answer would make a failover later."""
    one = away(4_900, hears=True)
    assert elections(watch(one, 4_900, 7_900, hears=True)) == []
    assert elections(watch(one, 7_900, 8_000, hears=True))


def test_a_link_that_breaks_as_the_record_goes_away_does_not_make_it_stand_before_it_reads_it() -> None:
    timing = replace(config(1).timing, renew_ms=500, suspect_ms=6_000)  # it waits for less than it may be blind
    one = fetching()
    one.own.config = replace(one.config, timing=timing)
    watch(one, 0, 2_000)
    one.observed(seen(3, epoch=1, leader=0), 2_000)
    watch(one, 2_000, 2_900)
    one.lost(0, 3_000)
    assert elections(watch(one, 3_000, 4_000, reads=False)) == []
    assert elections(watch(one, 4_000, 4_100))


def test_a_process_that_was_paused_reads_the_record_before_it_stands() -> None:
    one = fetching()
    watch(one, 0, 1_000, hears=True)
    assert elections(one.tick(31_000)) == []
    one.observed(seen(3, epoch=1, leader=0), 31_000)
    assert elections(watch(one, 31_000, 36_900)) == []


@pytest.mark.parametrize("read_first", [True, False])
def test_when_all_were_paused_the_leader_has_all_its_time_to_renew_the_record(read_first: bool) -> None:
    """A machine that sleeps: the record is as it was, and the leader was heard of just before."""
    one = fetching()
    watch(one, 0, 1_000, hears=True)
    assert one.group.seen is not None
    if read_first:
        one.observed(one.group.seen, 31_000)
    one.tick(31_000)
    assert elections(watch(one, 31_000, 32_900)) == [], "before the leader is heard of again"
    assert elections(watch(one, 32_900, 36_900, hears=True)) == []
    assert elections(watch(one, 36_900, 37_200, hears=True))


def test_a_link_that_broke_while_its_process_was_paused_leaves_the_leader_time_for_one_sign_of_life() -> None:
    """All may have been paused, for long enough to break all links."""
    one = fetching()
    watch(one, 0, 1_000, hears=True)
    one.lost(0, 31_000)
    one.tick(31_000)
    assert elections(watch(one, 31_000, 33_900)) == []
    assert elections(watch(one, 33_900, 34_000))


def test_a_process_that_is_stopped_again_and_again_stands_in_the_end() -> None:
    one = fetching()
    watch(one, 0, 1_000)
    stood = [
        at_ms for at_ms in range(5_000, 25_000, 4_000) if elections(watch(one, at_ms - 4_000, at_ms, step_ms=4_000))
    ]
    assert stood[0] == 17_000, "1.5 s of each pause count"


def test_how_long_the_record_was_seen_not_to_change_says_nothing_of_the_time_in_which_it_was_away() -> None:
    one = away(21_000, hears=True)
    assert one.group.unchanged_ms() == 1_000
    watch(one, 21_000, 25_100)
    assert one.group.unchanged_ms() == 4_000
    one.lost(0, 25_200)
    assert one.group.unchanged_ms() == 4_000, "what a link does says nothing of the record"
    one.observed(seen(4, epoch=1, leader=0), 25_300)
    assert one.group.unchanged_ms() == 0
