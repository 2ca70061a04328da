"""Entries of a consume queue side by side: which frames fit into a block, and which of them lie in one piece.

`Reader.read_block` asks it what to read. A block of 1 MiB has a thousand entries, so nothing here makes a Python object
for each of them but the running sums of their sizes: sizes are cut out of the packed entries by slices with a step, and
log offsets are looked at only where a run of frames may end. That is enough because what lies between the frames of one
queue never gets less: where it is the same at both ends of a range, the range is one piece of the log. Damaged entries
may break that; whose frames they are is checked on the frames, not here.
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

__all__ = ["RUN_MIN", "EntryColumns", "packed_sizes", "size_array"]

RUN_MIN: Final = 8  # frames one behind the other, on the average, for which a look for runs is worth it
SIZE_AT: Final = 8  # ENTRY_FIELDS
SIZE_CODE: Final = next(code for code in "IL" if array(code).itemsize == 4)
_log_offset: Final = Struct(">Q").unpack_from


def size_array() -> array[int]:
    """For sizes of frames, 4 bytes each."""
    return array(SIZE_CODE)


def packed_sizes(sizes: array[int]) -> bytes:
    """Little-endian, whatever the machine is."""
    if sys.byteorder == "big":
        sizes = sizes[:]
        sizes.byteswap()
    return sizes.tobytes()


class EntryColumns:
    """Packed entries of messages that follow each other in their queue, at least one."""

    __slots__ = ("_data", "ends", "sizes")

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        packed = bytearray(len(data) // ENTRY_BYTES * 4)
        for byte in range(4):
            packed[byte::4] = data[SIZE_AT + byte :: ENTRY_BYTES]
        self.sizes = array(SIZE_CODE, bytes(packed))
        """Of the frames, bytes."""
        if sys.byteorder == "little":
            self.sizes.byteswap()
        self.ends = list(accumulate(self.sizes, initial=0))
        """Where each frame begins if they are put together, and the end of the last."""

    def __len__(self) -> int:
        return len(self.sizes)

    def keep_fitting(self, bytes_max: int) -> None:
        """Leave out all but the first ones that have at most `bytes_max` of payload together; one at least."""
        ends = self.ends
        if ends[-1] - HEADER_BYTES * len(self.sizes) <= bytes_max:
            return
        fitting = bisect_right(range(len(ends)), bytes_max, key=lambda at: ends[at] - HEADER_BYTES * at) - 1
        kept = max(1, fitting)
        del self.sizes[kept:]
        del ends[kept + 1 :]

    def log_offset(self, at: int) -> int:
        """Where in the log the frame is."""
        log_offset: int = _log_offset(self._data, at * ENTRY_BYTES)[0]
        return log_offset

    def place(self, at: int) -> Place:
        """One entry as a tuple."""
        log_offset, size, tag_hash = ENTRY.unpack_from(self._data, at * ENTRY_BYTES)
        return log_offset, size, tag_hash

    def places(self, first: int = 0, stop: int | None = None) -> list[Place]:
        """Entries `first` to `stop` (the end, if it is None) as tuples."""
        last = len(self.sizes) if stop is None else stop
        return list(ENTRY.iter_unpack(memoryview(self._data)[first * ENTRY_BYTES : last * ENTRY_BYTES]))

    def runs(self, first: int, start: int, end: int) -> list[int] | None:
        """The edges of the runs from `first` on, in a file that holds the log from `start` to `end`: where each run of
        frames that lie one behind the other begins, and the end of the last. None if runs are short, or if something
        is not in the file where it should be.
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
        """What lies before the frame and is not read: the same for all frames of a run."""
        return self.log_offset(at) - self.ends[at]
