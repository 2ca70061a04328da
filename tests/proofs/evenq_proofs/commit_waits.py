"""What waits for a commit: receive records before messages are handed out (R12), sends and acks before their OK.

The owner parks a ticket at the end of the record that it appended, and answers it when `CommitAdvanced` or
`StopServing` comes. A ticket of an epoch that is over is unknown, never OK: a deposed leader hands out nothing.
Bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from evenq.errors import TooManyRequests

WAITS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Waited:
    """Tickets whose wait is over."""

    tickets: tuple[int, ...]
    committed: bool
    """False: not known, answer 50402 (unknown)."""


class CommitWaits:
    """See the module. Ends are parked in ascending order, because a log only grows."""

    __slots__ = ("_ends", "_epoch", "_max", "_tickets")

    def __init__(self, *, waits_max: int = WAITS_MAX) -> None:
        self._epoch = 0
        self._ends: deque[int] = deque()
        self._tickets: deque[int] = deque()
        self._max = waits_max

    def __len__(self) -> int:
        return len(self._ends)

    def park(self, ticket: int, *, epoch: int, end: int) -> Waited | None:
        """Wait for `end`, appended in `epoch`. Gives what to answer at once: a ticket of another epoch is unknown.
        Raises TooManyRequests when too many wait; ask before appending (`room`).
        """
        # Its record was written under a leadership that is over: whether the next leader has it is not known here, so
        # neither OK nor a definite failure would be true.
        if epoch != self._epoch:
            return Waited((ticket,), committed=False)
        if len(self._ends) >= self._max:
            raise TooManyRequests(f"{self._max} calls wait for replicas already, the limit; try again later")
        if self._ends and end < self._ends[-1]:
            raise ValueError(f"end {end} behind {self._ends[-1]}: waits are parked in the order of the log")
        self._ends.append(end)
        self._tickets.append(ticket)
        return None

    def room(self) -> int:
        """How many more may wait."""
        return self._max - len(self._ends)

    def serve(self, epoch: int) -> Waited:
        """`Serve`: tickets of this epoch may wait. Gives those of an earlier one, as unknown."""
        ended = self.stop()
        self._epoch = epoch
        return ended

    def committed(self, end: int) -> Waited:
        """`CommitAdvanced`: all below `end` is."""
        count = bisect_right(self._ends, end)
        done = tuple(self._tickets.popleft() for _ in range(count))
        for _ in range(count):
            self._ends.popleft()
        return Waited(done, committed=True)

    def stop(self) -> Waited:
        """`StopServing`: what becomes of the rest is not known."""
        ended = Waited(tuple(self._tickets), committed=False)
        self._tickets.clear()
        self._ends.clear()
        self._epoch = 0
        return ended
