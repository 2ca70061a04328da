"""Opens a copy's folder: finds the log's end, distinguishes a torn tail from damage, and makes the rest durable.

`LogCopy.open` calls it on its thread. The copy's own mark vouches for the log, and so do checkpoint and snapshots of a
store that led here since. A hole before that place is damage; a hole after it may come from a power loss and is cut.
The `synced offset` of a record refers to its leader's disk, so it counts only for the last epoch that was led from
here. A group of records is kept as a whole or not at all.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.copies import epoch_file
from evenq.store.copies.copy_replay import replayed_end
from evenq.store.copies.epoch_file import EpochStarts
from evenq.store.index import index_file
from evenq.store.io.disk import Disk, read_whole
from evenq.store.log import consume_queue, log_damage, log_tail, segment, snapshot
from evenq.store.log.commit_log import FULL
from evenq.store.log.frame_walk import Fault, FrameWalk
from evenq.store.log.snapshot import Snapshot
from evenq.store.opening import checkpoint as checkpoint_file
from evenq.store.opening import copied_mark
from evenq.store.opening.checkpoint import Checkpoint
from evenq.store.opening.copied_mark import Mark, MarkFile
from evenq.store.timers.runs import FOLDER as TIMERS

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLog:
    """A log that was scanned, cut and synced."""

    mark: Mark
    """The mark as it is on disk now."""
    end: int
    epochs: EpochStarts
    filed_epochs: EpochStarts | None
    """Content of the file `epochs`; None if it is missing or damaged."""
    last_store_ms: int
    cut_bytes: int
    replayed_end: int
    """Log offset from which a store would begin to read."""


def find_log(disk: Disk, segment_bytes: int, marks: MarkFile) -> FoundLog:
    """Returns the opened log. Blocks on the disk. Raises StoreCorrupted (with file and place), StoreError."""
    return _Opening(disk, segment_bytes, marks).found()


class _Opening:
    """One opening of a folder."""

    def __init__(self, disk: Disk, segment_bytes: int, marks: MarkFile) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._marks = marks
        mark = copied_mark.load(disk)
        if mark is not None and mark.resetting:
            log.warning("completing an interrupted replacement of the log, which begins at %d", mark.log_start)
            # A crash interrupted a `reset`. The mark was lowered before any deletion, so all that is left may go.
            empty_folder(disk)
            mark = replace(mark, resetting=False)
            marks.write(mark, durable=True)
        self._mark = mark
        self._crc = checkpoint_crc(disk)
        self._checkpoint = checkpoint_file.load(disk) or Checkpoint()
        self._saved = snapshot.load(disk, log_start=0) or Snapshot(0, b"")
        known = mark or Mark()
        self._start = max(known.log_start, self._checkpoint.log_start, self._saved.log_start)
        segment.drop_before(disk, self._start)  # completes a deletion that a crash interrupted
        self._files = segment.starts(disk, segment_bytes)
        self._led_since = mark is None or mark.checkpoint_crc != self._crc
        """A store led here since the mark was written, so its checkpoint and snapshots count too."""
        led = (self._checkpoint.log_offset, self._saved.log_offset) if self._led_since else ()
        self._sure = max(self._start, known.synced_end, *led)
        """The log was on disk up to here."""
        self._begin = max(self._start, known.scan_from) if self._sure == known.synced_end else self._sure

    def found(self) -> FoundLog:
        self._check_files()
        walk = self._scanned()
        end, cut_bytes = walk.boundary, self._cut_tail(walk)
        log_tail.write_again(self._disk, self._segment_bytes, self._files, self._sure, end)
        log_tail.fill_last(self._disk, self._segment_bytes, self._files, end)
        drop_derived_over(self._disk, self._start, end)
        epochs, filed = self._epochs(walk)
        mark = Mark(
            log_start=self._start,
            scan_from=self._begin,
            synced_end=end,
            clean=not cut_bytes and self._was_clean(end),
            checkpoint_crc=checkpoint_crc(self._disk),
        )
        if mark != self._mark:
            self._marks.write(mark, durable=True)
        return FoundLog(
            mark=mark,
            end=end,
            epochs=epochs,
            filed_epochs=filed,
            cut_bytes=cut_bytes,
            last_store_ms=max(walk.last_store_ms, self._checkpoint.last_store_ms, self._saved.last_store_ms),
            replayed_end=replayed_end(self._disk, log_start=self._start),
        )

    def _was_clean(self, end: int) -> bool:
        if self._mark is not None and not self._led_since:
            return self._mark.clean and self._mark.synced_end == end
        return self._checkpoint.clean and self._checkpoint.log_offset == end

    def _check_files(self) -> None:
        """Checks by file sizes that everything exists that something vouches for."""
        if self._files and self._files[0] > self._start:
            raise StoreCorrupted(
                f"{self._disk.describe(segment.path_of(self._start))} is missing at the beginning of the log: restore "
                "it from a copy"
            )
        for start in [start for start in self._files if start < self._sure]:
            due = min(self._sure, start + self._segment_bytes)
            there = log_tail.end_of_files(self._disk, [start])
            if there < due:
                self._damaged(there, "the file ends here")
        if self._sure > self._start and (not self._files or self._files[-1] + self._segment_bytes < self._sure):
            self._damaged(self._files[-1] + self._segment_bytes if self._files else self._start, "the file is missing")

    def _scanned(self) -> FrameWalk:
        walk = FrameWalk(self._begin, segment_bytes=self._segment_bytes, short_padding=True)
        fault = None
        for start in [start for start in self._files if start + self._segment_bytes > self._begin]:
            if walk.position < start:
                break  # the file before it is not full
            fault = self._scan(walk, start)
            if fault is not None:
                break
        if fault in {Fault.FOREIGN, Fault.DISORDER}:
            kind = StoreError if fault is Fault.FOREIGN else StoreCorrupted
            todo = "start a newer program on this folder" if fault is Fault.FOREIGN else "restore it from a copy"
            raise kind(f"{self._place(walk.position)}: {walk.reason}; {todo}")
        if walk.boundary < self._sure:
            self._damaged(walk.position, walk.reason or "its group of records is not whole")
        return walk

    def _scan(self, walk: FrameWalk, start: int) -> Fault | None:
        """Takes the frames of one file; the last frame may be incomplete."""
        file = self._disk.open(segment.path_of(start))
        try:
            file_end = start + min(file.size(), self._segment_bytes)
            piece_bytes = PIECE_BYTES
            while walk.position < file_end:
                at, size = walk.position, min(piece_bytes, file_end - walk.position)
                data, failure = log_damage.read_readable(file, size, at - start)
                fault = walk.take(memoryview(data), at)
                # It is not known whether this part was torn, so it is not cut; another copy may repair it.
                if failure is not None and fault in {None, Fault.CUT} and walk.position <= at + len(data):
                    raise log_damage.unreadable(self._disk, self._segment_bytes, walk.position, failure) from failure
                if fault is None:
                    continue
                if fault is not Fault.CUT or walk.lacks > file_end - walk.position:
                    return fault
                piece_bytes = max(PIECE_BYTES, walk.lacks)
        finally:
            file.close()
        return None

    def _cut_tail(self, walk: FrameWalk) -> int:
        """Cuts everything after the last whole group; returns the number of bytes."""
        end = walk.boundary
        behind = log_tail.end_of_files(self._disk, self._files) - end
        if behind <= 0:
            return 0
        led = (epoch_file.load(self._disk) or EpochStarts((), self._unreplicated())).led
        for frame in log_tail.frames_behind(self._disk, self._segment_bytes, self._files, end):
            if frame.epoch == led and frame.synced_offset > end:
                # Not `end`, where the group begins: a repair searches at the damage itself.
                self._damaged(
                    walk.position,
                    f"the record at {frame.log_offset} says that the log was on disk up to {frame.synced_offset}",
                )
        log_tail.cut(self._disk, self._segment_bytes, self._files, end)
        log.warning(
            "cut a torn tail of %d bytes off the copied log at %d",
            behind,
            end,
            extra={"log_end": end, "cut_bytes": behind},
        )
        return behind

    def _unreplicated(self) -> int:
        """Returns the epoch of a log from before there were copies; 0 for any other log."""
        return 1 if self._mark is None and epoch_file.PATH not in self._disk.list("") else 0

    def _epochs(self, walk: FrameWalk) -> tuple[EpochStarts, EpochStarts | None]:
        """Returns the table, and the content of its file."""
        end = walk.boundary
        seen = [entry for entry in walk.epochs if entry[1] < end]
        led = self._unreplicated()
        filed = epoch_file.load(self._disk)
        table = self._completed(filed, seen, end) if filed is not None else None
        if table is None:
            if filed is not None:
                log.warning(
                    "%s does not agree with the log: rebuilding it from the log", self._disk.describe(epoch_file.PATH)
                )
            entries = epoch_file.derive(self._disk, self._segment_bytes, self._start, end)
            table = EpochStarts(entries, led if len(entries) <= 1 else 0)
        if table == filed:
            return table, filed
        try:
            epoch_file.save(self._disk, table)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return table, filed
        return table, table

    def _completed(self, filed: EpochStarts, seen: list[tuple[int, int]], end: int) -> EpochStarts | None:
        """Returns the file's table, cut to the log and completed by the scan; None if they do not agree."""
        cut = filed.cut(end) if any(start >= end for _, start in filed.entries) else filed
        table = cut.begun(self._start)
        if seen and self._begin > self._start and table.epoch_at(seen[0][1]) != seen[0][0]:
            return None  # the scan did not see where that epoch began
        table = table.grown([entry for entry in seen if entry[0] > table.last], led=table.led)
        return table if all(table.epoch_at(start) == epoch for epoch, start in seen) else None

    def _place(self, log_offset: int) -> str:
        return log_tail.name_of_place(self._disk, self._segment_bytes, log_offset)

    def _damaged(self, log_offset: int, why: str) -> NoReturn:
        raise StoreCorrupted(
            f"{self._place(log_offset)} is damaged: {why}, and the log was on disk up to {self._sure}; restore the "
            "folder from a copy, or empty it and let it copy the leader's log again",
            log_offset=log_offset,
        )


