"""Keeps the end of a log aside before it is cut although it may hold committed records: the folder `lost`.

An operator may have a copy lead that lacks records which others have (an unclean election). Those are cut from the
others, and this is the last place where they are. One file for each cut, its bytes as they were in the log, named for
the log offset of its first one; bounded in size and in number. Best effort: a full disk must not keep a copy from
following. Blocks on the disk; called by `LogCopy`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from evenq.errors import Error
from evenq.store.io.disk import Disk
from evenq.store.log.log_pieces import LogPieces
from evenq.store.log.record import MESSAGE

__all__ = ["BYTES_MAX", "FILES_MAX", "FOLDER", "LostTail", "keep"]

log = logging.getLogger(__name__)

FOLDER: Final = "lost"
BYTES_MAX: Final = 64 << 20
"""Of one file: the first ones that go are kept, since they were acknowledged first."""
ROOM_BYTES: Final = 1 << 30
"""Half of what is free over this may be taken."""
FILES_MAX: Final = 4
"""The newest ones stay."""
PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTail:
    """What went."""

    messages: int
    """Records with a message in them; those that only keep progress do not count."""
    kept_bytes: int
    where: str
    """A sentence."""


def keep(disk: Disk, pieces: LogPieces, start: int, end: int) -> LostTail:
    """Count what lies between two places of the log, and copy its first BYTES_MAX, or what there is room for."""
    messages = 0
    try:
        messages = sum(kind == MESSAGE for kind in pieces.kinds(start, end))
        path = f"{FOLDER}/{start:020d}"
        room_bytes = max(0, disk.usage().free // 2 - ROOM_BYTES)
        kept = _copy(disk, pieces, path, start, end, min(BYTES_MAX, room_bytes))
        _drop_old(disk)
    except (Error, OSError) as error:
        log.warning("what is cut of the log from %d on is not kept: %s", start, error)
        return LostTail(messages=messages, kept_bytes=0, where="Nothing of it is kept.")
    if not kept:
        return LostTail(messages=messages, kept_bytes=0, where="Nothing of it is kept: the disk is too full.")
    part = "It is" if kept == end - start else f"The first {kept} bytes of it are"
    return LostTail(messages=messages, kept_bytes=kept, where=f"{part} kept in {disk.describe(path)}.")


def _copy(disk: Disk, pieces: LogPieces, path: str, start: int, end: int, bytes_max: int) -> int:
    disk.make_folder(FOLDER)
    file, done = disk.open(path, create=True), 0
    try:
        file.truncate(0)
        while start + done < end and done < bytes_max:
            data = pieces.read(start + done, end, min(PIECE_BYTES, bytes_max - done))
            if done + len(data) > bytes_max:
                break
            file.pwrite([data], done)
            done += len(data)
        file.sync()
    finally:
        file.close()
    if not done:
        disk.remove(path)
    disk.sync_folder(FOLDER)
    return done


def _drop_old(disk: Disk) -> None:
    for name in sorted(disk.list(FOLDER))[:-FILES_MAX]:
        disk.remove(f"{FOLDER}/{name}")
