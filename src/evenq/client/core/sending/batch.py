"""Messages that wait to be sent to one queue, and the moment at which they are sent.

Owned by the producer's loop. One batch per queue is sent at a time, so messages of one queue are stored in the order in
which they were given, retries included (PR-7). Meanwhile other messages gather: under load, batches grow by themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar


class Batchable(Protocol):
    """A waiting message, or a block of messages that stays together."""

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def urgent(self) -> bool:
        """True: it does not linger, because a caller waits for it, or because it is a large block."""
        ...

    @property
    def alone(self) -> bool:
        """True: it is sent by a call of its own, because a batch with it was refused."""
        ...


Item = TypeVar("Item", bound=Batchable)


class QueueBatch(Generic[Item]):
    """Messages for one queue."""

    __slots__ = ("_bytes", "_bytes_max", "_count", "_items", "_messages_max", "_urgent", "due")

    def __init__(self, *, bytes_max: int, messages_max: int) -> None:
        self._items: deque[Item] = deque()
        self._bytes = self._count = self._urgent = 0
        self._bytes_max = bytes_max
        self._messages_max = messages_max
        self.due = False
        """Set when the oldest message has lingered long enough, or at a flush."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item) -> None:
        """Adds a message at the end."""
        self._items.append(item)
        self._joined(item)

    def put_back(self, items: Iterable[Item]) -> None:
        """Puts a failed batch back in front, in its old order. It is due."""
        for item in reversed(list(items)):
            self._items.appendleft(item)
            self._joined(item)
        self.due = True

    def drop(self, gone: Callable[[Item], bool]) -> list[Item]:
        """Removes and returns the messages for which `gone` is true."""
        dropped: list[Item] = []
        rest: list[Item] = []
        for item in self._items:
            (dropped if gone(item) else rest).append(item)
        if dropped:
            due = self.due and bool(rest)
            self._items.clear()
            self._bytes = self._count = self._urgent = 0
            for item in rest:
                self.add(item)
            self.due = due
        return dropped

    @property
    def ready(self) -> bool:
        """True if a batch should be sent now: it is full, it has lingered, or a caller waits."""
        full = self._bytes >= self._bytes_max or self._count >= self._messages_max
        return bool(self._items) and (full or self.due or self._urgent > 0)

    def take(self) -> list[Item]:
        """Removes and returns the next batch: within both limits, but at least one message or block; one that goes
        alone has no neighbour.
        """
        batch: list[Item] = []
        size = count = 0
        while self._items:
            item = self._items[0]
            if batch and (item.alone or batch[0].alone):
                break
            if batch and (size + item.size > self._bytes_max or count + item.count > self._messages_max):
                break
            self._items.popleft()
            size += item.size
            count += item.count
            self._urgent -= item.urgent
            batch.append(item)
        self._bytes -= size
        self._count -= count
        if not self._items:
            self.due = False
        return batch

    def _joined(self, item: Item) -> None:
        self._bytes += item.size
        self._count += item.count
        self._urgent += item.urgent
