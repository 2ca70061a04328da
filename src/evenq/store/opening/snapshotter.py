"""Takes snapshots: when the owner asks, when the log grew by enough bytes or records, and before a part of it goes.

What goes into one is taken on the loop in one step; it is written on the flush thread after the log is on disk beyond
all of it, and committed where the log has copies. So a start reads at most `snapshot_log_bytes` of the log or
`snapshot_records` of its records, and what was appended meanwhile; mostly a twentieth of that, because snapshots are
taken early as long as they take little of the time.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Protocol

from evenq.errors import StoreFull
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.store.io.disk import Disk
from evenq.store.io.jobs import Jobs
from evenq.store.log import snapshot
from evenq.store.log.commit_log import FULL, shortage
from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.log_state import LogState
from evenq.store.log.options import StoreOptions
from evenq.store.log.snapshot import Snapshot
from evenq.store.opening.flusher import Flusher

__all__ = ["NoTimers", "SnapshotOf", "Snapshotter", "TakenSnapshot", "TimerPart"]

log = logging.getLogger(__name__)

EARLY_SHARE = 20
"""A snapshot may be taken when this part of `snapshot_records` was appended: a twentieth."""
EARLY_REST = 20
"""And when it is this many times as long ago as the last one took: snapshots take a twentieth of the time at most."""

SnapshotOf = Callable[[], bytes]
"""Gives the owner's state, on the loop."""


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """One that is on disk."""

    log_offset: int
    """It holds the effect of every record before."""
    end: int
    """It may tell of records before this one: those that had a place when it was taken. They are safe now."""


class TimerPart(Protocol):
    """What snapshots and retention ask of the timer store. All on the loop, but what `freeze` returns."""

    def freeze(self) -> Callable[[], bytes]:
        """Fix the state as of now; the callable runs once at most, on the flush thread, makes durable what the
        manifest names, and returns the manifest. It may never be called (the disk was full), and `freeze` may be
        called again before it was.
        """
        ...

    def pinned_before(self) -> int | None:
        """Log offset of the oldest record that a pending timer needs; None if none is pending."""
        ...

    async def roll_forward(self, log_offset: int) -> None:
        """Append all pending timers older than `log_offset` again, so that nothing before it is needed."""
        ...


class NoTimers:
    """A store without timers."""

    def freeze(self) -> Callable[[], bytes]:
        return bytes

    def pinned_before(self) -> int | None:
        return None

    async def roll_forward(self, log_offset: int) -> None:
        """Nothing to do."""


