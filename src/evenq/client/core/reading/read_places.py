"""The copy from which a queue is pulled next, for readers that accept committed messages from any copy (HA-9).

The leader comes first, because only it knows the end of the queue. While it is unreachable, or reports that the reader
is far behind, a follower is read. A follower that does not answer is skipped for a while. Times are arguments, ms.
Invariant: a leader that was not called for `LEADER_MAX_MS` is called next, and one at a new address immediately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEADER_FIRST_MS = 1_000
LEADER_MAX_MS = 8_000
"""Time for which a failed leader is not called: after one failure, and at most, as each may cost a whole deadline."""
FOLLOWER_FIRST_MS = 2_000
FOLLOWER_MAX_MS = 60_000
"""The same for a follower."""
BEHIND_MS = 30_000
"""Time for which a reader that is far behind stays with a follower that has more messages for it."""


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """A copy to pull from."""

    address: str
    leads: bool


class ReadPlaces:
    """The choice of copies for one queue."""

    __slots__ = ("_failed_until", "_failures", "_follower", "_follower_failures", "_leader", "_leader_due_ms")

    def __init__(self) -> None:
        self._failures = 0
        """Failures of the leader in a row."""
        self._leader = ""
        """Address of the leader that failed or answered last."""
        self._leader_due_ms = 0
        self._follower = ""
        """Address of the follower that answered last."""
        self._failed_until: dict[str, int] = {}
        self._follower_failures: dict[str, int] = {}
        """Failures in a row, by follower."""

    @property
    def leader_is_away(self) -> bool:
        """True if the leader failed and has not answered since."""
        return self._failures > 0

    def next(self, leader: str, followers: Sequence[str], now_ms: int) -> ReadPlace | None:
        """Returns the copy to call now; None: no copy can be called yet. `leader` empty: its address is not known."""
        follower = self._usable(followers, now_ms)
        is_due = leader != self._leader or now_ms >= self._leader_due_ms
        if leader and (is_due or not follower):
            return ReadPlace(leader, leads=True)
        return ReadPlace(follower, leads=False) if follower else None

    def answered(self, place: ReadPlace, *, empty: bool, far_behind: bool, now_ms: int) -> None:
        """Notes an answer, with or without messages."""
        if place.leads:
            self._failures, self._leader = 0, place.address
            self._leader_due_ms = now_ms + BEHIND_MS if far_behind else now_ms
            return
        self._follower = place.address
        self._follower_failures.pop(place.address, None)
        if empty and not self.leader_is_away:
            self._leader_due_ms = now_ms  # the leader may have more

    def failed(self, place: ReadPlace, now_ms: int) -> None:
        """Notes a failed call."""
        if place.leads:
            # Failures at the old address do not count for a new one.
            self._failures = 1 if place.address != self._leader else self._failures + 1
            self._leader = place.address
            self._leader_due_ms = now_ms + _pause_ms(self._failures, LEADER_FIRST_MS, LEADER_MAX_MS)
        else:
            failures = self._follower_failures[place.address] = self._follower_failures.get(place.address, 0) + 1
            self._failed_until[place.address] = now_ms + _pause_ms(failures, FOLLOWER_FIRST_MS, FOLLOWER_MAX_MS)

    def _usable(self, followers: Sequence[str], now_ms: int) -> str:
        for known in (self._failed_until, self._follower_failures):
            # Otherwise copies that left the route would stay in the tables for the life of the reader.
            for gone in known.keys() - set(followers):
                del known[gone]
        usable = [one for one in followers if self._failed_until.get(one, 0) <= now_ms]
        return self._follower if self._follower in usable else usable[0] if usable else ""


def _pause_ms(failures: int, first_ms: int, max_ms: int) -> int:
    return min(first_ms << min(failures - 1, 10), max_ms)
