"""Parts of the log that retention must leave for a while, because a backup has not read them yet.

Each hold ends by itself, so a reader that was forgotten cannot fill the disk. `Cleaner` asks `held_from` in each round
and deletes nothing from there on, unless the disk is full: then messages matter more than a backup, which fails with a
clear error when its file is gone. On the loop only.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq.errors import TooManyRequests
from evenq.runtime.clock import Clock

__all__ = ["HOLDS_MAX", "LogHold", "LogHolds"]

HOLDS_MAX = 2
"""At once: one backup, and one whose caller vanished a moment ago."""


@dataclass(slots=True, eq=False)
class LogHold:
    """One reader's."""

    log_offset: int
    """From here on the log stays. The reader moves it on."""
    until_ms: int
    """Monotonic ms at which it ends by itself."""


class LogHolds:
    """Of one open store."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holds: list[LogHold] = []

    def take(self, log_offset: int, *, hold_ms: int) -> LogHold:
        """Keep the log from an offset on, for `hold_ms` at most. Raises TooManyRequests."""
        if len(self._holds) >= HOLDS_MAX:
            raise TooManyRequests(f"{HOLDS_MAX} backups of this broker run, the maximum; try again when one has ended")
        hold = LogHold(log_offset, self._clock.monotonic_ms() + hold_ms)
        self._holds.append(hold)
        return hold

    def release(self, hold: LogHold) -> None:
        """The reader is done. May be called again."""
        self._holds = [other for other in self._holds if other is not hold]

    def held_from(self) -> int | None:
        """The lowest log offset that is held; None if nothing is."""
        now_ms = self._clock.monotonic_ms()
        return min((hold.log_offset for hold in self._holds if now_ms < hold.until_ms), default=None)
