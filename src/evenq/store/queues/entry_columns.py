"""Entries of a consume queue as columns: which frames fit into a block, and which of them are contiguous.

`LogReader.read_block` uses it. A block of 1 MiB has a thousand entries, so no Python object is made for each except the
running sums of their sizes: sizes are cut out of the packed entries by slices with a step, and log offsets are read
only where a run of frames may end. That is enough because the gap before the frames of one queue never shrinks: if it
is equal at both ends of a range, the range is contiguous in the log. Damaged entries may break that; the frames are
checked later.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from itertools import accumulate
from struct import Struct
from typing import Final

from evenq.store.log.consume_queue import ENTRY, ENTRY_BYTES
from evenq.store.log.record import HEADER_BYTES
from evenq.store.queues.read_buffer import Place

RUN_MIN: Final = 8  # average number of contiguous frames that justifies a search for runs
SIZE_AT: Final = 8  # ENTRY_FIELDS
SIZE_CODE: Final = next(code for code in "IL" if array(code).itemsize == 4)
_log_offset: Final = Struct(">Q").unpack_from


def size_array() -> array[int]:
    """Returns an empty array for sizes of frames, 4 bytes each."""
    return array(SIZE_CODE)


def packed_sizes(sizes: array[int]) -> bytes:
    """Returns the sizes as little-endian bytes, on any machine."""
    if sys.byteorder == "big":
        sizes = sizes[:]
        sizes.byteswap()
    return sizes.tobytes()


class EntryColumns:
    """Packed entries of consecutive messages of one queue, at least one."""

    __slots__ = ("_data", "ends", "sizes")

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        packed = bytearray(len(data) // ENTRY_BYTES * 4)
        for byte in range(4):
            packed[byte::4] = data[SIZE_AT + byte :: ENTRY_BYTES]
        self.sizes = array(SIZE_CODE, bytes(packed))
        """Sizes of the frames, bytes."""
        if sys.byteorder == "little":
            self.sizes.byteswap()
        self.ends = list(accumulate(self.sizes, initial=0))
        """Start of each frame if they are put together, and the end of the last."""

    def __len__(self) -> int:
        return len(self.sizes)

    def keep_fitting(self, bytes_max: int) -> None:
        """Keeps the first entries that have at most `bytes_max` of payload together; one at least."""
        ends = self.ends
        if ends[-1] - HEADER_BYTES * len(self.sizes) <= bytes_max:
            return
        fitting = bisect_right(range(len(ends)), bytes_max, key=lambda at: ends[at] - HEADER_BYTES * at) - 1
        kept = max(1, fitting)
        del self.sizes[kept:]
        del ends[kept + 1 :]

    def log_offset(self, at: int) -> int:
        log_offset: int = _log_offset(self._data, at * ENTRY_BYTES)[0]
        return log_offset

    def place(self, at: int) -> Place:
        log_offset, size, tag_hash = ENTRY.unpack_from(self._data, at * ENTRY_BYTES)
        return log_offset, size, tag_hash

    def places(self, first: int = 0, stop: int | None = None) -> list[Place]:
        """Returns entries `first` to `stop` (None: the end) as tuples."""
        last = len(self.sizes) if stop is None else stop
        return list(ENTRY.iter_unpack(memoryview(self._data)[first * ENTRY_BYTES : last * ENTRY_BYTES]))

    def runs(self, first: int, start: int, end: int) -> list[int] | None:
        """Returns the edges of the runs of contiguous frames from `first` on, in a file that holds the log from `start`
        to `end`: the start of each run, and the end of the last. None if runs are short, or a frame is not there.
        """
        stop = len(self.sizes)
        if self.log_offset(stop - 1) >= end:
            stop = bisect_right(range(stop), end - 1, first, stop, key=self.log_offset)
        edges, low = [first], first
        while low < stop:
            gap = self._gap(low)
            high = stop if self._gap(stop - 1) == gap else bisect_right(range(stop), gap, low, stop, key=self._gap)
            begin = self.log_offset(low)
            if not start <= begin <= end - (self.ends[high] - self.ends[low]):
                return None
            edges.append(high)
            low = high
            if (len(edges) - 1) * RUN_MIN > low - first + RUN_MIN:
                return None
        return edges if low > first else None

    def _gap(self, at: int) -> int:
        """Returns what lies before the frame and is not read: the same for all frames of a run."""
        return self.log_offset(at) - self.ends[at]
