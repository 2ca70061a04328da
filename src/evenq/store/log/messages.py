"""Messages and timers that go into a store and come out of it. The store never looks inside `head` and `system`.

`Append` is a `StoredMessage` without a place yet: once stored, the same object serves hot reads, so nothing is copied.
Neither may be changed after it was passed to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add

Dispatched = tuple[int, int, int]
"""Topic id, queue id, and new maximum of a queue with newly consumable messages."""


class StoredMessage:
    """One message with its place."""

    __slots__ = (
        "born_ms",
        "head",
        "log_offset",
        "queue_id",
        "queue_offset",
        "store_ms",
        "system",
        "tag_hash",
        "topic_id",
    )

    def __init__(
        self,
        topic_id: int,
        queue_id: int,
        queue_offset: int,
        log_offset: int,
        born_ms: int,
        store_ms: int,
        tag_hash: int,
        head: bytes,
        system: bytes,
    ) -> None:
        self.topic_id = topic_id
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.log_offset = log_offset
        self.born_ms = born_ms
        self.store_ms = store_ms
        self.tag_hash = tag_hash
        self.head = head
        self.system = system

    def __repr__(self) -> str:
        where = f"{self.topic_id}/{self.queue_id}@{self.queue_offset}"
        return f"{type(self).__name__}({where}, log {self.log_offset}, {len(self.head)}+{len(self.system)} bytes)"


class Append(StoredMessage):
    """One message to store. `append` fills in queue_offset, log_offset and store_ms (-1 until then)."""

    __slots__ = ()

    def __init__(self, topic_id: int, queue_id: int, tag_hash: int, born_ms: int, head: bytes, system: bytes) -> None:
        self.topic_id = topic_id
        self.queue_id = queue_id
        self.tag_hash = tag_hash
        self.born_ms = born_ms
        self.head = head
        self.system = system
        self.queue_offset = -1
        self.log_offset = -1
        self.store_ms = -1


class AppendBlock:
    """Many messages of one topic to store, as bytes and columns, without an object for each. From `start` on, `data`
    has head and system properties of each message, in order; the columns hold the rest. They are not kept in memory.
    """

    __slots__ = ("born_ms", "data", "head_bytes", "queue_ids", "start", "system_bytes", "tag_hashes", "topic_id")

    def __init__(
        self,
        topic_id: int,
        data: bytes,
        start: int,
        *,
        queue_ids: Sequence[int],
        tag_hashes: Sequence[int],
        born_ms: Sequence[int],
        head_bytes: Sequence[int],
        system_bytes: Sequence[int],
    ) -> None:
        self.topic_id = topic_id
        self.data = data
        self.start = start
        self.queue_ids = queue_ids
        self.tag_hashes = tag_hashes
        self.born_ms = born_ms
        self.head_bytes = head_bytes
        self.system_bytes = system_bytes

    def __len__(self) -> int:
        return len(self.queue_ids)

    def sizes(self) -> list[int]:
        """Returns the bytes of each message, head and system properties."""
        return list(map(add, self.head_bytes, self.system_bytes))

    def __repr__(self) -> str:
        return f"AppendBlock({len(self)} messages, {len(self.data) - self.start} bytes, for topic {self.topic_id})"


class StoredTimer:
    """One message for a later time. Its log offset is its permanent name ("timer id")."""

    __slots__ = (
        "born_ms",
        "due_ms",
        "head",
        "kind",
        "log_offset",
        "queue_id",
        "store_ms",
        "system",
        "tag_hash",
        "topic_id",
    )

    def __init__(
        self,
        topic_id: int,
        queue_id: int,
        log_offset: int,
        born_ms: int,
        store_ms: int,
        tag_hash: int,
        due_ms: int,
        kind: int,
        head: bytes,
        system: bytes,
    ) -> None:
        self.topic_id = topic_id
        self.queue_id = queue_id
        self.log_offset = log_offset
        self.born_ms = born_ms
        self.store_ms = store_ms
        self.tag_hash = tag_hash
        self.due_ms = due_ms
        self.kind = kind
        self.head = head
        self.system = system

    def __repr__(self) -> str:
        what = f"kind {self.kind} due {self.due_ms} for {self.topic_id}/{self.queue_id}"
        return f"{type(self).__name__}({what}, log {self.log_offset}, {len(self.head)}+{len(self.system)} bytes)"


class TimerAppend(StoredTimer):
    """One timer to store: `kind` 0..255 (1 = delayed message), `due_ms` since the epoch, and the message. `append`
    fills in log_offset and store_ms (-1 until then).
    """

    __slots__ = ()

    def __init__(
        self,
        topic_id: int,
        queue_id: int,
        tag_hash: int,
        *,
        due_ms: int,
        kind: int,
        born_ms: int,
        head: bytes,
        system: bytes,
    ) -> None:
        super().__init__(topic_id, queue_id, -1, born_ms, -1, tag_hash, due_ms, kind, head, system)


class ReadResult:
    """Result of a read. `next_offset` is also after messages that the tag filter left out."""

    __slots__ = ("max_offset", "messages", "min_offset", "next_offset")

    def __init__(self, messages: list[StoredMessage], next_offset: int, min_offset: int, max_offset: int) -> None:
        self.messages = messages
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset

    def __repr__(self) -> str:
        span = f"{self.min_offset}..{self.max_offset}"
        return f"ReadResult({len(self.messages)} messages, next {self.next_offset} of {span})"


OnState = Callable[[int, bytes], None]
OnSnapshot = Callable[[bytes], None]
OnDispatched = Callable[[list[Dispatched]], None]
