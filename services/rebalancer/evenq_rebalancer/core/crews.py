"""One group's members over time: who left and is waited for, who came and takes over.

Called by `board.py` whenever the facts of a group may have changed, before any of its lines decides. It compares with
the members it saw last, and keeps the group's holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from evenq.model import MessageModel
from evenq_rebalancer.core.holds import Hold, Holds
from evenq_rebalancer.core.places import Place
from evenq_rebalancer.core.told import MemberFact

__all__ = ["Changes", "Crew"]


@dataclass(slots=True)
class Changes:
    """What lines must be told, in the order of the fields."""

    began: list[Hold] = field(default_factory=list)
    taken: list[tuple[Hold, str]] = field(default_factory=list)
    """With the client id of the successor."""
    ended: list[Hold] = field(default_factory=list)


class Crew:
    """Of one group."""

    def __init__(self) -> None:
        self.version = 0
        """Of the facts that were seen last."""
        self.members: dict[str, MemberFact] = {}
        """By client id."""
        self.holds = Holds()

    def see(
        self,
        members: Iterable[MemberFact],
        *,
        version: int,
        hold_ms: int,
        place_of: Callable[[MemberFact], Place | None],
        now_ms: int,
        wall_ms: int,
    ) -> Changes:
        """These are the members now. `hold_ms`: of the group's policy, 0 = nothing is held (any more)."""
        before, self.members = self.members, {member.client_id: member for member in members}
        self.version = version
        changes = Changes()
        if hold_ms <= 0:
            changes.ended = self.holds.clear()
            return changes
        for client_id, member in before.items():
            if client_id not in self.members and member.model is MessageModel.CLUSTERING:
                place = place_of(member)
                if place is not None and place.leaving:
                    hold = self.holds.left(client_id, place.key, hold_ms=hold_ms, now_ms=now_ms, wall_ms=wall_ms)
                    changes.began += [hold] if hold else []
        if self.holds:
            for client_id, member in self.members.items():
                if client_id not in before and member.model is MessageModel.CLUSTERING:
                    place = place_of(member)
                    taken = self.holds.joined(client_id, place.key if place else "")
                    changes.taken += [(taken, client_id)] if taken else []
        changes.ended = self.holds.expire(now_ms)
        return changes
