"""R20: an unclean election in the core, and what an operator is told before."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from evenq_broker.core.replication.actions import CompareAndSet, Fence, PersistEpoch, Reset, Truncate
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView
from evenq_broker.core.replication.messages import EpochsReply, FollowerProgress
from evenq_broker.core.replication.record import (
    REASON_MAX,
    UNCLEAN_MAX,
    GroupRecord,
    Pair,
    RecordRefused,
    Seen,
    UncleanElection,
    record_fields,
    record_of,
)
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role
from evenq_broker.core.replication.unclean import UncleanOrder, UncleanPlan, cleaned_reason, in_words, unclean_plan

from .group import PAIRS, STORES, confirm, envelope, fetching, only, records, seen

ONLY_OTHERS = (PAIRS[0], PAIRS[2])


def election(epoch: int, copy: int = 1, *, reason: str = "") -> UncleanElection:
    return UncleanElection(
        epoch=epoch, broker_id=copy, store_id=STORES[copy], time_ms=1_700_000_000_000, log_end=10,
        lost=ONLY_OTHERS, reason=reason,
    )  # fmt: skip


def left_behind() -> Replica:
    """Broker 1 copied [0, 10) in epoch 1, and is not in sync: brokers 0 and 2 are."""
    one = fetching(1)
    one.observed(seen(3, epoch=1, leader=0, isr=ONLY_OTHERS), 0)
    return one


def elected() -> tuple[Replica, GroupRecord]:
    """The same, elected unclean in epoch 2."""
    one = left_behind()
    (call,) = only(one.stand_unclean(reason="fire", time_ms=5), CompareAndSet)
    one.cas_done(call.number, Seen(call.proposed, "4"), 0)
    return one, call.proposed


def test_a_copy_that_is_not_in_sync_leads_alone_and_the_record_says_who_was_given_up() -> None:
    one, record = elected()
    assert (record.version, record.epoch, record.leader, record.isr) == (4, 2, 1, (PAIRS[1],))
    assert (record.members, record.min_isr) == ((0, 1, 2), 2)
    assert record.unclean == (
        UncleanElection(
            epoch=2, broker_id=1, store_id=STORES[1], time_ms=5, log_end=10, lost=ONLY_OTHERS, reason="fire"
        ),
    )
    assert one.role is Role.ELECTED
    assert record_of(record_fields(record)) == record


def test_it_commits_nothing_before_another_copy_is_admitted() -> None:
    """R9 stays."""
    one, _ = elected()
    one.epoch_persisted(2)
    one.appended(2, 20)
    one.synced(20)
    assert (one.role, one.log.hw) == (Role.STARTING, 0)
    one.receive(replace(envelope(0, confirmation(20), epoch=2), store_id="d" * 32), 0)
    (call,) = only(one.tick(1_000), CompareAndSet)
    assert call.proposed.isr == (Pair(0, "d" * 32), PAIRS[1])
    one.cas_done(call.number, Seen(call.proposed, "5"), 0)
    assert (one.role, one.log.hw) == (Role.READY, 20)


def confirmation(end: int) -> FollowerProgress:
    return FollowerProgress(end, end, wants=False)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda one: one.observed(seen(4, epoch=1, leader=0), 0), "has all that is committed"),
        (lambda one: setattr(one.log, "durable", 5), "still writes what it copied last"),
        (lambda one: setattr(one.own, "max_epoch", 9), "was lost or put back from a backup"),
        (lambda one: setattr(one.group, "seen", None), "has not read the group record"),
        (lambda one: setattr(one.own, "persisting", 9), "put back"),
    ],
)
def test_what_forbids_it_is_said_and_nothing_is_written(spoil: object, said: str) -> None:
    one = left_behind()
    assert one.election.why_not_unclean() == ""
    spoil(one)  # type: ignore[operator]
    assert said in one.election.why_not_unclean()
    assert one.stand_unclean(reason="", time_ms=0) == []


def test_an_attempt_of_the_disk_before_that_comes_late_is_no_own_one() -> None:
    """R2: the record is written by the earlier start, with another store; this one must not lead by it."""
    one = left_behind()
    only(one.stand_unclean(reason="", time_ms=0), CompareAndSet)
    old = replace(seen(4, epoch=2, leader=1, isr=(PAIRS[0], Pair(1, "e" * 32))).record, unclean=())
    one.observed(Seen(old, "4"), 0)
    assert one.role is Role.FENCED


def knowing(committed: int, *, unclean: tuple[UncleanElection, ...]) -> Replica:
    """Broker 2 knows that [0, committed) of its log is committed in epoch 1; then broker 1 leads epoch 2."""
    one = fetching(2)
    one.receive(envelope(0, records(10, 30, committed=committed)), 0)
    one.copied(30)
    one.synced(30)
    assert one.log.hw == committed
    record = replace(seen(5, epoch=2, leader=1, isr=(PAIRS[1],)).record, unclean=unclean)
    assert only(one.observed(Seen(record, "5"), 0), PersistEpoch)
    one.epoch_persisted(2)
    return one


def compared(one: Replica, end: int, *, epoch: int = 2, start: int = 0) -> list[object]:
    table = EpochTable(start, (EpochStart(1, start), EpochStart(epoch, end)))
    return one.receive(envelope(1, EpochsReply(one.follower.request, 12, table, end + 10), epoch=epoch), 0)  # type: ignore[return-value]


def test_a_copy_is_cut_below_what_it_knew_to_be_committed_only_after_an_unclean_election() -> None:
    one = knowing(25, unclean=(election(2),))
    assert compared(one, 10) == [Truncate(10, 0, 2)]
    assert one.log.hw == 0, "what is committed of the rest, the new leader says"
    one.truncated(10)
    assert (one.role, one.log.end) == (Role.FETCHING, 10)

    clean = knowing(25, unclean=())
    assert only(compared(clean, 10), Fence)
    assert clean.role is Role.CRASHED
    older = knowing(25, unclean=(election(1),))
    assert only(compared(older, 10), Fence), "an earlier one is no excuse"


def test_once_it_was_compared_with_the_new_history_it_is_never_cut_below_it() -> None:
    one = knowing(25, unclean=(election(2),))
    compared(one, 10)
    one.truncated(10)
    one.receive(envelope(1, records(10, 40, epochs=(EpochStart(2, 10),), previous=1, committed=30), epoch=2), 0)
    one.copied(40)
    assert one.log.hw == 30
    record = replace(seen(6, epoch=3, leader=0, isr=(PAIRS[0],)).record, unclean=(election(2),))
    one.observed(Seen(record, "6"), 0)
    one.epoch_persisted(3)
    table = EpochTable(0, (EpochStart(1, 0), EpochStart(3, 10)))
    assert only(one.receive(envelope(0, EpochsReply(one.follower.request, 12, table, 20), epoch=3), 0), Fence)


def test_a_log_that_shares_nothing_with_the_new_leaders_begins_anew() -> None:
    one = knowing(25, unclean=(election(2),))
    table = EpochTable(100, (EpochStart(2, 100),))
    assert one.receive(envelope(1, EpochsReply(one.follower.request, 12, table, 110), epoch=2), 0) == [Reset(100, 2)]
    one.emptied(100)
    assert (one.role, one.log.end, one.log.hw) == (Role.FETCHING, 100, 0)


def test_who_leads_unclean_vouches_only_for_what_it_has_synced() -> None:
    """It may have copied on until it heard that it leads, and must not say that this is committed."""
    one = left_behind()
    (call,) = only(one.stand_unclean(reason="", time_ms=0), CompareAndSet)
    one.receive(envelope(0, records(10, 20, committed=20)), 0)
    one.copied(20)
    assert (one.log.hw, one.log.durable) == (20, 10)
    one.cas_done(call.number, Seen(call.proposed, "4"), 0)
    one.epoch_persisted(2)
    assert one.log.hw == 10


def test_an_old_pair_that_comes_back_with_more_does_not_stand() -> None:
    one = knowing(25, unclean=(election(2),))
    assert one.election.stand() == []
    assert only(one.tick(100_000), CompareAndSet) == []


def test_confirmations_of_the_old_history_do_not_count() -> None:
    one, _ = elected()
    one.epoch_persisted(2)
    one.appended(2, 20)
    one.synced(20)
    confirm(one, 0, 30)  # of epoch 1: refused
    assert one.copies.acks == {}


# The record.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"unclean": "x"}, "lists at most"),
        ({"unclean": [{}] * (UNCLEAN_MAX + 1)}, "lists at most"),
        ({"unclean": [{}]}, "pairs that were lost"),
        ({"unclean": [{"lost": {}, "reason": "x" * (REASON_MAX + 1)}]}, "at most 200 characters"),
        ({"unclean": [{"lost": {}, "reason": "", "epoch": 9, "broker_id": 1, "store_id": "a" * 32, "time_ms": 0, "log_end": 0}]}, "they ascend"),
    ],
)  # fmt: skip
def test_a_record_with_nonsense_about_unclean_elections_is_refused(change: dict[str, object], said: str) -> None:
    fields = record_fields(seen(2, epoch=1, leader=0).record)
    with pytest.raises(RecordRefused, match=said):
        record_of({**fields, **change})


def test_the_record_keeps_the_newest_ones_and_stays_small() -> None:
    record = seen(1).record
    for epoch in range(1, UNCLEAN_MAX + 3):
        record = record.elected_unclean(election(epoch, reason="ä" * REASON_MAX))
    assert [one.epoch for one in record.unclean] == list(range(3, UNCLEAN_MAX + 3))
    assert len(json.dumps(record_fields(record))) < 8_000
    assert record_of(json.loads(json.dumps(record_fields(record)))) == record


# The plan.


def view(*copies: CopyView, leader: int = -1) -> ReplicaGroupView:
    return ReplicaGroupView(
        broker_name="broker-a", mode="sync", epoch=3, leader=leader, in_sync_min=2, told_by=1, copies=copies
    )


def copy(number: int, *, may_lead: bool = False, end: int = 10, epoch: int = 1, away_ms: int = 0) -> CopyView:
    state = CopyState.AWAY if away_ms else CopyState.CATCHING_UP
    return CopyView(
        copy=number, address=f"db{number}:1", state=state, may_lead=may_lead, log_end=end, log_epoch=epoch,
        away_since_ms=away_ms,
    )  # fmt: skip


GONE = copy(0, may_lead=True, away_ms=7)


def plan_of(group: ReplicaGroupView, order: UncleanOrder | None, *, unchanged_ms: int = 9_000) -> UncleanPlan:
    record = seen(3, epoch=3, leader=0, isr=(PAIRS[0],)).record
    return unclean_plan(group, record, order, unchanged_ms=unchanged_ms, quiet_ms=6_000)


def test_the_plan_names_who_may_lead_and_the_copy_that_has_most() -> None:
    plan = plan_of(view(GONE, copy(1, end=50), copy(2, end=40, epoch=2)), None)
    assert [(one.broker_id, one.store_id, one.away_since_ms) for one in plan.lost] == [(0, STORES[0], 7)]
    assert (plan.suggested, plan.refusal) == (2, ""), "a later epoch has all that an earlier one committed"
    assert plan_of(view(GONE, copy(1, end=50), copy(2, end=40)), None).suggested == 1


@pytest.mark.parametrize(
    ("group", "order", "said"),
    [
        (view(GONE, copy(1), leader=2), UncleanOrder(copy=1), "has a leader, copy 2"),
        (view(copy(0, may_lead=True), copy(1)), UncleanOrder(copy=1), "copy 0 answers and may lead"),
        (view(GONE, copy(1)), UncleanOrder(copy=7), "has no copy 7; it has 0, 1"),
        (view(GONE, copy(1)), UncleanOrder(copy=0), "copy 0 does not answer"),
        (view(GONE, copy(1, end=5), copy(2)), UncleanOrder(copy=1), "copy 2 answers and has more"),
        (view(GONE, copy(1, end=5), copy(2)), UncleanOrder(copy=1, despite_better=True), "give --reason"),
        (view(GONE, copy(1)), UncleanOrder(copy=1, epoch=2), "the plan was of epoch 2"),
        (view(GONE, copy(1, end=5), copy(2)), UncleanOrder(copy=1, despite_better=True, reason="its disk"), ""),
        (view(GONE, copy(1)), UncleanOrder(copy=1, epoch=3), ""),
    ],
)
def test_what_is_refused_and_what_is_not(group: ReplicaGroupView, order: UncleanOrder, said: str) -> None:
    refusal = plan_of(group, order).refusal
    assert said in refusal
    assert bool(said) is bool(refusal)


def test_a_record_that_changed_lately_means_that_a_leader_may_live() -> None:
    assert "for 1.0 s without" in plan_of(view(GONE, copy(1)), UncleanOrder(copy=1), unchanged_ms=1_000).refusal


def test_a_reason_is_one_line_that_can_be_printed() -> None:
    assert cleaned_reason(" two\nlines\x1b[31m of \U0001f525 fire ") == "two lines [31m of fire"
    assert len(cleaned_reason("x" * 500)) == REASON_MAX


def test_an_election_in_words() -> None:
    text = in_words(election(4, reason="fire"))
    assert "unclean election at epoch 4 on 2023-11-14 22:13:20 UTC by copy 1" in text
    assert text.endswith("the reason given: fire")
