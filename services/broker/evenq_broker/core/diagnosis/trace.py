"""Trace of deliveries, from which the history of one message is read.

It has the journal's own records, kept as they were written, up to `trace_bytes`. Recording costs one append per turn of
the loop; the caller pays for everything else. Records name the receiver only where the client's life holds the
delivery, so `taken` adds the name elsewhere. Pure: time comes in as ms since the epoch.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from evenq_broker.core.state.records import Acked, Committed, Delivered, Invisible, decode

_TAKEN = 0xFF  # not a version of a journal record
_TAKEN_FORM = struct.Struct(">BHII")
_TAKEN_ENTRY = struct.Struct(">IQI")
_QUEUE = struct.Struct(">II")
_OFFSET = struct.Struct(">Q")
_ENTRY_BYTES = 120  # what an entry takes besides its record


class TraceEventKind(StrEnum):
    """Kinds of events, with their names on the wire."""

    DELIVERED = "DELIVERED"
    INVISIBLE = "INVISIBLE"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    COMMITTED = "COMMITTED"
    RESET = "RESET"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEvent:
    """One event of a message in a group."""

    at_ms: int
    kind: TraceEventKind
    group_id: int
    client_id: str = ""
    attempt: int = 0
    until_ms: int = 0
    number: int = 0
    """Number of the delivery, including those that were given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenMessages:
    """Messages of one topic that a client received; `held` has (queue id, offset, delivery number) of each."""

    client_id: str
    group_id: int
    topic_id: int
    held: tuple[tuple[int, int, int], ...]


class Trace:
    """The last records, up to `bytes_max`."""

    __slots__ = ("_bytes", "_bytes_max", "_entries", "added", "forgotten_ms")

    def __init__(self, bytes_max: int, *, now_ms: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: deque[tuple[int, bytes]] = deque()
        self.added = 0
        """Records so far: the position behind the newest one."""
        self.forgotten_ms = now_ms
        """Events before this time are not remembered, ms since the epoch."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, at_ms: int, record: bytes) -> None:
        entries = self._entries
        entries.append((at_ms, record))
        self._bytes += len(record) + _ENTRY_BYTES
        self.added += 1
        while self._bytes > self._bytes_max:
            self.forgotten_ms, oldest = entries.popleft()
            self._bytes -= len(oldest) + _ENTRY_BYTES

    def taken(
        self, at_ms: int, client_id: str, group_id: int, topic_id: int, held: Sequence[tuple[int, int, int]]
    ) -> None:
        """Notes that a client received messages: (queue id, offset, delivery number)."""
        name = client_id.encode()
        head = _TAKEN_FORM.pack(_TAKEN, len(name), group_id, topic_id)
        self.add(at_ms, b"".join((head, name, *(_TAKEN_ENTRY.pack(*one) for one in held))))

    def entries(self) -> list[tuple[int, bytes]]:
        """Returns a copy, the oldest first; for `Story.read`."""
        return list(self._entries)

    def since(self, position: int) -> list[tuple[int, bytes]]:
        """Returns a copy of the records from `position` on, without those that are forgotten."""
        newest = islice(reversed(self._entries), max(0, self.added - position))
        return list(newest)[::-1]


def taken_messages(record: bytes) -> TakenMessages | None:
    """Returns what `Trace.taken` noted; None: this is a record of the journal."""
    if record[0] != _TAKEN:
        return None
    _, length, group_id, topic_id = _TAKEN_FORM.unpack_from(record)
    start = _TAKEN_FORM.size + length
    return TakenMessages(
        client_id=record[_TAKEN_FORM.size : start].decode(errors="replace"),
        group_id=group_id,
        topic_id=topic_id,
        held=tuple(_TAKEN_ENTRY.iter_unpack(record[start:])),
    )


class Story:
    """History of the message at one offset; reads entries in their order."""

    def __init__(self, topic_id: int, queue_id: int, offset: int) -> None:
        self._topic_id = topic_id
        self._queue_id = queue_id
        self._offset = offset
        self._packed_queue = _QUEUE.pack(topic_id, queue_id)
        self._needle = _OFFSET.pack(offset)
        self._taken_needle = _TAKEN_ENTRY.pack(queue_id, offset, 0)[:-4]
        self._seen: list[TraceEvent] = []
        self._clients: dict[tuple[int, int], str] = {}
        self._committed: dict[int, int] = {}

    def read(self, at_ms: int, record: bytes) -> None:
        if record[0] == _TAKEN:
            if self._taken_needle in record:
                self._read_taken(record)
        elif self._needle in record or self._packed_queue in record:
            self._seen.extend(self._of(at_ms, record))

    def events(self) -> list[TraceEvent]:
        """Returns all events, ascending in time, with every client id that is known."""
        return [
            replace(one, client_id=self._clients.get((one.group_id, one.number), ""))
            if one.kind is TraceEventKind.DELIVERED and not one.client_id
            else one
            for one in self._seen
        ]

    def _read_taken(self, record: bytes) -> None:
        taken = taken_messages(record)
        if taken is None or taken.topic_id != self._topic_id:
            return
        for queue_id, offset, number in taken.held:
            if (queue_id, offset) == (self._queue_id, self._offset):
                self._clients[taken.group_id, number] = taken.client_id

    def _of(self, at_ms: int, record: bytes) -> Iterator[TraceEvent]:
        for op in decode(record):
            if not isinstance(op, Acked | Committed | Delivered | Invisible):
                continue
            if (op.topic_id, op.queue_id) != (self._topic_id, self._queue_id):
                continue
            event = self._one(at_ms, op)
            if event is not None:
                yield event

    def _one(self, at_ms: int, op: Acked | Committed | Delivered | Invisible) -> TraceEvent | None:
        if isinstance(op, Committed):
            return self._moved(at_ms, op)
        if isinstance(op, Delivered):
            if self._offset not in op.offsets:
                return None
            at = op.offsets.index(self._offset)
            if not op.attempts[at]:
                return None  # looked at, and held back behind an earlier one of its message group
            return TraceEvent(
                at_ms=at_ms,
                kind=TraceEventKind.DELIVERED,
                group_id=op.group_id,
                client_id=op.client_id,
                attempt=op.attempts[at],
                until_ms=op.deadline_ms,
                number=op.numbers[at],
            )
        if op.offset != self._offset:
            return None
        if isinstance(op, Acked):
            return TraceEvent(at_ms=at_ms, kind=TraceEventKind.ACKNOWLEDGED, group_id=op.group_id)
        return TraceEvent(
            at_ms=at_ms,
            kind=TraceEventKind.INVISIBLE,
            group_id=op.group_id,
            attempt=op.attempt,
            until_ms=op.deadline_ms,
            number=op.number,
        )

    def _moved(self, at_ms: int, op: Committed) -> TraceEvent | None:
        before = self._committed.get(op.group_id)
        self._committed[op.group_id] = op.offset
        if op.reset:
            return TraceEvent(at_ms=at_ms, kind=TraceEventKind.RESET, group_id=op.group_id)
        passed = op.offset > self._offset and before is not None and before <= self._offset
        return TraceEvent(at_ms=at_ms, kind=TraceEventKind.COMMITTED, group_id=op.group_id) if passed else None
