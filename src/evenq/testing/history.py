"""A history: requests of clients, their answers, and the faults meanwhile; one JSON object per line.

Every operation is an `invoke` line and at most one later line with the same `id`: `ok`, `fail` (surely not done) or
`info` (unknown). An invoke without an end counts as `info`. `fault` and `heal` lines name the fault. Lines are in order
of time: an operation that was invoked below the end of another one began later. `Recorder` writes histories,
`evenq.testing.checker` checks them; docs/internals/checker.md lists every field. The idea is Jepsen's.
"""

from __future__ import annotations

import heapq
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from evenq.errors import BadRequest
from evenq.runtime.clock import Clock
from evenq.runtime.closing import Closing

__all__ = [
    "Delivery",
    "EntryKind",
    "Event",
    "HistoryAction",
    "Op",
    "Recorder",
    "merge_histories",
    "read_history",
    "to_line",
    "write_history",
]


class EntryKind(StrEnum):
    """Kind of a line: step of an operation, or fault."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"
    FAULT = "fault"
    HEAL = "heal"


class Op(StrEnum):
    """Operations that the checker supports."""

    SEND = "send"
    RECEIVE = "receive"
    ACK = "ack"
    EXTEND = "extend"
    OFFSET = "offset"
    ADMIN = "admin"


class HistoryAction(StrEnum):
    """Action of an `offset` or `admin` operation. Other words are allowed, and only counted."""

    COMMIT = "commit"
    """offset: store a group's progress. admin: make a half message visible."""
    FETCH = "fetch"
    RESET = "reset"
    """offset: move a group's progress on purpose, also backward."""
    ROLLBACK = "rollback"
    SUBSCRIBE = "subscribe"
    LOCK = "lock"
    UNLOCK = "unlock"
    DRAIN = "drain"
    """Ends ok when the group has nothing left to receive."""
    SCAN = "scan"
    """Reads one queue from its first to its last offset, for no group."""
    DEAD_LETTERS = "dead_letters"
    """Reads the whole dead-letter topic of a group."""


class Delivery(NamedTuple):
    """One message in an answer. A tuple, because a history has millions and JSON arrays are short."""

    queue: str
    offset: int
    body: str
    attempt: int = 1


@dataclass(slots=True, kw_only=True)
class Event:
    """One line. Fields that an operation does not use keep their default and are left out of the file."""

    kind: str
    at_ms: int
    """Any monotonic clock that all recorders of one history share."""
    id: int = 0
    op: str = ""
    process: str = ""
    """The client that acts; for a lock, its owner."""
    action: str = ""
    topic: str = ""
    group: str = ""
    queue: str = ""
    """`topic/broker/queue id`."""
    offset: int = -1
    body: str = ""
    """Identity of a message: unique in the history, sent in its body, a key or a property."""
    message_group: str = ""
    tag: str = ""
    """Tag of a message; for a subscription the wanted tags, `a||b`, empty for all."""
    order: str = ""
    """For a subscription: `queue` (default), or `none` if listeners of one queue run concurrently."""
    delivery_ms: int = 0
    half: bool = False
    invisible_ms: int = 0
    """0 in a receive: the group keeps offsets, not receipts. 0 in an extend: the message is returned."""
    messages: list[Delivery] | None = None
    target: str = ""
    """For a fault: the affected broker or client; empty for everything."""
    error: str = ""


_FIELDS = tuple(Event.__slots__)
_DEFAULTS = {"id": 0, "offset": -1, "delivery_ms": 0, "half": False, "invisible_ms": 0, "messages": None}
_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def to_line(event: Event) -> str:
    """Returns the event as one line, without line end."""
    fields = {name: getattr(event, name) for name in _FIELDS}
    return _ENCODE({name: value for name, value in fields.items() if value != _DEFAULTS.get(name, "")})


def _event(fields: dict[str, Any]) -> Event:
    event = Event(**fields)
    if event.messages is not None:
        event.messages = [Delivery(*message) for message in event.messages]
    return event


def _parse(lines: list[str], path: Path, first: int) -> list[Event]:
    """Returns the events of whole lines. One call of the JSON parser for many lines makes reading fast."""
    try:
        return [_event(fields) for fields in json.loads(f"[{','.join(lines)}]")]
    except (ValueError, TypeError) as error:
        if len(lines) > 1:
            return [event for at, line in enumerate(lines) for event in _parse([line], path, first + at)]
        raise BadRequest(
            f"{path}, line {first}: not an event of a history ({error}). See docs/internals/checker.md."
        ) from error


