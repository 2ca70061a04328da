"""In-memory state of each queue: its range of offsets and its newest messages.

One writer at a time appends, under the engine's lock; readers take no lock. A queue's `tail` is a pair that is replaced
as a whole. Its list only grows at the end, and dropped messages leave a None until the list is cut.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from evenq.local.messages import Message, Queue

CUT_MIN = 512


class Bell(Protocol):
    """A waiting consumer."""

    def ring(self, key: Queue) -> None:
        """Called when a queue has new messages or is free."""
        ...


class Topic:
    """The queues of one name, and the consumers that wait for them."""

    __slots__ = ("bells", "name", "queues")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[int, QueueTail] = {}
        self.bells: dict[int, Bell] = {}

    def ring(self, key: Queue) -> None:
        """Notifies all waiting consumers. The copy allows other threads to add and remove some meanwhile."""
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
        """Sets the range that was found on disk."""
        self.min, self.end, self.next = min_offset, end, end
        self.tail = (end, [])

    def recent(self, offset: int, count: int) -> list[Message]:
        """Returns up to `count` messages from `offset` on if memory has the first one; otherwise none."""
        first, messages = self.tail
        at = offset - first
        recent = messages[at : at + count] if at >= 0 else []
        if recent and recent[0] is None:
            recent = []
        return recent  # type: ignore[return-value]  # only leading entries are None

    def forget_first(self) -> Message:
        """Drops and returns the oldest message of the tail. Only under the lock of the cache."""
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
    """The newest messages of all queues, at most `bytes_max` of them, but always the newest one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._order: deque[QueueTail] = deque()
        self.lock = threading.Lock()
        self.bytes = 0

    def publish(self, queue: QueueTail, messages: list[Message]) -> None:
        """Makes messages readable, in order, and wakes waiting consumers."""
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
