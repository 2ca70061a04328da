"""Raw bytes of a log, in whole groups of records, for followers that copy it byte for byte.

The leader of a broker group calls it on a thread of its own, while the store's writer appends after the requested part;
so does `LogCopy`. Only headers are examined: the receivers check the bytes. The files are read with `pread` and never
locked. Always true: nothing at or after the `end` of a call is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from evenq.errors import StoreCorrupted, StoreError, WithinRecord
from evenq.store.io.descriptors import NO_FILES
from evenq.store.io.disk import Disk
from evenq.store.io.files import ReadFiles
from evenq.store.log import last_record, log_damage
from evenq.store.log.record import FLAG_MORE, FRAME_FIELDS, HEADER_BYTES, MAGIC, PADDING
from evenq.store.log.segment import path_of, segment_of

OPEN_FILES: Final = 4
WINDOW_BYTES: Final = 256 << 10
"""Bytes per read while headers are walked."""
_WANTED: Final = frozenset({"total size", "magic", "kind", "flags", "epoch", "log offset"})
_HEADER: Final = struct.Struct(
    ">" + "".join(field.letter if field.name in _WANTED else f"{field.size}x" for field in FRAME_FIELDS)
)

_Step = tuple[int, int, int, int]
"""Log offset after a frame, its kind, its flags, its epoch."""


class LogPieces:
    """Reader of one folder's log with a few open files. One thread at a time."""

    def __init__(self, disk: Disk, segment_bytes: int) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._files = ReadFiles(disk, OPEN_FILES)
        self._renewed = False

    def read(self, start: int, end: int, bytes_max: int) -> bytes:
        """Returns whole groups from `start` on, padding included: at most `bytes_max` bytes, but at least one group,
        and never beyond `end`. Both must be group boundaries, `end` not after the log's; b"" if they are equal.

        Blocks on the disk. Raises StoreCorrupted for a place without a record or an unreadable one, WithinRecord if the
        log is whole there and no group ends at `start`, StoreError if the file is missing or no group ends between the
        two.
        """
        if start >= end:
            return b""
        if self._renewed:
            self._renewed = False
            self._files.close()
        try:
            stop = self._stop(start, end, bytes_max)
        except StoreCorrupted as error:
            if error.log_offset == start and self.ends_group(segment_of(start, self._segment_bytes)[0], start) is False:
                raise WithinRecord(f"{self._name(start)} lies within a group of records") from error
            raise
        parts = []
        while start < stop:
            file_start, position = segment_of(start, self._segment_bytes)
            size = min(stop - start, self._segment_bytes - position)
            parts.append(self._pread(file_start, position, size))
            if len(parts[-1]) < size:
                raise self._corrupted(start + len(parts[-1]), "the file ends here, and the log does not")
            start += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def record_before(self, end: int) -> tuple[int, int] | None:
        """Returns log offset and CRC32C of the record that ends at `end`. See `last_record`."""
        return last_record.record_before(self._disk, self._segment_bytes, end)

    def epoch_at(self, position: int, end: int) -> int:
        """Returns the epoch of the frame at `position`; 0 if there is none before `end`."""
        return next((epoch for _, _, _, epoch in self._steps(position, end)), 0)

    def epochs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields epoch and log offset of each frame between two places. Raises as `read`."""
        position = start
        for behind, _, _, epoch in self._steps(start, end):
            yield epoch, position
            position = behind

    def kinds(self, start: int, end: int) -> Iterator[int]:
        """Yields the kind of each frame between two places. Raises as `read`."""
        for _, kind, _, _ in self._steps(start, end):
            yield kind

    def ends_group(self, start: int, end: int) -> bool | None:
        """Whether a group ends at `end`, by the frames from `start`, where one begins; None without a record."""
        ends, position = None, start
        for behind, kind, flags, _ in self._steps(start, end):
            position = behind
            if kind != PADDING:
                ends = not flags & FLAG_MORE
        return ends if position == end else False

    def renew(self) -> None:
        """Makes the next `read` open its files again, because others may have their names now. On any thread."""
        self._renewed = True

    def close(self) -> None:
        self._files.close()

    def _stop(self, start: int, end: int, bytes_max: int) -> int:
        boundary, more = start, 0
        limit = start + bytes_max
        for position, kind, flags, _ in self._steps(start, end):
            if position > end or (position > limit and boundary > start):
                break
            if kind != PADDING:
                more = flags & FLAG_MORE
            if not more:
                boundary = position
        if boundary == start:
            raise StoreError(f"{self._name(start)}: no group of records that begins there ends by {end}")
        return boundary

    def _steps(self, start: int, end: int) -> Iterator[_Step]:
        """Yields each frame from `start` to `end`; the rest of a file, too short for a header, is padding (epoch 0)."""
        position, segment_bytes = start, self._segment_bytes
        while position < end:
            file_start, _ = segment_of(position, segment_bytes)
            segment_end = file_start + segment_bytes
            data, base = b"", position
            while position < end and segment_end - position >= HEADER_BYTES:
                if end - position < HEADER_BYTES:
                    return  # no frame ends by `end`
                at = position - base
                if at + HEADER_BYTES > len(data):
                    size = min(WINDOW_BYTES, min(segment_end, end) - position)
                    data, base, at = self._pread(file_start, position - file_start, size), position, 0
                    if len(data) < HEADER_BYTES:
                        raise self._corrupted(position, "there is no record")
                size, magic, kind, flags, epoch, own = _HEADER.unpack_from(data, at)
                if magic != MAGIC or own != position or not HEADER_BYTES <= size <= segment_end - position:
                    raise self._corrupted(position, "there is no record")
                position += size
                yield position, kind, flags, epoch
            if position < end and position < segment_end:
                position = segment_end
                yield position, PADDING, 0, 0

    def _pread(self, file_start: int, position: int, size: int) -> bytes:
        try:
            with self._files.using(path_of(file_start)) as file:
                return file.pread(size, position)
        except FileNotFoundError as error:
            raise StoreError(
                f"{self._disk.describe(path_of(file_start))} does not exist: the log begins later, or ends before"
            ) from error
        except OSError as error:
            log_offset = file_start + position
            # Case: no file descriptor is left, and nothing is wrong with the log.
            if error.errno in NO_FILES:
                raise StoreError(f"{self._name(log_offset)} cannot be read: {error}") from error
            raise log_damage.unreadable(self._disk, self._segment_bytes, log_offset, error) from error

    def _name(self, log_offset: int) -> str:
        file_start, position = segment_of(log_offset, self._segment_bytes)
        return f"{self._disk.describe(path_of(file_start))} at byte {position} (log offset {log_offset})"

    def _corrupted(self, log_offset: int, why: str) -> StoreCorrupted:
        text = f"{self._name(log_offset)} is damaged: {why}; restore the folder from a copy"
        return StoreCorrupted(text, log_offset=log_offset)
