"""What is known of each queue in memory: its range of offsets and its newest messages.

One writer at a time appends (the engine's lock sees to it); readers take no lock: a queue's `tail` is a pair that is
replaced as a whole, its list only grows at the end, and forgotten messages leave a None until the list is cut.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from evenq.local.messages import Message, Queue

__all__ = ["Bell", "Cache", "QueueTail", "Topic"]

CUT_MIN = 512


class Bell(Protocol):
    """A waiting consumer."""

    def ring(self, key: Queue) -> None:
        """A queue has something new, or is free."""
        ...


class Topic:
    """The queues of one name, and who waits for them."""

    __slots__ = ("bells", "name", "queues")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[int, QueueTail] = {}
        self.bells: dict[int, Bell] = {}

    def ring(self, key: Queue) -> None:
        """Tell all who wait. The copy makes it safe beside threads that come and go."""
        for bell in list(self.bells.values()):
            bell.ring(key)


class QueueTail:
    """One queue: `min` is its smallest readable offset, `end` one past the newest readable message (LQ-58)."""

    __slots__ = ("end", "forgotten", "key", "min", "next", "tail", "topic")

    def __init__(self, topic: Topic, queue_id: int) -> None:
        self.topic = topic
        self.key: Queue = (topic.name, queue_id)
        self.min = 0
        self.end = 0
        self.next = 0
        """Offset of the next message; ahead of `end` while messages are being written."""
        self.tail: tuple[int, list[Message | None]] = (0, [])
        """(offset of the first one, messages)."""
        self.forgotten = 0
        """Leading entries of the list that are None."""

    def start_at(self, min_offset: int, end: int) -> None:
        """Take over the range that was found on disk."""
        self.min, self.end, self.next = min_offset, end, end
        self.tail = (end, [])

    def recent(self, offset: int, count: int) -> list[Message]:
        """Up to `count` messages from `offset` on, if memory still has the first one; else none."""
        first, messages = self.tail
        at = offset - first
        recent = messages[at : at + count] if at >= 0 else []
        if recent and recent[0] is None:
            recent = []
        return recent  # type: ignore[return-value]  # only leading entries are None

    def forget_first(self) -> Message:
        """Drop the oldest message of the tail. Only under the lock of the cache."""
        first, messages = self.tail
        message = messages[self.forgotten]
        assert message is not None
        messages[self.forgotten] = None
        self.forgotten += 1
        if self.forgotten >= CUT_MIN and self.forgotten * 2 >= len(messages):
            self.tail = (first + self.forgotten, messages[self.forgotten :])
            self.forgotten = 0
        return message


class Cache:
    """The newest messages of all queues, at most `bytes_max` of them (the newest one always)."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._order: deque[QueueTail] = deque()
        self.lock = threading.Lock()
        self.bytes = 0

    def publish(self, queue: QueueTail, messages: list[Message]) -> None:
        """Make messages readable, in order. Wakes who waits."""
        with self.lock:
            _, kept = queue.tail
            for message in messages:
                kept.append(message)
                self._order.append(queue)
                self.bytes += message.memory_bytes
            queue.end = messages[-1].offset + 1
            while self.bytes > self._bytes_max and len(self._order) > 1:
                self.bytes -= self._order.popleft().forget_first().memory_bytes
        if queue.topic.bells:
            queue.topic.ring(queue.key)
