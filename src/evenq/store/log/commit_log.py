"""The files of the commit log as the writer sees them: sequential writes, sealing of full files, syncs (CL-1 to CL-5).

Problem: messages, progress and settings of a broker are in one log. A record that is confirmed to be on disk must
survive a power loss, a record whose append failed must not appear later, and a full disk must not end the broker.

Idea: the log is a sequence of files of one size, each named by the log offset of its first byte. A group of appended
records is one or more runs of bytes, one for each file, that continue the log. A full file is sealed: it gets its whole
size and is synced. So only the newest file can be incomplete, and its size gives the end of the log. When the newest
file is half full, space for the next one is reserved in the file `spare`.

Example: files have 16 MiB (16,777,216 bytes), and the log ends at 16,777,000. The next group is one record of 1,000
bytes, which does not fit into the remaining 216 bytes. It has two runs. The first one is padding for file 0 at position
16,777,000 and seals it: `write` writes the padding's header of 88 bytes, sets the size to 16,777,216, and syncs. The
second one begins file 16,777,216: `write` renames `spare`, syncs the folder, and writes the 1,000 bytes.

Failures:
- A lack of space or of file descriptors (`FULL`): the group is undone durably, and `write` raises StoreFull. The store
  stays usable.
- Any other error of a write, and any error of a sync: the content of the disk is unknown, and the store must stop.
  After a failed fsync the kernel may report pages as clean that never reached the disk, so neither a retry nor an undo
  is reliable. It reports the error once. So `sync` remembers it, and every later one fails too, whether or not the
  caller of the first is still there; one runs at a time, so that none succeeds beside a failing one.

Invariants:
- `CommitLog` writes at the end of the log only; all files but the newest are sealed and synced.
- The name of a file is durable before any of its bytes can be acknowledged.
- A `spare` of an earlier process is removed and never used.

Threads of a store: `write` on the writer thread, `write_more` on the loop while that thread has no group, `sync` on the
writer or the flush thread, `prepare` and `close_sealed` on the flush thread. In a `LogCopy` all of them are on its one
thread.

References: CL-1 to CL-5, D1, D9; decision records 3, 12, 14 and 27; Rebello et al., "Can Applications Recover from
fsync Failures?", USENIX ATC 2020.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from typing import Final, NoReturn

from evenq.errors import StoreFull
from evenq.runtime.failpoints import passing
from evenq.store.io.descriptors import NO_FILES
from evenq.store.io.disk import Disk, File
from evenq.store.io.memory_disk import MEMORY_FULL, MORE_MEMORY
from evenq.store.log.segment import FOLDER, path_of, segment_of

log = logging.getLogger(__name__)

SPARE: Final = "spare"
"""The next file with its space reserved. Outside of the log's folder, where the size of the last file gives the end."""
# Without a file descriptor nothing was written either, and descriptors become free again as space does (decision 27).
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT}) | NO_FILES
"""Errors after which the store continues and tries again later: no space, or no file descriptor."""


def shortage(error: OSError) -> str:
    """Returns which resource of `FULL` is missing, and what to do."""
    if error.errno in NO_FILES:
        return f"the broker has no file descriptor left ({error.strerror}): raise its limit (ulimit -n)"
    if error.strerror == MEMORY_FULL:
        return f"no memory left for the broker's messages: {MORE_MEMORY}"
    return f"no space left on the broker's disk ({error.strerror}): free space"


def not_written(error: OSError) -> str:
    """Returns why a file was not written, and what to do, for any error."""
    return shortage(error) if error.errno in FULL else f"{error.strerror or error}: check the disk"


class SyncFailed(OSError):
    """A failed fsync, which is neither retried nor undone."""


