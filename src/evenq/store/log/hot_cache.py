"""The newest safe messages stay in memory, as the objects that were appended, up to a number of bytes; the oldest go
first, a whole group of them at a time: nothing is counted for each message. On the loop thread only.
"""

from __future__ import annotations

from collections import deque

from evenq.store.log.writer import Touched, WriteBatch

__all__ = ["HotCache"]


class HotCache:
    """What is safe and in memory. Messages that wait for the writer are bounded by `append_bytes_max` instead."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        """Log bytes of the groups in memory."""
        self._oldest: deque[tuple[int, Touched]] = deque()

    def add(self, batch: WriteBatch) -> None:
        """Its messages are safe now and newest. Lets the oldest go if it gets too much."""
        if batch.messages:
            size = batch.bytes - batch.cold_bytes
            self._oldest.append((size, batch.touched))
            self.bytes += size
        while self.bytes > self._bytes_max:
            size, touched = self._oldest.popleft()
            self.bytes -= size
            for queue, end in touched.items():
                queue.drop_before(end)
