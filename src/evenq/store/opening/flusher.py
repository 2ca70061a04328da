"""Background work on the disk: syncs (ASYNC mode), files consume queue entries, moves the checkpoint, watches space.

Runs as one task on the loop; blocking calls run on the flush thread, one job at a time. A failed sync is never tried
again: it poisons the store. A full disk while derived files are written only postpones the checkpoint. A failed job is
final even if its caller was cancelled, as by `close`, and nothing waits for its outcome: the system reports a lost
write once, so the next sync of that file would succeed and a checkpoint would vouch for it. So the thread remembers the
failure, and each later job fails with it.

Syncs reach all that is written, a checkpoint only what is committed: in a log with copies, the rest may be cut off.
There the duties have a task of their own, because a snapshot waits for commits, and those may wait for a sync.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from evenq.errors import Error, StoreFull
from evenq.runtime.clock import Clock
from evenq.runtime.failpoints import passing
from evenq.runtime.tasks import spawn
from evenq.store.io.descriptors import NO_FILES
from evenq.store.io.disk import Disk, Usage
from evenq.store.io.jobs import Jobs
from evenq.store.io.memory_disk import MORE_MEMORY
from evenq.store.log import consume_queue, volume
from evenq.store.log.commit_log import FULL, CommitLog, shortage
from evenq.store.log.consume_queue import ConsumeQueue, Filing
from evenq.store.log.log_state import LogState
from evenq.store.log.options import FlushMode, StoreOptions
from evenq.store.opening import checkpoint as checkpoint_file
from evenq.store.opening.checkpoint import Checkpoint

log = logging.getLogger(__name__)

FILING_WORTH: Final = 50  # entries per queue that justify opening its file before the interval ends
GUARD_MS: Final = 250  # between checks that the folder still exists
FEW_QUEUES: Final = 100  # this number of files costs nothing
LOOK_BYTES: Final = 1 << 20  # least number of bytes written between two checks of the free space

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Work:
    """One checkpoint: all of it was taken from the loop at one moment."""

    log_offset: int
    last_store_ms: int
    queues: list[ConsumeQueue]
    filings: list[Filing]
    clean: bool
    log_start: int
    raised: dict[tuple[int, int], int]


class Flusher:
    """Periodic duties of one store."""

    def __init__(
        self,
        state: LogState,
        commit_log: CommitLog,
        disk: Disk,
        options: StoreOptions,
        *,
        clock: Clock,
        jobs: Jobs,
        queues: dict[tuple[int, int], ConsumeQueue],
        filed: dict[tuple[int, int], tuple[int, int]],
    ) -> None:
        self._queues = queues
        self._state = state
        self._log = commit_log
        self._disk = disk
        self._options = options
        self._clock = clock
        self._jobs = jobs
        self._filed = filed
        """Content of the files; owned by the flush thread once the store is open."""
        self._asynchronous = options.flush is FlushMode.ASYNC
        self.duties: list[Callable[[], Awaitable[None]]] = []
        """Other work of each round, in order: snapshots, retention."""
        self.log_start = 0
        """First log offset that the log still has."""
        self.filed_end = 0
        """Log offset of the newest checkpoint: entries of messages before it are in files."""
        self.raised: dict[tuple[int, int], int] = {}
        """Minima that rose since the last checkpoint."""
        self.usage = Usage(0, 0)
        """Usage of the disk at the last check."""
        self._checkpoint_lock = asyncio.Lock()
        self._checkpoint_ms = clock.monotonic_ms()
        self._task: asyncio.Task[None] | None = None
        self._guard: asyncio.Task[None] | None = None
        self._early: asyncio.Task[None] | None = None
        self._dutiful: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._broken: Exception | None = None
        """Failure of the first job that failed; the flush thread's."""
        self._look_at = 0
        """Log end at which the space is checked early: half of what was left before messages are refused."""

    async def begin(self, checkpoint: Checkpoint) -> None:
        """Makes what was recovered certain before the first append: a kill may have left it in the page cache. The
        folder is no longer marked as cleanly stopped. `checkpoint`: the one from which recovery began.
        """
        if self._state.certain:
            await self.checkpoint()
        else:
            await self.blocking(lambda: self._go_on_from(checkpoint))

    def start(self) -> None:
        self._task = spawn(self._run(), name="store-flusher")
        if self._disk.blocks:
            self._guard = spawn(self._watch_folder(), name="store-guard")

    async def stop(self) -> None:
        """Ends the tasks. A running job continues; jobs that are given to its thread from here on come after it."""
        for task in (self._task, self._early, self._guard, self._dutiful, self._looking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._task = self._early = self._guard = self._dutiful = self._looking = None

    def grown(self) -> None:
        """Reacts to growth of the log: checks the space, or starts a sync or a checkpoint early. Once per group."""
        state = self._state
        if state.stats.written_end >= self._look_at and (self._looking is None or self._looking.done()):
            self._looking = spawn(self._quietly(self.watch_space), name="store-space")
        if self._early is not None and not self._early.done():
            return
        worth = FILING_WORTH * max(0, len(state.dirty) - FEW_QUEUES)
        if state.unfiled >= max(self._options.checkpoint_entries, worth) and state.certain:
            self._early = spawn(self._quietly(self.checkpoint), name="store-checkpoint")
        elif self._asynchronous and state.stats.written_end - state.synced_end >= self._options.flush_bytes:
            self._early = spawn(self._quietly(self.sync), name="store-sync")

    async def tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        due = now_ms - self._checkpoint_ms >= self._options.checkpoint_interval_ms
        if due and self._state.unfiled:
            await self.checkpoint()
        elif self._asynchronous:
            await self.sync()
        await self.watch_space()
        written_end = self._state.stats.written_end
        if self._log.wants_spare(written_end):
            await self.blocking(lambda: self._log.prepare(written_end))
        if not self._state.replicated:
            await self._do_duties()
        elif self._dutiful is None or self._dutiful.done():
            self._dutiful = spawn(self._quietly(self._do_duties), name="store-duties")

    async def _do_duties(self) -> None:
        for duty in self.duties:
            await duty()

    async def sync(self) -> int:
        """Syncs all that is written now, committed or not; returns the log offset after it. Raises StorePoisoned."""
        # Before the sync: what is written while it runs may have missed it.
        target = self._state.stats.written_end
        if target > self._state.synced_end:
            await self.blocking(self._sync_log)
            self._state.synced(target)
        return target

    async def checkpoint(self, *, clean: bool = False) -> bool:
        """Files all entries and moves the checkpoint to the end of what is committed. Returns False if there is no
        space for it, or it is not certain that anything here is committed; then all is synced. Raises StorePoisoned.
        """
        async with self._checkpoint_lock:
            self._checkpoint_ms = self._clock.monotonic_ms()
            state = self._state
            # The log that recovery found may still be cut (R4), so no checkpoint may vouch for it, even if synced.
            if not state.certain:
                await self.sync()
                return False
            # All of one moment: a start takes a checkpoint whose place and entries do not agree for damage.
            queues = list(state.dirty)
            state.dirty.clear()
            filings = [filing for filing in map(ConsumeQueue.filing, queues) if filing is not None]
            raised, self.raised = self.raised, {}
            work = _Work(state.stats.log_end, state.last_store_ms, queues, filings, clean, self.log_start, raised)
            # The write syncs the log too, but not what is written while it runs.
            written, written_end = False, state.stats.written_end
            try:
                written = await self.blocking(lambda: self._write(work))
                self._state.synced(written_end)
            finally:
                if not written:  # no space, or cancelled: the next checkpoint, perhaps that of `close`, must file them
                    state.dirty.update(dict.fromkeys(queues))
                    self.raised = raised | self.raised
            if not written:
                return False
            # Only now: retention deletes log files by this, and entries are read from the files from here on.
            self.filed_end = work.log_offset
            for filing in filings:
                self._queues[filing.topic_id, filing.queue_id].filed_up_to(filing.end)
                state.unfiled -= filing.end - filing.start
            return True

    async def watch_space(self) -> None:
        """Refuses messages before the disk is full, and accepts them again when there is space (StoreFull)."""
        written_end = self._state.stats.written_end
        usage = await self.blocking(self._disk.usage)
        reason = self._short_of(usage)
        if reason and self._state.full is None:
            folder = self._disk.describe("")
            log.warning("%s: refusing messages: %s", folder, reason, extra={"reason": reason, "folder": folder})
        elif not reason and self._state.full is not None:
            log.info("%s: accepting messages again", self._disk.describe(""))
        self._state.set_full(StoreFull(reason) if reason else None)
        self._state.reserve_bytes = self._for_moves(usage)
        # For a small volume with fast writes the next round of the duties would be too late.
        self._look_at = written_end + max(LOOK_BYTES, (usage.free - self.free_min_bytes) // 2)

    def _short_of(self, usage: Usage) -> str:
        # Senders read this text, so it names no folder.
        self.usage = usage
        used = usage.used_ratio
        if used >= self._options.disk_used_max_ratio:
            what, fix = "disk", "free space or raise disk_used_max_ratio"
            if not self._disk.blocks:
                what, fix = "memory for messages", f"{MORE_MEMORY} (it is {usage.total} bytes)"
            return (
                f"the broker's {what} is {used:.1%} full, messages are refused from "
                f"{self._options.disk_used_max_ratio:.1%}: {fix}"
            )
        reserve = volume.reserve_bytes(self._options, usage) if self._disk.blocks else 0
        if usage.free < reserve:
            return (
                f"the broker's disk has {usage.free} bytes free, messages are refused under {reserve}: free space or "
                "lower disk_free_min_bytes"
            )
        return ""

    @property
    def free_min_bytes(self) -> int:
        """Messages are refused when less is free on the disk."""
        return volume.free_min_bytes(self._options, self.usage, blocks=self._disk.blocks)

    def _for_moves(self, usage: Usage) -> int:
        """Returns the bytes that moves of timers may use although messages are refused: the other half is for state."""
        options = self._options
        left = int(usage.total * (1 + options.disk_used_max_ratio) / 2) - (usage.total - usage.free)
        return min(left, usage.free - volume.reserve_bytes(options, usage) // 2 if self._disk.blocks else left)

    def _sync_log(self) -> None:
        self._log.sync()
        self._log.close_sealed()

    def _go_on_from(self, checkpoint: Checkpoint) -> None:
        """Leaves the checkpoint in place, since it is not known yet whether all after it is committed."""
        self._sync_log()
        if checkpoint.clean:
            try:
                checkpoint_file.save(self._disk, replace(checkpoint, clean=False))
            except OSError as error:
                if error.errno not in FULL:
                    raise
                log.warning("checkpoint postponed: %s", shortage(error))

    def _write(self, work: _Work) -> bool:
        """Writes in the order of trust: log, then entries, then the checkpoint that vouches for both."""
        passing("checkpoint.begun")
        self._sync_log()
        passing("checkpoint.log_synced")
        try:
            consume_queue.write_all(self._disk, work.filings)
            for filing in work.filings:
                self._filed[filing.topic_id, filing.queue_id] = (filing.min_offset, filing.end)
            passing("checkpoint.filed")
            for key, minimum in work.raised.items():
                low, high = self._filed[key]
                self._filed[key] = (max(low, minimum), high)
            checkpoint_file.save(
                self._disk,
                Checkpoint(work.log_offset, work.clean, work.last_store_ms, self._filed, work.log_start),
            )
        except OSError as error:
            if error.errno not in FULL:
                raise
            log.warning("checkpoint postponed: %s", shortage(error))
            return False
        return True

    async def _run(self) -> None:
        while self._state.failure is None:
            await self._clock.sleep_ms(self._options.flush_interval_ms)
            await self._quietly(self.tick)

    async def _watch_folder(self) -> None:
        """Stops the store when its folder is gone: no restart would find what it writes then (decision 27)."""
        jobs = Jobs(threads=1, name="evenq-store-guard", threaded=True)  # the other one may wait for a slow disk
        try:
            while self._state.failure is None:
                await self._clock.sleep_ms(GUARD_MS)
                if reason := await jobs.run(self._disk.lost):
                    self._state.poison(f"{reason}: put it back where it was")
        finally:
            jobs.close()

    async def _quietly(self, duty: Callable[[], Awaitable[object]]) -> None:
        """Runs a duty and logs its error. A stopped store has answered its senders; nothing waits for this task."""
        try:
            await duty()
        except Error as error:
            if self._state.failure is None:  # the disk is full, or the owner has all appends refused
                log.warning("background work of the store failed, trying again later: %s", error)

    async def blocking(self, job: Callable[[], T]) -> T:
        """Runs a job on the flush thread; an error poisons the store, except a lack of descriptors (StoreFull)."""
        if self._state.failure is not None:
            raise self._state.failure
        try:
            return await self._jobs.run(lambda: self._guarded(job))
        except OSError as error:
            if error.errno in NO_FILES:
                raise StoreFull(shortage(error)) from error
            why = self._disk.lost() or f"the disk of {self._disk.describe('')} failed"
            self._state.poison(f"{why}: {error}")
        except Exception as error:  # a programming error must be visible, not end the duties silently
            log.exception("the store's flusher failed")
            self._state.poison(f"the flusher failed: {error!r}")
        assert self._state.failure is not None
        raise self._state.failure

    def _guarded(self, job: Callable[[], T]) -> T:
        """Runs a job, on the flush thread. A failure other than a lack of descriptors is final."""
        if self._broken is not None:
            raise self._broken
        try:
            return job()
        except Exception as error:
            if not isinstance(error, OSError) or error.errno not in NO_FILES:
                self._broken = error
            raise
