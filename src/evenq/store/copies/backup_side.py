"""The part of `MessageStore` that serves backups (docs/operating/backup.md).

A backup is the log up to a place that is on disk and committed, and a snapshot of the owner's state near that place.
`begin_backup` takes a new snapshot and holds the log against retention. The reader then reads the log's files on a
thread of its own, while the store continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evenq.errors import HaNotAvailable, StoreCorrupted, StoreError
from evenq.store.io.disk import Disk, read_whole
from evenq.store.io.files import ReadFiles
from evenq.store.log.lock import Identity
from evenq.store.log.log_holds import LogHold
from evenq.store.log.log_state import LogState
from evenq.store.log.segment import path_of, segment_of
from evenq.store.log.snapshot import path_at
from evenq.store.opening.cleaner import Cleaner
from evenq.store.opening.flusher import Flusher
from evenq.store.opening.snapshotter import Snapshotter

OPEN_FILES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBackup:
    """A backup that has begun."""

    hold: LogHold
    """The reader of the log moves it forward and releases it."""
    log_start: int
    snapshot_offset: int
    """The snapshot holds the effect of every record before this offset."""
    end: int
    """After the last record that the snapshot may include: a group ends here, committed and on disk."""
    snapshot: bytes


class LogBytes:
    """Reader of a log's files beside the store's writer, on one thread."""

    def __init__(self, disk: Disk, segment_bytes: int) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._files = ReadFiles(disk, OPEN_FILES)

    def read(self, position: int, end: int, bytes_max: int) -> bytes:
        """Returns at most `bytes_max` bytes of the log from `position`, not beyond `end` or the file's end. Raises
        StoreError if retention deleted the file, StoreCorrupted if it is too short.
        """
        start, at = segment_of(position, self._segment_bytes)
        size = min(bytes_max, end - position, start + self._segment_bytes - position)
        path = path_of(start)
        try:
            with self._files.using(path) as file:
                data = file.pread(size, at)
        except FileNotFoundError as error:
            raise StoreError(
                f"{self._disk.describe(path)} was deleted before the backup had read it: the hold had ended, or the "
                "disk was full; raise `backup_hold_ms`, or back up more often"
            ) from error
        except OSError as error:
            raise StoreError(f"{self._disk.describe(path)} cannot be read at byte {at}: {error}") from error
        if len(data) < size:
            raise StoreCorrupted(
                f"{self._disk.describe(path)} ends at byte {at + len(data)}, before the log does: restore the folder "
                "from a copy"
            )
        return data

    def close(self) -> None:
        self._files.close()


class BackupSide:
    """Mixin of `MessageStore` for backups; the store creates the parts."""

    identity: Identity
    _cleaner: Cleaner
    _disk: Disk
    _flusher: Flusher
    _snapshotter: Snapshotter
    _state: LogState

    async def hold_log(self, *, hold_ms: int) -> LogHold:
        """Holds the log against retention for at most `hold_ms`; see `release_log`. Raises TooManyRequests."""
        async with self._cleaner.lock:  # a running round would continue to delete
            return self._cleaner.holds.take(self._flusher.log_start, hold_ms=hold_ms)

    def release_log(self, hold: LogHold) -> None:
        """Releases the hold. May be called again."""
        self._cleaner.holds.release(hold)

    async def begin_backup(self, *, hold_ms: int) -> StoreBackup:
        """Takes a snapshot and holds the log. Raises TooManyRequests, HaNotAvailable, StoreFull, StorePoisoned."""
        hold = await self.hold_log(hold_ms=hold_ms)
        try:
            if not self._state.certain:
                raise HaNotAvailable("the broker has just begun to lead and has committed nothing yet; try again")
            taken = await self._snapshotter.take()
            path = path_at(taken.log_offset)
            data = await self._flusher.blocking(lambda: read_whole(self._disk, path))
            if data is None:
                raise StoreError(f"{self._disk.describe(path)} was already replaced by newer snapshots; try again")
            return StoreBackup(
                hold=hold, log_start=hold.log_offset, snapshot_offset=taken.log_offset, end=taken.end, snapshot=data
            )
        except BaseException:
            self.release_log(hold)
            raise

    def log_bytes(self) -> LogBytes:
        """Returns a reader of the log's files; the caller closes it."""
        return LogBytes(self._disk, self.identity.segment_bytes)

    @property
    def blocks(self) -> bool:
        """Whether reads of files belong on a thread."""
        return self._disk.blocks
