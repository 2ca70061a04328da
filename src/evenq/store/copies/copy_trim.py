"""Deletion of the oldest files of a copied log, so that a store can still continue from the rest.

`LogCopy.trim` calls it on its thread. The order is that of `Cleaner`: before a file is deleted, the newest snapshot and
then the checkpoint get the queues' minima and the log's new start, on disk. The next start completes what a crash
interrupts. Only filed entries show which messages go, so snapshot and checkpoint must reach the new start.
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

log = logging.getLogger(__name__)

Key = tuple[int, int]


def name_begin(disk: Disk, segment_bytes: int, log_start: int) -> bool:
    """Writes snapshot and checkpoint with `log_start` as the log's start. Returns False if they do not reach that far,
    or the consume queues do not show which messages go. Raises StoreFull.
    """
    saved, checkpoint = snapshot.load(disk, log_start=0), checkpoint_file.load(disk)
    if saved is None or checkpoint is None or min(saved.log_offset, checkpoint.log_offset) < log_start:
        return False
    if saved.version == 1:
        return False  # version 1 has no ranges of queues
    try:
        minima = {key: _minimum(disk, segment_bytes, key, span, log_start) for key, span in checkpoint.queues.items()}
    except (FileNotFoundError, struct.error, _OutOfOrder) as error:
        log.warning("no log file deleted: the consume queues cannot be read: %s", error, extra={"reason": str(error)})
        return False
    try:
        snapshot.save(disk, replace(saved, queues=_raised(saved.queues, minima), log_start=log_start))
        checkpoint_file.save(
            disk,
            Checkpoint(
                checkpoint.log_offset,
                checkpoint.clean,
                checkpoint.last_store_ms,
                _raised(checkpoint.queues, minima),
                log_start,
            ),
        )
    except OSError as error:
        if error.errno in FULL:
            raise StoreFull(f"no log file can be deleted: {shortage(error)}") from error
        raise
    return True


def delete_before(disk: Disk, log_start: int) -> None:
    """Deletes what `name_begin` gave up. The index removes its files when it is opened."""
    snapshot.drop_before(disk, log_start)
    segment.drop_before(disk, log_start)
    checkpoint = checkpoint_file.load(disk)
    for key, (minimum, _) in (checkpoint or Checkpoint()).queues.items():
        consume_queue.drop_before(disk, *key, minimum)


class _OutOfOrder(Exception):
    """Entries of a consume queue that are not those of its messages."""


def _raised(queues: snapshot.Ranges, minima: dict[Key, int]) -> snapshot.Ranges:
    return {key: (min(max(low, minima.get(key, low)), high), high) for key, (low, high) in queues.items()}


def _minimum(disk: Disk, segment_bytes: int, key: Key, span: tuple[int, int], log_start: int) -> int:
    """Returns a queue's first offset whose message is at `log_start` or after it."""
    low, high = span
    at = partial(_log_offset_at, disk, key)
    if low == high or at(low) >= log_start:
        return low
    minimum = low + bisect.bisect_left(range(low, high), log_start, key=at)
    for offset in (minimum - 1, minimum):  # entries have no checksum, so compare them with the messages
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
