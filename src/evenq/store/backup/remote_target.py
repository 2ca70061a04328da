"""A backup target that fsspec reaches, such as an object store or SFTP, named by a URL (`s3://bucket/folder`).

fsspec and its package for the scheme must be installed; no other part of evenq uses them. Such a target is not locked.
Whether a file appears as a whole depends on the store; manifests carry a checksum, so a torn one is detected.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from evenq.errors import Error
from evenq.runtime.targets import failing, opened
from evenq.store.backup.target import READ_BYTES, TargetFile


class RemoteTarget:
    """A target behind fsspec; see `target.BackupTarget`."""

    def __init__(self, url: str) -> None:
        """Raises SettingsError without fsspec or its package for the scheme, StoreError for a store that is away."""
        self._url = url.rstrip("/")
        self._files, self._root = opened(self._url, extra="backup")

    def describe(self, path: str) -> str:
        return f"{self._url}/{path}" if path else self._url

    def sizes(self, folder: str) -> dict[str, int]:
        return {posixpath.basename(one["name"]): int(one["size"] or 0) for one in self._entries(folder, "file")}

    def folders(self) -> list[str]:
        return sorted(posixpath.basename(one["name"].rstrip("/")) for one in self._entries("", "directory"))

    def _entries(self, folder: str, kind: str) -> list[dict[str, Any]]:
        with failing(self.describe(folder)):
            self._files.invalidate_cache()
            try:
                return [one for one in self._files.ls(self._place(folder), detail=True) if one["type"] == kind]
            except FileNotFoundError:
                return []

    def read(self, path: str) -> Iterator[bytes]:
        name = self.describe(path)
        with failing(name):
            file = self._files.open(self._place(path), "rb")
        with contextlib.closing(file):
            while True:
                with failing(name):
                    data = file.read(READ_BYTES)
                if not data:
                    return
                yield data  # outside `failing`: the caller may raise here

    def create(self, path: str) -> TargetFile:
        with failing(self.describe(path)):
            self._files.makedirs(posixpath.dirname(self._place(path)), exist_ok=True)
            return _RemoteFile(self._files.open(self._place(path), "wb"), self.describe(path))

    def remove(self, path: str) -> None:
        with failing(self.describe(path)), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._place(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def _place(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


class _RemoteFile:
    """A file that appears when it is closed."""

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name
        self._done = False

    def write(self, data: bytes | memoryview) -> None:
        with failing(self._name):
            self._file.write(data)

    def commit(self) -> None:
        with failing(self._name):
            self._file.close()
        self._done = True

    def discard(self) -> None:
        """Closes the file; the next run overwrites what is left of it."""
        if not self._done:
            self._done = True
            with contextlib.suppress(Error), failing(self._name):
                self._file.close()
