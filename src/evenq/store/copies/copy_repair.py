"""Repair of a copied log: the part of `LogCopy` for damaged records, and for a folder that damage keeps from opening.

The bytes come from another copy and were checked by `log_damage.fault_of`. The folder's owner writes them in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from evenq.errors import StoreError, StoreFull
from evenq.store.io.disk import Disk
from evenq.store.log import lock, log_damage
from evenq.store.log.commit_log import FULL, shortage
from evenq.store.log.segment import path_of, segment_of

T = TypeVar("T")


class CopyRepair(ABC):
    """Mixin of `LogCopy` for repairs; the copy creates the parts."""

    _disk: Disk
    _segment_bytes: int
    _end: int

    @property
    @abstractmethod
    def start(self) -> int:
        """First log offset that the log still has."""

    @abstractmethod
    async def _run(self, job: Callable[[], T]) -> T: ...

    async def rewrite(self, start: int, data: bytes) -> None:
        """Writes whole records, checked by `log_damage.fault_of`, over damaged ones; all of them are committed and lie
        in one file. They are on disk when it returns. Raises StoreError if the log does not reach there (any more) or
        `log_damage.rewrite` refuses, StoreFull, StorePoisoned.
        """
        await self._run(lambda: self._rewrite(start, data))

    def _rewrite(self, start: int, data: bytes) -> None:
        if not self.start <= start <= start + len(data) <= self._end:
            raise StoreError(f"a log from {self.start} to {self._end} has no records {start} to {start + len(data)}")
        _write(self._disk, self._segment_bytes, start, data)


def rewrite_unopened(disk: Disk, segment_bytes: int, start: int, data: bytes) -> None:
    """Does the same in a folder that cannot be opened due to the damage. Raises StoreLocked, StoreFull, OSError."""
    lock.acquire(disk)
    try:
        _write(disk, segment_bytes, start, data)
    finally:
        disk.unlock()


def end_of_file(disk: Disk, segment_bytes: int, log_offset: int) -> int:
    """Returns the log offset after the last byte of the file that holds `log_offset`. Raises FileNotFoundError."""
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
