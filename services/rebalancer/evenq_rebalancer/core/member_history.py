"""Members of one group over time: leaving members whose queues are held, and their successors.

`assignment_engine.py` calls it whenever facts of a group may have changed, before any of its topics is decided. It
compares with the last members and keeps the group's holds. No hold begins if the successor has already joined, because
that one has its own share by then. At first sight of a group it resumes the holds of the previous leader; successors
that joined while no rebalancer led have no queues yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from evenq.model import MessageModel, MessageQueue
from evenq_rebalancer.core.holds import Hold, Holds
from evenq_rebalancer.core.inherited_holds import NOTHING_INHERITED, InheritedHolds
from evenq_rebalancer.core.places import MemberPlace
from evenq_rebalancer.core.reports import MemberFact


@dataclass(slots=True)
class MemberChanges:
    """Changed holds, which assignments apply in the order of the fields."""

    resumed: dict[str, dict[MessageQueue, Hold]] = field(default_factory=dict)
    """By topic: queues that the previous leader held and this one still holds."""
    began: list[Hold] = field(default_factory=list)
    taken: list[tuple[Hold, str]] = field(default_factory=list)
    """Holds with the client id of the successor."""
    ended: list[Hold] = field(default_factory=list)


class MemberHistory:
    """Members and holds of one group."""

    def __init__(self) -> None:
        self.version = 0
        """Version of the facts that were seen last; 0: none yet."""
        self.members: dict[str, MemberFact] = {}
        self.holds = Holds()
        self._early: dict[str, tuple[str, int]] = {}
        """Members that joined a place without a hold: client id to place and monotonic ms."""

    def see(
        self,
        members: Iterable[MemberFact],
        *,
        version: int,
        hold_ms: int,
        place_of: Callable[[MemberFact], MemberPlace | None],
        now_ms: int,
        wall_ms: int,
        inherited: InheritedHolds = NOTHING_INHERITED,
    ) -> MemberChanges:
        """Compares with the current members. `hold_ms` 0: the policy holds nothing. `inherited` counts only once."""
        before, self.members = self.members, {member.client_id: member for member in members}
        first, self.version = not self.version, version
        changes = MemberChanges()
        if hold_ms <= 0:  # the policy was changed, or never held anything
            changes.ended = self.holds.clear()
            return changes
        # Members that left: broadcasting ones own no queues, and a place that is not refilled has no successor.
        for client_id, member in before.items():
            if client_id not in self.members and member.model is MessageModel.CLUSTERING:
                self._early.pop(client_id, None)
                place = place_of(member)
                if place is not None and place.leaving and not self._replaced(place.key, now_ms - hold_ms):
                    hold = self.holds.left(client_id, place.key, hold_ms=hold_ms, now_ms=now_ms, wall_ms=wall_ms)
                    changes.began += [hold] if hold else []
        old: Collection[str] = before
        if first:  # all are new to this leader: only members with queues of their own count as old
            changes.resumed = self._resume(inherited, hold_ms=hold_ms, now_ms=now_ms, wall_ms=wall_ms)
            old = inherited.settled if changes.resumed else self.members
        for client_id, member in self.members.items():
            if client_id not in old and member.model is MessageModel.CLUSTERING:
                place = place_of(member)
                taken = self.holds.joined(client_id, place.key if place else "")
                if taken is not None:
                    changes.taken.append((taken, client_id))
                elif place is not None and not first:
                    self._early[client_id] = (place.key, now_ms)
        changes.ended = self.holds.expire(now_ms)
        return changes

    def _resume(
        self, inherited: InheritedHolds, *, hold_ms: int, now_ms: int, wall_ms: int
    ) -> dict[str, dict[MessageQueue, Hold]]:
        resumed: dict[str, dict[MessageQueue, Hold]] = {}
        for held_place in inherited.places:
            hold = self.holds.resumed(
                held_place.client_id,
                held_place.place,
                until_wall_ms=held_place.until_wall_ms,
                hold_ms=hold_ms,
                now_ms=now_ms,
                wall_ms=wall_ms,
            )
            if hold is not None:
                for queue in held_place.queues:
                    resumed.setdefault(queue.topic, {})[queue] = hold
        return resumed

    def _replaced(self, place: str, since_ms: int) -> bool:
        """True if the successor joined the place before this member left: the rollout starts it first, or the member
        died unnoticed. Each early member counts for one leave.
        """
        self._early = {own: came for own, came in self._early.items() if own in self.members and came[1] >= since_ms}
        early = next((own for own, came in self._early.items() if came[0] == place), None)
        if early is not None:
            del self._early[early]
        return early is not None
