"""Holds: the hand-over of queues from a member that is being replaced to its successor. Pure, one `Holds` per group.

Problem: in a rolling update each member leaves and its replacement joins seconds later. Dividing the queues twice moves
queues without need. With 16 queues and 4 members, each leave moves 4 queues and each join 4 again under STICKY: 32
moves for an update of all members, where 16 are enough.

Idea: a place outlives its member. A place is the label `instance`, or the controller of the pod (`places.py`). If a
member leaves a place that will be refilled, its queues wait for the successor: the next member with the same client id
or the same place. Until then they are left out of the division, and no member reads them. So a hold is bounded by time
(`hold_ms`) and, queue by queue, by lag (`hold_lag_max`).

This module holds members and times, not queues. `member_history.py` drives it with leaving and joining members.
`topic_assignments.py` maps each hold to queues and releases single queues by lag.

    left, resumed -> standing -- joined (same id, otherwise the oldest of the same place) --> the successor takes over
                              -- expire (time), clear (policy without holds) --> the queues are divided among all

Example with hold_ms = 30,000. A member leaves at 0 ms with 4 of 16 queues, and the other 12 stay where they are. A new
pod of the same controller joins at 8,000 ms and gets exactly those 4. If none joins, all 16 are divided at 30,000 ms.

Invariants:

- A hold ends at the latest `hold_ms` after it began or was resumed, whatever wall clocks show.
- At most `holds_max` holds stand at the same time, one per client id.
- A successor ends at most one hold.

Decisions carry the holds to the brokers, so that the next leader can resume them (`inherited_holds.py`, decision 18).
Kafka's static membership (KIP-345) has the same aim. Tests: `tests/integration/test_rebalancer_holds.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

HOLDS_MAX = 256
"""Most holds of one group; queues of further leaving members are divided immediately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One member that left and whose queues wait for a successor."""

    client_id: str
    place: str
    """Key of the place; a member with the same key is a successor. Empty: only the same client id is."""
    until_ms: int
    """Monotonic end; it decides."""
    until_wall_ms: int
    """The same end in ms since the epoch, for reasons and for the next leader."""


class Holds:
    """All holds of one group, oldest first."""

    def __init__(self, *, holds_max: int = HOLDS_MAX) -> None:
        self._holds_max = holds_max
        self._standing: dict[str, Hold] = {}
        """By client id, in the order in which they began or were resumed."""

    def __len__(self) -> int:
        return len(self._standing)

    @property
    def standing(self) -> list[Hold]:
        """Oldest first."""
        return list(self._standing.values())

    def left(self, client_id: str, place: str, *, hold_ms: int, now_ms: int, wall_ms: int) -> Hold | None:
        """Begins a hold for a member that left a place to be refilled. None: nothing is held."""
        # No time (left) to hold, too many holds, or this member has one.
        if hold_ms <= 0 or len(self._standing) >= self._holds_max or client_id in self._standing:
            return None
        hold = Hold(client_id=client_id, place=place, until_ms=now_ms + hold_ms, until_wall_ms=wall_ms + hold_ms)
        self._standing[client_id] = hold
        return hold

    def resumed(
        self, client_id: str, place: str, *, until_wall_ms: int, hold_ms: int, now_ms: int, wall_ms: int
    ) -> Hold | None:
        """Resumes a hold of the previous leader for its remaining time. None if that is 0, or as for `left`."""
        # The wall clocks of two leaders may differ by any time: never longer than the policy allows.
        return self.left(
            client_id, place, hold_ms=min(until_wall_ms - wall_ms, hold_ms), now_ms=now_ms, wall_ms=wall_ms
        )

    def joined(self, client_id: str, place: str) -> Hold | None:
        """Ends and returns the hold that the new member takes over; None: no hold fits."""
        hold = self._standing.get(client_id)  # the member itself returned, for example after a restart
        if hold is None and place:  # a successor with a new id: the oldest hold of its place
            hold = next((standing for standing in self._standing.values() if standing.place == place), None)
        if hold is not None:
            del self._standing[hold.client_id]
        return hold

    def expire(self, now_ms: int) -> list[Hold]:
        """Ends the holds whose time has passed."""
        return self._end([hold for hold in self._standing.values() if hold.until_ms <= now_ms])

    def clear(self) -> list[Hold]:
        """Ends all holds, because the group's policy holds nothing any more."""
        return self._end(self.standing)

    def next_ms(self) -> int | None:
        """Returns the monotonic time of the next `expire` that ends a hold; None: no hold stands."""
        return min((hold.until_ms for hold in self._standing.values()), default=None)

    def _end(self, ended: list[Hold]) -> list[Hold]:
        for hold in ended:
            del self._standing[hold.client_id]
        return ended
