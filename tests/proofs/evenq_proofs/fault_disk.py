"""A disk in memory that fails and crashes on purpose, for tests and simulations.

It keeps what was synced apart from what was only written, for bytes and for names. `crash` gives the disk that a
machine would find afterwards: all that was written (kill -9), only what was synced, or any mixture by sectors (power
loss). Every call that changes something has a number; the n-th can fail, and a write can stop in its middle and take
the machine with it.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from evenq.store.io.disk import File
from evenq.store.io.memory_disk import MemoryDisk, MemoryFile

SECTOR_BYTES: Final = 512
BLOCK_BYTES: Final = 4_096
"""What a system reads and writes at once: a lost sector takes its block along."""


class Keep(StrEnum):
    """What a crash leaves of unsynced changes."""

    ALL = "all"
    """The process was killed, the machine lives on."""
    NONE = "none"
    """The power went before anything unsynced was on disk."""
    SOME = "some"
    """The power went in the middle: names up to some change, any sectors of any file."""


class FaultFile(MemoryFile):
    """A file with a written and a synced side. Blocks of it may be lost: they cannot be read, nor written in part, until
    they are written as a whole.
    """

    __slots__ = ("lost", "pending", "synced")

    def __init__(self, disk: FaultDisk) -> None:
        super().__init__(disk)
        self.synced = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        """Unsynced changes in order: (offset, bytes), or (size, None) for a truncation."""
        self.lost: set[int] = set()
        """Numbers of the blocks that cannot be read."""

    @property
    def _faults(self) -> FaultDisk:
        assert isinstance(self.disk, FaultDisk)
        return self.disk

    def lose(self, place: int) -> None:
        """The sector of this byte cannot be read any more."""
        self.lost.add(place // BLOCK_BYTES)

    def _lost_in(self, offset: int, size: int) -> set[int]:
        return self.lost.intersection(range(offset // BLOCK_BYTES, -(-(offset + size) // BLOCK_BYTES)))

    def pread(self, size: int, offset: int) -> bytes:
        if self.lost and self._lost_in(offset, min(size, max(0, len(self.data) - offset))):
            self._faults.fail(errno.EIO)
        return super().pread(size, offset)

    def pwrite(self, parts: Sequence[bytes | bytearray], offset: int) -> None:
        data = b"".join(parts)
        cut = self._faults.step("write")
        for block in self._lost_in(offset, len(data)):
            if offset > block * BLOCK_BYTES or offset + len(data) < (block + 1) * BLOCK_BYTES:
                self._faults.fail(errno.EIO)  # the rest of the block has to be read for it
            self.lost.discard(block)
        if cut is not None:
            self._put(data[:cut], offset)
            self._faults.fail(errno.EIO)
        room = self.disk.bytes_max - self.disk.bytes_used + len(self.data) - offset
        if len(data) > room:  # a full disk takes what fits, then says so
            self._put(data[: max(0, room)], offset)
            self._faults.fail(errno.ENOSPC)
        self._put(data, offset)

    def _put(self, data: bytes, offset: int) -> None:
        if data:
            super().pwrite([data], offset)
            self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        self._faults.step("truncate")
        super().truncate(size)
        self.lost = {block for block in self.lost if block * BLOCK_BYTES < size}
        self.pending.append((size, None))

    def sync(self) -> None:
        self._faults.step("sync")
        self.synced = bytearray(self.data)
        self.pending.clear()

    def left(self, keep: Keep, rng: random.Random) -> bytearray:
        """The bytes after a crash."""
        if keep is Keep.ALL:
            return bytearray(self.data)
        left = bytearray(self.synced)
        if keep is Keep.SOME:
            for offset, data in self.pending:
                self._maybe(left, offset, data, rng)
        return left

    @staticmethod
    def _maybe(left: bytearray, offset: int, data: bytes | None, rng: random.Random) -> None:
        if data is None:
            if rng.random() < 0.5:
                left[offset:] = bytes(max(0, offset - len(left)))
            return
        place = 0
        while place < len(data):
            size = min(len(data) - place, SECTOR_BYTES - (offset + place) % SECTOR_BYTES)
            if rng.random() < 0.5:
                end = offset + place + size
                left.extend(bytes(max(0, end - len(left))))
                left[offset + place : end] = data[place : place + size]
            place += size


class FaultDisk(MemoryDisk):
    """Files with faults. `operations` counts the changes so far, from 0."""

    def __init__(self, bytes_max: int = 1 << 40) -> None:
        super().__init__(bytes_max)
        self.operations = 0
        self.kinds: list[str] = []
        """What each operation was."""
        self.faults: dict[int, int] = {}
        """Operation number to errno: that one fails, nothing of it happens."""
        self.faults_of: dict[str, int] = {}
        """Kind of operation to errno: all of them fail from now on."""
        self.cut: tuple[int, int] | None = None
        """(operation number, bytes): the machine stops there; a write has got so far."""
        self.dead = False
        self._names: dict[str, MemoryFile] = {}
        self._pending: list[tuple[str, MemoryFile | None]] = []

    def step(self, kind: str) -> int | None:
        """Count one change and fail it if it is due; a number: the write stops after that number of bytes."""
        number = self.operations
        self.operations += 1
        self.kinds.append(kind)
        if self.dead:
            self.fail(errno.EIO)
        if self.cut is not None and number == self.cut[0]:
            self.dead = True
            if kind == "write":
                return self.cut[1]
            self.fail(errno.EIO)
        fault = self.faults.get(number, self.faults_of.get(kind))
        if fault is not None:
            self.fail(fault)
        return None

    def fail(self, number: int) -> None:
        raise OSError(number, os.strerror(number))

    def open(self, path: str, *, create: bool = False) -> File:
        if create and path not in self.files:
            self.step("create")
            self.files[path] = FaultFile(self)
            self._pending.append((path, self.files[path]))
        return super().open(path)

    def preallocate(self, path: str, size: int) -> None:
        self.open(path, create=True)
        self.step("preallocate")
        super().preallocate(path, size)

    def rename(self, old: str, new: str) -> None:
        self.step("rename")
        super().rename(old, new)
        self._pending += [(new, self.files[new]), (old, None)]

    def remove(self, path: str) -> None:
        self.step("remove")
        names = [name for name in self.files if name == path or name.startswith(f"{path}/")]
        super().remove(path)
        self._pending += [(name, None) for name in names]

    def sync_folder(self, path: str) -> None:
        self.step("sync_folder")
        kept = []
        for name, file in self._pending:
            if name.rpartition("/")[0] == path:
                _set(self._names, name, file)
            else:
                kept.append((name, file))
        self._pending = kept

    def sync_all(self) -> None:
        self.step("sync_all")
        for file in self.files.values():
            assert isinstance(file, FaultFile)
            file.synced = bytearray(file.data)
            file.pending.clear()
        self._names = dict(self.files)
        self._pending = []

    def lock(self) -> None:
        self.step("lock")
        super().lock()

    def crash(self, keep: Keep, rng: random.Random) -> FaultDisk:
        """The disk that the next process finds. This one is dead."""
        self.dead = True
        names = dict(self.files if keep is Keep.ALL else self._names)
        if keep is Keep.SOME:
            for name, file in self._pending[: rng.randint(0, len(self._pending))]:
                _set(names, name, file)
        found = type(self)(self.bytes_max)
        for name, file in names.items():
            assert isinstance(file, FaultFile)
            fresh = FaultFile(found)
            fresh.data = file.left(keep, rng)
            fresh.synced = bytearray(fresh.data)
            fresh.lost = {block for block in file.lost if block * BLOCK_BYTES < len(fresh.data)}
            found.bytes_used += len(fresh.data)
            found.files[name] = found._names[name] = fresh
        return found


def _set(names: dict[str, MemoryFile], name: str, file: MemoryFile | None) -> None:
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def image_of(disk: FaultDisk) -> FaultDisk:
    """Everything that was written, as another process would find it now; `disk` stays in use."""
    image = disk.crash(Keep.ALL, random.Random(0))
    disk.dead = False
    return image
