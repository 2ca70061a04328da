"""What a store can be told, and what it counts.

`StoreOptions` are plain values and the only place where their defaults are said: the broker's settings take them from
here. `StoreStats` are plain integers that the loop thread adds to and the metrics collector reads at scrape.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["FlushMode", "StoreOptions", "StoreStats"]


class FlushMode(StrEnum):
    """When an append is safe (CL-5)."""

    ASYNC = "async"
    """Written to the page cache: survives the end of the process; a power loss costs at most one flush interval."""
    SYNC = "sync"
    """Confirmed by fdatasync, one for all appends that wait (group commit): survives a power loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Limits and habits of one store."""

    segment_bytes: int | None = None
    """Size of one commit-log file (CL-2); None: by the size of the volume (`store.volume`), up to 1 GiB. The memory
    engine takes 16 MiB at most.
    """
    flush: FlushMode = FlushMode.ASYNC
    """When an append is answered."""
    flush_interval_ms: int = 500
    """Longest time that written bytes stay unsynced in ASYNC mode."""
    flush_bytes: int = 4 << 20
    """Unsynced bytes that start a sync before the interval is over, in ASYNC mode."""
    checkpoint_interval_ms: int = 5_000
    """How often consume queue entries go to their files and the checkpoint moves on."""
    checkpoint_entries: int = 100_000
    """Consume queue entries kept only in memory that start a checkpoint before its interval is over."""
    snapshot_log_bytes: int = 256 << 20
    """Growth of the log after which the store takes a snapshot by itself: what a start reads at most."""
    snapshot_interval_ms: int = 600_000
    """Time after which it takes one if anything is new."""
    retention_ms: int = 72 * 3_600_000
    """How long messages are kept; 0 for ever, then a full disk refuses messages and nothing is deleted."""
    retention_hour: int = 4
    """Hour of the day (UTC) in which expired files are deleted; -1 for any."""
    disk_clean_ratio: float = 0.75
    """Share of the disk in use from which expired files are deleted at any hour."""
    disk_force_ratio: float = 1.0
    """Share of the disk in use from which the oldest files are deleted whatever their age, read or not; 1: never, a
    full disk refuses messages.
    """
    append_queue_max: int = 32_768
    """Appended records that may wait for the writer; over it TooManyRequests."""
    append_bytes_max: int = 128 << 20
    """Appended bytes that may wait for the writer; over it TooManyRequests."""
    cache_bytes: int = 32 << 20
    """Newest messages kept in memory for hot reads."""
    disk_free_min_bytes: int | None = None
    """Free bytes under which messages are refused (StoreFull); None: 1/20 of the volume and at most 1 GiB. Not used by
    the memory engine.
    """
    disk_used_max_ratio: float = 0.90
    """Share of the disk in use over which messages are refused. State records go on into the reserve."""
    memory_bytes_max: int = 1 << 30
    """Size of the memory engine's disk."""
    open_files_max: int = 256
    """Files kept open for reading."""
    read_threads: int = 2
    """Threads for reads that miss the memory."""

    def __post_init__(self) -> None:
        if self.segment_bytes is not None and not 4096 <= self.segment_bytes <= 1 << 31:
            raise ValueError(f"segment_bytes {self.segment_bytes} is outside 4096..{1 << 31}; 1073741824 is usual")
        for name in (
            "flush_interval_ms",
            "flush_bytes",
            "append_queue_max",
            "append_bytes_max",
            "checkpoint_interval_ms",
            "checkpoint_entries",
            "snapshot_log_bytes",
            "snapshot_interval_ms",
            "memory_bytes_max",
            "open_files_max",
            "read_threads",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is under 1")
        for name, usual in (("disk_clean_ratio", 0.75), ("disk_force_ratio", 1.0), ("disk_used_max_ratio", 0.9)):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)} is outside 0..1; {usual} is usual")
        if not -1 <= self.retention_hour <= 23:
            raise ValueError(f"retention_hour {self.retention_hour} is outside -1..23; 4 is usual, -1 is any hour")
        if self.retention_ms < 0:
            raise ValueError(f"retention_ms {self.retention_ms} is under 0; 259200000 (72 h) is usual, 0 is for ever")


@dataclass(slots=True)
class StoreStats:
    """Counters of one store since it was opened, and a few sizes. Written by the loop thread only."""

    messages: int = 0
    """Messages appended and safe."""
    states: int = 0
    """State records appended and safe."""
    timers: int = 0
    """Timers and ends of timers appended and safe."""
    bytes: int = 0
    """Log bytes written and safe, headers included."""
    batches: int = 0
    """Groups the writer wrote."""
    fsyncs: int = 0
    """Syncs of the commit log."""
    log_bytes: int = 0
    """Size of the log now: its end less its start."""
    log_end: int = 0
    """First free log offset behind what is safe."""
    log_synced: int = 0
    """Log offset up to which the disk confirmed."""
    waiting: int = 0
    """Records that wait for the writer now."""
    cache_bytes: int = 0
    """Bytes of the hot cache now."""
    refused: int = 0
    """Appends refused: full, overloaded or poisoned."""
    snapshots: int = 0
    """Snapshots written."""
    deleted_files: int = 0
    """Log files that retention deleted."""
    deleted_bytes: int = 0
    """Their bytes."""
    index_end: int = 0
    """The messages before this log offset are found by key."""
    index_files: int = 0
    """Files of the message index."""
    index_failures: int = 0
    """Files of the message index that were damaged or could not be written, and other trouble with it."""
    cold_reads: int = 0
    """Reads that needed the disk."""
    recovered_records: int = 0
    """Records that recovery scanned at the start."""
    recovered_cut_bytes: int = 0
    """Bytes of a torn tail that recovery cut off at the start."""
