"""What an operator learns before a copy that is not in sync is let lead, and why that is refused (R20, D12).

All copies that may lead must be gone for good: what only they had is given up by it. `unclean_plan` is made of what the
copies that answer say of themselves, and of the group record. Of two copies that are not in sync, the one whose last
record has the higher epoch has all committed records that the other has, since it matched its log with the leader of
that epoch; with one epoch it is the longer log. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView
from evenq_broker.core.replication.record import NO_LEADER, REASON_MAX, GroupRecord, UncleanElection

__all__ = ["LostPair", "UncleanOrder", "UncleanPlan", "cleaned_reason", "in_words", "unclean_plan"]

BMP_END = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanOrder:
    """What an operator asks for."""

    copy: int
    """That is to lead."""
    reason: str = ""
    despite_better: bool = False
    """Also if another copy answers that has more."""
    epoch: int = 0
    """Of the plan that the operator saw; 0: whatever it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPair:
    """Who may lead by the record: what only these have is lost."""

    broker_id: int
    store_id: str
    away_since_ms: int
    """Ms since the epoch of time; 0: the copy answers, with another store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanPlan:
    """What would happen."""

    group: ReplicaGroupView
    lost: tuple[LostPair, ...]
    suggested: int
    """Of the copies that answer, the one that has most; `NO_LEADER`: none answers."""
    refusal: str
    """Why it is not done, in a sentence; empty: nothing hinders."""


def unclean_plan(
    view: ReplicaGroupView, record: GroupRecord | None, order: UncleanOrder | None, *, changed_ms_ago: int,
    quiet_ms: int,
) -> UncleanPlan:  # fmt: skip
    """`view`: of all copies that answer; `record`: as the copy asked knows it, unchanged for `changed_ms_ago`;
    after `quiet_ms` without a change no leader lives. `order` None: no copy was named yet.
    """
    answering = [one for one in view.copies if one.state is not CopyState.AWAY]
    candidates = [one for one in answering if not one.may_lead]
    best = max(candidates, key=_has, default=None)
    lost = tuple(
        LostPair(broker_id=pair.broker_id, store_id=pair.store_id, away_since_ms=_away_since_ms(view, pair.broker_id))
        for pair in ([] if record is None else record.isr)
    )
    refusal = _why_not_now(view, record, answering, changed_ms_ago=changed_ms_ago, quiet_ms=quiet_ms)
    if not refusal and order is not None:
        refusal = _why_not_this(view, order, best)
    suggested = NO_LEADER if best is None else best.copy
    return UncleanPlan(group=view, lost=lost, suggested=suggested, refusal=refusal)


def cleaned_reason(text: str) -> str:
    """One line of what can be printed. Longer ones are the caller's to refuse."""
    kept = (one if one.isprintable() and ord(one) <= BMP_END else " " for one in text)
    return " ".join("".join(kept).split())[:REASON_MAX]


def in_words(election: UncleanElection) -> str:
    """One election in a sentence, for logs."""
    when = datetime.fromtimestamp(election.time_ms / 1000, UTC)
    gone = ", ".join(str(pair.broker_id) for pair in election.lost)
    return (
        f"unclean election at epoch {election.epoch} on {when:%Y-%m-%d %H:%M:%S} UTC by copy {election.broker_id}, "
        f"whose log ended at {election.log_end}: acknowledged messages that only copies {gone} had are lost"
        + (f"; the reason given: {election.reason}" if election.reason else "")
    )


def _has(copy: CopyView) -> tuple[int, int, int]:
    """How much it has, comparable; of equal ones the lower number."""
    return copy.log_epoch, copy.log_end, -copy.copy


def _away_since_ms(view: ReplicaGroupView, broker_id: int) -> int:
    copy = view.copy(broker_id)
    return copy.away_since_ms if copy is not None and copy.state is CopyState.AWAY else 0


def _why_not_now(
    view: ReplicaGroupView, record: GroupRecord | None, answering: list[CopyView], *, changed_ms_ago: int, quiet_ms: int
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
    if changed_ms_ago < quiet_ms:
        return (
            f"the group record changed {changed_ms_ago / 1000:.1f} s ago, so a leader may live that copy "
            f"{view.told_by} cannot reach; try again after {quiet_ms / 1000:.0f} s without a change"
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
