"""Takes snapshots: when the owner requests one, when the log grew by enough bytes or records, and before a part of it
is deleted.

The content is taken on the loop in one step. It is written on the flush thread after the log is on disk beyond all of
it and, in a log with copies, committed. So a start reads at most `snapshot_log_bytes` of the log or `snapshot_records`
of its records, and what was appended in the meantime; mostly a twentieth of that, since snapshots are taken early while
they cost little.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Protocol

from evenq.errors import StoreError, StoreFull
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.store.io.disk import Disk
from evenq.store.log import snapshot
from evenq.store.log.commit_log import FULL, shortage
from evenq.store.log.consume_queue import ConsumeQueue
from evenq.store.log.log_state import LogState
from evenq.store.log.options import StoreOptions
from evenq.store.log.snapshot import Snapshot
from evenq.store.opening.flusher import Flusher

log = logging.getLogger(__name__)

EARLY_SHARE = 20
"""A snapshot may be taken when this part of `snapshot_records` was appended: a twentieth."""
EARLY_REST = 20
"""And when it is this many times as long ago as the last one took: snapshots take a twentieth of the time at most."""

SnapshotOf = Callable[[], bytes]
"""Returns the owner's state, on the loop."""


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """A snapshot that is on disk."""

    log_offset: int
    """It holds the effect of every record before."""
    end: int
    """It may include records before this one: those that had a place when it was taken. They are safe now."""


class TimerPart(Protocol):
    """Interface of the timer store for snapshots and retention. On the loop, except what `freeze` returns."""

    def freeze(self) -> Callable[[], bytes]:
        """Fixes the state as of now. The callable runs once at most, on the flush thread: it makes durable what the
        manifest names, and returns the manifest. It may never be called, and `freeze` may be called again before it is.
        """
        ...

    def pinned_before(self) -> int | None:
        """Returns the log offset of the oldest record that a pending timer needs; None if none is pending."""
        ...

    async def roll_forward(self, log_offset: int) -> None:
        """Appends all pending timers older than `log_offset` again, so that nothing before it is needed."""
        ...


class NoTimers:
    """A store without timers."""

    def freeze(self) -> Callable[[], bytes]:
        return bytes

    def pinned_before(self) -> int | None:
        return None

    async def roll_forward(self, log_offset: int) -> None:
        """Does nothing."""


class Snapshotter:
    """The snapshots of one open store."""

    def __init__(
        self,
        state: LogState,
        flusher: Flusher,
        disk: Disk,
        options: StoreOptions,
        *,
        clock: Clock,
        settled: Callable[[], Awaitable[None]],
        assigned_end: Callable[[], int],
        queues: dict[tuple[int, int], ConsumeQueue],
        owner: SnapshotOf | None,
        newest: int,
        log_start: int,
        read: int,
    ) -> None:
        """`settled` waits for all appends, `assigned_end` is after them. `read`: records that the start read."""
        self._state = state
        self._settled = settled
        self._assigned_end = assigned_end
        self._flusher = flusher
        self._disk = disk
        self._options = options
        self._clock = clock
        self._queues = queues
        self._owner = owner
        self._log_start = log_start
        """Where the log begins, or will as soon as a snapshot names it."""
        self._lock = asyncio.Lock()
        self._tried_ms = clock.monotonic_ms()
        # The next start reads them again, however little each start appends.
        self._records = -read
        """Records appended when the last snapshot was tried; negative for those that the start read."""
        self._took_ms = 0
        """Duration of the last one."""
        self.newest = newest
        """Log offset of the newest one on disk; 0 without one."""
        self.timers: TimerPart = NoTimers()

    @property
    def automatic(self) -> bool:
        """Whether the store can take snapshots by itself."""
        return self._owner is not None

    async def save(self, payload: bytes) -> None:
        """Keeps this state of the owner as of the call. Raises StoreFull, StorePoisoned."""
        write = self._taken(payload)
        async with self._lock:
            await write()

    async def take(self) -> TakenSnapshot:
        """Keeps the owner's current state. Raises StoreFull, StorePoisoned."""
        assert self._owner is not None
        async with self._lock:
            self._tried_ms, self._records = self._clock.monotonic_ms(), self._appended()
            taken = TakenSnapshot(self._state.stats.log_end, self._assigned_end())
            await self._taken(self._owner())()
            self._took_ms = self._clock.monotonic_ms() - self._tried_ms
        return taken

    async def tick(self) -> None:
        """Takes a snapshot if it is due. A full disk only postpones it."""
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
        """Ensures that a snapshot on disk needs nothing before `log_start` and names it as the log's start, with the
        queues' current minima. Amends the newest one if it reaches that far. Raises StoreFull, StorePoisoned.
        """
        # Even if none is taken now: the next one, whatever its cause, must name the new start.
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
            raise OSError(errno.EIO, f"the newest snapshot in {where} was damaged while the store was open")
        queues = {key: (min(max(low, minima[key]), high), high) for key, (low, high) in saved.queues.items()}
        snapshot.save(self._disk, replace(saved, queues=queues, log_start=log_start))

    async def _written(self, write: Callable[[], None]) -> None:
        def tried() -> StoreError | None:
            try:
                write()
            except StoreError as error:
                return error
            except OSError as error:
                # Returned and not raised: an exception on that thread stops the store.
                if error.errno not in FULL:
                    raise
                return StoreFull(f"no snapshot now: {shortage(error)}")
            return None

        if (error := await self._flusher.blocking(tried)) is not None:
            raise error

    def _taken(self, payload: bytes) -> Callable[[], Coroutine[None, None, None]]:
        """Takes the content as of now, and returns the function that writes it."""
        state = self._state
        log_offset = state.stats.log_end
        queues = {key: (queue.min_offset, queue.max_offset) for key, queue in self._queues.items()}
        freeze = self.timers.freeze()
        log_start, last_store_ms, taken_back = self._log_start, state.last_store_ms, state.taken_back

        async def write() -> None:
            passing("snapshot.begun")
            # The payload may include records that only have a place: a crash must not bring it back without them.
            await self._settled()
            if state.taken_back != taken_back:  # meanwhile: the payload may include records that are gone
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
