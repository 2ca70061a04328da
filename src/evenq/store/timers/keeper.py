"""Keeps the pending timers of an open store: adds safe ones, runs disk jobs, finds timers by id, freezes them for
snapshots, moves old ones forward for retention.

On the loop; disk jobs run on the timers' own thread, so that reading ahead never waits for a sync of the log. A file
that cannot be written for lack of space is tried again later; any other error stops the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from typing import Final, Protocol, TypeVar

from evenq.errors import Error, StoreCorrupted, StoreError, StoreFull, StorePoisoned, TooManyRequests
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.store.io.descriptors import NO_FILES
from evenq.store.io.disk import Disk
from evenq.store.io.jobs import Jobs
from evenq.store.log import segment, snapshot
from evenq.store.log.commit_log import FULL, shortage
from evenq.store.log.messages import Append, StoredTimer, TimerAppend
from evenq.store.timers import manifest as manifest_file
from evenq.store.timers import runs
from evenq.store.timers.keys import due_of, id_of, key_of
from evenq.store.timers.manifest import TIMERS_UNKNOWN
from evenq.store.timers.merging import Job, ReadJob, ScanJob, WriteJob, pieces
from evenq.store.timers.pending import PendingTimers
from evenq.store.timers.runs import RunFile
from evenq.store.timers.soonest import soonest_first

log = logging.getLogger(__name__)
NEVER: Final = 1 << 63
FULL_PAUSE_MS: Final = 1_000
STEP_PAUSE_MS: Final = 1  # between steps of a merge: a busy thread keeps the interpreter from the loop, 5 ms at a time
SCAN_MAX: Final = 4_096  # timers found by one scan of the runs
ROLL_BATCH: Final = 256
ROLL_BYTES: Final = 4 << 20
FROZEN_MAX: Final = 16
DAMAGE_LINES: Final = 32  # damaged timers that are logged one by one at a time
J = TypeVar("J", bound=Job)
ReadTimers = Callable[[Sequence[int], int], Awaitable[list[StoredTimer | None]]]
"""Reads timers by id up to a number of bytes; one result for each that was read, None if it is not a timer."""
OnMoved = Callable[[Sequence[tuple[int, TimerAppend]]], "asyncio.Future[None] | None"]
"""Called on the loop when timers are safe in their new place (`roll_forward`), with their previous ids. Their old file
is deleted only after the returned future is done.
"""
NEWEST_MAX: Final = 100_000
"""Timers kept of one run: bounds memory."""
BATCH: Final = 256


class NewestJob(Job):
    """A search of one run for its newest timers."""

    def __init__(self, run: RunFile, used: int, ended: frozenset[int], *, count_max: int = NEWEST_MAX) -> None:
        self._run, self._used, self._ended = run, used, ended
        self._count_max = count_max
        self.found: list[int] = []

    def steps(self, disk: Disk) -> Iterator[None]:
        for keys in pieces(disk, self._run, self._used):
            self.found += [timer_id for key in keys if (timer_id := id_of(key)) not in self._ended]
            if len(self.found) > 2 * self._count_max:
                self.found = nlargest(self._count_max, self.found)
            yield


async def newest_first(
    pending: PendingTimers,
    scan: Callable[[Callable[[], NewestJob]], Awaitable[NewestJob]],
    frames: Callable[[Sequence[int]], Awaitable[list[StoredTimer | None]]],
    *,
    batch: int = BATCH,
) -> AsyncGenerator[StoredTimer, None]:
    """Yields timers in the reverse order of their storing, while no run file is removed; one that fires meanwhile may
    be among them. `batch`: most frames in memory at a time. Raises StoreCorrupted, StoreFull.

    A timer's id is its log offset, so descending ids are that order. Memory has most of the newest. A run is searched
    only where it may have a timer newer than the next one of memory, so a caller that stops early reads little.
    """
    ids = pending.memory_ids()
    runs = sorted(pending.used_runs(), key=lambda run: run[0].highest_id)
    while ids or runs:
        # Timers over this are newer than all that is left in the runs.
        floor = runs[-1][0].highest_id if runs else -1
        above = sorted((timer_id for timer_id in ids if timer_id > floor), reverse=True)
        ids = [timer_id for timer_id in ids if timer_id <= floor]
        for start in range(0, len(above), batch):
            for timer in await frames(above[start : start + batch]):
                if timer is not None:
                    yield timer
        if runs:
            run, used = runs.pop()
            ids += (await scan(partial(NewestJob, run, used, pending.ended_ids()))).found


class AppendGroup(Protocol):
    """Function that appends messages, timers and the ends of timers as one group."""

    def __call__(
        self, entries: Sequence[Append], *, timers: Sequence[TimerAppend], ended: Sequence[int]
    ) -> asyncio.Future[None]: ...


@dataclass(slots=True)
class TimerStats:
    """Counters since the store was opened, and sizes. Only the loop thread writes them."""

    pending: int = 0
    """Timers that have neither fired nor been cancelled."""
    in_memory: int = 0
    """Entries in memory now: pending ones, and ended ones that a file still has."""
    runs: int = 0
    fired: int = 0
    """Timers fired; their messages are consumable."""
    late_ms: int = 0
    """Delay of the earliest pending timer now; 0 if none is overdue."""
    late_max_ms: int = 0
    """Longest time between a timer's due time and its message being safe."""
    retries: int = 0
    """Batches that could not be fired immediately."""
    damaged: int = 0
    """Timers that could not be read when they were due; each was named in an error. A repaired one fires later."""
    aside: int = 0
    """Timers that wait for another try, because the owner or the store does not accept what they become."""


