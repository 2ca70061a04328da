"""The request for a backup of a broker, and the parts of its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupWish:
    """A request for a backup. Offsets are log offsets, in bytes."""

    broker_name: str
    cluster: str = ""
    """Empty: any."""
    start: int = 0
    """The backup has the log up to here."""
    compare_from: int = 0
    """`compare_crc32c` is the checksum from here to `start`; equal to `start`: nothing is compared."""
    compare_crc32c: int = 0
    bytes_per_second: int = 0
    """0: no limit."""
    end: int = 0
    """Over 0: only the log from `start` to here, and no snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupHead:
    """The head of a backup: its log and its range."""

    cluster: str
    broker_name: str
    store_id: str
    segment_bytes: int
    epoch: int
    log_start: int
    start: int
    """Begin of the part that is sent; later than requested if the rest was deleted."""
    end: int
    """End of that part, at the end of a group of records."""
    compared: bool
    """True: the existing backup is of this log."""
    snapshot_offset: int
    snapshot_bytes: int
    now_ms: int
    """The broker's clock, ms since the epoch."""


@dataclass(frozen=True, slots=True)
class BackupPart:
    snapshot: bytes
    log: bytes
