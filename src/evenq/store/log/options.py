"""Options of a store, and its counters.

`StoreOptions` is the only place of their defaults, bounds and meanings: the broker's settings take them from here. The
metrics collector reads `StoreStats` at scrape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any


class FlushMode(StrEnum):
    """Moment at which an append is safe (CL-5)."""

    ASYNC = "async"
    """Written to the page cache: survives the end of the process; a power loss costs at most one flush interval."""
    SYNC = "sync"
    """Confirmed by fdatasync, one for all appends that wait (group commit): survives a power loss."""


def _means(
    text: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None
) -> dict[str, str | float]:
    """Returns the metadata of one field: its meaning and its bounds."""
    bounds = {name: bound for name, bound in (("ge", ge), ("gt", gt), ("le", le)) if bound is not None}
    return {"description": text, **bounds}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Limits of one store. Each field has its meaning and bounds beside its default; server settings use all three."""

    segment_bytes: int | None = field(
        default=None,
        metadata=_means(
            "Size of one commit-log file, bytes; empty = 1/16 of the volume, from 16 MiB to 1 "
            "GiB; with copies 64 MiB. A folder keeps the size that it was created with.",  # CL-2; in memory 16 MiB
            ge=1 << 12,
            le=1 << 31,
        ),
    )
    flush: FlushMode = field(
        default=FlushMode.ASYNC,
        metadata=_means(
            "When a message is acknowledged: async = after it is written, and fsync follows "
            "soon; sync = after an fsync, one for all messages that wait. Use sync if messages must survive "
            "a power failure."
        ),
    )
    flush_interval_ms: int = field(
        default=500, metadata=_means("With async flush: longest time between two fsyncs, ms.", ge=1)
    )
    flush_bytes: int = field(default=4 << 20, metadata=_means("With async flush: most bytes between two fsyncs.", ge=1))
    checkpoint_interval_ms: int = field(
        default=5_000,
        metadata=_means(
            "How often consume queue entries are written to their files and the checkpoint moves on, ms.", ge=1
        ),
    )
    checkpoint_entries: int = field(
        default=100_000,
        metadata=_means("A checkpoint is made early when this many consume queue entries are only in memory.", ge=1),
    )
    snapshot_log_bytes: int = field(
        default=256 << 20,
        metadata=_means(
            "Growth of the log between two snapshots, bytes. Lower values shorten a restart after a crash.", ge=1
        ),
    )
    snapshot_records: int = field(
        default=300_000,
        metadata=_means(
            "Most records between two snapshots, mostly a twentieth of it; limits the time of a restart where records "
            "are small.",
            ge=1,
        ),
    )
    snapshot_interval_ms: int = field(
        default=600_000, metadata=_means("Longest time between two snapshots while the log grows, ms.", ge=1)
    )
    retention_ms: int = field(
        default=72 * 3_600_000,
        metadata=_means(
            "How long messages are kept, ms (72 h); 0 = for ever, and messages are refused "
            "when the disk is full.",  # then a full disk refuses messages
            ge=0,
        ),
    )
    retention_hour: int = field(
        default=4,
        metadata=_means("Hour of the day (UTC) in which expired files are deleted; -1 = any hour.", ge=-1, le=23),
    )
    table_wait_ms: int = field(
        default=24 * 3_600_000,
        metadata=_means(
            "How long beyond their retention messages wait for the exporter of their topic's table, ms (24 h). "
            "Nothing waits while the disk is fuller than disk_clean_ratio; 0 = never. Raise it if an exporter may "
            "be away for longer, and leave that much free disk.",
            ge=0,
        ),
    )
    disk_clean_ratio: float = field(
        default=0.75,
        metadata=_means("Delete expired files at any hour when the disk is fuller than this share.", gt=0, le=1),
    )
    disk_force_ratio: float = field(
        default=1.0,
        metadata=_means(
            "Delete the oldest files, even if they are not expired or not read, when the disk "
            "is fuller than this share; 1 = never.",
            gt=0,
            le=1,
        ),
    )
    append_queue_max: int = field(
        default=32_768,
        metadata=_means(
            "Most records that wait to be written; beyond it messages are refused with TooManyRequests.", ge=1
        ),
    )
    append_bytes_max: int = field(
        default=128 << 20,
        metadata=_means(
            "Most bytes that wait to be written; beyond it messages are refused with TooManyRequests.", ge=1
        ),
    )
    cache_bytes: int = field(
        default=32 << 20,
        metadata=_means("Memory for the newest part of the log, bytes; readers that keep up need no disk.", ge=0),
    )
    disk_free_min_bytes: int | None = field(
        default=None,
        metadata=_means(
            "Refuse messages when less than this is free on the disk, bytes; empty = 1/20 of "
            "the volume, at most 1 GiB.",
            ge=0,  # StoreFull; not used by the memory engine
        ),
    )
    disk_used_max_ratio: float = field(
        default=0.90,
        metadata=_means(
            "Refuse messages when the disk is fuller than this share.",  # state records may use the reserve
            gt=0,
            le=1,
        ),
    )
    memory_bytes_max: int = field(
        default=1 << 30,
        metadata=_means("Without a path: most bytes kept in memory; beyond it messages are refused.", ge=1),
    )
    open_files_max: int = field(default=256, metadata=_means("Most files that are kept open for reading.", ge=1))
    read_threads: int = field(default=2, metadata=_means("Threads that read messages which are not in memory.", ge=1))

    def __post_init__(self) -> None:
        for one in fields(self):
            value, limits = getattr(self, one.name), one.metadata
            if value is not None and (problem := _out_of_bounds(value, limits)):
                usual = "" if one.default is None else f"; {one.default} is usual"
                raise ValueError(f"{one.name} {value} is {problem}{usual}: {limits['description']}")


