"""One group's members over time: who left and is waited for, who came and takes over.

Called by `assignment_engine.py` whenever the facts of a group may have changed, before any of its topics is decided. It
compares with the members it saw last, and keeps the group's holds. Nobody is waited for whose successor is there
already: that one has a share of its own by then. A history that sees a group for the first time goes on with what the
leader before waited for; successors that came while no rebalancer led have no queues yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from evenq.model import MessageModel, MessageQueue
from evenq_rebalancer.core.holds import Hold, Holds
from evenq_rebalancer.core.inherited_holds import NOTHING_INHERITED, InheritedHolds
from evenq_rebalancer.core.places import MemberPlace
from evenq_rebalancer.core.reports import MemberFact

__all__ = ["MemberChanges", "MemberHistory"]


@dataclass(slots=True)
class MemberChanges:
    """What assignments must learn, in the order of the fields."""

    resumed: dict[str, dict[MessageQueue, Hold]] = field(default_factory=dict)
    """By topic: queues that waited under the leader before, and go on waiting."""
    began: list[Hold] = field(default_factory=list)
    taken: list[tuple[Hold, str]] = field(default_factory=list)
    """With the client id of the successor."""
    ended: list[Hold] = field(default_factory=list)


class MemberHistory:
    """Of one group."""

    def __init__(self) -> None:
        self.version = 0
        """Of the facts that were seen last."""
        self.members: dict[str, MemberFact] = {}
        """By client id."""
        self.holds = Holds()
        self._early: dict[str, tuple[str, int]] = {}
        """Members that came while no member of their place was waited for: client id to place and time (monotonic
        ms).
        """

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
        """These are the members now. `hold_ms`: of the group's policy, 0 = nothing is held (any more). `inherited`
        counts the first time only.
        """
        before, self.members = self.members, {member.client_id: member for member in members}
        first, self.version = not self.version, version
        changes = MemberChanges()
        if hold_ms <= 0:
            changes.ended = self.holds.clear()
            return changes
        for client_id, member in before.items():
            if client_id not in self.members and member.model is MessageModel.CLUSTERING:
                self._early.pop(client_id, None)
                place = place_of(member)
                if place is not None and place.leaving and not self._replaced(place.key, now_ms - hold_ms):
                    hold = self.holds.left(client_id, place.key, hold_ms=hold_ms, now_ms=now_ms, wall_ms=wall_ms)
                    changes.began += [hold] if hold else []
        old: Collection[str] = before
        if first:
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
        """True if a member came to the place before who was there left it (it died unseen, or the rollout starts the
        new one first): no queue need wait for one more.
        """
        self._early = {own: came for own, came in self._early.items() if own in self.members and came[1] >= since_ms}
        early = next((own for own, came in self._early.items() if came[0] == place), None)
        if early is not None:
            del self._early[early]
        return early is not None
