"""Targets of tables: a folder, or a URL of fsspec. A name appears with its whole content or not at all, and is never
written twice.

A draft is written beside its place (a folder) or to a temporary file of this machine (a URL), and then placed under its
name. Where a file appears before its upload is complete (SFTP, HDFS), it is uploaded under a hidden name first.

In a folder, exporters place their files one after the other, under a lock, so that each one sees the names of the
others. Object stores have no such lock: the names are listed just before the upload.
"""

from __future__ import annotations

import fcntl
import os
import posixpath
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Final, Protocol

from evenq.model.names import topic_problem
from evenq.runtime.private_files import make_private, open_private, sync_folder
from evenq.runtime.targets import failed, failing, folder_of, opened

LOCK: Final = ".lock"
DRAFT: Final = ".tmp"
ATOMIC: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "memory"})
"""Stores in which a file appears when its upload is complete."""

Check = Callable[[Iterable[str]], None]
"""Raises if a file must not appear beside these names."""


class Draft(Protocol):
    """A file that is being written."""

    file: IO[bytes]

    def place(self, name: str, check: Check, *, replace: bool = False) -> bool:
        """Makes the file durable under `name` in its folder. False: the name exists, and the draft is dropped; with
        `replace` it takes the place of that file.

        Raises the errors of `check`, StoreFull, StoreError.
        """
        ...

    def discard(self) -> None:
        """Removes the draft; does nothing once it is placed."""
        ...


class TableTarget(Protocol):
    """Interface of a target. Paths are relative, with `/`. All methods block, and raise StoreFull and StoreError."""

    url: str
    """The target as the command line names it."""

    def path(self, path: str) -> str:
        """Returns the whole path of a file, for users and for other programs."""
        ...

    def files(self, folder: str) -> dict[str, int]:
        """Returns paths and sizes in bytes of all files below a folder; empty without the folder."""
        ...

    def topics(self) -> list[str]:
        """Returns the sorted names of the top-level folders that can be topics: `lost+found` is not one."""
        ...

    def open(self, path: str) -> IO[bytes]:
        """Opens a file to read. Reads of a URL raise errors of its package (`files.reading`)."""
        ...

    def read(self, path: str) -> bytes:
        """Returns the content of a small file."""
        ...

    def draft(self, folder: str) -> Draft:
        """Starts a file in a folder, which is created."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file if it exists."""
        ...


def table_target(text: str) -> TableTarget:
    """Opens the folder or URL of the command line. Raises SettingsError, StoreError."""
    folder = folder_of(text)
    return RemoteTables(text) if folder is None else FolderTables(folder)


def _topics(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if topic_problem(name) is None)


def place_bytes(target: TableTarget, path: str, data: bytes, check: Check) -> bool:
    """Writes a small file under its name; False: the name exists."""
    folder, _, name = path.rpartition("/")
    draft = target.draft(folder)
    try:
        try:
            draft.file.write(data)
        except OSError as error:
            raise failed(target.path(path), error) from error
        return draft.place(name, check)
    finally:
        draft.discard()


