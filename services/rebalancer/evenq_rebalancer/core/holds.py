"""Queues that wait for a successor: whose place is being refilled keeps its queues for a while (rollouts).

One `Holds` per group, driven by `topic_assignments.py`: members leave and join, time passes, lags are reported. Pure:
no queue is named here, only who left, until when its queues wait, and who came instead. States of one hold:

    left, resumed -> standing -- joined(same id or place) --> ended, the successor takes over
                              -- time, too much lag, a policy without holds --> ended, the queues are given away

Always true: a hold ends at the latest `hold_ms` after it began, or after a new leader took it up, whatever clocks say;
at most `holds_max` stand at once, one for each client id; one successor ends one hold, of several with one place the
oldest.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HOLDS_MAX", "Hold", "Holds"]

HOLDS_MAX = 256
"""Of one group. Who leaves beyond that is not waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One member that left and is waited for."""

    client_id: str
    place: str
    until_ms: int
    """Monotonic."""
    until_wall_ms: int
    """The same as ms since the epoch, for people."""


class Holds:
    """All holds of one group, oldest first."""

    def __init__(self, *, holds_max: int = HOLDS_MAX) -> None:
        self._holds_max = holds_max
        self._standing: dict[str, Hold] = {}

    def __len__(self) -> int:
        return len(self._standing)

    @property
    def standing(self) -> list[Hold]:
        """Oldest first."""
        return list(self._standing.values())

    def left(self, client_id: str, place: str, *, hold_ms: int, now_ms: int, wall_ms: int) -> Hold | None:
        """A member of a place that will be refilled left; None if nothing is held: `hold_ms` is 0, or too many are."""
        if hold_ms <= 0 or len(self._standing) >= self._holds_max or client_id in self._standing:
            return None
        hold = Hold(client_id=client_id, place=place, until_ms=now_ms + hold_ms, until_wall_ms=wall_ms + hold_ms)
        self._standing[client_id] = hold
        return hold

    def resumed(
        self, client_id: str, place: str, *, until_wall_ms: int, hold_ms: int, now_ms: int, wall_ms: int
    ) -> Hold | None:
        """A leader before waited for a successor until then; None if that is over, or as for `left`."""
        return self.left(
            client_id, place, hold_ms=min(until_wall_ms - wall_ms, hold_ms), now_ms=now_ms, wall_ms=wall_ms
        )

    def joined(self, client_id: str, place: str) -> Hold | None:
        """Whose queues the newcomer takes over: its own from before, else the oldest of its place; None: of no
        member.
        """
        hold = self._standing.get(client_id)
        if hold is None and place:
            hold = next((standing for standing in self._standing.values() if standing.place == place), None)
        if hold is not None:
            del self._standing[hold.client_id]
        return hold

    def expire(self, now_ms: int) -> list[Hold]:
        """End the holds whose time is over."""
        return self._end([hold for hold in self._standing.values() if hold.until_ms <= now_ms])

    def clear(self) -> list[Hold]:
        """End all: the group's policy holds nothing any more."""
        return self._end(self.standing)

    def next_ms(self) -> int | None:
        """When `expire` has something to do; None: nothing stands."""
        return min((hold.until_ms for hold in self._standing.values()), default=None)

    def _end(self, ended: list[Hold]) -> list[Hold]:
        for hold in ended:
            del self._standing[hold.client_id]
        return ended
