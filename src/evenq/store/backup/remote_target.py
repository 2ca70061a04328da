"""A backup target that fsspec reaches, such as an object store or SFTP, named by a URL (`s3://bucket/folder`).

fsspec and its package for the scheme must be installed; no other part of evenq uses them. Such a target is not locked.
Whether a file appears as a whole depends on the store; manifests carry a checksum, so a torn one is detected.
"""

from __future__ import annotations

import contextlib
import importlib
import posixpath
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from evenq.errors import SettingsError, StoreError
from evenq.runtime.targets import SCHEME, failed
from evenq.store.backup.target import READ_BYTES, TargetFile


class RemoteTarget:
    """A target behind fsspec; see `target.BackupTarget`."""

    def __init__(self, url: str) -> None:
        """Raises SettingsError without fsspec or its package for the scheme."""
        self._url = url.rstrip("/")
        try:
            core = importlib.import_module("fsspec.core")
            self._files, self._root = core.url_to_fs(self._url)
        except ImportError as error:
            raise SettingsError(
                f"{url} needs the package fsspec and what it uses for {url.partition(SCHEME)[0]}:// ({error}): install "
                "evenq[backup] and that, or back up to a folder"
            ) from error
        except ValueError as error:
            raise SettingsError(f"{url} is not a valid target: {error}") from error

    def describe(self, path: str) -> str:
        return f"{self._url}/{path}" if path else self._url

    def sizes(self, folder: str) -> dict[str, int]:
        return {posixpath.basename(one["name"]): int(one["size"] or 0) for one in self._entries(folder, "file")}

    def folders(self) -> list[str]:
        return sorted(posixpath.basename(one["name"].rstrip("/")) for one in self._entries("", "directory"))

    def _entries(self, folder: str, kind: str) -> list[dict[str, Any]]:
        try:
            self._files.invalidate_cache()
            return [one for one in self._files.ls(self._place(folder), detail=True) if one["type"] == kind]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise failed(self.describe(folder), error) from error

    def read(self, path: str) -> Iterator[bytes]:
        try:
            with self._files.open(self._place(path), "rb") as file:
                while data := file.read(READ_BYTES):
                    yield data
        except OSError as error:
            raise failed(self.describe(path), error) from error

    def create(self, path: str) -> TargetFile:
        try:
            self._files.makedirs(posixpath.dirname(self._place(path)), exist_ok=True)
            return _RemoteFile(self._files.open(self._place(path), "wb"), self.describe(path))
        except OSError as error:
            raise failed(self.describe(path), error) from error

    def remove(self, path: str) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._place(path))
        except OSError as error:
            raise failed(self.describe(path), error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def _place(self, path: str) -> str:
        return f"{self._root}/{path}" if path else str(self._root)


class _RemoteFile:
    """A file that appears when it is closed."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name
        self._done = False

    def write(self, data: bytes | memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise failed(self._name, error) from error

    def commit(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            raise failed(self._name, error) from error
        self._done = True

    def discard(self) -> None:
        """Closes the file; the next run overwrites what is left of it."""
        if not self._done:
            self._done = True
            with contextlib.suppress(OSError, StoreError):
                self._file.close()