class FolderTables:
    """A folder of this machine, possibly a mount."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = str(root)

    def path(self, path: str) -> str:
        return str(self.root / path)

    def files(self, folder: str) -> dict[str, int]:
        found: dict[str, int] = {}

        def stop(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise failed(str(error.filename), error) from error

        for place, _, names in os.walk(self.root / folder, onerror=stop):
            for name in names:
                path = Path(place, name)
                with suppress(FileNotFoundError):  # a draft that was placed meanwhile
                    found[path.relative_to(self.root).as_posix()] = path.stat().st_size
        return found

    def topics(self) -> list[str]:
        try:
            return _topics(entry.name for entry in self.root.iterdir() if entry.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise failed(self.url, error) from error

    def open(self, path: str) -> IO[bytes]:
        try:
            return (self.root / path).open("rb")
        except OSError as error:
            raise failed(self.path(path), error) from error

    def read(self, path: str) -> bytes:
        with failing(self.path(path)):
            return (self.root / path).read_bytes()

    def draft(self, folder: str) -> Draft:
        place = self.root / folder
        try:
            make_private(place)
            _remove_left_drafts(place)
            return _FolderDraft(place)
        except OSError as error:
            raise failed(str(place), error) from error

    def remove(self, path: str) -> None:
        try:
            (self.root / path).unlink(missing_ok=True)
        except OSError as error:
            raise failed(self.path(path), error) from error


def _remove_left_drafts(folder: Path) -> None:
    """Removes drafts of exporters that were killed: their locks ended with them."""
    for path in folder.glob(f".*{DRAFT}"):
        with suppress(OSError), path.open("r+b") as file:  # NFS locks only files that are open for writing
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)


class _FolderDraft:
    """A hidden file beside its place, which readers of `*.parquet` do not see."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._placed = False
        while True:
            self._path = folder / f".{os.getpid()}-{os.urandom(6).hex()}{DRAFT}"
            self.file: IO[bytes] = open_private(self._path, "wb")
            fcntl.flock(self.file, fcntl.LOCK_EX)
            if self._path.exists():  # another exporter may have taken it for a left one before it was locked
                return
            self.file.close()

    def place(self, name: str, check: Check, *, replace: bool = False) -> bool:
        try:
            self.file.flush()
            os.fdatasync(self.file.fileno())
            with open_private(self._folder / LOCK, "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # held by others for a rename only
                names = [entry.name for entry in os.scandir(self._folder)]
                if name in names and not replace:
                    return False
                check(names)
                self._path.rename(self._folder / name)
                self._placed = True
            sync_folder(self._folder)
        except OSError as error:
            raise failed(str(self._folder / name), error) from error
        return True

    def discard(self) -> None:
        if not self._placed:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        with suppress(OSError):  # what it has not written yet may not fit on the disk
            self.file.close()


class RemoteTables:
    """A target behind fsspec."""

    def __init__(self, url: str) -> None:
        """Raises SettingsError without fsspec or its package for the scheme, StoreError for a store that is away."""
        self.url = url.rstrip("/")
        self.system, self.root = opened(self.url, extra="tables")

    def path(self, path: str) -> str:
        return f"{self.url}/{path}"

    def files(self, folder: str) -> dict[str, int]:
        with self.failing(folder):
            self.system.invalidate_cache()
            try:
                there = self.system.find(self.place(folder), detail=True)
            except FileNotFoundError:
                return {}
        start = len(self.place("")) + 1
        return {name[start:]: int(one["size"] or 0) for name, one in there.items()}

    def topics(self) -> list[str]:
        return _topics({path.partition("/")[0] for path in self.files("") if "/" in path})

    def open(self, path: str) -> IO[bytes]:
        with self.failing(path):
            opened: IO[bytes] = self.system.open(self.place(path), "rb")
        return opened

    def read(self, path: str) -> bytes:
        with self.failing(path), self.open(path) as file:
            return file.read()

    def draft(self, folder: str) -> Draft:
        return _RemoteDraft(self, folder)

    def remove(self, path: str) -> None:
        with self.failing(path), suppress(FileNotFoundError):
            self.system.rm_file(self.place(path))

    def place(self, path: str) -> str:
        """Returns the path as the file system takes it."""
        root = self.root.rstrip("/")
        return f"{root}/{path}" if path else root

    def failing(self, path: str) -> AbstractContextManager[None]:
        """Raises StoreFull or StoreError for any failure at a path."""
        return failing(self.path(path))


class _RemoteDraft:
    """A temporary file of this machine, which is uploaded when it is whole."""

    def __init__(self, target: RemoteTables, folder: str) -> None:
        self._target, self._folder = target, folder
        self.file: IO[bytes] = tempfile.NamedTemporaryFile(suffix=DRAFT)  # noqa: SIM115  closed by `discard`

    def place(self, name: str, check: Check, *, replace: bool = False) -> bool:
        target, path = self._target, f"{self._folder}/{name}"
        system, place = target.system, target.place(path)
        names = [posixpath.basename(one) for one in target.files(self._folder)]
        if name in names and not replace:
            return False
        check(names)
        protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
        with target.failing(path):
            self.file.flush()
            system.makedirs(posixpath.dirname(place), exist_ok=True)
            if protocols & ATOMIC:
                system.put_file(self.file.name, place)
            else:
                self._upload_hidden(place, name)
        for left in names:
            if left.endswith(DRAFT) and _name_of(left) in names:  # of an exporter that was killed
                target.remove(f"{self._folder}/{left}")
        return True

    def _upload_hidden(self, place: str, name: str) -> None:
        """Uploads under a name that readers of a folder leave out, and renames the file when it is whole."""
        system = self._target.system
        hidden = f"{posixpath.dirname(place)}/.{name}.{os.urandom(6).hex()}{DRAFT}"
        try:
            system.put_file(self.file.name, hidden)
            system.mv(hidden, place)
        except Exception:
            with suppress(Exception):  # it may not be there, and the store may be away
                system.rm_file(hidden)
            raise

    def discard(self) -> None:
        with suppress(OSError):
            self.file.close()


def _name_of(draft: str) -> str:
    """Returns the name that an upload was to get. Earlier versions did not hide it."""
    return draft[1:].rsplit(".", 2)[0] if draft.startswith(".") else draft.removesuffix(DRAFT)
