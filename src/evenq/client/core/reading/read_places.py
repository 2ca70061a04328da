"""Where the next pull of a queue goes, for a reader that takes committed messages from any copy of the log (HA-9).

The leader is asked first, as it alone knows the end of the queue. While it is away, or says that the reader is far
behind, a follower is read; a follower that does not answer is left alone for a moment. Pure: times come as arguments,
ms. Always true: a leader that was not asked for `LEADER_MAX_MS` is asked next, and one at a new address at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ReadPlace", "ReadPlaces"]

LEADER_FIRST_MS = 1_000
LEADER_MAX_MS = 8_000
"""How long a leader that failed is not asked: first, and after several failures, as each may cost a whole deadline."""
FOLLOWER_FIRST_MS = 2_000
FOLLOWER_MAX_MS = 60_000
"""The same for a follower; one that readers cannot reach costs a deadline each time, too."""
BEHIND_MS = 30_000
"""How long a reader that is far behind stays with a follower that has more for it."""


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """Whom to ask."""

    address: str
    leads: bool


class ReadPlaces:
    """Of one queue."""

    __slots__ = ("_failed_until", "_failures", "_follower", "_follower_failures", "_leader", "_leader_due_ms")

    def __init__(self) -> None:
        self._failures = 0
        """Of the leader, one after the other."""
        self._leader = ""
        """Who failed, or said that we are far behind."""
        self._leader_due_ms = 0
        self._follower = ""
        """Who answered last."""
        self._failed_until: dict[str, int] = {}
        self._follower_failures: dict[str, int] = {}
        """Of each follower, one after the other."""

    @property
    def leader_is_away(self) -> bool:
        """It failed and has not answered since."""
        return self._failures > 0

    def next(self, leader: str, followers: Sequence[str], now_ms: int) -> ReadPlace | None:
        """Whom to ask now; `leader` empty: its address is not known. None: no broker, try again in a moment."""
        follower = self._usable(followers, now_ms)
        is_due = leader != self._leader or now_ms >= self._leader_due_ms
        if leader and (is_due or not follower):
            return ReadPlace(leader, leads=True)
        return ReadPlace(follower, leads=False) if follower else None

    def answered(self, place: ReadPlace, *, empty: bool, far_behind: bool, now_ms: int) -> None:
        """It gave messages, or said that there are none."""
        if place.leads:
            self._failures, self._leader = 0, place.address
            self._leader_due_ms = now_ms + BEHIND_MS if far_behind else now_ms
            return
        self._follower = place.address
        self._follower_failures.pop(place.address, None)
        if empty and not self.leader_is_away:
            self._leader_due_ms = now_ms  # it may have more

    def failed(self, place: ReadPlace, now_ms: int) -> None:
        """It did not answer, or could not."""
        if place.leads:
            # A new address is a new leader, or the same one elsewhere: the failures of the old one say nothing about
            # it.
            self._failures = 1 if place.address != self._leader else self._failures + 1
            self._leader = place.address
            self._leader_due_ms = now_ms + _pause_ms(self._failures, LEADER_FIRST_MS, LEADER_MAX_MS)
        else:
            failures = self._follower_failures[place.address] = self._follower_failures.get(place.address, 0) + 1
            self._failed_until[place.address] = now_ms + _pause_ms(failures, FOLLOWER_FIRST_MS, FOLLOWER_MAX_MS)

    def _usable(self, followers: Sequence[str], now_ms: int) -> str:
        for known in (self._failed_until, self._follower_failures):
            # Copies that left the route would otherwise stay in the tables for as long as the reader lives.
            for gone in known.keys() - set(followers):
                del known[gone]
        usable = [one for one in followers if self._failed_until.get(one, 0) <= now_ms]
        return self._follower if self._follower in usable else usable[0] if usable else ""


def _pause_ms(failures: int, first_ms: int, max_ms: int) -> int:
    return min(first_ms << min(failures - 1, 10), max_ms)
