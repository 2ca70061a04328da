"""Finds the last record before a place of a log, backwards: with it two logs are compared without reading them.

For the copies of a log, which have the same bytes: leader and follower look below the place up to which their epochs
are the same. It takes one small read of a file that is opened for it, so no file that is open already can show an older
log. Blocks on the disk: called on threads, for a place before which nothing changes and after which everything may.
"""

from __future__ import annotations

from typing import Final

from evenq.errors import StoreError
from evenq.store.io.disk import Disk
from evenq.store.log.record import HEADER_BYTES, MAGIC_BYTES, frame_at
from evenq.store.log.segment import path_of, segment_of

LOOK_BYTES_MAX: Final = 1 << 20
_LOOKS: Final = (4 << 10, 64 << 10, LOOK_BYTES_MAX)
_MAGIC_PLACE: Final = 4


def record_before(disk: Disk, segment_bytes: int, end: int) -> tuple[int, int] | None:
    """Returns log offset and CRC32C of the whole record that ends at `end`, padding included. None if that record is
    damaged, of another version, over `LOOK_BYTES_MAX`, or cannot be read.
    """
    if end <= 0:
        return None
    file_start, position = segment_of(end - 1, segment_bytes)
    position += 1
    # The rest of a file that is too short for a header is zeros, and the record before it is the last one.
    rest_max = HEADER_BYTES - 1 if position == segment_bytes else 0
    try:
        file = disk.open(path_of(file_start))
        try:
            for look in _LOOKS:
                size = min(look, position)
                data = file.pread(size, position - size)
                record = _last(data, file_start + position - size, rest_max) if len(data) == size else None
                if record is not None or size == position:
                    return record
        finally:
            file.close()
    except (OSError, StoreError):
        pass  # a reader of the log reports the error
    return None


def crc_of_record_at(disk: Disk, segment_bytes: int, log_offset: int) -> int | None:
    """Returns the CRC32C of the whole record that begins at `log_offset`, padding included; None as `record_before`."""
    file_start, position = segment_of(log_offset, segment_bytes)
    try:
        file = disk.open(path_of(file_start))
        try:
            head = file.pread(HEADER_BYTES, position)
            size = int.from_bytes(head[:4], "big")
            if len(head) < HEADER_BYTES or not HEADER_BYTES <= size <= min(LOOK_BYTES_MAX, segment_bytes - position):
                return None
            data = file.pread(size, position)
            return int.from_bytes(data[8:12], "big") if frame_at(data, 0, log_offset) is not None else None
        finally:
            file.close()
    except (OSError, StoreError):
        return None


def _last(data: bytes, base: int, rest_max: int) -> tuple[int, int] | None:
    at = len(data)
    while (at := data.rfind(MAGIC_BYTES, 0, at)) >= 0:
        begin = at - _MAGIC_PLACE
        if begin < 0:
            return None
        rest = len(data) - begin - int.from_bytes(data[begin:at], "big")
        if not 0 <= rest <= rest_max or any(data[len(data) - rest :]):
            continue
        # A message may hold bytes like a record of this place with a matching checksum; then both copies do.
        if frame_at(data, begin, base + begin) is not None:
            return base + begin, int.from_bytes(data[begin + 8 : begin + 12], "big")
    return None