def checkpoint_crc(disk: Disk) -> int:
    """Returns a CRC that identifies the checkpoint; 0 without one."""
    data = read_whole(disk, checkpoint_file.PATH)
    return crc32c(data) if data is not None else 0


def unclean_checkpoint(disk: Disk) -> int:
    """Marks the checkpoint as unclean before the log changes; returns its `checkpoint_crc`."""
    saved = checkpoint_file.load(disk)
    if saved is not None and saved.clean:
        saved.clean = False
        checkpoint_file.save(disk, saved)
    return checkpoint_crc(disk)


def drop_derived_over(disk: Disk, log_start: int, end: int) -> None:
    """Removes what covers the log after `end` before that is cut: only committed records should be covered."""
    saved = checkpoint_file.load(disk)
    if saved is not None and saved.log_offset > end:
        log.warning("removing the checkpoint at %d, which is beyond the new end of the log, %d", saved.log_offset, end)
        disk.remove(checkpoint_file.PATH)
        disk.sync_folder("")
    names = [name for name in disk.list(snapshot.FOLDER) if name.isdecimal() and int(name) > end]
    for name in names:
        log.warning("removing snapshot %s, which is beyond the new end of the log, %d", name, end)
        disk.remove(f"{snapshot.FOLDER}/{name}")
    if names:
        disk.sync_folder(snapshot.FOLDER)
    index_file.load_all(disk, log_start=log_start, log_end=end)  # removes files that reach over `end`


def can_derive(disk: Disk, log_start: int, end: int) -> bool:
    """Whether a store can continue from a log from `log_start` that is cut at `end`: it begins at 0, or the cut removes
    neither checkpoint nor snapshot, or a snapshot at or before `end` remains.
    """
    saved = checkpoint_file.load(disk)
    places = [int(name) for name in disk.list(snapshot.FOLDER) if name.isdecimal()]
    if not log_start or max([0 if saved is None else saved.log_offset, *places]) <= end:
        return True
    return any(log_start <= place <= end for place in places)


def empty_folder(disk: Disk) -> None:
    """Removes all that a folder holds of its log, durably, except the identity. A crash in between leaves less."""
    for path in (checkpoint_file.PATH, epoch_file.PATH, consume_queue.FOLDER, index_file.FOLDER, TIMERS):
        disk.remove(path)
    for folder in (snapshot.FOLDER, segment.FOLDER):
        # Newest first, so that a crash leaves a log without a gap.
        for name in reversed(disk.list(folder)):
            disk.remove(f"{folder}/{name}")
    disk.sync_all()
