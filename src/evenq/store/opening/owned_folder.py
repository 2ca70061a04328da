"""Steps before a store is open: its folder, the folder's owner, and the recovery of the log.

`MessageStore.open` calls this on the loop; the log is read on the flush thread, piece by piece. After any failure the
folder is released, and an error of the disk reaches the caller as StoreError.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from evenq.errors import SettingsError, StoreError
from evenq.runtime.failpoints import passing
from evenq.store.io.disk import Disk, RealDisk
from evenq.store.io.jobs import Jobs
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log import lock, snapshot, volume
from evenq.store.log.lock import Identity
from evenq.store.log.messages import OnSnapshot, OnState
from evenq.store.log.options import StoreOptions
from evenq.store.log.segment import FOLDER
from evenq.store.opening import checkpoint as checkpoint_file
from evenq.store.opening import copied_mark
from evenq.store.opening.recovery import Recovery, State
from evenq.store.timers.loading import TimerLoader

log = logging.getLogger(__name__)

MEMORY_SEGMENT_BYTES = 16 << 20


def disk_of(path: Path | None, options: StoreOptions) -> Disk:
    """Returns the disk of a folder, which is created if it is missing; memory for None. Raises StoreError."""
    if path is None:
        return MemoryDisk(options.memory_bytes_max)
    try:
        return RealDisk(path)
    except OSError as error:
        raise StoreError(
            f"the data folder {path} cannot be created ({error.strerror}): check its parent's owner and mode"
        ) from error


@contextmanager
def owned(disk: Disk, jobs: Jobs) -> Iterator[None]:
    """Owns the folder; an error inside releases it and ends the jobs' threads. Raises StoreLocked, StoreError."""
    lock.acquire(disk)
    passing("recovery.locked")
    try:
        yield
    except BaseException as error:
        jobs.close()
        disk.unlock()
        if isinstance(error, OSError):
            raise StoreError(f"the data folder {disk.describe('')} cannot be opened: {error}") from error
        raise


def identified(disk: Disk, *, broker_name: str, options: StoreOptions) -> Identity:
    """Returns the folder's identity; creates its subfolders. Raises StoreError, SettingsError (sizes do not fit)."""
    identity = lock.identify(disk, broker_name=broker_name, segment_bytes=_segment_bytes(disk, options))
    passing("recovery.identified")
    for folder in (FOLDER, snapshot.FOLDER):
        disk.make_folder(folder)
    disk.sync_folder("")
    return identity


def _segment_bytes(disk: Disk, options: StoreOptions) -> int:
    """Returns the size of log files: an old folder keeps its own, and its content can be read in any case."""
    if not disk.blocks:
        return min(options.segment_bytes or MEMORY_SEGMENT_BYTES, MEMORY_SEGMENT_BYTES)
    known, usage = lock.load(disk), disk.usage()
    size = known.segment_bytes if known is not None else volume.segment_bytes(options, usage)
    if reason := volume.problem(options, size, usage):
        text = f"the store in {disk.describe('')} cannot work: {reason}"
        if known is None:
            raise SettingsError(text)
        log.warning("%s; its messages can be read", text)
    return size


async def recovered(
    disk: Disk, jobs: Jobs, identity: Identity, *, on_snapshot: OnSnapshot, on_state: OnState
) -> Recovery:
    """Returns the recovery of the log; passes the owner's state to it. Raises StoreCorrupted, StoreError."""
    checkpoint = checkpoint_file.load(disk)
    saved = snapshot.load(disk, log_start=checkpoint.log_start if checkpoint is not None else 0)
    mark = copied_mark.load(disk)
    if mark is not None and mark.resetting:
        raise StoreError(
            f"the data folder {disk.describe('')} is a follower's that was about to begin again at {mark.log_start}: "
            "start the broker as a member of its group, which completes that"
        )
    recovery = Recovery(
        disk, identity.segment_bytes, checkpoint, saved, copied_end=mark.synced_end if mark is not None else 0
    )
    if saved is not None:
        on_snapshot(saved.payload)
    recovery.timers = await jobs.run(
        lambda: TimerLoader(
            disk,
            section=saved.timers if saved is not None else None,
            log_offset=saved.log_offset if saved is not None else 0,
            log_start=recovery.log_start,
        )
    )
    steps = recovery.steps(saved.log_offset if saved is not None else 0)
    while (states := await jobs.run(lambda: _next(steps))) is not None:
        for log_offset, payload in states:
            on_state(log_offset, payload)
    passing("recovery.scanned")
    return recovery


def _next(steps: Generator[list[State], None, None]) -> list[State] | None:
    return next(steps, None)
