"""Backup targets: a folder, or anything that fsspec supports. A file is written once and appears whole or not at all.

Paths are relative to the target, with `/`. `BackupTarget` is the interface. `FolderTarget` syncs its files and is
locked by one run at a time; `evenq.store.backup.remote_target` is the other implementation.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from evenq.errors import StoreError, StoreLocked
from evenq.runtime.lock_file import LockHeld, lock_file
from evenq.runtime.private_files import make_private, open_private, sync_folder
from evenq.runtime.targets import failed

READ_BYTES: Final = 1 << 20
SMALL_BYTES_MAX: Final = 256 << 20
LOCK: Final = ".lock"


class TargetFile(Protocol):
    """A file that is being written; it appears with `commit`."""

    def write(self, data: bytes | memoryview) -> None:
        """Appends bytes. Raises StoreFull, StoreError."""
        ...

    def commit(self) -> None:
        """Makes the file durable under its name; replaces an existing one. Raises StoreFull, StoreError."""
        ...

    def discard(self) -> None:
        """Removes the unfinished file; does nothing after `commit`."""
        ...


class BackupTarget(Protocol):
    """Interface of a backup target. All methods block."""

    def describe(self, path: str) -> str:
        """Returns the name of a path for users."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns names and sizes in bytes of a folder's files; empty without the folder. Raises StoreError."""
        ...

    def folders(self) -> list[str]:
        """Returns the sorted names of the top-level folders. Raises StoreError."""
        ...

    def read(self, path: str) -> Iterator[bytes]:
        """Yields a file's bytes in pieces of 1 MiB. Raises StoreError if the file is missing or unreadable."""
        ...

    def create(self, path: str) -> TargetFile:
        """Starts a file with this name. Raises StoreFull, StoreError."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file if it exists. Raises StoreError."""
        ...

    def __enter__(self) -> Self:
        """Locks the target for one writer. Raises StoreLocked, StoreError."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def write_small(target: BackupTarget, path: str, data: bytes) -> None:
    """Writes a small file. Raises StoreFull, StoreError."""
    file = target.create(path)
    try:
        file.write(data)
        file.commit()
    finally:
        file.discard()


def read_small(target: BackupTarget, path: str) -> bytes:
    """Returns all of a manifest or a snapshot. Raises StoreError."""
    data = bytearray()
    for part in target.read(path):
        data += part
        if len(data) > SMALL_BYTES_MAX:
            raise StoreError(
                f"{target.describe(path)} has over {SMALL_BYTES_MAX} bytes, too many for a manifest or a snapshot"
            )
    return bytes(data)


class FolderTarget:
    """A folder of this machine, possibly a mount."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = ExitStack()

    def describe(self, path: str) -> str:
        return str(self._root / path) if path else str(self._root)

    def sizes(self, folder: str) -> dict[str, int]:
        try:
            with os.scandir(self._root / folder) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._failed(folder, error) from error

    def folders(self) -> list[str]:
        try:
            with os.scandir(self._root) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed("", error) from error

    def read(self, path: str) -> Iterator[bytes]:
        try:
            with (self._root / path).open("rb") as file:
                while data := file.read(READ_BYTES):
                    yield data
        except OSError as error:
            raise self._failed(path, error) from error

    def create(self, path: str) -> TargetFile:
        place = self._root / path
        try:
            make_private(place.parent)
            return _FolderFile(place)
        except OSError as error:
            raise self._failed(path, error) from error

    def remove(self, path: str) -> None:
        try:
            (self._root / path).unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(path, error) from error

    def __enter__(self) -> Self:
        try:
            self._lock.enter_context(lock_file(self._root / LOCK))
        except LockHeld as held:
            raise StoreLocked(
                f"another backup, {held}, writes to {self._root}: wait for it, or name another target"
            ) from held
        except OSError as error:
            raise self._failed("", error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def _failed(self, path: str, error: OSError) -> StoreError:
        return failed(self.describe(path), error)


class _FolderFile:
    """A file that is written beside its place until it is whole and synced."""

    def __init__(self, place: Path) -> None:
        self._place, self._beside = place, place.with_name(place.name + ".new")
        self._file = open_private(self._beside, "wb", buffering=READ_BYTES)
        self._done = False

    def write(self, data: bytes | memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise failed(str(self._beside), error) from error

    def commit(self) -> None:
        place = self._place
        try:
            self._file.flush()
            os.fdatasync(self._file.fileno())
            self._file.close()
            self._beside.replace(place)
            sync_folder(place.parent)
        except OSError as error:
            raise failed(str(place), error) from error
        self._done = True

    def discard(self) -> None:
        if not self._done:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                self._beside.unlink(missing_ok=True)
