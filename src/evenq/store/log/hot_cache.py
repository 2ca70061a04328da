"""Keeps the newest safe messages in memory, as the appended objects, up to a number of bytes. The oldest group goes
first, as a whole: nothing is counted per message. On the loop thread only.
"""

from __future__ import annotations

from collections import deque

from evenq.store.log.writer import Touched, WriteBatch


class HotCache:
    """Safe messages in memory. Messages that wait for the writer are bounded by `append_bytes_max` instead."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        """Log bytes of the groups in memory."""
        self._oldest: deque[tuple[int, Touched]] = deque()

    def add(self, batch: WriteBatch) -> None:
        """Adds a batch that is safe now; drops the oldest groups over the limit."""
        if batch.messages:
            size = batch.bytes - batch.cold_bytes
            self._oldest.append((size, batch.touched))
            self.bytes += size
        while self.bytes > self._bytes_max:
            size, touched = self._oldest.popleft()
            self.bytes -= size
            for queue, end in touched.items():
                queue.drop_before(end)
