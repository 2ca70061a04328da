"""The log of a follower, and of a broker before it leads: bytes of the leader's log, checked and written unchanged.

A folder has one owner at a time: a `LogCopy` while the broker follows, a `MessageStore` while it leads; both use the
same files. A copy writes log files and two small files of its own: `copied` (see `copied_mark`) and `epochs` (see
`epoch_file`). Consume queues, timers, checkpoint and snapshots stay as the last leader phase left them, until `replay`
advances them to a committed place.

Called on the loop, one call of a kind at a time. File work runs on one thread in the order of the calls, or inline for
a disk that does not block. Numbers change when their work is done, so a cancelled call leaves them right.
Always true: `start` <= `synced_end` <= `end`, and a group of records ends at `end`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from evenq.errors import BodyTooLarge, Error, RecordsDamaged, StoreError, StoreFull, StorePoisoned, WithinRecord
from evenq.runtime.clock import Clock, SystemClock
from evenq.runtime.failpoints import passing
from evenq.store.copies import copy_trim, epoch_file, lost_tail, snapshot_copy
from evenq.store.copies.copy_opening import (
    FoundLog,
    can_derive,
    checkpoint_crc,
    drop_derived_over,
    empty_folder,
    find_log,
    unclean_checkpoint,
)
from evenq.store.copies.copy_repair import CopyRepair
from evenq.store.copies.copy_replay import Replays
from evenq.store.copies.epoch_file import EpochStarts
from evenq.store.copies.lost_tail import LostTail
from evenq.store.io.disk import Disk
from evenq.store.io.jobs import Jobs
from evenq.store.log import log_tail, segment
from evenq.store.log.commit_log import FULL, CommitLog, runs_of, shortage
from evenq.store.log.frame_walk import AnnouncedEpochs, FrameWalk
from evenq.store.log.lock import Identity
from evenq.store.log.log_pieces import LogPieces
from evenq.store.log.options import StoreOptions
from evenq.store.log.record import HEADER_BYTES, STATE, pack, pack_padding
from evenq.store.opening import owned_folder
from evenq.store.opening.copied_mark import Mark, MarkFile

log = logging.getLogger(__name__)

SCAN_BYTES: Final = 8 << 20
"""A start checks at least this much of the log below the mark, and about twice as much at most."""
MARK_SYNC_MS: Final = 5_000
"""Interval between syncs of the mark itself while it advances."""

T = TypeVar("T")


class LogCopy(CopyRepair):
    """The only owner of a follower's data folder. Created by `open`."""

    def __init__(
        self, disk: Disk, identity: Identity, jobs: Jobs, clock: Clock, marks: MarkFile, found_log: FoundLog
    ) -> None:
        self.identity = identity
        self.stopped_clean = found_log.mark.clean
        """Whether the folder's last owner closed it in order, so that nothing written can be missing."""
        self.cut_bytes = found_log.cut_bytes
        """Bytes of a torn tail that the start cut off."""
        self._disk = disk
        self._segment_bytes = identity.segment_bytes
        self._jobs = jobs
        self._clock = clock
        self._marks = marks
        self._mark = found_log.mark
        self._end = found_log.end
        self._synced_end = found_log.end
        self._epochs = found_log.epochs
        self._filed_epochs = found_log.filed_epochs
        """Content of the file: ahead of the log while records of a new epoch are written."""
        self._last_store_ms = found_log.last_store_ms
        self._log = CommitLog(disk, identity.segment_bytes, found_log.end)
        self._pieces = LogPieces(disk, identity.segment_bytes)
        self._scan_next = found_log.end
        """Log offset from which a start will check, once enough of the log lies after it."""
        self._changing = False
        """Whether folder and mark already say that the log may change."""
        self._mark_synced_ms = clock.monotonic_ms()
        self.replays = Replays(disk, identity.segment_bytes, clock, self._guarded)
        """Derives what a store reads at its start; `committed_view` reads beside it."""
        self._replayed_end = found_log.replayed_end
        self._failure: StorePoisoned | None = None
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    async def open(
        cls,
        path: Path | None,
        options: StoreOptions,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        broker_name: str,
        segment_bytes: int | None = None,
    ) -> LogCopy:
        """Locks the folder and finds the log's end. `path` None means memory; `disk` replaces the folder in tests.
        `segment_bytes` is the leader's size of log files, which the folder must have or, if it is new, gets.

        Raises StoreLocked (another process), StoreCorrupted (damage, with file and place), StoreError (another broker's
        folder, other log files, unknown format, not writable), SettingsError (sizes that do not fit the volume).
        """
        if disk is None:
            disk = owned_folder.disk_of(path, options)
        if segment_bytes is not None:
            options = replace(options, segment_bytes=segment_bytes)
        jobs = Jobs(threads=1, name="evenq-log-copy", threaded=disk.blocks)
        with owned_folder.owned(disk, jobs):
            identity = owned_folder.identified(disk, broker_name=broker_name, options=options)
            if segment_bytes not in (None, size := identity.segment_bytes):
                raise StoreError(
                    f"{disk.describe('')} has log files of {size} bytes, the group's have {segment_bytes}: set "
                    f"store.segment_bytes={size} at all copies, or empty the folder if another copy leads"
                )
            marks = MarkFile(disk)
            try:
                found_log = await jobs.run(lambda: find_log(disk, identity.segment_bytes, marks))
                return cls(disk, identity, jobs, clock or SystemClock(), marks, found_log)
            except BaseException:
                marks.close()
                raise

    @property
    def start(self) -> int:
        """First log offset that the log still has."""
        return self._mark.log_start

    @property
    def end(self) -> int:
        """Log offset after the last whole group of records that is written."""
        return self._end

    @property
    def synced_end(self) -> int:
        """Log offset up to which the disk confirmed."""
        return self._synced_end

    @property
    def replayed_end(self) -> int:
        """Log offset from which a store that opened the folder now would read; `start` if it would read all."""
        return max(self._replayed_end, self._mark.log_start)

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """Each epoch of the log and the log offset of its first frame, ascending; the last 1,000."""
        return self._epochs.entries

    @property
    def failure(self) -> Error | None:
        """Reason why the copy stopped permanently (StorePoisoned); None while it works."""
        return self._failure

    async def read(self, start: int, end: int, bytes_max: int) -> bytes:
        """Returns whole groups of the log unchanged. See `LogPieces.read`; `end` is at most the log's."""
        return await self._run(lambda: self._pieces.read(start, min(end, self._end), bytes_max))

    async def append(
        self, data: bytes | memoryview, *, start: int, then_sync: bool = False, announced: AnnouncedEpochs | None = None
    ) -> int:
        """Writes bytes of the leader's log that begin at `start`, which must be this log's end: whole groups of frames
        with their padding, also across files. Returns the new end; it is on disk only with `then_sync`.

        All or nothing. Raises RecordsDamaged (place and reason) for a frame that is damaged, of another place, of a
        lower epoch than the one before or another than `announced`, or a last group that is not whole; StoreFull;
        StorePoisoned.
        """
        return await self._run(lambda: self._append(data, start, announced, then_sync=then_sync))

    async def append_epoch_start(self, epoch: int, payload: bytes, store_ms: int) -> int:
        """Begins an epoch as its leader with one state record. `store_ms` is the current time, ms since the epoch; a
        time before the last record's is replaced by that. Returns the new end; it is not synced, but the file `epochs`
        is. Raises StoreError unless `epoch` is higher than the last; BodyTooLarge, StoreFull, StorePoisoned.
        """
        return await self._run(lambda: self._append_epoch_start(epoch, payload, store_ms))

    async def sync(self) -> int:
        """Returns `synced_end` when everything written before the call is on disk. Raises StorePoisoned."""
        return await self._run(self._sync)

    async def can_cut(self, end: int) -> bool:
        """Whether a store could continue from a log that is cut at `end`; otherwise only `reset` helps."""
        return await self._run(lambda: can_derive(self._disk, self.start, end))

    async def keep_lost(self, start: int) -> LostTail:
        """Counts what lies after `start` and copies it aside, as far as space allows, before it is cut."""
        keep = lost_tail.keep
        return await self._run(lambda: keep(self._disk, self._pieces, start, self._end))

    async def truncate(self, end: int) -> None:
        """Cuts the log at `end`, where a group must end; on disk when it returns. Raises WithinRecord for a place
        inside a group, StoreError for one outside of the log, StoreFull if nothing was changed yet, StorePoisoned.
        """
        await self._change(lambda: self._truncate(end))

    async def reset(self, start: int) -> None:
        """Drops the log and all that is derived from it, and begins an empty one at `start`, a multiple of the size of
        log files. On disk when it returns; the next start completes what a crash interrupts.
        """
        await self._change(lambda: self._reset(start))

    async def trim(self, log_start: int) -> bool:
        """Deletes the log files before `log_start`, a multiple of their size. Returns False and deletes nothing unless
        snapshot and checkpoint in the folder reach that far, so that a store can continue from there.
        """
        return await self._change(lambda: self._trim(log_start))

    async def replay(self, data: bytes, *, committed: int, origin: str) -> bool:
        """Derives, slowly and while the log may grow, what a store would read at its start up to a leader's snapshot
        (`data`, a file that `origin` sent); then keeps that snapshot. Nothing below `committed` is ever cut. Returns
        False if nothing is new, it is not committed or on disk here, or the log was changed or closed. Raises
        StoreCorrupted (damage in the log, with file and place; an incomplete snapshot, or one of another log),
        StoreError, StoreFull (try again), StorePoisoned. One call at a time.
        """
        taken = snapshot_copy.parsed(data, origin=origin)
        if not self.replayed_end < taken.log_offset <= min(committed, self._synced_end):
            return False
        if self._failure is not None:
            raise self._failure
        if not await self.replays.run(taken, log_start=self.start):
            return False
        await self._run(lambda: self._replayed(taken.log_offset))
        return True

    async def install(self, data: bytes, *, origin: str) -> None:
        """Keeps a leader's snapshot for an empty log, which will grow up to it. Raises as `replay`."""
        install = snapshot_copy.install
        await self._change(lambda: install(self._disk, data, origin=origin, log_start=self.start))

    async def close(self) -> None:
        """Syncs, marks a clean stop, releases the folder. A poisoned copy only unlocks. May be called again."""
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        self._closing = asyncio.get_running_loop().create_future()
        self.replays.close()
        try:
            if self._failure is None:
                await self._jobs.run(lambda: self._guarded(self._mark_clean))
        except StorePoisoned as error:
            log.warning("the copied log was not closed cleanly: %s", error)
        finally:
            self._jobs.close()
            self._log.close()
            self._pieces.close()
            self._marks.close()
            self._disk.unlock()
            self._closing.set_result(None)

    async def _run(self, job: Callable[[], T]) -> T:
        if self._failure is not None:
            raise self._failure
        if self._closing is not None:
            raise StorePoisoned("the copy of the log is closed")
        return await self._jobs.run(lambda: self._guarded(job))

    async def _change(self, job: Callable[[], T]) -> T:
        return await self._run(lambda: self.replays.give_way(job))

    def _guarded(self, job: Callable[[], T]) -> T:
        """Runs a job. An unexpected error is final, because the content of the disk is then unknown."""
        if self._failure is not None:
            raise self._failure
        try:
            if lost := self._disk.lost():
                raise OSError(lost)
            return job()
        except Error:
            raise
        except Exception as error:
            if not isinstance(error, OSError):
                log.exception("the copy of the log failed")
            self._failure = StorePoisoned(
                f"the disk of {self._disk.describe('')} failed: {error}; the copy of the log stopped, restart the "
                "broker to recover it"
            )
            raise self._failure from error

    def _append(
        self, data: bytes | memoryview, start: int, announced: AnnouncedEpochs | None, *, then_sync: bool
    ) -> int:
        if start != self._end:
            raise StoreError(f"records from log offset {start} on cannot follow a log that ends at {self._end}")
        end = self._append_checked(memoryview(data), announced, led=0)
        passing("replica.copied")
        return self._sync() if then_sync else end

    def _append_checked(self, data: memoryview, announced: AnnouncedEpochs | None = None, *, led: int) -> int:
        """`led`: the epoch that begins here, if this broker leads it."""
        start = self._end
        last = self._epochs.last
        walk = FrameWalk(start, segment_bytes=self._segment_bytes, epoch=last)
        is_good = walk.take(data, start) is None and walk.is_whole(start + len(data))
        if not is_good or (announced and not walk.is_as_announced(announced, last=last, start=start)):
            what, place = f"{len(data)} bytes of the log from {start} on are not taken", walk.position
            raise RecordsDamaged(f"{what}: at log offset {place}: {walk.reason}", log_offset=place)
        if not data:
            return start
        self._allow_changes()
        epochs = self._epochs.grown(walk.epochs, led=led)
        # Before the records: logs are compared by this table (R4), which may be ahead of the log, never behind.
        self._file_epochs(epochs)
        try:
            self._log.write(runs_of(data, start, self._segment_bytes))
        except StoreFull as error:
            cause = error.__cause__
            text = shortage(cause) if isinstance(cause, OSError) else str(error)
            raise StoreFull(f"no record can be copied: {text}") from error
        self._log.close_sealed()
        self._epochs, self._end = epochs, walk.boundary
        self._last_store_ms = max(self._last_store_ms, walk.last_store_ms)
        return walk.boundary

    def _append_epoch_start(self, epoch: int, payload: bytes, store_ms: int) -> int:
        if epoch <= self._epochs.last:
            raise StoreError(f"epoch {epoch} cannot begin after epoch {self._epochs.last}: epochs of a log only grow")
        size = HEADER_BYTES + len(payload)
        if size > self._segment_bytes:
            raise BodyTooLarge(f"a record of {size} bytes exceeds the log's file size of {self._segment_bytes} bytes")
        store_ms = max(store_ms, self._last_store_ms)
        log_offset, padding = self._end, b""
        rest = -log_offset % self._segment_bytes
        if 0 < rest < size:
            padding = pack_padding(
                log_offset, rest, epoch=epoch, synced_offset=self._synced_end, store_ms=store_ms
            ).ljust(rest, b"\0")
            log_offset += rest
        frame = pack(
            kind=STATE,
            flags=0,
            epoch=epoch,
            topic_id=0,
            queue_id=0,
            queue_offset=0,
            log_offset=log_offset,
            synced_offset=self._synced_end,
            store_ms=store_ms,
            born_ms=store_ms,
            tag_hash=0,
            head=payload,
            system=b"",
        )
        return self._append_checked(memoryview(padding + frame), led=epoch)

    def _sync(self) -> int:
        end = self._end
        if end > self._synced_end:
            self._log.sync()
            self._log.close_sealed()
            self._synced_end = end
            self._move_mark()
        if self._log.wants_spare(end):
            self._log.prepare(end)
        return end

    def _truncate(self, end: int) -> None:
        self._check_boundary(end)
        self._allow_changes()
        if end < self._end:
            self._scan_next = min(self._scan_next, end)
            self._lower_mark(
                replace(self._mark, synced_end=min(self._synced_end, end), scan_from=min(self._mark.scan_from, end))
            )
            drop_derived_over(self._disk, self.start, end)
            self._close_files()
            log_tail.cut(self._disk, self._segment_bytes, segment.starts(self._disk, self._segment_bytes), end)
            self._log = CommitLog(self._disk, self._segment_bytes, end)
            self._end = self._synced_end = end  # full files were synced when they were sealed, the last one by the cut
            self._epochs = self._epochs.cut(end)
            try:
                self._file_epochs(self._epochs)
            except StoreFull as error:
                log.warning("%s; the next append writes it", error)
            self._mark = replace(self._mark, checkpoint_crc=checkpoint_crc(self._disk))
            self._move_mark()
        else:
            self._sync()

    def _reset(self, start: int) -> None:
        if start < 0 or start % self._segment_bytes:
            raise StoreError(f"a log cannot begin at {start}: its files have {self._segment_bytes} bytes each")
        self._allow_changes()
        self._lower_mark(Mark(log_start=start, scan_from=start, synced_end=start, resetting=True))
        self._close_files()
        empty_folder(self._disk)
        self._log = CommitLog(self._disk, self._segment_bytes, start)
        self._end = self._synced_end = self._scan_next = self._replayed_end = start
        self._epochs = EpochStarts()
        self._filed_epochs = None
        epoch_file.save(self._disk, self._epochs)
        self._filed_epochs = self._epochs
        self._put_mark(replace(self._mark, resetting=False), durable=True)

    def _trim(self, log_start: int) -> bool:
        if log_start % self._segment_bytes:
            raise StoreError(f"a log cannot begin at {log_start}: its files have {self._segment_bytes} bytes each")
        if log_start <= self.start:
            return True
        if log_start >= self._end or not copy_trim.name_begin(self._disk, self._segment_bytes, log_start):
            return False
        self._pieces.close()
        self._put_mark(
            replace(
                self._mark,
                log_start=log_start,
                scan_from=max(self._mark.scan_from, log_start),
                synced_end=max(self._mark.synced_end, log_start),
                checkpoint_crc=checkpoint_crc(self._disk),
            ),
            durable=True,
        )
        self._synced_end, self._scan_next = self._mark.synced_end, max(self._scan_next, log_start)
        copy_trim.delete_before(self._disk, log_start)
        self._epochs = self._epochs.begun(log_start)
        return True

    def _replayed(self, end: int) -> None:
        self._replayed_end = max(self._replayed_end, end)
        self._put_mark(replace(self._mark, checkpoint_crc=checkpoint_crc(self._disk)), durable=False)

    def _mark_clean(self) -> None:
        self._sync()
        self._put_mark(replace(self._mark, clean=True, synced_end=self._synced_end), durable=True)

    def _allow_changes(self) -> None:
        """Clears, before the first change, every mark that says that the log ends here for certain."""
        if self._changing:
            return
        try:
            crc = self.replays.waiting(lambda: unclean_checkpoint(self._disk))
            self._put_mark(replace(self._mark, clean=False, checkpoint_crc=crc), durable=True)
        except OSError as error:
            self._refuse_if_full(error)
            raise
        self._changing = True

    def _file_epochs(self, epochs: EpochStarts) -> None:
        """Ensures that the file holds these epochs, on disk."""
        if epochs == self._filed_epochs:
            return
        self._filed_epochs = None
        try:
            epoch_file.save(self._disk, epochs)
        except OSError as error:
            self._refuse_if_full(error)
            raise
        self._filed_epochs = epochs

    def _move_mark(self) -> None:
        """Marks that the log is on disk up to `synced_end`."""
        scan_from, end = self._mark.scan_from, self._synced_end
        if end - self._scan_next >= SCAN_BYTES:
            scan_from, self._scan_next = self._scan_next, end
        now_ms = self._clock.monotonic_ms()
        durable = now_ms - self._mark_synced_ms >= MARK_SYNC_MS
        if durable:
            self._mark_synced_ms = now_ms
        self._put_mark(replace(self._mark, scan_from=scan_from, synced_end=end), durable=durable)

    def _lower_mark(self, mark: Mark) -> None:
        """Writes a mark durably, before a part that the old one vouches for is removed."""
        try:
            self._put_mark(mark, durable=True)
        except OSError as error:
            self._refuse_if_full(error)
            raise

    def _put_mark(self, mark: Mark, *, durable: bool) -> None:
        self._marks.write(mark, durable=durable)
        self._mark = mark

    def _refuse_if_full(self, error: OSError) -> None:
        if error.errno in FULL:
            raise StoreFull(f"the copy of the log cannot change: {shortage(error)}") from error

    def _close_files(self) -> None:
        self._pieces.close()
        self._log.close()

    def _check_boundary(self, end: int) -> None:
        if not self.start <= end <= self._end:
            raise StoreError(f"a log from {self.start} to {self._end} cannot be cut at {end}")
        known = {self.start, self._end, self._mark.synced_end, *(start for _, start in self._epochs.entries)}
        position = end
        while position not in known:
            position = max(self.start, segment.segment_of(position - 1, self._segment_bytes)[0])
            ends = self._pieces.ends_group(position, end)
            if ends:
                return
            if ends is False:
                raise WithinRecord(f"the log cannot be cut at {end}: no group of records ends there")
