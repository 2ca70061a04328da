"""One decision for a whole (group, topic): the owner of each queue, the generation, and the reason.

`sharing` divides the queues. `decide` compares with the previous decision and records since when and why each owner has
its queue. `holdings` and `idle_reasons` are computed when they are read: most decisions over 10,000 queues never are.
`gaps` and `idle` are sentences for the log (AL-9, AL-14, AL-20); the loop that publishes decisions logs each sentence
once, and again when it changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from evenq.allocation import coverage
from evenq.model import NO_GENERATION, Generation, MessageQueue
from evenq.model.names import is_system_topic
from evenq_rebalancer.core import reasons
from evenq_rebalancer.core.inputs import Inputs
from evenq_rebalancer.core.sharing import ALL_MEMBERS, EQUAL_WEIGHTS, Division, Owners, StrategyByName, divided


class OwnershipState(StrEnum):
    OWNED = "OWNED"
    HELD = "HELD"
    """Waits for a successor of its last owner."""
    UNOWNED = "UNOWNED"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOwnership:
    """Ownership of one queue by one member, all members or none."""

    queue: MessageQueue
    owner: str
    """Client id; `*`: every member; empty: no member."""
    since_ms: int
    """Ms since the epoch."""
    reason: str
    previous_owner: str
    """Owner before `since_ms`; empty: no member, or several."""
    state: OwnershipState = OwnershipState.OWNED
    owner_zone: str = ""
    broker_zone: str = ""
    """Zones are empty where they are unknown."""
    generation: Generation = NO_GENERATION
    """Generation of the decision that gave it to this owner."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The answer for all members of a group about one topic."""

    group: str
    topic: str
    generation: Generation
    inputs: Inputs
    shares: Mapping[str, tuple[MessageQueue, ...]]
    """By client id; a member without queues has an empty tuple."""
    rows: OwnershipHistory
    moves: int
    """Queues that changed from one owner to another with this decision."""
    reason: str

    @property
    def strategy(self) -> str:
        """Name of the rule that divided the queues."""
        return self.inputs.dividing

    @property
    def holdings(self) -> tuple[QueueOwnership, ...]:
        """One row per queue and owner, ascending, computed at each call; in mixed groups only clustering members."""
        inputs, rows = self.inputs, self.rows
        zones, broker_zones, held = inputs.zone_of_member, inputs.zones, inputs.held
        holdings = []
        for queue, owner, previous, stamp in zip(rows.queues, rows.owners, rows.previous, rows.stamps, strict=True):
            hold = None if owner else held.get(queue)
            unowned = OwnershipState.UNOWNED if hold is None else OwnershipState.HELD
            holdings.append(
                QueueOwnership(
                    queue=queue,
                    owner=owner,
                    since_ms=stamp.since_ms,
                    reason=stamp.reason if hold is None else reasons.waiting(hold),
                    previous_owner=previous,
                    state=OwnershipState.OWNED if owner else unowned,
                    owner_zone=zones.get(owner, ""),
                    broker_zone=broker_zones.get(queue.broker_name, ""),
                    generation=stamp.generation,
                )
            )
        return tuple(holdings)

    def owner_of(self) -> dict[MessageQueue, str]:
        """Returns the client id by queue where each queue has one owner; otherwise empty. Computed at each call."""
        if not self.inputs.one_owner:
            return {}
        return {queue: owner for queue, owner in zip(self.rows.queues, self.rows.owners, strict=True) if owner}

    @cached_property
    def unowned(self) -> int:
        """Number of queues without an owner, held ones not counted."""
        return sum(not owner for owner in self.rows.owners) - self.held

    @property
    def held(self) -> int:
        return len(self.inputs.held)

    @cached_property
    def idle(self) -> list[str]:
        """Members without a queue (AL-9), ascending."""
        return [client_id for client_id, queues in self.shares.items() if not queues]

    def idle_reasons(self) -> dict[str, str]:
        return {client_id: reasons.idleness(self.inputs, client_id) for client_id in self.idle}

    @property
    def owners(self) -> int:
        return len(self.shares) - len(self.idle)

    @cached_property
    def cross_zone(self) -> int:
        """Number of queues whose owner is known to be in another zone than their broker."""
        zones, broker_zones = self.inputs.zone_of_member, self.inputs.zones
        if not zones or not broker_zones:
            return 0
        pairs = (
            (zones.get(owner), broker_zones.get(queue.broker_name))
            for queue, owner in zip(self.rows.queues, self.rows.owners, strict=True)
        )
        return sum(own is not None and there is not None and own != there for own, there in pairs)

    def says_as(self, other: Decision) -> bool:
        """True if every member gets the same as by the other decision."""
        mine, its = self.inputs, other.inputs
        return (
            (mine.dividing, mine.request_mode) == (its.dividing, its.request_mode)
            and self.shares == other.shares
            and mine.held.keys() == its.held.keys()
            and self.rows.owners == other.rows.owners
        )

    def over(self, inputs: Inputs) -> Decision:
        """Returns the same decision with other inputs that led to it."""
        return replace(self, inputs=inputs)

    def stamped(self, generation: Generation) -> Decision:
        """Returns the same decision with a newer generation, above all that brokers report."""
        return replace(self, generation=generation, moves=0)


