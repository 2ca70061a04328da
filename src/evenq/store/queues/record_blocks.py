"""Stored records as they are in the log, for readers that parse them themselves.

`LogReader.read_block` makes a `RecordBlock`; the broker sends it. Always true: a block holds the frames of its queue's
messages and no byte of any other record. Every frame was checked to be the whole, undamaged message of its place; for a
reader that compares checksums itself, only the first and the last one of each run. That is enough to identify the
others: a queue's messages are in order in the log, so as many frames as offsets between two messages of a queue are its
own. A part of a message that the reader does not need, head or system properties, is left out. The 88 bytes of the
header stay unchanged and hold the lengths of both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from evenq.store.log.record import HEADER_BYTES, MAGIC, PREFIX_BYTES
from evenq.store.queues.entry_columns import EntryColumns, packed_sizes, size_array
from evenq.store.queues.read_buffer import KIND_AND_VERSION, Place

PIECE_BYTES_MIN: Final = 16 << 10
_compared: Final = Struct(">QIH2x8xQQQ").unpack_from  # FRAME_FIELDS up to the log offset
_lengths: Final = Struct(">80xII").unpack_from


class Kept(NamedTuple):
    """Parts of each message in a block, beside its header."""

    head: bool
    """Topic, user properties and body."""
    system: bool
    """System properties."""
    check: bool = True
    """Whether to compare checksums; otherwise the reader does, except for records without one of their parts."""

    @property
    def whole(self) -> bool:
        return self.head and self.system


class RecordBlock:
    """Contiguous frames of one queue, from `first_offset` to `next_offset`."""

    __slots__ = ("_lent", "checked", "first_offset", "frames", "max_offset", "min_offset", "next_offset", "sizes")

    def __init__(self, first_offset: int, min_offset: int, max_offset: int) -> None:
        self.first_offset = first_offset
        self.next_offset = first_offset
        self.min_offset = min_offset
        """Of the queue, as `max_offset`."""
        self.max_offset = max_offset
        self.checked = True
        """Whether the checksum of every frame was compared."""
        self.frames: list[memoryview | bytes] = []
        """Pieces of the block, in order; one may hold many frames."""
        self.sizes = size_array()
        """Sizes of the frames as they are in the block, bytes."""
        self._lent: list[tuple[deque[bytearray], bytearray]] = []

    def lend(self, room: bytearray, home: deque[bytearray]) -> None:
        """Records that frames lie in `room`, which goes back to `home` when the block is given back."""
        self._lent.append((home, room))

    def give_back(self) -> None:
        """Releases the rooms, since the caller has the frames. A room is reused as soon as no reader looks at it."""
        self.frames.clear()
        for home, room in self._lent:
            home.append(room)
        self._lent.clear()

    def pieces(self) -> list[memoryview | bytes]:
        """Returns the frames, joined if they are small: a piece costs more than its copy then."""
        size = sum(map(len, self.frames))
        return self.frames[:] if len(self.frames) * PIECE_BYTES_MIN <= size else [b"".join(self.frames)]

    @property
    def packed_sizes(self) -> bytes:
        """The sizes as they are sent: 4 bytes each, little-endian."""
        return packed_sizes(self.sizes)

    def add(
        self,
        view: memoryview,
        starts: Sequence[int],
        places: Sequence[Place],
        topic_id: int,
        queue_id: int,
        kept: Kept,
        *,
        copy: bool,
    ) -> bool:
        """Takes the frames at `starts` of a view of the log; copies them if the view is reused. Returns False, with the
        earlier ones taken, at the first one that is not the wanted, undamaged message.
        """
        held = len(self.frames)
        good = self._check(view, starts, places, topic_id << 32 | queue_id, self.next_offset)
        self.next_offset += good
        whole = good == len(places)
        if not whole:
            starts, places = starts[:good], places[:good]
        if kept.whole:
            self._take_whole(view, starts, places)
        else:
            self._take_parts(view, starts, kept)
        if copy:
            self.frames[held:] = [b"".join(self.frames[held:])]
        return whole

    def add_runs(
        self,
        view: memoryview,
        columns: EntryColumns,
        edges: Sequence[int],
        topic_id: int,
        queue_id: int,
        kept: Kept,
        *,
        copy: bool,
    ) -> bool:
        """Does the same for contiguous runs: `edges` has each run's start in the columns, and the end of the last."""
        first, stop = edges[0], edges[-1]
        if kept.whole and not kept.check and self._runs_are_of(view, columns, edges, topic_id << 32 | queue_id):
            self.checked = False
            self.next_offset += stop - first
            self.sizes += columns.sizes[first:stop]
            self.frames.append(bytes(view) if copy else view)
            return True
        begin = columns.ends[first]
        starts = [end - begin for end in columns.ends[first:stop]]
        return self.add(view, starts, columns.places(first, stop), topic_id, queue_id, kept, copy=copy)

    def _runs_are_of(self, view: memoryview, columns: EntryColumns, edges: Sequence[int], queue: int) -> bool:
        """Whether each run begins and ends with the right message."""
        first = edges[0]
        begin = columns.ends[first]
        ends = sorted({*edges[:-1], *(edge - 1 for edge in edges[1:])})
        return all(
            self._check(view, (columns.ends[at] - begin,), (columns.place(at),), queue, self.next_offset + at - first)
            for at in ends
        )

    def _check(
        self, view: memoryview, starts: Sequence[int], places: Sequence[Place], queue: int, first_offset: int
    ) -> int:
        """Returns how many of the first ones are right."""
        offset, size_max = first_offset, len(view)
        for (log_offset, size, _), start in zip(places, starts, strict=True):
            end = start + size
            if size < HEADER_BYTES or end > size_max:
                break
            prefix, crc, kind, key, number, own_offset = _compared(view, start)
            if not (
                crc32c(view[start + PREFIX_BYTES : end]) == crc
                and number == offset
                and own_offset == log_offset
                and key == queue
                and prefix == size << 32 | MAGIC
                and kind == KIND_AND_VERSION
            ):
                break
            offset += 1
        return offset - first_offset

    def _take_whole(self, view: memoryview, starts: Sequence[int], places: Sequence[Place]) -> None:
        sizes = [size for _, size, _ in places]
        self.sizes.extend(sizes)
        if sizes and starts[-1] + sizes[-1] - starts[0] == sum(sizes):
            self.frames.append(view[starts[0] : starts[-1] + sizes[-1]])
            return
        begun = end = 0
        for start, size in zip(starts, sizes, strict=True):
            if start != end:
                if end > begun:
                    self.frames.append(view[begun:end])
                begun = start
            end = start + size
        if end > begun:
            self.frames.append(view[begun:end])

    def _take_parts(self, view: memoryview, starts: Sequence[int], kept: Kept) -> None:
        for start in starts:
            head_bytes, system_bytes = _lengths(view, start)
            system = start + HEADER_BYTES + head_bytes
            end = system if kept.head else start + HEADER_BYTES
            size = end - start
            self.frames.append(view[start:end])
            if kept.system:
                self.frames.append(view[system : system + system_bytes])
                size += system_bytes
            self.sizes.append(size)
