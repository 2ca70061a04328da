"""How a copy of a log lets its oldest files go, so that a store can still go on from what stays.

Called by `LogCopy.trim`, on its thread. The order is that of `Cleaner`: the queues' minima and the log's new beginning
are on disk in the newest snapshot, then in the checkpoint, before a file goes; a crash in between is finished by the
next start. Only what a replay or the last leader phase filed can be asked which messages go: both must reach as far as
the log is trimmed.
"""

from __future__ import annotations

import bisect
import logging
import struct
from dataclasses import replace
from functools import partial

from evenq.errors import StoreFull
from evenq.store.io.disk import Disk, File
from evenq.store.log import consume_queue, segment, snapshot
from evenq.store.log.commit_log import FULL, shortage
from evenq.store.log.record import HEADER, HEADER_BYTES, MESSAGE
from evenq.store.opening import checkpoint as checkpoint_file
from evenq.store.opening.checkpoint import Checkpoint

__all__ = ["delete_before", "name_begin"]

log = logging.getLogger(__name__)

Key = tuple[int, int]


def name_begin(disk: Disk, segment_bytes: int, log_start: int) -> bool:
    """Have snapshot and checkpoint say that the log begins at `log_start`. False if they do not reach that far, or the
    consume queues do not say which messages go. Raises StoreFull.
    """
    saved, checkpoint = snapshot.load(disk, log_start=0), checkpoint_file.load(disk)
    if saved is None or checkpoint is None or min(saved.log_offset, checkpoint.log_offset) < log_start:
        return False
    if saved.version == 1:
        return False  # it does not know the queues
    try:
        minima = {
            key: _minimum(disk, segment_bytes, key, span, log_start) for key, span in checkpoint.queues.items()
        }  # fmt: skip
    except (FileNotFoundError, struct.error, _OutOfOrder) as error:
        log.warning("no log file deleted: the consume queues cannot be read: %s", error, extra={"reason": str(error)})
        return False
    try:
        snapshot.save(disk, replace(saved, queues=_raised(saved.queues, minima), log_start=log_start))
        checkpoint_file.save(
            disk,
            Checkpoint(
                checkpoint.log_offset, checkpoint.clean, checkpoint.last_store_ms, _raised(checkpoint.queues, minima),
                log_start,
            ),
        )  # fmt: skip
    except OSError as error:
        if error.errno in FULL:
            raise StoreFull(f"no log file goes: {shortage(error)}") from error
        raise
    return True


def delete_before(disk: Disk, log_start: int) -> None:
    """Delete what `name_begin` gave up. The index drops its files when it is opened."""
    snapshot.drop_before(disk, log_start)
    segment.drop_before(disk, log_start)
    checkpoint = checkpoint_file.load(disk)
    for key, (minimum, _) in (checkpoint or Checkpoint()).queues.items():
        consume_queue.drop_before(disk, *key, minimum)


class _OutOfOrder(Exception):
    """A consume queue's entries are not those of its messages."""


def _raised(queues: snapshot.Ranges, minima: dict[Key, int]) -> snapshot.Ranges:
    return {key: (min(max(low, minima.get(key, low)), high), high) for key, (low, high) in queues.items()}


def _minimum(disk: Disk, segment_bytes: int, key: Key, span: tuple[int, int], log_start: int) -> int:
    """First offset of a queue whose message is at `log_start` or behind it."""
    low, high = span
    at = partial(_log_offset_at, disk, key)
    if low == high or at(low) >= log_start:
        return low
    minimum = low + bisect.bisect_left(range(low, high), log_start, key=at)
    for offset in (minimum - 1, minimum):  # entries have no checksum: the messages there must be theirs
        if low <= offset < high:
            _check(disk, segment_bytes, key, offset, at(offset))
    return minimum


def _log_offset_at(disk: Disk, key: Key, offset: int) -> int:
    name, position = consume_queue.file_at(offset)
    file = disk.open(f"{consume_queue.folder_of(*key)}/{name}")
    entry: tuple[int, int, int] = consume_queue.ENTRY.unpack(_read(file, consume_queue.ENTRY_BYTES, position))
    return entry[0]


def _check(disk: Disk, segment_bytes: int, key: Key, offset: int, log_offset: int) -> None:
    start, position = segment.segment_of(log_offset, segment_bytes)
    header = HEADER.unpack(_read(disk.open(segment.path_of(start)), HEADER_BYTES, position))
    if (header[4], (header[7], header[8]), header[9], header[10]) != (MESSAGE, key, offset, log_offset):
        raise _OutOfOrder(f"{disk.describe(consume_queue.folder_of(*key))} is out of order near entry {offset}")


def _read(file: File, size: int, position: int) -> bytes:
    try:
        return file.pread(size, position)
    finally:
        file.close()
