"""A walk over the commit log in pieces of bounded size: whole frames, and holes where there are none.

Unlike recovery it continues after a hole, at the next whole frame with the right place and a matching CRC. Verify,
inspect and dump all use it, so they agree on what a frame is. It only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreError
from evenq.store.io.disk import Disk, File
from evenq.store.log import segment
from evenq.store.log.record import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAGIC_BYTES,
    PADDING,
    PREFIX_BYTES,
    VERSION,
    frame_at,
    size_at,
)

PIECE_BYTES: Final = 4 << 20
SEARCH_BYTES: Final = 1 << 20
MAGIC_PLACE: Final = 4  # bytes from a frame's start to its magic
LOG_OFFSET: Final = 10  # places in a header, in the order of FRAME_FIELDS
HEAD_LENGTH: Final = 15

Header = tuple[int, ...]
"""The values of one frame's header, in the order of `record.FRAME_FIELDS`."""


class Piece:
    """Contiguous whole frames."""

    __slots__ = ("base", "data", "headers")

    def __init__(self, data: memoryview, base: int, headers: list[Header]) -> None:
        self.data = data
        self.base = base
        """Log offset of the first byte of `data`."""
        self.headers = headers

    def payloads(self, header: Header) -> tuple[bytes, bytes]:
        """Returns copies of one frame's head and system."""
        start = header[LOG_OFFSET] - self.base + HEADER_BYTES
        middle = start + header[HEAD_LENGTH]
        return bytes(self.data[start:middle]), bytes(self.data[middle : middle + header[HEAD_LENGTH + 1]])


@dataclass(slots=True)
class Hole:
    """A part of the log without whole frames."""

    start: int
    end: int
    """Start of the next whole frame, or the end of the files."""
    why: str
    last: bool
    """No whole frame follows."""