class LogRun:
    """Bytes of one group for one file."""

    __slots__ = ("data", "parts", "position", "seals", "start")

    def __init__(self, start: int, position: int) -> None:
        self.start = start
        """Log offset of the file's first byte."""
        self.position = position
        """Byte of the file at which they begin."""
        self.data = bytearray()
        """The last of `parts`, for small records."""
        self.parts: list[bytes | bytearray] = [self.data]
        """All bytes, in order."""
        self.seals = False
        """Whether the file is full after these bytes."""

    def add(self, part: bytes) -> None:
        """Adds a large piece without a copy: a growing array would be copied again and again."""
        self.data = bytearray()
        self.parts += (part, self.data)

    def cut(self, size: int) -> None:
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
        """Log offset of the newest file's first byte; -1 if the log ends between two files."""
        self._file: File | None = None
        """The newest file; None if the log ends between two files."""
        self._sealed: list[File] = []
        """Full files that `close_sealed` will close."""
        self._spare = False
        """Whether `spare` is ready for the next file."""
        self._prepared_for = -1
        """Start of the file after which `spare` was last prepared: a failure is not repeated for the same file."""
        self.fsyncs = 0
        self._syncing = threading.Lock()
        self._broken: OSError | None = None
        """Error of the first failed sync."""
        start, position = segment_of(end, segment_bytes)
        if position:
            self._start, self._file = start, disk.open(path_of(start))

    def write(self, runs: list[LogRun]) -> None:
        """Writes one group. StoreFull: nothing of it is in the log. OSError: that is unknown, the store must stop."""
        try:
            for run in runs:
                file = self._file if run.start == self._start and self._file is not None else self._open(run)
                file.pwrite(run.parts, run.position)
                if run.seals:
                    passing("log.filled")
                    # The zeros of a padding are not written, only the size is set. A full file must have its whole
                    # size, because the size of the last file gives the end of the log (decision 12).
                    file.truncate(self.segment_bytes)
                    self.sync()
                    passing("log.sealed")
        # Case: a failed fsync. The kernel may report pages as clean that never reached the disk, so neither a retry nor
        # an undo is reliable (D9): nothing is taken back, and the store stops.
        except SyncFailed:
            raise
        except OSError as error:
            if error.errno not in FULL:
                self._raise_unknown(error)
            # Case: full. The undo is durable, because senders get a definite failure: a record that a crash brought
            # back would be delivered (D1).
            self._undo(runs)
            # Senders read this text, so it names no folder.
            raise StoreFull(f"{shortage(error)}; sends resume by themselves") from error

    def write_more(self, runs: list[LogRun]) -> bool:
        """Writes a group on the loop if that is one write to the open file. False: `write` must be called for it, since
        a file ends or begins, or the disk is full. Then some of its bytes may be there, which `write` writes again or
        undoes: an undo syncs. Raises OSError as `write` does.
        """
        file, run = self._file, runs[0]
        if len(runs) > 1 or run.seals or run.start != self._start or file is None:
            return False
        try:
            file.pwrite(run.parts, run.position)
        except OSError as error:
            if error.errno in FULL:
                return False
            self._raise_unknown(error)
        return True

    def _raise_unknown(self, error: OSError) -> NoReturn:
        """Raises an error such as EIO. If the folder was moved away, the error says so."""
        if lost := self._disk.lost():
            raise OSError(error.errno, f"{lost}: {error}") from error
        raise error

    def sync(self) -> None:
        """Calls fdatasync on the newest file; earlier ones are synced. Raises SyncFailed, also if an earlier sync
        failed.
        """
        if self._file is None and self._broken is None:
            return
        passing("log.before_sync")
        with self._syncing:
            file = self._file
            if self._broken is None and file is not None:
                self.fsyncs += 1
                try:
                    file.sync()
                except OSError as error:
                    self._broken = error
            if self._broken is not None:
                raise SyncFailed(self._broken.errno, f"fsync failed: {self._broken.strerror}") from self._broken
        passing("log.after_sync")

    def wants_spare(self, log_end: int) -> bool:
        """Whether the newest file is half full and the next one is not prepared. Any thread."""
        start, position = segment_of(log_end, self.segment_bytes)
        return not self._spare and start != self._prepared_for and position >= self.segment_bytes // 2

    def prepare(self, log_end: int) -> None:
        """Reserves space for the next file: a lack of it is known half a file early, and starting it costs a rename."""
        self._prepared_for = segment_of(log_end, self.segment_bytes)[0]
        # Never used: after a power loss the spare's name and the log's may refer to one file (decision 12).
        self._disk.remove(SPARE)  # of an earlier process, which may have been killed while it renamed it
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
        while self._sealed:
            self._sealed.pop().close()

    def close(self) -> None:
        """Closes everything. On a disk that failed the spare file stays; the next process removes it."""
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
        if before is not None:  # the flush thread may be syncing it, so that thread closes it
            self._sealed.append(before)
        passing("log.created")
        # Before the first byte can be acknowledged: a sync of a file does not sync its name.
        self._disk.sync_folder(FOLDER)
        passing("log.linked")
        return file

    def _undo(self, runs: list[LogRun]) -> None:
        """Removes a group durably: the files that it began, then its bytes in the first file."""
        first = runs[0]
        for run in runs[1:]:
            self._disk.remove(path_of(run.start))
        if first.position == 0:  # case: the group began this file, whose name a full disk may not even have taken
            before, self._file, self._start = self._file, None, -1
            if before is not None:
                self._sealed.append(before)
            self._disk.remove(path_of(first.start))
        else:  # case: the group continued this file
            if self._start != first.start or self._file is None:
                self._open(first)
            assert self._file is not None
            self._file.truncate(first.position)
            self.sync()
        if len(runs) > 1 or first.position == 0:
            self._disk.sync_folder(FOLDER)


def runs_of(data: memoryview, start: int, segment_bytes: int) -> list[LogRun]:
    """Splits bytes that begin at log offset `start` into runs, one for each file."""
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