def decide(
    *,
    group: str,
    topic: str,
    inputs: Inputs,
    before: Decision | None,
    generation: Generation,
    now_ms: int,
    by: StrategyByName,
    owners: Owners | None = None,
    weights: Mapping[MessageQueue, float] = EQUAL_WEIGHTS,
    why: str = "",
) -> Decision:
    """Returns the decision that follows `before`. `now_ms` is wall time. Raises BadRequest where the strategy does.

    `owners`: previous owners, if they differ from those in `before`. `why`: the reason, if the inputs do not show it.
    """
    known = owners or (before.owner_of if before else dict)
    division = divided(group, inputs, by, owners=known, weights=weights)
    reason = reasons.difference(before.inputs if before else None, inputs)
    if why:
        reason = why if before and reason == reasons.ASKED_AGAIN else f"{reason}; {why}"
    rows, moves = history_after(
        before.rows if before else None,
        division,
        Stamp(now_ms, reason, generation),
        waiting=before.inputs.held if before else {},
    )
    if before is None and inputs.held:  # holds of the previous leader name the members that left
        held = inputs.held
        rows = replace(rows, previous=[held[queue].client_id if queue in held else "" for queue in rows.queues])
    return Decision(
        group=group,
        topic=topic,
        generation=generation,
        inputs=inputs,
        shares=division.shares,
        rows=rows,
        moves=moves,
        reason=reason + reasons.mismatch(topic, inputs),
    )


@dataclass(frozen=True, slots=True)
class Stamp:
    """Time, reason and generation that rows changed together have in common."""

    since_ms: int
    """Ms since the epoch."""
    reason: str
    generation: Generation


@dataclass(frozen=True, slots=True)
class OwnershipHistory:
    """Time, reason and previous owner of each queue's ownership, in columns of the same length that pass from decision
    to decision: one row for each owner of each queue.

    A decision over 10,000 queues must be made within milliseconds. So a queue that keeps its owner costs one
    comparison, and all rows that change together share one `Stamp`.
    """

    queues: Sequence[MessageQueue]
    owners: Sequence[str]
    previous: Sequence[str]
    """Previous owner; empty: no member, or several."""
    stamps: Sequence[Stamp]

    def by_queue(self) -> dict[MessageQueue, dict[str, int]]:
        """Returns the owners of each queue, with their row numbers."""
        rows: dict[MessageQueue, dict[str, int]] = {}
        for index, (queue, owner) in enumerate(zip(self.queues, self.owners, strict=True)):
            rows.setdefault(queue, {})[owner] = index
        return rows


