"""One decision for a whole (group, topic): who reads what, which version that is, and why.

Called by `core/assignment_engine.py`. `sharing` divides; `decide` compares with the decision before and keeps, for each
queue, since when and why its owner has it. What people read of a decision (`holdings`, `idle_reasons`) is made when
it is read, so that a decision over 10,000 queues that is never read costs little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from evenq.model import NO_GENERATION, Generation, MessageQueue
from evenq_rebalancer.core import reasons
from evenq_rebalancer.core.inputs import Inputs
from evenq_rebalancer.core.ownership_history import OwnershipHistory, Stamp, history_after
from evenq_rebalancer.core.sharing import (
    EQUAL_WEIGHTS,
    Owners,
    StrategyByName,
    divided,
)

__all__ = ["Decision", "Holding", "HoldingState", "decide"]


class HoldingState(StrEnum):
    """Of one queue."""

    OWNED = "OWNED"
    HELD = "HELD"
    """Waits for a successor of who had it."""
    UNOWNED = "UNOWNED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One queue in one member's hands, or in no member's."""

    queue: MessageQueue
    owner: str
    """Client id; `*`: every member; empty: no member."""
    since_ms: int
    """Ms since the epoch."""
    reason: str
    previous_owner: str
    """Who had it before `since_ms`; empty: no member, or several."""
    state: HoldingState = HoldingState.OWNED
    owner_zone: str = ""
    """Empty: unknown."""
    broker_zone: str = ""
    """Empty: unknown."""
    generation: Generation = NO_GENERATION
    """Of the decision that gave it to this owner."""


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
        """What decided."""
        return self.inputs.dividing

    @property
    def holdings(self) -> tuple[Holding, ...]:
        """Ascending queue, then owner; made anew at each call. Those of clustering members where a group has both
        kinds.
        """
        inputs, rows = self.inputs, self.rows
        zones, broker_zones, held = inputs.zone_of_member, inputs.zones, inputs.held
        holdings = []
        for queue, owner, previous, stamp in zip(rows.queues, rows.owners, rows.previous, rows.stamps, strict=True):
            hold = None if owner else held.get(queue)
            unowned = HoldingState.UNOWNED if hold is None else HoldingState.HELD
            holdings.append(
                Holding(
                    queue=queue,
                    owner=owner,
                    since_ms=stamp.since_ms,
                    reason=stamp.reason if hold is None else reasons.waiting(hold),
                    previous_owner=previous,
                    state=HoldingState.OWNED if owner else unowned,
                    owner_zone=zones.get(owner, ""),
                    broker_zone=broker_zones.get(queue.broker_name, ""),
                    generation=stamp.generation,
                )
            )
        return tuple(holdings)

    def owner_of(self) -> dict[MessageQueue, str]:
        """Client id by queue, where each queue has one owner; else empty. Made anew at each call."""
        if not self.inputs.one_owner:
            return {}
        return {queue: owner for queue, owner in zip(self.rows.queues, self.rows.owners, strict=True) if owner}

    @cached_property
    def unowned(self) -> int:
        """Number of queues that no member has and that wait for none."""
        return sum(not owner for owner in self.rows.owners) - self.held

    @property
    def held(self) -> int:
        """Number of queues that wait for a successor."""
        return len(self.inputs.held)

    @cached_property
    def idle(self) -> list[str]:
        """Members without any queue (AL-9), ascending."""
        return [client_id for client_id, queues in self.shares.items() if not queues]

    def idle_reasons(self) -> dict[str, str]:
        """Why each idle member has nothing."""
        return {client_id: reasons.idleness(self.inputs, client_id) for client_id in self.idle}

    @property
    def owners(self) -> int:
        """Number of members with at least one queue."""
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
        """True if no member gets anything else than by the other decision, so that it can go on standing."""
        mine, its = self.inputs, other.inputs
        return (
            (mine.dividing, mine.request_mode) == (its.dividing, its.request_mode)
            and self.shares == other.shares
            and mine.held.keys() == its.held.keys()
            and self.rows.owners == other.rows.owners
        )

    def over(self, inputs: Inputs) -> Decision:
        """The same decision, as that of other inputs, which led to the same."""
        return replace(self, inputs=inputs)

    def stamped(self, generation: Generation) -> Decision:
        """The same decision with a newer generation: a broker may know an older one that looked newer."""
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
    """The decision that follows `before`. `now_ms` is wall time. Raises BadRequest where the strategy does.

    `owners`: who had each queue, if that is not what `before` says. `why`: the reason, if it is not in the inputs.
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
    if before is None and inputs.held:  # the leader before knew who left, and its holds still tell
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
