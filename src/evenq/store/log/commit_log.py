"""The commit log's files as the writer sees them: strictly sequential writes, sealing of full files, syncs (CL-1 to
CL-5).

`write` runs on the writer thread only, `sync` on the writer or the flush thread, `prepare` and `close_sealed` on the
flush thread only. A full disk (ENOSPC before or while a group is written) is undone, so the store stays usable; any
other error, and any error of a sync, is final.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from typing import Final

from evenq.errors import StoreFull
from evenq.runtime.failpoints import passing
from evenq.store.io.descriptors import NO_FILES
from evenq.store.io.disk import Disk, File
from evenq.store.io.memory_disk import MEMORY_FULL, MORE_MEMORY
from evenq.store.log.segment import FOLDER, path_of, segment_of

__all__ = ["CommitLog", "LogRun", "runs_of"]

log = logging.getLogger(__name__)

SPARE: Final = "spare"
"""The next file, with its space set aside. Not in the log's folder, where a file's size says where the log ends."""
# Without file descriptors nothing was written either, and they come back as disk space does (decision 27).
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT}) | NO_FILES
"""Errors after which the store goes on and tries again later: there is no space, or no file descriptor."""


def shortage(error: OSError) -> str:
    """What of `FULL` there is too little of, and what to do."""
    if error.errno in NO_FILES:
        return f"the broker has no file descriptor left ({error.strerror}): raise its limit (ulimit -n)"
    if error.strerror == MEMORY_FULL:
        return f"no room left in the broker's memory for messages: {MORE_MEMORY}"
    return f"no space left on the broker's disk ({error.strerror}): free space"


def not_written(error: OSError) -> str:
    """Why a file was not written, and what to do: of `FULL` or of any other error."""
    return shortage(error) if error.errno in FULL else f"{error.strerror or error}: look at the disk"


class SyncFailed(OSError):
    """An fsync failed. Not retried, not undone."""


class LogRun:
    """Bytes for one file."""

    __slots__ = ("data", "parts", "position", "seals", "start")

    def __init__(self, start: int, position: int) -> None:
        self.start = start
        self.position = position
        self.data = bytearray()
        """The last of `parts`: small records go here."""
        self.parts: list[bytes | bytearray] = [self.data]
        """All of it, one behind the other."""
        self.seals = False
        """The file is full behind these bytes."""

    def add(self, part: bytes) -> None:
        """Put a large piece behind what there is, as it is: an array that grows by it would be copied again and again,
        and cost 0.6 us for each KiB of a group of 64 MiB.
        """
        self.data = bytearray()
        self.parts += (part, self.data)

    def cut(self, size: int) -> None:
        """Keep the first `size` bytes."""
        kept: list[bytes | bytearray] = []
        for part in self.parts:
            if size <= 0:
                break
            kept.append(part[:size])
            size -= len(part)
        self.data = bytearray()
        self.parts = [*kept, self.data]


class CommitLog:
    """The newest file of the log, open for writing."""

    def __init__(self, disk: Disk, segment_bytes: int, end: int) -> None:
        self._disk = disk
        self.segment_bytes = segment_bytes
        self._start = -1
        self._file: File | None = None
        self._sealed: list[File] = []
        self._spare = False
        self._prepared_for = -1
        self.fsyncs = 0
        start, position = segment_of(end, segment_bytes)
        if position:
            self._start, self._file = start, disk.open(path_of(start))

    def write(self, runs: list[LogRun]) -> None:
        """Write one group. StoreFull: nothing of it is in the log. OSError: unknown, the store must stop."""
        try:
            for run in runs:
                file = self._file if run.start == self._start and self._file is not None else self._open(run)
                file.pwrite(run.parts, run.position)
                if run.seals:
                    passing("log.filled")
                    # The zeros of a padding are not written, only the size is set: a full file must have its whole
                    # size, because the size of the last file says where the log ends (decision 12).
                    file.truncate(self.segment_bytes)
                    self.sync()
                    passing("log.sealed")
        # After a failed fsync the kernel may call pages clean that never reached the disk: neither a retry nor an undo
        # could be trusted (D9), so nothing is taken back and the store stops.
        except SyncFailed:
            raise
        except OSError as error:
            if error.errno not in FULL:
                if lost := self._disk.lost():
                    raise OSError(error.errno, f"{lost}: {error}") from error
                raise
            # Durably: senders get a definite failure, and a record of it that a crash brings back would be delivered
            # (D1).
            self._undo(runs)
            # Senders read this, so it names no folder.
            raise StoreFull(f"{shortage(error)}; sends resume by themselves") from error

    def sync(self) -> None:
        """Fdatasync of the newest file; the ones before were synced when they were sealed. Never called again after
        an error.
        """
        file = self._file
        if file is None:
            return
        self.fsyncs += 1
        passing("log.before_sync")
        try:
            file.sync()
        except OSError as error:
            raise SyncFailed(error.errno, f"fsync failed: {error.strerror}") from error
        passing("log.after_sync")

    def wants_spare(self, log_end: int) -> bool:
        """Whether the newest file is half full and the next one is not prepared. Any thread."""
        start, position = segment_of(log_end, self.segment_bytes)
        return not self._spare and start != self._prepared_for and position >= self.segment_bytes // 2

    def prepare(self, log_end: int) -> None:
        """Set the next file's space aside, so that going on in it costs a rename, and a disk that is too small for it
        is known half a file early. No space is no error: then the next file grows as it is written.
        """
        self._prepared_for = segment_of(log_end, self.segment_bytes)[0]
        # Never taken over: after a power loss the spare's name and the log's may mean one file (decision 12).
        self._disk.remove(SPARE)  # of an earlier process, which may have been killed while it took it into the log
        try:
            self._disk.preallocate(SPARE, self.segment_bytes)
        except OSError as error:
            if error.errno not in FULL:
                raise
            log.warning(
                "no space could be reserved for the next log file of %d bytes: %s", self.segment_bytes, shortage(error)
            )
            self._disk.remove(SPARE)
        else:
            passing("log.spare_made")
            self._spare = True

    def close_sealed(self) -> None:
        """Close the files that were written full."""
        while self._sealed:
            self._sealed.pop().close()

    def close(self) -> None:
        """Give everything back. On a disk that failed the spare file stays; the next process removes it."""
        self.close_sealed()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._spare:
            self._spare = False
            with contextlib.suppress(OSError):
                self._disk.remove(SPARE)

    def _open(self, run: LogRun) -> File:
        before, start = self._file, run.start
        if self._spare and run.position == 0:
            self._spare = False
            self._disk.rename(SPARE, path_of(start))
            passing("log.spare_taken")
        self._file = file = self._disk.open(path_of(start), create=True)
        self._start = start
        if before is not None:  # the flush thread may be syncing it, so it closes it, once no reader can take it
            self._sealed.append(before)
        passing("log.created")
        # Before the first byte of it can be acknowledged: syncing a file does not sync its name.
        self._disk.sync_folder(FOLDER)
        passing("log.linked")
        return file

    def _undo(self, runs: list[LogRun]) -> None:
        first = runs[0]
        for run in runs[1:]:
            self._disk.remove(path_of(run.start))
        if first.position == 0:  # the group began its file, so a full disk may not even have taken its name
            before, self._file, self._start = self._file, None, -1
            if before is not None:
                self._sealed.append(before)
            self._disk.remove(path_of(first.start))
        else:
            if self._start != first.start or self._file is None:
                self._open(first)
            assert self._file is not None
            self._file.truncate(first.position)
            self.sync()
        if len(runs) > 1 or first.position == 0:
            self._disk.sync_folder(FOLDER)


def runs_of(data: memoryview, start: int, segment_bytes: int) -> list[LogRun]:
    """What of bytes that begin at log offset `start` goes to which file."""
    runs, done = [], 0
    whole = data.obj if isinstance(data.obj, bytes) and len(data.obj) == len(data) else None  # not copied then
    while done < len(data):
        file_start, position = segment_of(start + done, segment_bytes)
        size = min(segment_bytes - position, len(data) - done)
        run = LogRun(file_start, position)
        run.add(whole if whole is not None and size == len(whole) else bytes(data[done : done + size]))
        run.seals = position + size == segment_bytes
        runs.append(run)
        done += size
    return runs