def history_after(
    before: OwnershipHistory | None, division: Division, stamp: Stamp, *, waiting: Mapping[MessageQueue, object]
) -> tuple[OwnershipHistory, int]:
    """Returns the rows of a new division, and how many moved between members. `waiting`: queues held in `before`, which
    had no owner there: their previous owner is the one before the hold.
    """
    queues, owners = division.queues, division.owners
    count = len(queues)
    if before is None:
        return OwnershipHistory(queues, owners, [""] * count, [stamp] * count), 0
    if division.one_row_each and (queues is before.queues or tuple(queues) == tuple(before.queues)):
        return _same_queues(before, division, stamp, waiting)
    old = before.by_queue()
    now: dict[MessageQueue, set[str]] = {}
    for queue, owner in zip(queues, owners, strict=True):
        now.setdefault(queue, set()).add(owner)
    previous, stamps, moves = [""] * count, [stamp] * count, 0
    for index, (queue, owner) in enumerate(zip(queues, owners, strict=True)):
        held = old.get(queue, {})
        row = held.get(owner)
        if row is not None:
            previous[index], stamps[index] = before.previous[row], before.stamps[row]
            continue
        lost = [name for name in held if name not in now[queue]]
        if len(lost) == 1:
            previous[index] = lost[0] or (before.previous[held[""]] if queue in waiting else "")
        moves += _moved(owner, previous[index])
    return OwnershipHistory(queues, owners, previous, stamps), moves


def _same_queues(
    before: OwnershipHistory, division: Division, stamp: Stamp, waiting: Mapping[MessageQueue, object]
) -> tuple[OwnershipHistory, int]:
    owners, queues = division.owners, division.queues
    changed = [index for index, owner in enumerate(owners) if owner != before.owners[index]]
    if not changed:
        return OwnershipHistory(queues, owners, before.previous, before.stamps), 0
    previous, stamps, moves = list(before.previous), list(before.stamps), 0
    for index in changed:
        stamps[index] = stamp
        if before.owners[index] or queues[index] not in waiting:
            previous[index] = before.owners[index]
        moves += _moved(owners[index], previous[index])
    return OwnershipHistory(queues, owners, previous, stamps), moves


def _moved(owner: str, previous: str) -> bool:
    """True if the queue moved from one member to another."""
    return owner != previous and not {owner, previous} & {"", ALL_MEMBERS}


NAMED_MAX = 5


def gaps(decision: Decision) -> str:
    """Returns the queues that no member reads, as a sentence; empty if every queue has a reader or is held."""
    inputs = decision.inputs
    if not inputs.one_owner or not decision.shares or not decision.unowned:
        return ""
    seen = coverage(inputs.queues, decision.shares, inputs.zones)
    unowned = [queue for queue in seen.unowned if queue not in inputs.held]
    rooms = f", all of rooms {', '.join(seen.uncovered_rooms[:NAMED_MAX])} among them" if seen.uncovered_rooms else ""
    count = f"{len(unowned)} of {len(inputs.queues)}"
    return (
        f"{decision.strategy} gives {count} queues to no member ({_named(unowned)}){rooms}; "
        f"run evenq group doctor {decision.group} for advice"
    )


def idle(decision: Decision) -> str:
    """Returns the members without a queue, as a sentence; empty if all have one, and for system topics."""
    if not decision.inputs.one_owner or not decision.idle or is_system_topic(decision.topic):
        return ""
    return f"{len(decision.idle)} of {len(decision.shares)} members have no queue, among them {decision.idle[0]}"


def _named(queues: Sequence[MessageQueue]) -> str:
    named = [f"{queue.broker_name}/{queue.queue_id}" for queue in queues[:NAMED_MAX]]
    more = [f"{len(queues) - NAMED_MAX} more"] if len(queues) > NAMED_MAX else []
    return ", ".join([*named, *more])
