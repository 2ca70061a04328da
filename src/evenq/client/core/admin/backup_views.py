"""What a broker is asked for a backup, and what it says of itself first. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BackupHead", "BackupPart", "BackupWish"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupWish:
    """What is there already, and what is wanted. Offsets are of the log, in bytes."""

    broker_name: str
    cluster: str = ""
    """Empty: any."""
    start: int = 0
    """All before is there."""
    compare_from: int = 0
    """The bytes from here to `start` have the checksum `compare_crc32c`; equal to `start`: nothing is compared."""
    compare_crc32c: int = 0
    bytes_per_second: int = 0
    """0: no limit."""
    end: int = 0
    """Over 0: only the log from `start` to here, and no snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupHead:
    """What a broker sends, and of which log."""

    cluster: str
    broker_name: str
    store_id: str
    segment_bytes: int
    epoch: int
    log_start: int
    """Where the broker's log begins."""
    start: int
    """Where the log that it sends begins; behind what was asked if the rest is gone."""
    end: int
    """Where that ends, behind a whole group of records."""
    compared: bool
    """What is there is of this log."""
    snapshot_offset: int
    snapshot_bytes: int
    now_ms: int
    """The broker's clock, ms since the epoch."""


@dataclass(frozen=True, slots=True)
class BackupPart:
    """Some bytes, behind those before."""

    snapshot: bytes
    log: bytes
