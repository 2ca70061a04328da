"""The last record below a place of a log, found backwards: by it two logs are compared without reading them.

For the copies of a log, which have the same bytes: a leader and a follower look below the place up to which their
epochs are the same. One small read, of a file that is opened for it, so nothing that is open already can show a log of
before. Blocks on the disk: called on threads, for a place behind which all may change, and before which nothing does.
"""

from __future__ import annotations

from typing import Final

from evenq.errors import StoreError
from evenq.store.io.disk import Disk
from evenq.store.log.record import HEADER_BYTES, MAGIC_BYTES, frame_at
from evenq.store.log.segment import path_of, segment_of

__all__ = ["LOOK_BYTES_MAX", "crc_of_record_at", "record_before"]

LOOK_BYTES_MAX: Final = 1 << 20
_LOOKS: Final = (4 << 10, 64 << 10, LOOK_BYTES_MAX)
_MAGIC_PLACE: Final = 4


def record_before(disk: Disk, segment_bytes: int, end: int) -> tuple[int, int] | None:
    """Log offset and CRC32C of the whole record that ends at `end`, padding included. None: no record is known there,
    because it is damaged, of another version, over `LOOK_BYTES_MAX`, or cannot be read.
    """
    if end <= 0:
        return None
    file_start, position = segment_of(end - 1, segment_bytes)
    position += 1
    # The end of a file that no header fits in is zeros, and the record before them is the last one.
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
        pass  # who reads the log itself says more
    return None


def crc_of_record_at(disk: Disk, segment_bytes: int, log_offset: int) -> int | None:
    """CRC32C of the whole record that begins at `log_offset`, padding included. None: as `record_before`."""
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
        # Bytes of a message may look like a record, but hardly like one of this place whose checksum fits; and if they
        # do, they do so on both sides.
        if frame_at(data, begin, base + begin) is not None:
            return base + begin, int.from_bytes(data[begin + 8 : begin + 12], "big")
    return None
