"""Where one open log stands: what is safe, what is in no file yet, and whether it takes more.

Made by the store and shared by what works on the log: the appender moves its end, the flusher what the disk has
confirmed and what is filed, and both may refuse messages or stop the store. None of them owns it. Loop thread only.
Always true: `stopped` says whether one of `failure`, `refusal` and `closed` refuses all appends, `blocked` whether
one of these or `full` refuses messages; what is consumable has been written, and so has what the disk confirmed. In a
log with copies the disk may have confirmed more than what is committed, and so consumable.
"""

from __future__ import annotations

from collections.abc import Callable

from evenq.errors import Error, StoreFull, StorePoisoned
from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.options import StoreStats

__all__ = ["LogState"]


class LogState:
    """Of one open store."""

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
        """Whether all before `log_end` is committed: what recovery found at the end of a log with copies may be cut
        off again, so no file that is derived from the log may tell of it before the first commit behind it.
        """
        self.synced_end = log_end
        """Log offset up to which the disk confirmed."""
        self.last_store_ms = last_store_ms
        """Store time of the newest record; the next one's is not before it."""
        self.dirty: dict[ConsumeQueue, None] = {}
        """Queues that grew since the last checkpoint, in the order of their first growth."""
        self.unfiled = 0
        """Consumable entries that are in no file yet."""
        self.taken_back = 0
        """How often a full disk freed places again."""
        self.failure: Error | None = None
        """Why the store stopped for good."""
        self.later: Error | None = None
        """What appends are refused with since then; None: with `failure`."""
        self.refusal: Error | None = None
        """Why its owner has it refuse everything for now."""
        self.full: StoreFull | None = None
        """Why messages are refused for now; state records go on."""
        self.reserve_bytes = 0
        """What moves may still use while messages are refused."""
        self.closed = False
        self.stopped = False
        """Whether a failure, a refusal or the close refuses all appends: one look for each record of state."""
        self.blocked = False
        """Whether one of these, or a full disk, refuses messages: one look for each append."""
        self.on_poison: Callable[[Error], None] = lambda _: None
        """Fails every append that waits; the appender's."""
        self.on_failure: Callable[[Error], None] | None = None
        """Told then; the owner's."""
        self.on_full: Callable[[], None] = lambda: None
        """Called when `full` changes between a reason and none; the owner's."""
        self.on_synced: Callable[[int], None] = lambda _: None
        """Called with `synced_end` whenever it has moved; the owner's."""

    def synced(self, log_offset: int) -> None:
        """The disk has confirmed everything before."""
        if log_offset > self.synced_end:
            self.synced_end = self.stats.log_synced = log_offset
            self.on_synced(log_offset)

    def set_full(self, reason: StoreFull | None) -> None:
        """Refuse messages, or take them again."""
        changed = (reason is None) != (self.full is None)
        self.full = reason
        self._look()
        if changed:
            self.on_full()

    def refuse(self, reason: Error | None) -> None:
        """Refuse everything, or take it again."""
        self.refusal = reason
        self._look()

    def close(self) -> None:
        """Take no more appends."""
        self.closed = True
        self._look()

    def poison(self, reason: str) -> None:
        """Stop for good: what is on disk is unknown. Every waiting and later append fails with StorePoisoned."""
        if self.failure is not None:
            return
        failure = StorePoisoned(f"{reason}; the store stopped, restart the broker to recover it")
        self._stop(failure)
        if self.on_failure is not None:
            self.on_failure(failure)

    def abandon(self, error: Error, *, later: Error | None = None) -> None:
        """Stop for good, though nothing is broken: every append that waits fails with `error`, and every later one with
        `later`, or with `error` too.
        """
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
        """Every invariant; for tests."""
        stats = self.stats
        assert self.stopped == (self.closed or self.failure is not None or self.refusal is not None)
        assert self.blocked == (self.stopped or self.full is not None)
        assert max(self.synced_end, stats.log_end) <= stats.written_end, (
            self.synced_end, stats.log_end, stats.written_end,
        )  # fmt: skip
        assert self.replicated or stats.log_end == stats.written_end, (stats.log_end, stats.written_end)
        assert self.unfiled >= 0, self.unfiled