def _out_of_bounds(value: float, limits: Mapping[str, Any]) -> str:
    """Returns how a value breaks its bounds; empty if it does not."""
    if "ge" in limits and value < limits["ge"]:
        return f"under {limits['ge']}"
    if "gt" in limits and value <= limits["gt"]:
        return f"not over {limits['gt']}"
    if "le" in limits and value > limits["le"]:
        return f"over {limits['le']}"
    return ""


@dataclass(slots=True)
class StoreStats:
    """Counters of one store since it was opened (appends count when they are safe), and sizes. Only the loop writes
    them.
    """

    messages: int = 0
    states: int = 0
    timers: int = 0
    """Timers and ends of timers appended and safe."""
    bytes: int = 0
    """Log bytes written and safe, headers included."""
    batches: int = 0
    fsyncs: int = 0
    log_bytes: int = 0
    """Size of the log now: its end less its start."""
    log_end: int = 0
    """First free log offset after what is safe and, in a log with copies, committed: after what is consumable."""
    written_end: int = 0
    """First free log offset after what the writer wrote; over `log_end` while records wait for their commit."""
    log_synced: int = 0
    """Log offset up to which the disk confirmed."""
    waiting: int = 0
    """Records that wait for the writer now, or for their commit."""
    cache_bytes: int = 0
    refused: int = 0
    """Appends refused: full, overloaded or poisoned."""
    snapshots: int = 0
    deleted_files: int = 0
    deleted_bytes: int = 0
    index_end: int = 0
    """Messages before this log offset are found by key."""
    index_files: int = 0
    index_failures: int = 0
    """Failures of the message index: files that were damaged or could not be written, and others."""
    cold_reads: int = 0
    """Reads that needed the disk."""
    damaged_reads: int = 0
    """Reads that failed due to damage."""
    recovered_records: int = 0
    """Records that recovery scanned at the start."""
    recovered_cut_bytes: int = 0
    """Bytes of a torn tail that recovery cut off at the start."""
