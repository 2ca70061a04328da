"""The checkpoint: the log offset up to which the log is synced and its consume queue entries are in files. Recovery
starts there.

One small file, replaced whole. It lists how many entries each queue has in files, so that a shortened or missing file
is detected; then the consume queues are rebuilt from the whole log. `clean`: the store was closed in order, and the log
ends here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreError
from evenq.store.io.disk import Disk, read_whole, write_whole
from evenq.store.log.record import ByteField, struct_of

PATH: Final = "checkpoint"
MAGIC: Final = 0x4576436B  # "EvCk"
VERSION: Final = 2
CHECKPOINT_FIELDS: Final = (
    ByteField("magic", "I"),
    ByteField("crc32c", "I"),
    ByteField("version", "H"),
    ByteField("clean", "H"),
    ByteField("queue count", "I"),
    ByteField("log offset", "Q"),
    ByteField("last store ms", "q"),
    ByteField("log start", "Q"),
)
QUEUE_FIELDS: Final = (
    ByteField("topic id", "I"),
    ByteField("queue id", "I"),
    ByteField("min offset", "Q"),
    ByteField("max offset", "Q"),
)
HEADER: Final = struct_of(CHECKPOINT_FIELDS)
HEADER_1: Final = struct_of(CHECKPOINT_FIELDS[:-1])  # version 1 is from before anything was deleted
QUEUE: Final = struct_of(QUEUE_FIELDS)
CRC_END: Final = 8  # the CRC covers everything behind itself
PREFIX: Final = struct.Struct(">II")


@dataclass(slots=True)
class Checkpoint:
    """State that was certain when it was written."""

    log_offset: int = 0
    clean: bool = False
    last_store_ms: int = 0
    queues: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """(topic id, queue id) to (min, max) of the entries in files."""
    log_start: int = 0
    """The log before it was given up: files of it that are left are deleted at the next start."""


def save(disk: Disk, checkpoint: Checkpoint) -> None:
    """Replaces the file; a crash leaves the old one or the new one."""
    head = HEADER.pack(
        MAGIC,
        0,
        VERSION,
        checkpoint.clean,
        len(checkpoint.queues),
        checkpoint.log_offset,
        checkpoint.last_store_ms,
        checkpoint.log_start,
    )
    body = head[CRC_END:] + b"".join(QUEUE.pack(*key, *span) for key, span in sorted(checkpoint.queues.items()))
    write_whole(disk, PATH, PREFIX.pack(MAGIC, crc32c(body)) + body)


def load(disk: Disk) -> Checkpoint | None:
    """Returns the last checkpoint; None if it is missing or damaged (recovery then reads the whole log)."""
    data = read_whole(disk, PATH)
    if data is None or len(data) < HEADER_1.size:
        return None
    magic, crc, version, clean, count, log_offset, last_store_ms = HEADER_1.unpack_from(data)
    if magic != MAGIC or crc32c(memoryview(data)[CRC_END:]) != crc:
        return None
    if version not in (1, VERSION):
        raise StoreError(
            f"{disk.describe(PATH)} has format version {version}; this program reads versions 1 to {VERSION}: "
            "start a newer program"
        )
    header = HEADER_1 if version == 1 else HEADER
    if len(data) != header.size + count * QUEUE.size:
        return None
    log_start = 0 if version == 1 else HEADER.unpack_from(data)[-1]
    rows = QUEUE.iter_unpack(memoryview(data)[header.size :])
    queues = {(topic_id, queue_id): (low, high) for topic_id, queue_id, low, high in rows}
    return Checkpoint(log_offset, bool(clean), last_store_ms, queues, log_start)
