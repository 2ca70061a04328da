"""What repairs a copied log: the part of `LogCopy` for records that the disk has damaged, and for a folder that no copy
could be opened on because of them.

The bytes are another copy's, and were checked by `log_damage.fault_of`; here they are only written, by the folder's one
owner, in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from evenq.errors import StoreError, StoreFull
from evenq.store.io.disk import Disk
from evenq.store.log import lock, log_damage
from evenq.store.log.commit_log import FULL, shortage
from evenq.store.log.segment import path_of, segment_of

__all__ = ["CopyRepair", "end_of_file", "rewrite_unopened"]

T = TypeVar("T")


class CopyRepair:
    """Mixed into `LogCopy`, which makes the parts."""

    _disk: Disk
    _segment_bytes: int
    _end: int

    @property
    def start(self) -> int:
        """First log offset that was not given up."""
        raise NotImplementedError

    async def _run(self, job: Callable[[], T]) -> T:
        raise NotImplementedError

    async def rewrite(self, start: int, data: bytes) -> None:
        """Put whole records, checked by `log_damage.fault_of`, where the log has damaged ones; all of it is committed
        and lies in one file. On disk when it returns. Raises StoreError if the log does not reach there (any more) or
        `log_damage.rewrite` refuses, StoreFull, StorePoisoned.
        """
        await self._run(lambda: self._rewrite(start, data))

    def _rewrite(self, start: int, data: bytes) -> None:
        if not self.start <= start <= start + len(data) <= self._end:
            raise StoreError(f"a log from {self.start} to {self._end} has no records {start} to {start + len(data)}")
        _write(self._disk, self._segment_bytes, start, data)


def rewrite_unopened(disk: Disk, segment_bytes: int, start: int, data: bytes) -> None:
    """The same in a folder that is not open, because its damage hinders that. Raises StoreLocked, StoreFull,
    OSError.
    """
    lock.acquire(disk)
    try:
        _write(disk, segment_bytes, start, data)
    finally:
        disk.unlock()


def end_of_file(disk: Disk, segment_bytes: int, log_offset: int) -> int:
    """Log offset behind the last byte of the file that holds `log_offset`. Raises FileNotFoundError."""
    start, _ = segment_of(log_offset, segment_bytes)
    file = disk.open(path_of(start))
    try:
        return start + min(file.size(), segment_bytes)
    finally:
        file.close()


def _write(disk: Disk, segment_bytes: int, start: int, data: bytes) -> None:
    try:
        log_damage.rewrite(disk, segment_bytes, start, data)
    except OSError as error:
        if error.errno in FULL:
            raise StoreFull(f"the log cannot be repaired now: {shortage(error)}") from error
        raise
