"""A leader's snapshot in a follower's folder: what a copy needs once the log before it is gone.

Only the owner's state and the ranges of the queues come over. The timers do not, because their runs are files of the
leader's own: the copy finds its pending timers in the log, where retention appends old ones again before their part
goes (`timers.loading`), and once it has replayed its log up to a snapshot (`copy_replay`), that one names its own runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenq.errors import StoreCorrupted
from evenq.store.io.disk import Disk, read_whole
from evenq.store.log import snapshot
from evenq.store.log.snapshot import Snapshot

__all__ = ["CopiedSnapshot", "install", "newest", "parsed", "read"]

TIMERS_UNKNOWN = b"?"
"""In place of a manifest: who opens the store looks for them in the log."""


@dataclass(frozen=True, slots=True)
class CopiedSnapshot:
    """One that can be copied."""

    log_offset: int
    """It holds all before."""
    log_start: int
    """Where the log began then."""
    path: str
    size: int


def newest(disk: Disk) -> CopiedSnapshot | None:
    """The newest one, checked. None: there is none, or it is damaged."""
    path = snapshot.newest_path(disk)
    data = read_whole(disk, path) if path else None
    saved = snapshot.parsed(data, disk.describe(path)) if data is not None else None
    if data is None or saved is None:
        return None
    return CopiedSnapshot(saved.log_offset, saved.log_start, path, len(data))


def read(disk: Disk, path: str) -> bytes:
    """The whole file. Raises StoreCorrupted if it is gone: a newer one took its place."""
    data = read_whole(disk, path)
    if data is None:
        raise StoreCorrupted(f"{disk.describe(path)} is gone: ask for the newest snapshot again")
    return data


def parsed(data: bytes, *, origin: str) -> Snapshot:
    """What came from a leader. Raises StoreCorrupted if it is no whole snapshot, StoreError for an unknown version."""
    saved = snapshot.parsed(data, origin)
    if saved is None or saved.version == 1:
        raise StoreCorrupted(f"{origin}: {len(data)} bytes are no whole snapshot")
    return saved


def install(disk: Disk, data: bytes, *, origin: str, log_start: int) -> Snapshot:
    """Keep what came from a leader, for a copy whose log begins at `log_start` and does not reach the snapshot yet.
    Raises as `parsed`.
    """
    kept = replace(parsed(data, origin=origin), timers=TIMERS_UNKNOWN, log_start=log_start)
    snapshot.save(disk, kept)
    return kept
