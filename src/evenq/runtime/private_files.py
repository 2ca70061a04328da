"""Files of one system user: data, backups, offsets and locks that we write, and secrets that we read.

What is written holds messages, so it is made for its owner alone: files 0600, folders 0700; a folder that is there
already keeps its mode. A secret that others may write is refused, as ssh does, because they could put users or keys of
their own into it. One that others may read is taken with a warning: a mounted Secret of Kubernetes is a link to a file
of mode 0644 unless `defaultMode` says otherwise, and the pod is alone with it.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any

from evenq.errors import SettingsError

__all__ = ["FILE_MODE", "make_private", "open_private", "read_secret", "sync_folder", "warn_of_readers"]

log = logging.getLogger(__name__)

FILE_MODE, FOLDER_MODE = 0o600, 0o700
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_private(path: Path, mode: str, *, encoding: str | None = None, buffering: int = -1) -> IO[Any]:
    """As `open`; what it makes is for its owner alone."""
    made = partial(os.open, mode=FILE_MODE)
    return open(path, mode, buffering, encoding=encoding, opener=made)


def make_private(folder: Path, *, sync: bool = True) -> None:
    """Make the folder, and those above it that are missing, for their owner alone. With `sync` they are there after a
    loss of power, too. Raises OSError.
    """
    missing: list[Path] = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(mode=FOLDER_MODE, exist_ok=True)
        if sync:
            with suppress(PermissionError):  # it may be written in, and not read
                sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed and removed in it durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_secret(path: Path, *, bytes_max: int) -> bytes:
    """At most so many bytes of a file with secrets. Raises OSError, and SettingsError for one that others may write."""
    with path.open("rb") as file:
        _check(path, os.fstat(file.fileno()).st_mode)  # of the file that is read: links are followed, nothing changes
        return file.read(bytes_max)


def warn_of_readers(path: Path) -> None:
    """Log a warning, once, about a secret that a library reads and every user of the machine could read."""
    with suppress(OSError):  # one that is not there is the library's to name
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) and mode & stat.S_IROTH:
            _warn(str(path), stat.S_IMODE(mode))


def _check(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        return
    if mode & OTHERS_WRITE:
        raise SettingsError(
            f"{path} has mode {stat.S_IMODE(mode):04o}, so other users may change it; take their rights away: "
            f"chmod 600 {path}"
        )
    if mode & stat.S_IROTH:
        _warn(str(path), stat.S_IMODE(mode))


@lru_cache(maxsize=256)  # once for each file: it is read again and again
def _warn(path: str, mode: int) -> None:
    log.warning("%s has mode %04o, so every user of this machine may read it: chmod 600 %s", path, mode, path)
