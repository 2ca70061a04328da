"""A disk over a `Machine` that records every change, so that a workload runs once and is cut anywhere afterwards.

It also fails on purpose: the k-th operation, once or for ever, with any errno, or as a short write; and it lies on
purpose (a sync that does nothing), so that tests can show that the judge notices. Reads are counted apart from changes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evenq.store.io.disk import File, Room, Usage
from evenq_proofs.storage.machine import FOLDER, Inode, Machine, Op


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong."""

    at: int
    """Number of the change (of the read, with `reads`; of the sync, with `forgets`), from 0."""
    number: int
    """The errno."""
    for_ever: bool = False
    """All later operations that could fail so, fail too."""
    short: float | None = None
    """A write gets this share of its bytes done first."""
    reads: bool = False
    forgets: bool = False
    """The sync fails once and drops what it should have written; the pages count as clean, so later syncs succeed, and
    programs go on seeing what is not on disk. Linux does so.
    """

    def fails(self, kind: str, count: int) -> bool:
        """Whether operation `count` fails. A disk that is full for ever still renames, removes, cuts and syncs."""
        if not self.for_ever:
            return count == self.at
        spared = self.number == errno.ENOSPC and kind not in {"write", "create", "make_folder"}
        return count >= self.at and not spared


class TraceFile:
    """An open file."""

    __slots__ = ("disk", "inode")

    def __init__(self, disk: TraceDisk, inode: Inode) -> None:
        self.disk = disk
        self.inode = inode

    def pwrite(self, parts: Sequence[bytes | bytearray], offset: int) -> None:
        data = b"".join(parts)
        disk = self.disk
        room = disk.bytes_max - disk.bytes_used() - max(0, offset + len(data) - len(self.inode.data))
        fault = disk.step("write")
        if fault is not None or room < 0:
            done = int(len(data) * (fault.short or 0)) if fault is not None else max(0, len(data) + room)
            if done:
                disk.record(("write", self.inode.number, offset, data[:done]))
            disk.fail(fault.number if fault is not None else errno.ENOSPC)
        disk.record(("write", self.inode.number, offset, data))

    def pread(self, size: int, offset: int) -> bytes:
        self.disk.step_read()
        return bytes(self.inode.data[offset : offset + size])

    def pread_each(self, places: Sequence[int], rooms: Sequence[Room], *, wait: bool = True) -> bool:
        for place, (room,) in zip(places, rooms, strict=True):
            data = self.pread(room.nbytes, place)
            if len(data) < room.nbytes:
                return False
            room[:] = data
        return True

    def sync(self) -> None:
        disk = self.disk
        disk.step_sync([self.inode])
        lies = "sync" in disk.lies or ("sync new" in disk.lies and disk.path_of(self.inode).endswith(".new"))
        disk.record(("nothing" if lies else "sync", self.inode.number, 0, b""))

    def truncate(self, size: int) -> None:
        self.disk.step_or_fail("truncate")
        self.disk.record(("truncate", self.inode.number, size, b""))

    def size(self) -> int:
        return len(self.inode.data)

    def close(self) -> None:
        """Nothing to close."""