class Snapshotter:
    """The snapshots of one open store."""

    def __init__(
        self, state: LogState, flusher: Flusher, disk: Disk, options: StoreOptions, *, clock: Clock, jobs: Jobs,
        settled: Callable[[], Awaitable[None]], assigned_end: Callable[[], int],
        queues: dict[tuple[int, int], ConsumeQueue], owner: SnapshotOf | None,
        newest: int, log_start: int, read: int,
    ) -> None:  # fmt: skip
        """`settled` waits until every append so far has its outcome, `assigned_end` is behind the last of them. `read`:
        records that the start read.
        """
        self._state = state
        self._settled = settled
        self._assigned_end = assigned_end
        self._flusher = flusher
        self._disk = disk
        self._options = options
        self._clock = clock
        self._jobs = jobs
        self._queues = queues
        self._owner = owner
        self._log_start = log_start
        """Where the log begins, or will as soon as a snapshot says so."""
        self._lock = asyncio.Lock()
        self._tried_ms = clock.monotonic_ms()
        # A start reads them again, however little each start appends.
        self._records = -read
        """Appended since the start when the last snapshot was tried."""
        self._took_ms = 0
        """How long that was."""
        self.newest = newest
        """Log offset of the newest one on disk; 0 if there is none."""
        self.timers: TimerPart = NoTimers()

    @property
    def automatic(self) -> bool:
        """Whether the store can take one whenever it likes."""
        return self._owner is not None

    async def save(self, payload: bytes) -> None:
        """Keep this state of the owner as of the call. Raises StoreFull, StorePoisoned."""
        write = self._taken(payload)
        async with self._lock:
            await write()

    async def take(self) -> TakenSnapshot:
        """Ask the owner and keep its state. Raises StoreFull, StorePoisoned."""
        assert self._owner is not None
        async with self._lock:
            self._tried_ms, self._records = self._clock.monotonic_ms(), self._appended()
            taken = TakenSnapshot(self._state.stats.log_end, self._assigned_end())
            await self._taken(self._owner())()
            self._took_ms = self._clock.monotonic_ms() - self._tried_ms
        return taken

    async def tick(self) -> None:
        """Take one if it is due. A full disk only puts it off."""
        grown = self._state.stats.log_end - self.newest
        waited_ms = self._clock.monotonic_ms() - self._tried_ms
        records, records_max = self._appended() - self._records, self._options.snapshot_records
        due = (
            grown >= self._options.snapshot_log_bytes
            or waited_ms >= self._options.snapshot_interval_ms
            or records >= records_max
            or (records * EARLY_SHARE >= records_max and waited_ms >= EARLY_REST * self._took_ms)
        )
        if not self.automatic or not grown or not due or not self._state.certain:
            return
        try:
            await self.take()
        except StoreFull as error:
            log.warning("snapshot postponed: %s", error, extra={"error": str(error)})

    def _appended(self) -> int:
        stats = self._state.stats
        return stats.messages + stats.states + stats.timers

    async def begin_at(self, log_start: int) -> None:
        """Have a snapshot on disk that needs nothing before `log_start` and says that the log begins there, with the
        queues' minima of now. The newest one is amended if it reaches that far. Raises StoreFull, StorePoisoned.
        """
        # Also if none is taken now: the next one, whoever asks for it, must name the new beginning.
        self._log_start = log_start
        if self.newest < log_start or not self.newest:
            if self.automatic:
                await self.take()
            return
        minima = {key: queue.min_offset for key, queue in self._queues.items()}
        async with self._lock:
            await self._written(lambda: self._amend(log_start, minima))

    def _amend(self, log_start: int, minima: dict[tuple[int, int], int]) -> None:
        saved = snapshot.load(self._disk, log_start=0)
        if saved is None or saved.log_offset < log_start:
            where = self._disk.describe(snapshot.FOLDER)
            raise OSError(errno.EIO, f"the newest snapshot in {where} went bad while the store was open")
        queues = {key: (min(max(low, minima[key]), high), high) for key, (low, high) in saved.queues.items()}
        snapshot.save(self._disk, replace(saved, queues=queues, log_start=log_start))

    async def _written(self, write: Callable[[], None]) -> None:
        if self._state.failure is not None:
            raise self._state.failure
        try:
            await self._jobs.run(write)
        except OSError as error:
            if error.errno in FULL:
                raise StoreFull(f"no snapshot now: {shortage(error)}") from error
            self._state.poison(f"writing a snapshot failed: {error}")
            assert self._state.failure is not None
            raise self._state.failure from error

    def _taken(self, payload: bytes) -> Callable[[], Coroutine[None, None, None]]:
        """Everything of the moment, and how to write it."""
        state = self._state
        log_offset = state.stats.log_end
        queues = {key: (queue.min_offset, queue.max_offset) for key, queue in self._queues.items()}
        freeze = self.timers.freeze()
        log_start, last_store_ms, taken_back = self._log_start, state.last_store_ms, state.taken_back

        async def write() -> None:
            passing("snapshot.begun")
            # The payload may hold effects of records that only have a place: written before they are safe, a crash
            # would bring back a state without its log.
            await self._settled()
            if state.taken_back != taken_back:  # while this waited for its turn: the payload may tell of what is gone
                raise StoreFull("no snapshot now: the disk was full, and what it could not keep was taken back")
            await self._flusher.sync()
            passing("snapshot.log_synced")
            await self._written(
                lambda: snapshot.save(
                    self._disk, Snapshot(log_offset, payload, queues, freeze(), log_start, last_store_ms)
                )
            )
            self.newest = max(self.newest, log_offset)
            state.stats.snapshots += 1

        return write