def read_history(path: Path) -> Iterator[Event]:
    """Yields all events of a file, in order, without an incomplete last line (the recorder was killed).

    Raises BadRequest with file and line if a line is not an event.
    """
    with path.open(encoding="utf-8") as file:
        first = 1
        while lines := list(islice(file, 1_000)):
            if not lines[-1].endswith("\n"):
                lines.pop()
            yield from _parse(lines, path, first)
            first += len(lines)


def write_history(path: Path, events: Iterable[Event]) -> None:
    """Writes all events to `path`, and replaces its content."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(to_line(event) + "\n" for event in events)


_RANK = {EntryKind.FAULT: 0, EntryKind.INVOKE: 1}


def merge_histories(histories: list[Iterable[Event]]) -> Iterator[Event]:
    """Yields one history out of those of several recorders (one per process), by time; operation ids are renumbered.

    Within one millisecond invokes come first, so that operations whose order is unknown count as concurrent and cause
    no false anomaly.
    """
    count = len(histories)

    def renumbered(number: int, history: Iterable[Event]) -> Iterator[tuple[int, int, int, Event]]:
        for event in history:
            event.id = event.id * count + number
            yield event.at_ms, _RANK.get(EntryKind(event.kind), 2), number, event

    streams = [sorted(renumbered(number, history), key=_merge_key) for number, history in enumerate(histories)]
    for *_, event in heapq.merge(*streams, key=_merge_key):
        yield event


def _merge_key(item: tuple[int, int, int, Event]) -> tuple[int, int, int]:
    return item[0], item[1], item[2]


class Recorder(Closing):
    """Writer of a history. Thread-safe; a call takes a few microseconds under one lock.

    At most `buffer_events_max` events wait in memory; the call that fills the buffer writes them. Call `flush` before
    you kill the process on purpose.

        number = recorder.invoke(Op.SEND, topic="orders", body="17")
        recorder.ok(number, queue="orders/broker-a/0", offset=4)
    """

    def __init__(self, path: Path, *, clock: Clock, buffer_events_max: int = 4_096) -> None:
        if buffer_events_max < 1:
            raise BadRequest(f"buffer_events_max={buffer_events_max} is below 1.")
        self.path = path
        self._clock = clock
        self._buffer_events_max = buffer_events_max
        self._buffer: list[str] = []
        self._lock = threading.Lock()
        self._next_id = 1
        self._file = path.open("w", encoding="utf-8")

    def invoke(self, op: Op, **fields: Any) -> int:
        """Records the begin of an operation (fields of `Event`). Returns its id, for `ok`, `fail` or `info`."""
        with self._lock:
            number = self._next_id
            self._next_id += 1
            self._append({"kind": "invoke", "at_ms": self._clock.monotonic_ms(), "id": number, "op": op, **fields})
        return number

    def ok(self, number: int, **fields: Any) -> None:
        """Records that the operation was done."""
        self._end("ok", number, fields)

    def fail(self, number: int, **fields: Any) -> None:
        """Records that the operation was surely not done."""
        self._end("fail", number, fields)

    def info(self, number: int, **fields: Any) -> None:
        """Records that the operation may have been done: a timeout, a broken connection."""
        self._end("info", number, fields)

    def fault(self, name: str, *, target: str = "") -> None:
        """Records a fault and flushes. Call it before the fault."""
        self._world("fault", name, target)

    def heal(self, name: str, *, target: str = "") -> None:
        """Records the end of a fault; call it afterwards. An open fault excuses repeats to the end of the history."""
        self._world("heal", name, target)

    def flush(self) -> None:
        """Writes everything recorded to the operating system."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Flushes and closes the file. Recording afterwards raises ValueError."""
        with self._lock:
            if not self._file.closed:
                self._write()
                self._file.close()

    def _end(self, kind: str, number: int, fields: dict[str, Any]) -> None:
        with self._lock:
            self._append({"kind": kind, "at_ms": self._clock.monotonic_ms(), "id": number, **fields})

    def _world(self, kind: str, name: str, target: str) -> None:
        with self._lock:
            self._append({"kind": kind, "at_ms": self._clock.monotonic_ms(), "op": name, "target": target})
            self._write()

    def _append(self, fields: dict[str, Any]) -> None:
        self._buffer.append(_ENCODE(fields))
        if len(self._buffer) >= self._buffer_events_max:
            self._write()

    def _write(self) -> None:
        if self._buffer:
            self._file.write("\n".join(self._buffer) + "\n")
            self._buffer.clear()
        self._file.flush()
