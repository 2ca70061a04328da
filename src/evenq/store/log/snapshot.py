"""Snapshots: `snapshot/<20-digit log offset>`. The state is the newest good one plus the records after it.

Three sections, taken on the loop at one moment: the owner's state (opaque), the range of every queue that ever existed
(so that a queue whose messages are all gone keeps its numbers), and the timer store's manifest (opaque). A file is
written beside, synced and renamed, after the log is synced up to everything that the state may hold. The two newest are
kept, so a damaged one costs a longer replay, never the state.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError
from evenq.runtime.failpoints import passing
from evenq.store.io.disk import Disk, read_whole, write_whole
from evenq.store.log.record import ByteField, struct_of

log = logging.getLogger(__name__)

FOLDER: Final = "snapshot"
MAGIC: Final = 0x4576536E  # "EvSn"
VERSION: Final = 2
KEPT: Final = 2
START_FIELDS: Final = (ByteField("magic", "I"), ByteField("crc32c", "I"), ByteField("version", "I"))
SNAPSHOT_FIELDS_1: Final = (*START_FIELDS, ByteField("log offset", "Q"), ByteField("payload length", "Q"))
SNAPSHOT_FIELDS: Final = (
    *START_FIELDS,
    ByteField("log offset", "Q"),
    ByteField("log start", "Q"),
    ByteField("last store ms", "q"),
    ByteField("owner length", "Q"),
    ByteField("queues length", "Q"),
    ByteField("timers length", "Q"),
)
QUEUE_FIELDS: Final = (
    ByteField("topic id", "I"),
    ByteField("queue id", "I"),
    ByteField("min offset", "Q"),
    ByteField("next offset", "Q"),
)
START: Final = struct_of(START_FIELDS)
HEADER_1: Final = struct_of(SNAPSHOT_FIELDS_1)
HEADER: Final = struct_of(SNAPSHOT_FIELDS)
QUEUE: Final = struct_of(QUEUE_FIELDS)
CRC_END: Final = 8  # the CRC covers everything behind itself

Ranges = dict[tuple[int, int], tuple[int, int]]
"""(topic id, queue id) to (min offset, next offset)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State that holds the effect of every record before `log_offset`."""

    log_offset: int
    payload: bytes
    """The owner's state."""
    queues: Ranges = field(default_factory=dict)
    """Every queue that ever existed, as of `log_offset`. Empty in version 1, from before anything was deleted."""
    timers: bytes = b""
    log_start: int = 0
    """The log before it was given up: files of it that are left are deleted at the next start."""
    last_store_ms: int = 0
    version: int = field(default=VERSION, compare=False)


def save(disk: Disk, snapshot: Snapshot) -> None:
    """Writes a snapshot and removes all but the two newest."""
    disk.make_folder(FOLDER)
    queues = b"".join(QUEUE.pack(*key, *span) for key, span in sorted(snapshot.queues.items()))
    sections = (snapshot.payload, queues, snapshot.timers)
    head = HEADER.pack(
        MAGIC, 0, VERSION, snapshot.log_offset, snapshot.log_start, snapshot.last_store_ms, *map(len, sections)
    )
    crc = crc32c(head[CRC_END:])
    for section in sections:
        crc = crc32c(section, crc)
    head = head[: CRC_END - 4] + crc.to_bytes(4, "big") + head[CRC_END:]
    write_whole(disk, path_at(snapshot.log_offset), b"".join((head, *sections)))
    # After the rename of the new one: two whole ones exist at any moment.
    for name in [name for name in disk.list(FOLDER) if name.endswith(".new")] + _names(disk)[:-KEPT]:
        passing("snapshot.removing")
        disk.remove(f"{FOLDER}/{name}")
        passing("snapshot.removed")


def drop_before(disk: Disk, log_offset: int) -> None:
    """Removes the snapshots that need a part of the log that is about to be deleted."""
    old = [name for name in _names(disk) if int(name) < log_offset]
    for name in old:
        disk.remove(f"{FOLDER}/{name}")
    if old:
        disk.sync_folder(FOLDER)


def load(disk: Disk, *, log_start: int) -> Snapshot | None:
    """Returns the newest good one. Raises StoreCorrupted if there were snapshots, but none is left that covers the log
    before `log_start`; StoreError for an unknown version.
    """
    names = _names(disk)
    for name in reversed(names):
        saved = _read(disk, f"{FOLDER}/{name}")
        if saved is not None and saved.log_offset >= log_start:
            return saved
        file = disk.describe(f"{FOLDER}/{name}")
        log.warning("snapshot %s is damaged or too old: using an older one or the log", file, extra={"file": file})
    if names and log_start > 0:
        raise StoreCorrupted(
            f"all snapshots in {disk.describe(FOLDER)} are damaged and the log before offset {log_start} is gone: "
            "restore the folder from a copy"
        )
    return None


def path_at(log_offset: int) -> str:
    """Returns the file of the snapshot at a log offset."""
    return f"{FOLDER}/{log_offset:020d}"


def newest_path(disk: Disk) -> str:
    """Returns the file of the newest one, good or not; empty without one."""
    names = _names(disk)
    return f"{FOLDER}/{names[-1]}" if names else ""


def timer_sections(disk: Disk) -> list[bytes]:
    """Returns the timer store's part of each good snapshot on disk."""
    snapshots = [_read(disk, f"{FOLDER}/{name}") for name in _names(disk)]
    return [saved.timers for saved in snapshots if saved is not None]


def _names(disk: Disk) -> list[str]:
    return [name for name in disk.list(FOLDER) if name.isdecimal()]


def _read(disk: Disk, path: str) -> Snapshot | None:
    data = read_whole(disk, path)
    return None if data is None else parsed(data, disk.describe(path))


def parsed(data: bytes, place: str) -> Snapshot | None:
    """Parses a file; None if it is damaged. Raises StoreError, which names the place, for an unknown version."""
    if len(data) < START.size:
        return None
    magic, crc, version = START.unpack_from(data)
    if magic != MAGIC or crc32c(memoryview(data)[CRC_END:]) != crc:
        return None
    if version == 1:
        return _read_1(data)
    if version != VERSION:
        raise StoreError(
            f"{place} has format version {version}; this program reads versions 1 to {VERSION}: start a newer program"
        )
    if len(data) < HEADER.size:
        return None
    _, _, _, log_offset, log_start, last_store_ms, *lengths = HEADER.unpack_from(data)
    if sum(lengths) != len(data) - HEADER.size or lengths[1] % QUEUE.size:
        return None
    queues_at = HEADER.size + lengths[0]
    timers_at = queues_at + lengths[1]
    rows = QUEUE.iter_unpack(memoryview(data)[queues_at:timers_at])
    queues = {(topic_id, queue_id): (low, high) for topic_id, queue_id, low, high in rows}
    return Snapshot(log_offset, data[HEADER.size : queues_at], queues, data[timers_at:], log_start, last_store_ms)


def _read_1(data: bytes) -> Snapshot | None:
    if len(data) < HEADER_1.size:
        return None
    _, _, _, log_offset, length = HEADER_1.unpack_from(data)
    if length != len(data) - HEADER_1.size:
        return None
    return Snapshot(log_offset, data[HEADER_1.size :], version=1)
