"""Files of one system user: data, backups, offsets and locks that evenq writes, and secrets that it reads.

Written files contain messages, so only their owner has access: files 0600, new folders 0700. An existing folder keeps
its mode. A secret that other users may write is rejected, as ssh does: they could add users or keys. A secret that
they may read is accepted with a warning: a mounted Secret of Kubernetes is a link to a file of mode 0644 unless
`defaultMode` is set, and no other program runs in the pod.
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

log = logging.getLogger(__name__)

FILE_MODE, FOLDER_MODE = 0o600, 0o700
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def open_private(path: Path, mode: str, *, encoding: str | None = None, buffering: int = -1) -> IO[Any]:
    """Opens a file as `open` does; a new file gets mode 0600."""
    made = partial(os.open, mode=FILE_MODE)
    return open(path, mode, buffering, encoding=encoding, opener=made)


def make_private(folder: Path, *, sync: bool = True) -> None:
    """Creates the folder and its missing parents, mode 0700. With `sync` they survive a power loss. Raises OSError."""
    missing: list[Path] = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(mode=FOLDER_MODE, exist_ok=True)
        if sync:
            with suppress(PermissionError):  # a folder may be writable and not readable
                sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Makes creations, renames and removals in the folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, text: str, *, durable: bool = True) -> None:
    """Replaces a file whole: readers get the old or the new text, with `durable` also after a crash. Raises OSError."""
    make_private(path.parent)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open_private(fresh, "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:  # mostly a full disk: each process would leave a temporary file there
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def read_secret(path: Path, *, bytes_max: int) -> bytes:
    """Returns at most `bytes_max` bytes. Raises OSError, and SettingsError for a file that other users may write."""
    with path.open("rb") as file:
        _check(path, os.fstat(file.fileno()).st_mode)  # of the open file: a link cannot be moved meanwhile
        return file.read(bytes_max)


def read_private(path: Path, *, bytes_max: int) -> bytes:
    """Returns at most `bytes_max` bytes of a file that evenq wrote for its owner alone.

    Raises OSError, and SettingsError if other users may read or write the file, or may replace it in its folder.
    """
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & ~0o700:
            raise SettingsError(
                f"{path} has mode {mode:04o}, so other users may read or change it; take their rights away: chmod 600 "
                f"{path}"
            )
        folder = stat.S_IMODE(path.parent.stat().st_mode)
        if folder & OTHERS_WRITE:
            raise SettingsError(
                f"the folder {path.parent} has mode {folder:04o}, so other users may replace {path.name}; take their "
                f"rights away: chmod 700 {path.parent}"
            )
        return file.read(bytes_max)


def warn_of_readers(path: Path) -> None:
    """Logs a warning, once, if every user of the machine may read a secret that a library reads."""
    with suppress(OSError):  # the library reports a missing file
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


@lru_cache(maxsize=256)  # once for each file, which is read repeatedly
def _warn(path: str, mode: int) -> None:
    log.warning("%s has mode %04o, so every user of this machine may read it: chmod 600 %s", path, mode, path)
