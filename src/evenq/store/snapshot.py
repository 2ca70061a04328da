"""Snapshots of the owner's state: `snapshot/<20-digit log offset>`. The state is the newest good one plus the state
records behind it.

Written beside, synced, renamed, and only after the log is synced up to everything the state may hold. The two newest
are kept, so a damaged one costs a longer replay, never the state.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.disk import Disk, read_whole, write_whole
from evenq.store.record import Field, struct_of

__all__ = ["SNAPSHOT_FIELDS", "Snapshot", "load", "save"]

log = logging.getLogger(__name__)

FOLDER: Final = "snapshot"
MAGIC: Final = 0x4576536E  # "EvSn"
VERSION: Final = 1
KEPT: Final = 2
SNAPSHOT_FIELDS: Final = (
    Field("magic", "I"),
    Field("crc32c", "I"),
    Field("version", "I"),
    Field("log offset", "Q"),
    Field("payload length", "Q"),
)
HEADER: Final = struct_of(SNAPSHOT_FIELDS)
CRC_END: Final = 8  # the CRC covers everything behind itself


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State that holds the effect of every record before `log_offset`."""

    log_offset: int
    payload: bytes


def save(disk: Disk, snapshot: Snapshot) -> None:
    """Write it and drop the ones over two."""
    disk.make_folder(FOLDER)
    head = HEADER.pack(MAGIC, 0, VERSION, snapshot.log_offset, len(snapshot.payload))
    crc = crc32c(snapshot.payload, crc32c(head[CRC_END:]))
    data = HEADER.pack(MAGIC, crc, VERSION, snapshot.log_offset, len(snapshot.payload)) + snapshot.payload
    write_whole(disk, f"{FOLDER}/{snapshot.log_offset:020d}", data)
    names = [name for name in disk.list(FOLDER) if not name.endswith(".new")]
    for name in names[:-KEPT]:
        disk.remove(f"{FOLDER}/{name}")


def load(disk: Disk, *, log_start: int) -> Snapshot | None:
    """The newest good one. Raises StoreCorrupted if all are damaged and the log's beginning is gone."""
    names = [name for name in disk.list(FOLDER) if name.isdecimal()]
    for name in reversed(names):
        found = _read(disk, f"{FOLDER}/{name}")
        if found is not None:
            return found
        log.warning("snapshot is damaged, taking an older one", extra={"file": disk.describe(f"{FOLDER}/{name}")})
    if names and log_start > 0:
        raise StoreCorrupted(
            f"all snapshots in {disk.describe(FOLDER)} are damaged and the log before offset {log_start} is gone: "
            "restore the folder from a copy"
        )
    return None


def _read(disk: Disk, path: str) -> Snapshot | None:
    data = read_whole(disk, path)
    if data is None or len(data) < HEADER.size:
        return None
    magic, crc, version, log_offset, length = HEADER.unpack_from(data)
    if magic != MAGIC or length != len(data) - HEADER.size or crc32c(data[CRC_END:]) != crc:
        return None
    if version != VERSION:
        raise StoreError(
            f"{disk.describe(path)} has format version {version}; this program reads version {VERSION}: "
            "start a newer program"
        )
    return Snapshot(log_offset, data[HEADER.size :])