class LogWalk:
    """One pass over the log from `begin` to `end` (log offsets; None is its start or end)."""

    def __init__(
        self,
        disk: Disk,
        segment_bytes: int,
        starts: list[int],
        *,
        begin: int | None = None,
        end: int | None = None,
        check: bool = True,
        gone: Callable[[int], bool] | None = None,
    ) -> None:
        """`check` False skips the CRCs. `gone(start)` returns whether a file may be missing."""
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._starts = starts
        self._begin = max(begin or 0, starts[0] if starts else 0)
        self._end = end
        self._check = check
        self._gone = gone
        self.bytes_read = 0
        self.bytes_total = sum(self._length(start) for start in self._selected())

    def steps(self) -> Iterator[Piece | Hole]:
        """Yields pieces and holes in log order. Raises StoreError for a frame of an unknown version."""
        pending: Hole | None = None
        for step in self._each_file():
            if isinstance(step, Hole):
                if pending is None:
                    pending = step
                else:
                    pending.end = step.end
                continue
            if pending is not None:
                yield pending
                pending = None
            yield step
        if pending is not None:
            pending.last = True
            yield pending

    def _selected(self) -> list[int]:
        return [
            start
            for start in self._starts
            if start + self._segment_bytes > self._begin and (self._end is None or start < self._end)
        ]

    def _length(self, start: int) -> int:
        try:
            file = self._disk.open(segment.path_of(start))
        except FileNotFoundError:
            return 0
        try:
            return max(0, self._limit(file, start) - max(start, self._begin))
        finally:
            file.close()

    def _limit(self, file: File, start: int) -> int:
        limit = start + min(file.size(), self._segment_bytes)
        return limit if self._end is None else min(limit, self._end)

    def _each_file(self) -> Iterator[Piece | Hole]:
        due: int | None = None
        for start in self._selected():
            if due is not None and start > due:
                yield Hole(due, start, "the file is missing", last=False)
            due = start + self._segment_bytes
            try:
                file = self._disk.open(segment.path_of(start))
            except FileNotFoundError:
                if self._gone is not None and self._gone(start):
                    continue
                raise
            try:
                yield from self._in_file(file, start)
            finally:
                file.close()

    def _in_file(self, file: File, start: int) -> Iterator[Piece | Hole]:
        limit = self._limit(file, start)
        full = start + self._segment_bytes
        position = max(start, self._begin)
        piece_bytes = PIECE_BYTES
        while limit - position >= HEADER_BYTES:
            data = memoryview(file.pread(min(piece_bytes, limit - position), position - start))
            piece = Piece(data, position, [])
            taken, padded, why = self._take(piece)
            self.bytes_read += taken
            if piece.headers:
                yield piece
            if padded:
                return
            position += taken
            if taken:
                piece_bytes = PIECE_BYTES
                continue
            claimed = size_at(data, 0)
            if len(data) < claimed <= limit - position:
                piece_bytes = claimed  # one frame larger than a piece
                continue
            behind = self._next_frame(file, start, position, limit)
            yield Hole(position, behind, why, last=False)
            self.bytes_read += behind - position
            position = behind
        if position < limit and full - position >= HEADER_BYTES:
            yield Hole(position, limit, "the file ends in the middle of a header", last=False)
        elif limit < full and start != self._starts[-1] and limit != self._end and full - limit >= HEADER_BYTES:
            yield Hole(limit, full, f"the file ends there, {full - limit} bytes early", last=False)

    def _take(self, piece: Piece) -> tuple[int, bool, str]:
        """Takes frames from a piece's start. Returns bytes taken, whether padding ends the file, and why it stopped."""
        data, base, append = piece.data, piece.base, piece.headers.append
        length = len(data)
        check, unpack, crc_of = self._check, HEADER.unpack_from, crc32c
        position = 0
        while length - position >= HEADER_BYTES:
            header = unpack(data, position)
            size = header[0]
            if header[1] != MAGIC or size < HEADER_BYTES:
                return position, False, "no record begins there"
            if header[LOG_OFFSET] != base + position:
                return position, False, f"the record there says that its place is {header[LOG_OFFSET]}"
            padding = header[4] == PADDING
            end = position + (HEADER_BYTES if padding else size)
            if end > length:
                return position, False, f"the record there has {size} bytes, of which the file holds fewer"
            if check and crc_of(data[position + PREFIX_BYTES : end]) != header[2]:
                return position, False, "the record there does not fit its CRC"
            if header[3] != VERSION:
                raise StoreError(
                    f"the record at log offset {base + position} has format version {header[3]}; this program reads "
                    f"version {VERSION}: use the tool of a newer evenq"
                )
            if not padding and HEADER_BYTES + header[HEAD_LENGTH] + header[HEAD_LENGTH + 1] != size:
                return position, False, "the lengths of the record there do not add up"
            append(header)
            if padding:
                return end, True, ""
            position = end
        return position, False, "the file ends in the middle of a header"

    def _next_frame(self, file: File, start: int, hole: int, limit: int) -> int:
        """Returns the next whole frame after a hole, within one file; `limit` if there is none."""
        claimed = size_at(file.pread(HEADER_BYTES, hole - start), 0)
        if claimed and self._is_frame(file, start, hole + claimed, limit):
            return hole + claimed
        position = hole + 1
        while limit - position >= HEADER_BYTES:
            data = file.pread(min(SEARCH_BYTES, limit - position), position - start)
            magic_at = data.find(MAGIC_BYTES, MAGIC_PLACE)
            while magic_at >= 0:
                if self._is_frame(file, start, position + magic_at - MAGIC_PLACE, limit):
                    return position + magic_at - MAGIC_PLACE
                magic_at = data.find(MAGIC_BYTES, magic_at + 1)
            position += max(1, len(data) - len(MAGIC_BYTES) - MAGIC_PLACE + 1)
        return limit

    def _is_frame(self, file: File, start: int, position: int, limit: int) -> bool:
        data = file.pread(HEADER_BYTES, position - start)
        claimed = size_at(data, 0)
        if not 0 < claimed <= limit - position:
            return False
        header = HEADER.unpack(data)
        if header[4] != PADDING:
            if HEADER_BYTES + header[HEAD_LENGTH] + header[HEAD_LENGTH + 1] != claimed:
                return False  # checked before a long read
            data = file.pread(claimed, position - start)
        return frame_at(data, 0, position) is not None
