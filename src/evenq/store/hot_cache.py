"""The newest safe messages stay in memory, as the objects that were appended, up to so many bytes; the oldest of all
queues go first. One entry for each run of a call, not for each message. On the loop thread only.
"""

from __future__ import annotations

from collections import deque
from operator import itemgetter

from evenq.store.writer import Placed

__all__ = ["HotCache"]

_bytes_of = itemgetter(2)


class HotCache:
    """What is safe and in memory. Messages that wait for the writer are bounded by `append_bytes_max` instead."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0
        """Frames of the messages in memory."""
        self._oldest: deque[Placed] = deque()

    def add(self, placed: list[Placed]) -> None:
        """These are safe now and newest. Lets the oldest go if it gets too much."""
        self._oldest += placed
        size = self.bytes + sum(map(_bytes_of, placed))
        while size > self._bytes_max and self._oldest:
            queue, count, frame_bytes = self._oldest.popleft()
            queue.drop_oldest(count)
            size -= frame_bytes
        self.bytes = size
