"""The folder `lost`: keeps the end of a log before a cut that may remove committed records.

An operator can let a copy lead that lacks records of other copies (an unclean election). Those records are cut from the
other copies, and this is their last place. Each cut has one file with the bytes as they were in the log, named by the
log offset of the first one; size and number are bounded. Best effort: a full disk must not keep a copy from following.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from evenq.errors import Error
from evenq.store.io.disk import Disk
from evenq.store.log.log_pieces import LogPieces
from evenq.store.log.record import MESSAGE

log = logging.getLogger(__name__)

FOLDER: Final = "lost"
BYTES_MAX: Final = 64 << 20
"""Size limit of one file: the first bytes are kept, since their messages were acknowledged first."""
ROOM_BYTES: Final = 1 << 30
"""Half of the free space over this may be used."""
FILES_MAX: Final = 4
"""The newest ones stay."""
PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTail:
    """Records that a cut removes."""

    messages: int
    """Number of messages; records that only keep progress do not count."""
    kept_bytes: int
    where: str
    """A sentence about the kept bytes."""


def keep(disk: Disk, pieces: LogPieces, start: int, end: int) -> LostTail:
    """Counts the messages between two places of the log, and copies its first BYTES_MAX, or what fits on the disk."""
    messages = 0
    try:
        messages = sum(kind == MESSAGE for kind in pieces.kinds(start, end))
        path = f"{FOLDER}/{start:020d}"
        room_bytes = max(0, disk.usage().free // 2 - ROOM_BYTES)
        kept = _copy(disk, pieces, path, start, end, min(BYTES_MAX, room_bytes))
        _drop_old(disk)
    except (Error, OSError) as error:
        log.warning("the part of the log that is cut from %d on is not kept: %s", start, error)
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
