"""State of one open log: what is safe, what is in no file yet, and whether it accepts more.

The store makes it and shares it: the appender moves the end, the flusher moves what the disk has confirmed and what is
filed, and both may refuse messages or stop the store. Loop thread only. Always true: `stopped` says whether one of
`failure`, `refusal` and `closed` refuses all appends, `blocked` whether one of these or `full` refuses messages.
Consumable records are written, and so are those that the disk confirmed, perhaps before their commit.
"""

from __future__ import annotations

from collections.abc import Callable

from evenq.errors import Error, StoreFull, StorePoisoned
from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.options import StoreStats


class LogState:
    """State of one open store's log."""

    __slots__ = (
        "blocked",
        "certain",
        "closed",
        "dirty",
        "failure",
        "full",
        "last_store_ms",
        "later",
        "on_failure",
        "on_full",
        "on_poison",
        "on_synced",
        "refusal",
        "replicated",
        "reserve_bytes",
        "stats",
        "stopped",
        "synced_end",
        "taken_back",
        "unfiled",
    )

    def __init__(self, *, log_end: int, last_store_ms: int, replicated: bool = False) -> None:
        self.stats = StoreStats(log_end=log_end, log_synced=log_end, written_end=log_end)
        self.replicated = replicated
        """Whether records wait for a commit."""
        self.certain = not replicated
        """Whether all before `log_end` is committed. The end that recovery found in a log with copies may be cut off
        again, so no derived file may cover it before the first later commit.
        """
        self.synced_end = log_end
        """Log offset up to which the disk confirmed."""
        self.last_store_ms = last_store_ms
        """Store time of the newest record; the next one is not earlier."""
        self.dirty: dict[ConsumeQueue, None] = {}
        """Queues that grew since the last checkpoint, in order of their first growth."""
        self.unfiled = 0
        """Consumable entries that are in no file yet."""
        self.taken_back = 0
        """Number of times that a full disk freed places again."""
        self.failure: Error | None = None
        """Reason why the store stopped permanently."""
        self.later: Error | None = None
        """Error of appends since then; None means `failure`."""
        self.refusal: Error | None = None
        """Error with which the owner refuses all appends for now."""
        self.full: StoreFull | None = None
        """Reason why messages are refused for now; state records are still accepted."""
        self.reserve_bytes = 0
        """Bytes that moves of timers may still use while messages are refused."""
        self.closed = False
        self.stopped = False
        """Whether a failure, a refusal or the close refuses all appends: one check for each record of state."""
        self.blocked = False
        """Whether one of these, or a full disk, refuses messages: one check for each append."""
        self.on_poison: Callable[[Error], None] = lambda _: None
        """Fails every waiting append; the appender's."""
        self.on_failure: Callable[[Error], None] | None = None
        """Called then; the owner's."""
        self.on_full: Callable[[], None] = lambda: None
        """Called when `full` changes between a reason and none; the owner's."""
        self.on_synced: Callable[[int], None] = lambda _: None
        """Called with `synced_end` whenever it has moved; the owner's."""

    def synced(self, log_offset: int) -> None:
        """Records that the disk has confirmed everything before."""
        if log_offset > self.synced_end:
            self.synced_end = self.stats.log_synced = log_offset
            self.on_synced(log_offset)

    def set_full(self, reason: StoreFull | None) -> None:
        """Refuses messages, or accepts them again."""
        changed = (reason is None) != (self.full is None)
        self.full = reason
        self._look()
        if changed:
            self.on_full()

    def refuse(self, reason: Error | None) -> None:
        """Refuses all appends, or accepts them again."""
        self.refusal = reason
        self._look()

    def close(self) -> None:
        self.closed = True
        self._look()

    def poison(self, reason: str) -> None:
        """Stops permanently, with unknown content on disk. Waiting and later appends fail with StorePoisoned."""
        if self.failure is not None:
            return
        failure = StorePoisoned(f"{reason}; the store stopped, restart the broker to recover it")
        self._stop(failure)
        if self.on_failure is not None:
            self.on_failure(failure)

    def abandon(self, error: Error, *, later: Error | None = None) -> None:
        """Stops permanently without a fault: waiting appends fail with `error`, later ones with `later` or `error`."""
        if self.failure is None:
            self.later = later
            self._stop(error)

    def _stop(self, failure: Error) -> None:
        self.failure = failure
        self._look()
        self.on_poison(failure)

    def _look(self) -> None:
        self.stopped = self.closed or self.failure is not None or self.refusal is not None
        self.blocked = self.stopped or self.full is not None

    def check(self) -> None:
        """Checks every invariant; for tests."""
        stats = self.stats
        assert self.stopped == (self.closed or self.failure is not None or self.refusal is not None)
        assert self.blocked == (self.stopped or self.full is not None)
        synced_end, log_end, written_end = self.synced_end, stats.log_end, stats.written_end
        assert max(synced_end, log_end) <= written_end, (synced_end, log_end, written_end)
        assert self.replicated or log_end == written_end, (log_end, written_end)
        assert self.unfiled >= 0, self.unfiled
