"""R23: a start that cannot read the record follows the leader that it remembers, and does nothing else on that ground."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from evenq_broker.core.replication.actions import (
    AppendRecords,
    CompareAndSet,
    PersistEpoch,
    ReadRecord,
    RecordTooOld,
    Send,
    Truncate,
)
from evenq_broker.core.replication.config import Mode
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.group_view import CopyState, PeersSeen, group_view
from evenq_broker.core.replication.messages import EpochsReply, EpochsRequest, FollowerProgress, Nomination, Refusal
from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, Pair, UncleanElection
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role
from group import PAIRS, STORES, TIMING, confirm, envelope, only, ready, records, replica, seen

TABLE = EpochTable(0, (EpochStart(1, 0),))
REMEMBERED = seen(2, epoch=1, leader=0).record


def started(*, epoch_seen: int = 1, id_: int = 1) -> Replica:
    """A copy that was in epoch 1 with a log of 10; nothing was read since its start."""
    one = replica(id_, epoch_seen=epoch_seen)
    assert one.recovered(TABLE, 10, 0) == [ReadRecord()]
    return one


def following() -> Replica:
    """It follows broker 0 by what it remembers."""
    one = started()
    one.unreadable(REMEMBERED)
    assert one.receive(envelope(0, EpochsReply(one.follower.request, 11, TABLE, 10)), 0) == [Truncate(10)]
    one.truncated(10)
    assert (one.role, one.group.seen) == (Role.FETCHING, None)
    return one


def test_a_start_that_cannot_read_the_record_matches_its_log_with_the_leader_it_remembers_and_confirms() -> None:
    one = started()
    (request,) = one.unreadable(REMEMBERED)
    assert isinstance(request, Send)
    assert (request.to, request.envelope.epoch) == (0, 1)
    assert request.envelope.body == EpochsRequest(one.follower.request, TABLE, 10)
    assert one.receive(envelope(0, EpochsReply(one.follower.request, 11, TABLE, 10)), 0) == [Truncate(10)]
    (send,) = only(one.truncated(10), Send)
    assert (send.to, send.envelope.body) == (0, FollowerProgress(10, 10, True))
    body = records(10, 20, committed=10)
    assert one.receive(envelope(0, body), 0) == [AppendRecords(body)]
    (send,) = only(one.copied(20, synced=True), Send)
    assert send.envelope.body == FollowerProgress(20, 20, True)
    assert (one.log.hw, one.group.leader_id()) == (10, 0)


def test_the_request_is_repeated_and_the_record_is_read_again_until_both_are_answered() -> None:
    one = started()
    one.unreadable(REMEMBERED)
    actions = one.tick(TIMING.retry_ms)
    assert [type(action) for action in actions] == [ReadRecord, Send]
    assert isinstance(actions[1], Send)
    assert actions[1].to == 0


@pytest.mark.parametrize(
    "remembered",
    [
        seen(3, epoch=2, leader=0).record,
        seen(1, epoch=0, leader=NO_LEADER).record,
        seen(2, epoch=1, leader=1).record,
        replace(REMEMBERED, members=(0, 2), isr=(PAIRS[0], PAIRS[2])),
    ],
    ids=["another epoch", "no leader", "itself", "no member"],
)
def test_what_is_of_another_epoch_or_names_no_other_leader_or_other_copies_only_is_not_used(
    remembered: GroupRecord,
) -> None:
    one = started()
    assert one.unreadable(remembered) == []
    assert one.group.followed is None
    assert one.group.leader_id() == NO_LEADER
    assert one.tick(TIMING.retry_ms) == [ReadRecord()]


def test_nothing_is_remembered_once_the_record_was_read_or_the_replica_is_no_start() -> None:
    one = started()
    one.observed(seen(7, epoch=1, leader=2), 0)
    assert one.unreadable(REMEMBERED) == []
    assert one.group.leader_id() == 2
    leader = ready()
    assert leader.unreadable(REMEMBERED) == []
    asleep = replica(1, epoch_seen=1)
    assert asleep.unreadable(REMEMBERED) == []
    assert asleep.group.followed is None


def test_on_what_it_remembers_no_copy_stands_for_election_whatever_happens() -> None:
    one = following()
    assert one.election.stand() == []
    assert one.receive(envelope(0, Nomination(10)), 0) == []
    actions = one.lost(0, 100)
    for now_ms in range(200, 10 * TIMING.suspect_ms, 100):
        actions += one.tick(now_ms)
    assert only(actions, CompareAndSet) == []
    assert only(actions, Send)
    assert one.election.attempted == 0


def test_on_what_it_remembers_no_copy_is_in_sync_or_answers_an_operator() -> None:
    one = following()
    assert one.stand_unclean(reason="all are gone", time_ms=5) == []
    assert one.election.why_not_unclean() == "copy 1 has not read the group record"
    assert one.record is None
    view = group_view(
        one, PeersSeen(connected={0}), broker_name="broker-a", addresses={}, serves=False, now_ms=0
    )  # fmt: skip
    own = view.copy(1)
    assert own is not None
    assert (own.state, own.may_lead) == (CopyState.CATCHING_UP, False)
    assert not any(copy.may_lead for copy in view.copies)


def test_a_record_that_is_read_replaces_what_was_remembered_and_the_copying_goes_on() -> None:
    one = following()
    assert one.observed(seen(9, epoch=1, leader=0), 500) == []
    assert (one.role, one.group.remembered) == (Role.FETCHING, None)
    body = records(10, 20)
    assert one.receive(envelope(0, body), 500) == [AppendRecords(body)]
    one.copied(20, synced=True)
    (call,) = only(one.tick(500 + TIMING.suspect_ms), CompareAndSet) or only(one.election.stand(), CompareAndSet)
    assert call.proposed.epoch == 2


def test_its_leader_has_the_whole_time_to_renew_the_record_once_that_was_read() -> None:
    one = following()
    one.tick(9_000)
    one.observed(seen(9, epoch=1, leader=0), 10_000)
    actions = []
    for now_ms in range(10_050, 10_000 + TIMING.suspect_ms, 50):
        actions += one.tick(now_ms)
        actions += one.observed(seen(9, epoch=1, leader=0), now_ms)
    assert only(actions, CompareAndSet) == []


def test_a_higher_epoch_that_is_read_is_entered_and_a_lower_one_changes_nothing() -> None:
    one = following()
    assert one.observed(seen(1, epoch=0, leader=NO_LEADER), 0) == [RecordTooOld(0, 1)]
    assert (one.role, one.group.leader_id()) == (Role.FETCHING, 0)
    assert one.observed(seen(9, epoch=2, leader=2), 0) == [PersistEpoch(2)]
    assert (one.role, one.group.leader_id()) == (Role.FENCED, NO_LEADER)
    (send,) = only(one.epoch_persisted(2), Send)
    assert send.to == 2


def test_peers_of_other_epochs_are_refused_or_make_it_read_the_record_as_ever() -> None:
    one = started(epoch_seen=2)
    one.unreadable(replace(REMEMBERED, epoch=2))
    (send,) = only(one.receive(envelope(2, EpochsRequest(1), epoch=1), 0), Send)
    assert (send.to, send.envelope.body, send.envelope.epoch) == (2, Refusal(), 2)
    assert one.receive(envelope(0, EpochsReply(one.follower.request, 11, TABLE, 10), epoch=3), 0) == [ReadRecord()]
    assert one.role is Role.TRUNCATING


def test_a_cut_says_which_unclean_election_it_is_for() -> None:
    """R20: what is cut then is kept aside, also by a start that cannot read the record."""
    election = UncleanElection(
        epoch=3, broker_id=0, store_id=STORES[0], time_ms=1, log_end=5, lost=(PAIRS[2],), reason="lost"
    )
    one = started(epoch_seen=3)
    one.unreadable(replace(REMEMBERED, epoch=3, isr=PAIRS[:1], unclean=(election,)))
    reply = EpochsReply(one.follower.request, 11, EpochTable(0, (EpochStart(1, 0), EpochStart(3, 5))), 8)
    assert one.receive(envelope(0, reply, epoch=3), 0) == [Truncate(5, 0, 3)]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_follower_that_came_back_as_another_store_counts_for_nothing(mode: Mode) -> None:
    """R10: its leader knows pairs, so what an empty disk confirms, or in memory mode one without its page cache, moves no
    commit.
    """
    leader = ready(mode=mode)
    leader.appended(1, 20)
    leader.synced(20)
    confirm(leader, 2, 20)
    assert confirm(leader, 1, 20, store_id="d" * 32) == []
    assert leader.log.hw == 10
    assert leader.copies.acks[Pair(1, "d" * 32)] == 20
    confirm(leader, 1, 20)
    assert leader.log.hw == 20


def test_a_follower_that_came_back_as_the_same_store_lets_the_leader_commit_while_the_record_is_away() -> None:
    leader, one = ready(), following()
    (call,) = only(leader.lost(1, 0), CompareAndSet)
    leader.cas_unknown(call.number)
    leader.appended(1, 20)
    leader.synced(20)
    confirm(leader, 2, 20)
    assert leader.log.hw == 10, "both sets count until the answer is known (R7)"
    one.receive(envelope(0, records(10, 20)), 0)
    (send,) = only(one.copied(20, synced=True), Send)
    leader.receive(replace(send.envelope, session=99), 0)
    assert leader.log.hw == 20