@dataclass(slots=True, eq=False)
class _Frozen:
    """A manifest that a snapshot may be about to name."""

    runs: frozenset[int]
    packed: list[int] = field(default_factory=list)


class TimerKeeper:
    """Owner of `PendingTimers` and the folder `timers`."""

    def __init__(
        self,
        pending: PendingTimers,
        disk: Disk,
        *,
        clock: Clock,
        read_timers: ReadTimers,
        append: AppendGroup,
        on_failure: Callable[[str], None],
        move: AppendGroup | None = None,
        segment_bytes: int = 1 << 30,
    ) -> None:
        """`move` appends timers that only move within the log; it may use the disk's reserve."""
        self.pending = pending
        self.alarm_ms = NEVER
        """The service sleeps until then; an earlier timer calls `on_ready`."""
        self.on_ready: Callable[[], None] = lambda: None
        self.on_moved: OnMoved = lambda _: None
        self.awaits_repair: Callable[[], bool] = lambda: False
        """Returns whether what is damaged here may still be repaired from another copy, so that nothing is given up."""
        self._disk = disk
        self._clock = clock
        self._read_timers = read_timers
        self._append = append
        self._move = move or append
        self._segment_bytes = segment_bytes
        self._on_failure = on_failure
        self._jobs = Jobs(threads=1, name="evenq-store-timers", threaded=disk.blocks)
        self._stats = TimerStats()
        self._writing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._removing: asyncio.Task[None] | None = None
        self._scans = 0
        self._resume_ms = 0
        self._frozen: list[_Frozen] = []
        self._packs = 0
        self._unneeded: set[int] = set()
        self._closed = False

    def apply(self, timers: Iterable[TimerAppend], ended: Iterable[int]) -> None:
        """Adds timers and ends of a group that is safe. Called in the step that moves the log's safe end."""
        put, first = self.pending.put, NEVER
        for timer in timers:
            put(timer.due_ms, timer.log_offset, timer.kind)
            first = min(first, timer.due_ms)
        for timer_id in ended:
            self.pending.end(timer_id)
        self.kick()
        if first < self.alarm_ms:
            self.alarm_ms = first
            self.on_ready()

    def kick(self) -> None:
        """Starts disk jobs if there are any. Cheap; called for each group and each batch that fires."""
        if self._closed:
            return
        if self._writing is None and self._clock.monotonic_ms() >= self._resume_ms:
            write = self.pending.write_job()
            if write is not None:
                self._writing = spawn(self._write(write), name="store-timers-write")
        if self._reading is None:
            read = self.pending.read_job()
            if read is not None:
                self._reading = spawn(self._read(read), name="store-timers-read")

    def fired(self, keys: Sequence[bytes]) -> None:
        late_ms = self._clock.now_ms() - due_of(min(keys))
        self._stats.fired += len(keys)
        self._stats.late_max_ms = max(self._stats.late_max_ms, late_ms)

    def retried(self) -> None:
        self._stats.retries += 1

    def waiting_aside(self, count: int) -> None:
        self._stats.aside = count

    @property
    def stats(self) -> TimerStats:
        """Counters; read them, do not keep them."""
        stats, pending = self._stats, self.pending
        stats.pending = len(pending)
        stats.in_memory = pending.memory_count
        stats.runs = len(pending.used_runs())
        next_ms = pending.next_due_ms()
        stats.late_ms = max(0, self._clock.now_ms() - next_ms) if next_ms is not None else 0
        return stats

    async def close(self) -> None:
        """Ends the jobs; what they were writing is not needed."""
        self._closed = True
        for task in (self._writing, self._reading, self._removing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._jobs.close()

    async def read(self, keys: Sequence[bytes], bytes_max: int) -> list[StoredTimer | None]:
        """Returns their frames, up to a number of bytes; None without a whole frame of that very timer."""
        ids = [id_of(key) for key in keys]
        try:
            timers = await self._read_timers(ids, bytes_max)
        except StorePoisoned:
            raise
        except StoreError:
            timers = await self._read_singly(ids, bytes_max)
        return [
            timer if timer is not None and key_of(timer.due_ms, timer.log_offset, timer.kind) == key else None
            for timer, key in zip(timers, keys, strict=False)
        ]

    async def frames(self, timer_ids: Sequence[int]) -> list[StoredTimer | None]:
        """Returns timers by their ids, pending or not; None without a whole timer. Raises StoreCorrupted."""
        timers: list[StoredTimer | None] = []
        while len(timers) < len(timer_ids):
            timers += await self._read_timers(timer_ids[len(timers) :], ROLL_BYTES)
        return timers

    async def newest(self, *, batch: int = BATCH) -> AsyncGenerator[StoredTimer, None]:
        """Yields pending timers, the last one that was stored first. See `newest_first`."""
        self._scans += 1
        try:
            async for timer in newest_first(self.pending, self._scan, self.frames, batch=batch):
                yield timer
        finally:
            self._scans -= 1

    async def soonest(self, count_max: int, *, batch: int = BATCH) -> AsyncGenerator[StoredTimer, None]:
        """Yields pending timers, the one that is due next first. See `soonest_first`."""
        self._scans += 1
        try:
            timers = soonest_first(self.pending, self._scan, self.frames, count_max=count_max, batch=batch)
            async for timer in timers:
                yield timer
        finally:
            self._scans -= 1

    async def _read_singly(self, timer_ids: Sequence[int], bytes_max: int) -> list[StoredTimer | None]:
        """Reads timers one by one to find those that the disk cannot read."""
        timers: list[StoredTimer | None] = []
        space = bytes_max
        for timer_id in timer_ids:
            try:
                (timer,) = await self._read_timers([timer_id], bytes_max)
            except StorePoisoned:
                raise
            except StoreError as error:
                log.warning(
                    "timer %d cannot be read: %s", timer_id, error, extra={"timer": timer_id, "error": str(error)}
                )
                timer = None
            timers.append(timer)
            space -= len(timer.head) + len(timer.system) if timer is not None else 0
            if space < 0:
                break
        return timers

    def damaged(self, keys: Sequence[bytes]) -> None:
        """Counts and logs timers that were set aside because their frames are damaged. They stay pending."""
        self._tell_damaged(keys, "tried again after growing pauses and at the next start")

    def _tell_damaged(self, keys: Sequence[bytes], what: str) -> None:
        self._stats.damaged += len(keys)
        for key in keys[:DAMAGE_LINES]:
            start, position = segment.segment_of(id_of(key), self._segment_bytes)
            log.error(
                "no whole timer at %s byte %d: timer %d, due at %d ms, cannot fire and is %s; the others continue. "
                "Run `evenq store verify` on a copy of the folder, or on the stopped store",
                self._disk.describe(segment.path_of(start)),
                position,
                id_of(key),
                due_of(key),
                what,
            )
        if len(keys) > DAMAGE_LINES:
            log.error(
                "%d more timers are damaged in the same way; the last one is %d",
                len(keys) - DAMAGE_LINES,
                id_of(keys[-1]),
            )

    async def hold(self, timer_ids: Iterable[int]) -> list[bytes]:
        """Holds those that are pending, and returns their keys: they do not fire until they end or are released."""
        pending = self.pending
        watch = pending.watch()
        try:
            near = {timer_id: pending.in_memory(timer_id) for timer_id in timer_ids}
            # Held before the first await: a timer that fires while files are searched must not be one of these.
            held = pending.hold([key for key in near.values() if key is not None], watch)
            far = [timer_id for timer_id, key in near.items() if key is None]
            if not far or not pending.used_runs():
                return held
            keys = []
            while far:
                timers = await self._read_timers(far, ROLL_BYTES)
                keys += [key_of(timer.due_ms, timer.log_offset, timer.kind) for timer in timers if timer is not None]
                far = far[len(timers) :]
            job = await self._scan(lambda: ScanJob(pending.used_runs(), keys=keys))
            return held + pending.hold(job.found, watch)
        finally:
            pending.unwatch(watch)

    async def cancel(self, timer_ids: Iterable[int]) -> list[int]:
        """Ends those that are pending and not being fired; returns them when that is safe. They never fire then. Raises
        StorePoisoned, or StoreFull if even the disk's reserve is used up: then nothing is cancelled.
        """
        held = await self.hold(timer_ids)
        if held:
            await self._end_held(held, ())
        return [id_of(key) for key in held]

    def pinned_before(self) -> int | None:
        """Returns the log offset of the oldest frame that a pending timer needs; None if none is pending."""
        return self.pending.lowest_id()

    async def roll_forward(self, log_offset: int) -> None:
        """Appends all pending timers below `log_offset` again, at the end of the log, and ends the old ones. A timer
        that is firing stays: check `pinned_before` afterwards. One whose frame is damaged is given up, since it could
        never be delivered; it stays while another copy may repair it. Raises StoreFull, TooManyRequests (also if one
        stays; what was moved so far stays moved), StorePoisoned.
        """
        pending = self.pending
        unrepaired: list[bytes] = []
        try:
            while True:
                held, whole = await self._hold_below(log_offset)
                if not held:
                    break
                try:
                    while held:
                        batch = held[:ROLL_BATCH]
                        timers = await self.read(batch, ROLL_BYTES)
                        batch = batch[: len(timers)]
                        del held[: len(timers)]
                        lost = [key for key, timer in zip(batch, timers, strict=True) if timer is None]
                        if lost and self.awaits_repair():
                            unrepaired += lost
                            batch = [key for key in batch if key not in lost]
                            lost = []
                        if batch:
                            await self._move_held(batch, timers)
                        self._tell_damaged(lost, "given up, since its file is deleted")
                finally:
                    pending.release(held)
        finally:
            pending.release(unrepaired)
        if unrepaired:
            more = f" (and {len(unrepaired) - 1} more)" if len(unrepaired) > 1 else ""
            raise TooManyRequests(
                f"timer {min(map(id_of, unrepaired))} is damaged here and not repaired from another copy yet{more}: "
                "check that the other copies run"
            )
        if whole and not pending.busy_below(log_offset):
            pending.raise_floor(log_offset)

    async def _move_held(self, held: list[bytes], timers: Sequence[StoredTimer | None]) -> None:
        moved = [(timer.log_offset, _again(timer)) for timer in timers if timer is not None]
        await self._end_held(held, [timer for _, timer in moved])
        noted = self.on_moved(moved)
        if noted is not None:
            await asyncio.shield(noted)

    async def _hold_below(self, log_offset: int) -> tuple[list[bytes], bool]:
        pending = self.pending
        watch = pending.watch()
        try:
            held = pending.hold(pending.below(log_offset)[:SCAN_MAX], watch)
            if held:
                return held, False
            skip = pending.ended_ids()
            job = await self._scan(
                lambda: ScanJob(pending.used_runs(), below=log_offset, count_max=SCAN_MAX, skip=skip)
            )
            return pending.hold(job.found, watch), job.whole
        finally:
            pending.unwatch(watch)

    async def _end_held(self, held: list[bytes], timers: Sequence[TimerAppend]) -> None:
        try:
            future = self._move((), timers=timers, ended=[id_of(key) for key in held])
        except Error:
            self.pending.release(held)
            raise

        def outcome(done: asyncio.Future[None]) -> None:
            if done.cancelled() or done.exception() is not None:
                self.pending.release(held)

        future.add_done_callback(outcome)
        await asyncio.shield(future)  # a cancelled caller does not undo what is on its way to the disk

    def freeze(self) -> Callable[[], bytes]:
        """Fixes the state as of now; the result packs it, on any thread."""
        manifest = self.pending.freeze()
        frozen = _Frozen(frozenset(run.number for run in manifest.runs))
        over = sorted(entry.packed[0] for entry in self._frozen if entry.packed)[:-1]
        self._frozen = [entry for entry in self._frozen if not entry.packed or entry.packed[0] not in over]
        self._frozen = [*self._frozen, frozen][-FROZEN_MAX:]
        self._remove_unneeded()

        def pack() -> bytes:
            self._packs += 1
            frozen.packed.append(self._packs)
            return manifest_file.pack(manifest)

        return pack

    def keep_until_unnamed(self, numbers: Iterable[int]) -> None:
        """Removes these files when no snapshot names them any more: older snapshots may still do."""
        self._unneeded.update(numbers)

    def _remove_unneeded(self) -> None:
        self._unneeded.update(self.pending.gone_files())
        if self._removing is None and self._unneeded and not self._scans and not self._closed:
            self._removing = spawn(self._remove(), name="store-timers-remove")

    async def _remove(self) -> None:
        named = set().union(*(entry.runs for entry in self._frozen))
        # A snapshot that is being written names them soon: without them a start from it would miss timers.
        candidates = self._unneeded - named

        def work() -> set[int]:
            gone = candidates - named_by_snapshots(self._disk)
            runs.remove(self._disk, sorted(gone))
            return gone

        try:
            self._unneeded -= await self._jobs.run(work)
        except StoreError as error:
            log.warning("old files of timers are kept: %s", error, extra={"error": str(error)})
        except OSError as error:
            if error.errno not in NO_FILES:  # otherwise a later removal includes these
                self._on_failure(f"removing old files of timers failed: {error}")
        finally:
            self._removing = None

    async def _write(self, job: WriteJob) -> None:
        try:
            await self._carry_out(job)
        except OSError as error:
            self.pending.write_failed()
            if error.errno in FULL:
                self._resume_ms = self._clock.monotonic_ms() + FULL_PAUSE_MS
                log.warning("timers could not be written to a file and stay in memory: %s", shortage(error))
            else:
                self._on_failure(f"writing a file of timers failed: {error}")
        except StoreCorrupted as error:
            self.pending.write_failed()
            self._on_failure(str(error))
        else:
            self.pending.write_done(job)
        finally:
            self._writing = None
        self._again()

    async def _read(self, job: ReadJob) -> None:
        try:
            await self._carry_out(job)
        except (OSError, StoreCorrupted) as error:
            self.pending.read_failed(job)
            if not isinstance(error, OSError) or error.errno not in NO_FILES:
                self._on_failure(f"reading timers ahead failed: {error}")
        else:
            self.pending.read_done(job)
        finally:
            self._reading = None
        self._again()

    def _again(self) -> None:
        self.kick()
        self.on_ready()

    async def _scan(self, make: Callable[[], J]) -> J:
        self._scans += 1  # no file is removed during a scan
        try:
            while self._removing is not None:
                await asyncio.shield(self._removing)
            job = make()
            await self._carry_out(job)
        except OSError as error:
            if error.errno in NO_FILES:
                raise StoreFull(f"timers cannot be looked for now: {shortage(error)}") from error
            self._on_failure(f"looking for timers failed: {error}")
            raise StoreCorrupted(f"looking for timers failed: {error}") from error
        finally:
            self._scans -= 1
        return job

    async def _carry_out(self, job: Job) -> None:
        steps = job.steps(self._disk)
        while await self._jobs.run(lambda: next(steps, _OVER)) is not _OVER:
            if not self._disk.blocks:
                await _turn()
            elif isinstance(job, WriteJob) and not self.pending.wants_writing:
                await self._clock.sleep_ms(STEP_PAUSE_MS)


_OVER: Final = object()


async def _turn() -> None:
    """Lets other work of the loop go first."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.call_soon(future.set_result, None)
    await future


def named_by_snapshots(disk: Disk) -> set[int]:
    """Returns the runs that a snapshot on disk needs. Raises StoreCorrupted, StoreError for an unknown version."""
    named: set[int] = set()
    for section in snapshot.timer_sections(disk):
        if section not in (b"", TIMERS_UNKNOWN):
            named.update(run.number for run in manifest_file.unpack(section).runs)
    return named


def _again(timer: StoredTimer) -> TimerAppend:
    return TimerAppend(
        timer.topic_id,
        timer.queue_id,
        timer.tag_hash,
        due_ms=timer.due_ms,
        kind=timer.kind,
        born_ms=timer.born_ms,
        head=timer.head,
        system=timer.system,
    )
