"""A disk in memory: for a start without a data folder, and the base of the tests' `FaultDisk`.

Nothing outlives the process. `bytes_max` is its size: a write over it fails with ENOSPC, as on a full disk. It never
blocks, so the store runs all of its jobs inline on the loop and starts no thread.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from evenq.store.io.disk import File, Room, Usage

MEMORY_FULL = "memory_bytes_max is reached"
"""Text of the ENOSPC of a disk in memory, so that nobody looks for a full disk."""
MORE_MEMORY = "raise memory_bytes_max, or keep messages in a folder (store.path; `evenq up --data FOLDER`)"
"""Advice for that error."""


class MemoryFile:
    """One file: its bytes belong to the disk, a handle only refers to them."""

    __slots__ = ("data", "disk")

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.data = bytearray()

    def pwrite(self, parts: Sequence[bytes | bytearray], offset: int) -> None:
        data = b"".join(parts)
        self.disk.grow(offset + len(data) - len(self.data))
        if offset > len(self.data):
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(self.data[offset : offset + size])

    def pread_each(self, places: Sequence[int], rooms: Sequence[Room], *, wait: bool = True) -> bool:  # noqa: ARG002
        for position, (room,) in zip(places, rooms, strict=True):
            data = self.pread(room.nbytes, position)
            if len(data) < room.nbytes:
                return False
            room[:] = data
        return True

    def sync(self) -> None:
        """Does nothing."""

    def truncate(self, size: int) -> None:
        change = size - len(self.data)
        self.disk.grow(change)
        if change < 0:
            del self.data[size:]
        else:
            self.data.extend(bytes(change))

    def size(self) -> int:
        return len(self.data)

    def close(self) -> None:
        """Does nothing."""


class MemoryDisk:
    """Files by path."""

    blocks = False

    def __init__(self, bytes_max: int = 1 << 40) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self.files: dict[str, MemoryFile] = {}
        self._locked = False

    def grow(self, change: int) -> None:
        """Counts bytes. Raises ENOSPC over the size."""
        if change > 0 and self.bytes_used + change > self.bytes_max:
            raise OSError(errno.ENOSPC, MEMORY_FULL)
        self.bytes_used += change

    def open(self, path: str, *, create: bool = False) -> File:
        file = self.files.get(path)
        if file is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            file = self.files[path] = MemoryFile(self)
        return file

    def list(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        return sorted({name[len(prefix) :].partition("/")[0] for name in self.files if name.startswith(prefix)})

    def preallocate(self, path: str, size: int) -> None:
        self.open(path, create=True)
        if size > self.bytes_max - self.bytes_used:
            raise OSError(errno.ENOSPC, MEMORY_FULL)

    def rename(self, old: str, new: str) -> None:
        replaced = self.files.get(new)
        if replaced is not None:
            self.bytes_used -= len(replaced.data)
        self.files[new] = self.files.pop(old)

    def remove(self, path: str) -> None:
        for name in [name for name in self.files if name == path or name.startswith(f"{path}/")]:
            self.bytes_used -= len(self.files.pop(name).data)

    def make_folder(self, path: str) -> None:
        """Does nothing: folders are only parts of names."""

    def sync_folder(self, path: str) -> None:
        """Does nothing."""

    def sync_all(self) -> None:
        """Does nothing."""

    def usage(self) -> Usage:
        return Usage(self.bytes_max, self.bytes_max - self.bytes_used)

    def lock(self) -> None:
        if self._locked:
            raise BlockingIOError(str(os.getpid()))
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def lost(self) -> str:
        return ""

    def describe(self, path: str) -> str:
        return f"memory:{path}"
