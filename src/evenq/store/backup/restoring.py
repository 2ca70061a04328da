"""Restores a backup into a new data folder: the log up to a place, the snapshot before it, and a new identity.

The folder gets its own store id, and new records get a higher epoch than any record in the backup. The owner adds one
record (`settle`), which opens the folder as a broker would and so proves that it opens. Always true: every broker
refuses a folder with a log and without an identity, and the identity is written last.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evenq.errors import BadRequest, PreconditionFailed, StoreCorrupted, StoreError, StoreFull
from evenq.runtime.clock import Clock
from evenq.runtime.targets import FULL
from evenq.store.backup.manifest import BackupManifest, RestorePoint, SavedPiece
from evenq.store.backup.reading import LogCheck, piece_bytes
from evenq.store.backup.target import BackupTarget
from evenq.store.backup.verifying import check_point
from evenq.store.copies import snapshot_copy
from evenq.store.io.disk import File, RealDisk
from evenq.store.log import lock
from evenq.store.log.commit_log import shortage
from evenq.store.log.options import FlushMode, StoreOptions
from evenq.store.log.segment import FOLDER, path_of, segment_of
from evenq.store.message_store import MessageStore

NOT_OURS: Final = "lost+found"
"""Folder at the root of a new volume."""
RESERVE_BYTES: Final = 64 << 20
"""Free space needed beside the log, for the snapshot and the files that the first start derives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """Source and end of a restore."""

    manifest: BackupManifest
    point: RestorePoint
    """Restore point whose snapshot is used."""
    until: int
    """Log offset at which the restored log ends."""

    @property
    def epoch_floor(self) -> int:
        """Epoch of the first new record: higher than any epoch of the backup, even after `until`."""
        return max(point.epoch for point in self.manifest.points) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The restored log."""

    log_start: int
    log_end: int
    last_store_ms: int
    """Store time of the newest record, ms since the epoch."""


def plan_restore(target: BackupTarget, manifest: BackupManifest, until: int | None) -> RestorePlan:
    """Returns the plan for a log that ends at `until`; None means the end of the newest run. Raises BadRequest, with
    the nearest possible place, for a place out of range or inside a group of records; StoreCorrupted.
    """
    if until is None:
        until = manifest.points[-1].first
    point = next((one for one in reversed(manifest.all_points) if one.first <= until <= manifest.last_of(one)), None)
    if point is None or until <= point.log_start:
        raise BadRequest(
            f"--until {until} is not in the backup of broker {manifest.broker_name}, which can be restored to "
            f"{_ranges(manifest)}; the nearest is {_nearest(manifest, until)}"
        )
    if until != point.first:
        below, above = _boundaries(target, manifest, until)
        if below != until:
            raise BadRequest(
                f"--until {until} is in the middle of records that were stored together; the nearest places to stop at "
                f"are {below} and {above}"
            )
    return RestorePlan(manifest=manifest, point=point, until=until)


def _spans(manifest: BackupManifest) -> list[tuple[int, int]]:
    """Returns first and last offset of each range that can be restored."""
    spans: list[tuple[int, int]] = []
    for point in manifest.all_points:
        first, last = point.first, manifest.last_of(point)
        if last < first:
            continue
        if spans and first <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
        else:
            spans.append((first, last))
    return spans


def _ranges(manifest: BackupManifest) -> str:
    return " or ".join(f"{first} to {last}" if first < last else str(last) for first, last in _spans(manifest))


def _nearest(manifest: BackupManifest, until: int) -> int:
    ends = [end for span in _spans(manifest) for end in span if end > 0]
    return min(ends, key=lambda end: abs(end - until), default=0)


def _boundaries(target: BackupTarget, manifest: BackupManifest, until: int) -> tuple[int, int]:
    """Returns the group boundaries at or before an offset, and after it."""
    piece = next(one for one in manifest.pieces if one.start < until <= one.end)
    below, above = piece.start, piece.end
    for boundary in _places(target, manifest, piece):
        if boundary > until:
            above = boundary
            break
        below = boundary
    return below, above


def _places(target: BackupTarget, manifest: BackupManifest, piece: SavedPiece) -> Iterator[int]:
    """Yields every group boundary in a piece."""
    check = LogCheck(piece.start, segment_bytes=manifest.segment_bytes, place=_place(target, manifest))
    for data in piece_bytes(target, manifest.broker_name, piece):
        yield from check.each_boundary(data)


def _place(target: BackupTarget, manifest: BackupManifest) -> str:
    return target.describe(f"{manifest.broker_name}/log")


def restore(target: BackupTarget, plan: RestorePlan, folder: Path, on_progress: Callable[[int, int], None]) -> Restored:
    """Writes the folder, which must be empty or missing; after an error its content is removed. Raises
    PreconditionFailed, StoreFull, StoreCorrupted, StoreError.
    """
    manifest, point = plan.manifest, plan.point
    _check_empty(folder)
    _check_space(folder, plan)
    snapshot = check_point(target, manifest, point) if point.snapshot else b""
    made = not folder.exists()
    try:
        disk = RealDisk(folder)
        disk.make_folder(FOLDER)
        last_store_ms = _write_log(target, plan, disk, on_progress)
        if snapshot:
            disk.make_folder("snapshot")
            snapshot_copy.install(
                disk,
                snapshot,
                origin=target.describe(f"{manifest.broker_name}/{point.snapshot}"),
                log_start=point.log_start,
            )
        disk.sync_folder(FOLDER)
        # Last: a start refuses a folder with a log and without an identity, so an interrupted restore is never used.
        lock.write(
            disk,
            lock.new(manifest.broker_name, segment_bytes=manifest.segment_bytes, epoch_floor=plan.epoch_floor),
        )
        disk.sync_folder("")
    except BaseException as error:
        _clear(folder, made=made)
        if isinstance(error, OSError):
            raise _failed(folder, error) from error
        raise
    return Restored(log_start=point.log_start, log_end=plan.until, last_store_ms=last_store_ms)


def _check_empty(folder: Path) -> None:
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.name != NOT_OURS) if folder.exists() else []
    except OSError as error:
        raise StoreError(f"{folder} cannot be used: {error.strerror or error}") from error
    if names:
        shown = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
        raise PreconditionFailed(
            f"{folder} is not empty ({shown}): a restore writes a new folder and never into one that is in use; name "
            "another, or move this one away"
        )


def _check_space(folder: Path, plan: RestorePlan) -> None:
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    needed = plan.until - plan.point.log_start + plan.point.snapshot_bytes + RESERVE_BYTES
    free = shutil.disk_usage(place).free
    if free < needed:
        raise StoreFull(
            f"{folder} has {free:,} bytes free, and the restore needs about {needed:,}: use a larger volume"
        )


def _write_log(target: BackupTarget, plan: RestorePlan, disk: RealDisk, on_progress: Callable[[int, int], None]) -> int:
    manifest, position, until = plan.manifest, plan.point.log_start, plan.until
    total, last_store_ms = until - position, 0
    writer = _SegmentWriter(disk, manifest.segment_bytes)
    try:
        for piece in manifest.pieces:
            if piece.end <= position or piece.start >= until:
                continue
            check = LogCheck(piece.start, segment_bytes=manifest.segment_bytes, place=_place(target, manifest))
            at = piece.start
            for data in piece_bytes(target, manifest.broker_name, piece):
                check.take(data)
                first, last = max(position - at, 0), min(until - at, len(data))
                if first < last:
                    writer.write(at + first, data[first:last])
                if check.boundary <= until:
                    last_store_ms = check.last_store_ms
                at += len(data)
                on_progress(max(0, min(at, until) - plan.point.log_start), total)
            check.finish()
            position = min(piece.end, until)
    finally:
        writer.close()
    if position != until:
        raise StoreCorrupted(f"{_place(target, manifest)} lacks the log from {position} to {until}")
    return last_store_ms


class _SegmentWriter:
    """Writer of a part of the log into its files; syncs each file when it is complete."""

    def __init__(self, disk: RealDisk, segment_bytes: int) -> None:
        self._disk, self._segment_bytes = disk, segment_bytes
        self._start = -1
        self._file: File | None = None

    def write(self, position: int, data: bytes) -> None:
        """Writes at a log offset. Raises OSError."""
        while data:
            start, at = segment_of(position, self._segment_bytes)
            part = data[: self._segment_bytes - at]
            if start != self._start:
                self.close()
                self._start, self._file = start, self._disk.open(path_of(start), create=True)
            assert self._file is not None
            self._file.pwrite([part], at)
            position, data = position + len(part), data[len(part) :]

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.sync()
            finally:
                self._file.close()
                self._start, self._file = -1, None


async def settle(folder: Path, broker_name: str, record: bytes, *, clock: Clock) -> None:
    """Opens the folder as a broker does, adds one state record in the new epoch, and closes it in order. Raises as
    `MessageStore.open`, and StoreFull. Retention deletes nothing in the meantime.
    """
    options = StoreOptions(flush=FlushMode.SYNC, retention_ms=0)
    try:
        store = await MessageStore.open(
            folder, options, clock=clock, broker_name=broker_name, on_state=lambda *_: None, on_snapshot=lambda _: None
        )
        try:
            await store.append_state(record)
        finally:
            await store.close()
    except BaseException:
        (folder / lock.PATH).unlink(missing_ok=True)  # without the record it must not be opened
        raise


def _clear(folder: Path, *, made: bool) -> None:
    if made:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for entry in list(folder.iterdir()) if folder.exists() else []:
        if entry.name == NOT_OURS:
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _failed(folder: Path, error: OSError) -> StoreError:
    if error.errno in FULL:
        return StoreFull(f"{folder} cannot be written: {shortage(error)}")
    return StoreError(f"{folder} cannot be written: {error.strerror or error}")