class TraceDisk:
    """A data folder in memory with a record of what was done to it."""

    blocks = False

    def __init__(self, machine: Machine | None = None, *, bytes_max: int = 1 << 40) -> None:
        self.machine = machine if machine is not None else Machine()
        self.bytes_max = bytes_max
        self.ops: list[Op] = []
        """Changes that were done, in order; a failed one is not there."""
        self.changes = 0
        """Changes that were tried."""
        self.reads = 0
        self.syncs = 0
        self.fault: Fault | None = None
        self.hit = False
        """Whether the fault came."""
        self.forgot: list[tuple[int, str]] = []
        """Operations before it, and the file whose sync failed and dropped something."""
        self.lies: frozenset[str] = frozenset()
        """Of: sync, sync new (files named .new), sync_folder."""
        self.before: Callable[[], None] = lambda: None
        """Called before each change."""
        self._locked = False

    def step(self, kind: str) -> Fault | None:
        """Count one change; the fault if it is due."""
        self.before()
        count = self.changes
        self.changes += 1
        fault = self.fault
        if fault is not None and not fault.reads and not fault.forgets and fault.fails(kind, count):
            self.hit = True
            return fault
        return None

    def step_or_fail(self, kind: str) -> None:
        """The same for what fails whole."""
        fault = self.step(kind)
        if fault is not None:
            self.fail(fault.number)

    def step_sync(self, inodes: Sequence[Inode]) -> None:
        """Count one sync, which may fail and forget what these files have not on disk."""
        self.step_or_fail("sync")
        count = self.syncs
        self.syncs += 1
        fault = self.fault
        if fault is not None and fault.forgets and count == fault.at:
            self.hit = True
            for inode in inodes:
                if inode.pending:
                    self.forgot.append((len(self.ops), self.path_of(inode)))
                    self.record(("forget", inode.number, 0, b""))
            self.fail(fault.number)

    def step_read(self) -> None:
        """Count one read, which may fail."""
        count = self.reads
        self.reads += 1
        fault = self.fault
        if fault is not None and fault.reads and (count == fault.at or (fault.for_ever and count > fault.at)):
            self.hit = True
            self.fail(fault.number)

    def fail(self, number: int) -> None:
        """Raise like the system does."""
        raise OSError(number, os.strerror(number))

    def record(self, op: Op) -> None:
        """Do it and write it down."""
        self.machine.apply(op)
        self.ops.append(op)

    def path_of(self, inode: Inode) -> str:
        """A name of a file."""
        return next((path for path, other in self.machine.names.items() if other is inode), "")

    def bytes_used(self) -> int:
        """Bytes in files; 0 on a disk without a size, where it is not asked for."""
        if self.bytes_max == 1 << 40:
            return 0
        return sum(len(inode.data) for inode in self.machine.names.values())

    # -- Disk ---------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> File:
        inode = self.machine.names.get(path)
        if inode is None or inode is FOLDER:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.step_or_fail("create")
            self.record(("create", path, 0, b""))
            inode = self.machine.names[path]
        return TraceFile(self, inode)

    def list(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        names = self.machine.names
        return sorted({name[len(prefix) :].partition("/")[0] for name in names if name.startswith(prefix)})

    def preallocate(self, path: str, size: int) -> None:  # space is not modelled
        self.open(path, create=True).close()
        self.step_or_fail("preallocate")

    def rename(self, old: str, new: str) -> None:
        self.step_or_fail("rename")
        self.record(("rename", old, new, b""))

    def remove(self, path: str) -> None:
        names = self.machine.names
        if path in names or any(name.startswith(f"{path}/") for name in names):
            self.step_or_fail("remove")
            self.record(("remove", path, 0, b""))

    def make_folder(self, path: str) -> None:
        if self.machine.names.get(path) is not FOLDER:
            self.step_or_fail("make_folder")
            self.record(("make_folder", path, 0, b""))

    def sync_folder(self, path: str) -> None:
        self.step_or_fail("sync_folder")
        self.record(("nothing" if "sync_folder" in self.lies else "sync_folder", path, 0, b""))

    def sync_all(self) -> None:
        self.step_sync([inode for inode in self.machine.names.values() if inode is not FOLDER])
        for path, inode in list(self.machine.names.items()):
            if inode is not FOLDER:
                self.record(("nothing" if "sync" in self.lies else "sync", inode.number, 0, b""))
            else:
                self.record(("nothing" if "sync_folder" in self.lies else "sync_folder", path, 0, b""))
        self.record(("nothing" if "sync_folder" in self.lies else "sync_folder", "", 0, b""))

    def usage(self) -> Usage:
        return Usage(self.bytes_max, self.bytes_max - self.bytes_used())

    def lock(self) -> None:
        if self._locked:
            raise BlockingIOError(str(os.getpid()))
        self._locked = True

    def lost(self) -> str:
        return ""

    def unlock(self) -> None:
        self._locked = False

    def describe(self, path: str) -> str:
        return f"trace:{path}"
