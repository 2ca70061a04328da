"""The pending timers at one moment, as a section of a snapshot: the runs, how far each is used up, their entries that
ended, and the timers in memory.

Frozen on the loop (`PendingTimers.freeze`), packed on the flush thread. The log's timers and ends from the snapshot's
`log offset` on are replayed over it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.log.record import ByteField, struct_of
from evenq.store.timers.keys import KEY_BYTES, keys_in

MAGIC: Final = 0x4576546D  # "EvTm"
VERSION: Final = 1
MANIFEST_FIELDS: Final = (
    ByteField("magic", "I"),
    ByteField("crc32c", "I"),
    ByteField("version", "I"),
    ByteField("next run", "Q"),
    ByteField("lowest possible id", "Q"),
    ByteField("run count", "I"),
    ByteField("ended count", "I"),
    ByteField("timer count", "I"),
)
RUN_USE_FIELDS: Final = (
    ByteField("run number", "Q"),
    ByteField("entry count", "Q"),
    ByteField("used entries", "Q"),
)
HEADER: Final = struct_of(MANIFEST_FIELDS)
RUN_USE: Final = struct_of(RUN_USE_FIELDS)
CRC_END: Final = 8
TIMERS_UNKNOWN: Final = b"?"
"""In place of a manifest, in a snapshot that came from another copy or a backup: it needs no runs, as the store that
opens the folder reads the timers from the log.
"""


@dataclass(frozen=True, slots=True)
class RunUse:
    """One run and how far it is used up."""

    number: int
    count: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All pending timers: `keys`, and the entries of runs that are neither used up nor in `ended`."""

    next_run: int
    floor: int
    """No pending timer has a smaller id."""
    runs: tuple[RunUse, ...] = ()
    ended: Iterable[int] = ()
    keys: list[bytes]


def pack(manifest: Manifest) -> bytes:
    ended = sorted(manifest.ended)
    head = HEADER.pack(
        MAGIC, 0, VERSION, manifest.next_run, manifest.floor, len(manifest.runs), len(ended), len(manifest.keys)
    )
    body = b"".join(
        (
            head[CRC_END:],
            *(RUN_USE.pack(run.number, run.count, run.used) for run in manifest.runs),
            struct.pack(f">{len(ended)}Q", *ended),
            *sorted(manifest.keys),
        )
    )
    return struct.pack(">II", MAGIC, crc32c(body)) + body


def unpack(data: bytes) -> Manifest:
    """Parses a section. Raises StoreCorrupted for damage, StoreError for an unknown version."""
    if len(data) < HEADER.size:
        raise StoreCorrupted(f"a snapshot's section of timers has {len(data)} bytes, it takes at least {HEADER.size}")
    magic, crc, version, next_run, floor, run_count, ended_count, key_count = HEADER.unpack_from(data)
    ended_at = HEADER.size + run_count * RUN_USE.size
    keys_at = ended_at + 8 * ended_count
    if magic != MAGIC or crc32c(data[CRC_END:]) != crc or len(data) != keys_at + KEY_BYTES * key_count:
        raise StoreCorrupted("a snapshot's section of timers does not fit its CRC")
    if version != VERSION:
        raise StoreError(
            f"a snapshot's section of timers has format version {version}; this program reads version {VERSION}: "
            "start a newer program"
        )
    return Manifest(
        next_run=next_run,
        floor=floor,
        runs=tuple(RunUse(*fields) for fields in RUN_USE.iter_unpack(data[HEADER.size : ended_at])),
        ended=struct.unpack_from(f">{ended_count}Q", data, ended_at),
        keys=keys_in(data[keys_at:]),
    )
