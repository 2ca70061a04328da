"""Plan of an unclean election: what an operator learns before a copy leads that is not in sync, and refusals (R20,
D12).

All copies that may lead must be gone for good, because what only they had is given up. `unclean_plan` is made from what
the answering copies report of themselves, and from the group record. Of two copies that are not in sync, the one whose
last record has the higher epoch has all committed records of the other. It matched its log with the leader of that
epoch. Within one epoch it is the longer log. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView
from evenq_broker.core.replication.record import NO_LEADER, REASON_MAX, GroupRecord, UncleanElection

BMP_END = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanOrder:
    copy: int  # the copy that is to lead
    reason: str = ""
    despite_better: bool = False  # also if another copy answers that has more
    epoch: int = 0  # of the plan that the operator saw; 0: any


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPair:
    """Pair that may lead by the record: what only such pairs have is lost."""

    broker_id: int
    store_id: str
    away_since_ms: int
    """Ms since the epoch of time; 0: the copy answers, with another store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanPlan:
    """Consequences of an unclean election."""

    group: ReplicaGroupView
    lost: tuple[LostPair, ...]
    suggested: int
    """Of the copies that answer, the one that has most; `NO_LEADER`: none answers."""
    refusal: str
    """Why it is not done, as a sentence; empty: nothing prevents it."""


def unclean_plan(
    view: ReplicaGroupView,
    record: GroupRecord | None,
    order: UncleanOrder | None,
    *,
    unchanged_ms: int,
    quiet_ms: int,
) -> UncleanPlan:
    """Returns the plan. `view`: of all copies that answer; `record`: as this copy has read it, for `unchanged_ms`
    without a change; after `quiet_ms` no leader lives. `order` None: no copy was named yet.
    """
    answering = [one for one in view.copies if one.state is not CopyState.AWAY]
    candidates = [one for one in answering if not one.may_lead]
    best = max(candidates, key=_has, default=None)
    lost = tuple(
        LostPair(broker_id=pair.broker_id, store_id=pair.store_id, away_since_ms=_away_since_ms(view, pair.broker_id))
        for pair in ([] if record is None else record.isr)
    )
    refusal = _why_not_now(view, record, answering, unchanged_ms=unchanged_ms, quiet_ms=quiet_ms)
    if not refusal and order is not None:
        refusal = _why_not_this(view, order, best)
    suggested = NO_LEADER if best is None else best.copy
    return UncleanPlan(group=view, lost=lost, suggested=suggested, refusal=refusal)


def cleaned_reason(text: str) -> str:
    """Returns one line of printable text. The caller refuses longer ones."""
    kept = (one if one.isprintable() and ord(one) <= BMP_END else " " for one in text)
    return " ".join("".join(kept).split())[:REASON_MAX]


def in_words(election: UncleanElection) -> str:
    """Returns one election as a sentence, for logs."""
    when = datetime.fromtimestamp(election.time_ms / 1000, UTC)
    gone = ", ".join(str(pair.broker_id) for pair in election.lost)
    return (
        f"unclean election at epoch {election.epoch} on {when:%Y-%m-%d %H:%M:%S} UTC by copy {election.broker_id}, "
        f"whose log ended at {election.log_end}: acknowledged messages that only copies {gone} had are lost"
        + (f"; the reason given: {election.reason}" if election.reason else "")
    )


def _has(copy: CopyView) -> tuple[int, int, int]:
    """Returns how much a copy has, comparable; of equal ones the lower number wins."""
    return copy.log_epoch, copy.log_end, -copy.copy


def _away_since_ms(view: ReplicaGroupView, broker_id: int) -> int:
    copy = view.copy(broker_id)
    return copy.away_since_ms if copy is not None and copy.state is CopyState.AWAY else 0


def _why_not_now(
    view: ReplicaGroupView, record: GroupRecord | None, answering: list[CopyView], *, unchanged_ms: int, quiet_ms: int
) -> str:
    if not view.mode:
        return f"broker {view.broker_name} has one copy"
    if record is None:
        return (
            f"copy {view.told_by} has not read the group record of {view.broker_name}: repair the place where it is "
            "kept first"
        )
    if view.leader != NO_LEADER:
        return f"broker group {view.broker_name} has a leader, copy {view.leader}, in epoch {view.epoch}"
    able = [str(one.copy) for one in answering if one.may_lead]
    if able:
        return (
            f"copy {', copy '.join(able)} answers and may lead: it has all that is committed, and leads by itself, or "
            "its log says why it cannot"
        )
    if unchanged_ms < quiet_ms:
        return (
            f"copy {view.told_by} has read the group record for {unchanged_ms / 1000:.1f} s without a change, so a "
            f"leader may live that it cannot reach; try again once it could read it for {quiet_ms / 1000:.0f} s"
        )
    return ""


def _why_not_this(view: ReplicaGroupView, order: UncleanOrder, best: CopyView | None) -> str:
    copy = view.copy(order.copy)
    if copy is None:
        numbers = ", ".join(str(one.copy) for one in view.copies)
        return f"broker group {view.broker_name} has no copy {order.copy}; it has {numbers}"
    if copy.state is CopyState.AWAY or best is None:
        return f"copy {order.copy} does not answer: start it first"
    if order.epoch and order.epoch != view.epoch:
        return f"the group is in epoch {view.epoch}, the plan was of epoch {order.epoch}: look again what would be lost"
    if _has(copy)[:2] < _has(best)[:2] and not order.despite_better:
        return (
            f"copy {best.copy} answers and has more: its log ends at {best.log_end:,} in epoch {best.log_epoch}, that "
            f"of copy {order.copy} at {copy.log_end:,} in epoch {copy.log_epoch}. Take copy {best.copy}, or give "
            "--despite-better with a --reason"
        )
    if order.despite_better and not cleaned_reason(order.reason):
        return "a copy that has less than another one is taken for a reason only: give --reason"
    return ""
