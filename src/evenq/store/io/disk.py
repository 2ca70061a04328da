"""The only module of the project that opens files: the protocol `Disk`, and its real implementation.

Paths are relative to the data folder, with `/`. `pwrite` writes everything or raises OSError (some bytes may then be
written). Nothing here retries: a second fsync after a failed one proves nothing. `memory_disk` has the kinds in memory.
Several threads may use a handle at the same time; callers ensure that `close` does not race with use.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, Protocol

from evenq.runtime.failpoints import passing
from evenq.runtime.private_files import FILE_MODE, make_private
from evenq.store.io.descriptors import SpareFiles

IOV_MAX: Final = 1024  # Linux: buffers in one writev
WRITE_BYTES: Final = 512 << 10
"""Most bytes of one system call. For larger ones Linux may use page cache in pieces of 2 MiB, which it must find first:
3.1 us of CPU per KiB instead of 0.25, measured on ext4 of Linux 6.18.
"""
RWF_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)  # Linux only
NOT_NOW: Final = frozenset({errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS})
SPARE_FILES: Final = 64
"""Descriptors reserved for a folder's owner: more than a checkpoint, a read pool and a new log file need together."""
FALLOC_KEEP_SIZE: Final = 1
_FALLOCATE: Final = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)  # Linux only
_SYNCFS: Final = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)  # one file system; Linux only

Room = tuple[memoryview]
"""Target of a read: one buffer, as `os.preadv` takes it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Space of the disk, bytes."""

    total: int
    free: int

    @property
    def used_ratio(self) -> float:
        """Share in use, 0 to 1."""
        return 1 - self.free / self.total if self.total else 0.0


class File(Protocol):
    """An open file, read and written at absolute places."""

    def pwrite(self, parts: Sequence[bytes | bytearray], offset: int) -> None:
        """Writes all parts in sequence. After OSError an unknown part of them is written."""
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Returns up to `size` bytes; fewer only at the end of the file."""
        ...

    def pread_each(self, places: Sequence[int], rooms: Sequence[Room], *, wait: bool = True) -> bool:
        """Fills each room from its place. Returns False if a place has too few bytes or, without `wait`, is perhaps not
        in the page cache; the content of the rooms is then undefined.
        """
        ...

    def sync(self) -> None:
        """Calls fdatasync. After OSError the content of the disk is unknown."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A data folder."""

    blocks: bool
    """Whether calls may wait for a device, so that they belong on threads."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Opens for reading and writing. Raises FileNotFoundError unless `create`."""
        ...

    def list(self, path: str) -> list[str]:
        """Returns the sorted names in a folder; empty without the folder."""
        ...

    def preallocate(self, path: str, size: int) -> None:
        """Creates the file and reserves space for `size` bytes, where the system can; the file's size does not change.
        Raises OSError (ENOSPC) without such space; the file may exist then.
        """
        ...

    def rename(self, old: str, new: str) -> None:
        """Renames a file and replaces `new`. Durable after `sync_folder`."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file, or a folder with its content, if it exists."""
        ...

    def make_folder(self, path: str) -> None:
        """Creates a folder with its parents."""
        ...

    def sync_folder(self, path: str) -> None:
        """Makes creations, renames and removals in this folder durable."""
        ...

    def sync_all(self) -> None:
        """Makes everything written and named so far durable in one call: cheaper than a sync for each of many files."""
        ...

    def usage(self) -> Usage: ...

    def lock(self) -> None:
        """Locks the folder for one owner. Raises BlockingIOError (its text: the owner's pid) if it is locked."""
        ...

    def unlock(self) -> None: ...

    def lost(self) -> str:
        """Returns why the folder no longer is its owner's (moved, removed, another lock file); empty if it is."""
        ...

    def describe(self, path: str) -> str:
        """Returns the name of a path for users."""
        ...


class RealFile:
    """A file descriptor."""

    __slots__ = ("_always_waits", "_descriptor", "_spares")

    def __init__(self, descriptor: int, spares: SpareFiles) -> None:
        self._descriptor = descriptor
        self._spares = spares
        self._always_waits = False
        """The file system cannot report what is in the page cache."""

    def pwrite(self, parts: Sequence[bytes | bytearray], offset: int) -> None:
        for group in _calls(parts):
            want = sum(map(len, group))
            done = os.pwritev(self._descriptor, group, offset)
            while done < want:  # a short write: the next call raises the reason, or continues
                rest = b"".join(group)[done:]
                done += os.pwrite(self._descriptor, rest, offset + done)
            offset += want

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pread_each(self, places: Sequence[int], rooms: Sequence[Room], *, wait: bool = True) -> bool:
        if wait:
            return all(self._fill(position, room) for position, (room,) in zip(places, rooms, strict=True))
        if not RWF_NOWAIT or self._always_waits:
            return False
        preadv, descriptor = os.preadv, self._descriptor
        try:
            for position, room in zip(places, rooms, strict=True):
                if preadv(descriptor, room, position, RWF_NOWAIT) != room[0].nbytes:
                    return False
        except OSError as error:
            if error.errno not in NOT_NOW:
                raise
            self._always_waits = error.errno != errno.EAGAIN
            return False
        return True

    def _fill(self, position: int, room: memoryview) -> bool:
        done = os.preadv(self._descriptor, (room,), position)
        while done < room.nbytes:
            more = os.preadv(self._descriptor, (room[done:],), position + done)
            if not more:
                return False
            done += more
        return True

    def sync(self) -> None:
        # Not fsync: fdatasync also syncs a changed size, and the times of the file are not needed.
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            self._spares.close_file(self._descriptor)
            self._descriptor = -1


