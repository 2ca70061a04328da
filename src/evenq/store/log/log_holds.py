"""Parts of the log that retention must keep for a while, because a backup has not read them yet.

Each hold expires, so a forgotten reader cannot fill the disk. `Cleaner` calls `held_from` in each round and deletes
nothing from there on, unless the disk is full: then messages matter more than a backup, which fails with a clear error
when its file is gone. On the loop only.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq.errors import TooManyRequests
from evenq.runtime.clock import Clock

HOLDS_MAX = 2
"""At the same time: one backup, and one whose caller has just vanished."""


@dataclass(slots=True, eq=False)
class LogHold:
    """Hold of one reader."""

    log_offset: int
    """The log stays from here on. The reader moves it forward."""
    until_ms: int
    """Monotonic ms at which the hold expires."""


class LogHolds:
    """Holds of one open store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holds: list[LogHold] = []

    def take(self, log_offset: int, *, hold_ms: int) -> LogHold:
        """Keeps the log from an offset on, for at most `hold_ms`. Raises TooManyRequests."""
        if len(self._holds) >= HOLDS_MAX:
            raise TooManyRequests(f"{HOLDS_MAX} backups of this broker run, the maximum; try again when one has ended")
        hold = LogHold(log_offset, self._clock.monotonic_ms() + hold_ms)
        self._holds.append(hold)
        return hold

    def release(self, hold: LogHold) -> None:
        """Ends a hold. May be called again."""
        self._holds = [other for other in self._holds if other is not hold]

    def held_from(self) -> int | None:
        """Returns the lowest log offset that is held; None without a hold."""
        now_ms = self._clock.monotonic_ms()
        return min((hold.log_offset for hold in self._holds if now_ms < hold.until_ms), default=None)
