"""A leader's snapshot in a follower's folder, needed by a copy once the log before it is gone.

Only the owner's state and the ranges of the queues are copied. The timers are not, because their runs are files of the
leader: the copy finds its pending timers in the log, where retention appends old ones again before it deletes their
part (`timers.loading`). After a replay up to a snapshot (`copy_replay`), that snapshot names the copy's own runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenq.errors import StoreCorrupted
from evenq.store.io.disk import Disk, read_whole
from evenq.store.log import snapshot
from evenq.store.log.snapshot import Snapshot
from evenq.store.timers.manifest import TIMERS_UNKNOWN


@dataclass(frozen=True, slots=True)
class CopiedSnapshot:
    """A snapshot that can be copied."""

    log_offset: int
    """It holds the effect of all records before."""
    log_start: int
    path: str
    size: int


def newest(disk: Disk) -> CopiedSnapshot | None:
    """Returns the newest snapshot, checked; None if there is none or it is damaged."""
    path = snapshot.newest_path(disk)
    data = read_whole(disk, path) if path else None
    saved = snapshot.parsed(data, disk.describe(path)) if data is not None else None
    if data is None or saved is None:
        return None
    return CopiedSnapshot(saved.log_offset, saved.log_start, path, len(data))


def read(disk: Disk, path: str) -> bytes:
    """Returns the whole file. Raises StoreCorrupted if a newer one replaced it."""
    data = read_whole(disk, path)
    if data is None:
        raise StoreCorrupted(f"{disk.describe(path)} is gone: request the newest snapshot again")
    return data


def parsed(data: bytes, *, origin: str) -> Snapshot:
    """Parses a leader's snapshot. Raises StoreCorrupted if it is not whole, StoreError for an unknown version."""
    saved = snapshot.parsed(data, origin)
    if saved is None or saved.version == 1:
        raise StoreCorrupted(f"{origin}: {len(data)} bytes are not a whole snapshot")
    return saved


def install(disk: Disk, data: bytes, *, origin: str, log_start: int) -> Snapshot:
    """Keeps a leader's snapshot for a log that begins at `log_start` and ends before it. Raises as `parsed`."""
    kept = replace(parsed(data, origin=origin), timers=TIMERS_UNKNOWN, log_start=log_start)
    snapshot.save(disk, kept)
    return kept