class RealDisk:
    """A folder of the machine's file system, created if it is missing."""

    blocks = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = -1
        self._spares = SpareFiles(SPARE_FILES)
        make_private(root)

    def open(self, path: str, *, create: bool = False) -> File:
        return RealFile(self._open(path, os.O_RDWR | (os.O_CREAT if create else 0)), self._spares)

    def _open(self, path: str, flags: int) -> int:
        return self._spares.ensured(lambda: os.open(self.root / path, flags | os.O_CLOEXEC, FILE_MODE))

    def list(self, path: str) -> list[str]:
        try:
            return sorted(self._spares.ensured(lambda: os.listdir(self.root / path)))
        except FileNotFoundError:
            return []

    def preallocate(self, path: str, size: int) -> None:
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT)
        try:
            _set_aside(descriptor, size)
        finally:
            self._spares.close_file(descriptor)

    def rename(self, old: str, new: str) -> None:
        os.replace(self.root / old, self.root / new)

    def remove(self, path: str) -> None:
        target = self.root / path
        if target.is_dir() and not target.is_symlink():
            for name in self.list(path):
                self.remove(f"{path}/{name}")
            target.rmdir()
        else:
            target.unlink(missing_ok=True)

    def make_folder(self, path: str) -> None:
        make_private(self.root / path, sync=False)  # for a new queue, too: its files can be built again

    def sync_folder(self, path: str) -> None:
        descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            self._spares.close_file(descriptor)

    def sync_all(self) -> None:
        if _SYNCFS is None:
            os.sync()
            return
        descriptor = self._open("", os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _SYNCFS(descriptor) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            self._spares.close_file(descriptor)

    def usage(self) -> Usage:
        volume = os.statvfs(self.root)
        used = volume.f_blocks - volume.f_bfree  # what is reserved for others is neither used nor free, as in `df`
        return Usage((used + volume.f_bavail) * volume.f_frsize, volume.f_bavail * volume.f_frsize)

    def lock(self) -> None:
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            # The system releases this lock when the process ends, in any way. The pid is for people.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise BlockingIOError(owner) from None
        except OSError:  # a file system without locks
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor
        self._spares.fill()

    def lost(self) -> str:
        if self._lock < 0:
            return ""
        try:
            there = os.stat(self.root / "lock")
        except (FileNotFoundError, NotADirectoryError):
            return f"the data folder {self.root} was moved or removed, or its lock file was"
        except OSError:  # a failure of the disk is reported where it is used
            return ""
        own = os.fstat(self._lock)
        if (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino):
            return f"the data folder {self.root} has another lock file now, so another process may use it"
        return ""

    def unlock(self) -> None:
        self._spares.close()
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = -1

    def describe(self, path: str) -> str:
        return str(self.root / path) if path else str(self.root)


class ReadOnlyDisk(RealDisk):
    """A broker's folder for tools: nothing is created or changed, and a running owner is not disturbed."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(root))
        super().__init__(root)

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            self._refuse(path)
        return RealFile(self._open(path, os.O_RDONLY), self._spares)

    def owner(self) -> str | None:
        """Returns the pid of the process that holds the folder (`?` if it is unknown), None without one."""
        try:
            descriptor = os.open(self.root / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released immediately: a start may need it
        except BlockingIOError:
            return os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "?"
        finally:
            os.close(descriptor)
        return None

    def preallocate(self, path: str, size: int) -> None:  # noqa: ARG002  # the Protocol's
        self._refuse(path)

    def rename(self, old: str, new: str) -> None:
        self._refuse(old or new)

    def remove(self, path: str) -> None:
        self._refuse(path)

    def make_folder(self, path: str) -> None:
        self._refuse(path)

    def lock(self) -> None:
        self._refuse("lock")

    def _refuse(self, path: str) -> NoReturn:
        raise PermissionError(errno.EPERM, "opened for reading only", str(self.root / path))


def _calls(parts: Sequence[bytes | bytearray]) -> Iterator[Sequence[bytes | bytearray | memoryview]]:
    if len(parts) <= IOV_MAX and sum(map(len, parts)) <= WRITE_BYTES:
        yield parts
        return
    group: list[bytes | bytearray | memoryview] = []
    room = WRITE_BYTES
    for part in parts:
        rest = memoryview(part)
        while rest:
            piece, rest = rest[:room], rest[room:]
            group.append(piece)
            room -= len(piece)
            if not room or len(group) == IOV_MAX:
                yield group
                group, room = [], WRITE_BYTES
    if group:
        yield group


def _set_aside(descriptor: int, size: int) -> None:
    """Reserves space by `fallocate` with KEEP_SIZE: `os.posix_fallocate` changes the size, or writes zeros."""
    if _FALLOCATE is None:
        return
    room = os.fstatvfs(descriptor)
    if size > room.f_bavail * room.f_frsize:  # otherwise it takes all free space before it fails
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if _FALLOCATE(descriptor, FALLOC_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        number = ctypes.get_errno()
        if number in (errno.ENOSPC, errno.EDQUOT):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size)  # returns what it got, which is all free space
            raise OSError(number, os.strerror(number))


def read_whole(disk: Disk, path: str) -> bytes | None:
    """Returns all bytes of a small file; None if it does not exist."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write_whole(disk: Disk, path: str, data: bytes) -> None:
    """Replaces a small file so that a crash leaves the old one or the new one: beside, synced, renamed."""
    beside, kind = f"{path}.new", path.partition("/")[0]
    file = disk.open(beside, create=True)
    try:
        file.truncate(0)
        file.pwrite([data], 0)
        passing(f"{kind}.written")
        file.sync()
    finally:
        file.close()
    passing(f"{kind}.synced")
    disk.rename(beside, path)
    passing(f"{kind}.renamed")
    disk.sync_folder(path.rpartition("/")[0])
    passing(f"{kind}.linked")
