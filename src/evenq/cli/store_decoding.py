"""What a broker keeps in its store, as plain values: topic names from its journal, messages from their protobuf.

The store knows neither; the command line is the one room that knows both. A record that does not decode becomes its
bytes in base64: a dump never stops at one.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from dataclasses import asdict
from enum import Enum
from typing import Any, Final

from evenq_broker.core.state.records import Op, TopicPut, decode

from evenq.errors import NotFound, StoreCorrupted
from evenq.store.inspection import dump
from evenq.store.inspection.dump import Wanted
from evenq.store.inspection.folder import Folder, load_snapshot
from evenq.store.io.disk import Disk
from evenq.store.log.record import MESSAGE, STATE, TIMER, TIMER_END, Frame, timer_ids_of
from evenq.wire.status import DecodeError
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2

__all__ = ["RecordDecoder", "decoder_of"]

BODY_MAX: Final = 64 << 20
HOT: Final = b'"name"'  # a record without it names no topic, and most do not


class RecordDecoder:
    """Knows the topics it was given."""

    def __init__(self) -> None:
        self.topics: dict[int, str] = {}

    def state(self, payload: bytes) -> None:
        """Learn topic names from a state record or a snapshot. Removed topics keep their names: their messages are
        still in the log.
        """
        if HOT not in payload:
            return
        try:
            for op in decode(payload):
                if isinstance(op, TopicPut):
                    self.topics[op.topic.topic_id] = op.topic.name
        except StoreCorrupted:
            return  # of a newer broker; ids are shown instead

    def topic_ids(self, name: str) -> frozenset[int]:
        """Ids of a topic, those of its removed namesakes too; a number is an id. Raises NotFound."""
        if name.isdecimal() and name not in self.topics.values():
            return frozenset({int(name)})
        ids = frozenset(number for number, known in self.topics.items() if known == name)
        if not ids:
            known = ", ".join(sorted(set(self.topics.values()))[:20]) or "none"
            raise NotFound(f"no topic {name} is in this folder; there are: {known}. A topic id works too")
        return ids

    def row(self, frame: Frame) -> dict[str, Any]:
        """One record as plain values; `body` is bytes."""
        if frame.kind == STATE:
            self.state(frame.head)
            return {"kind": "state", "log_offset": frame.log_offset, "store_ms": frame.store_ms, **_ops(frame.head)}
        if frame.kind == TIMER_END:
            ids = list(timer_ids_of(frame))
            return {"kind": "timer_end", "log_offset": frame.log_offset, "store_ms": frame.store_ms, "timers": ids}
        row: dict[str, Any] = {
            "kind": "message" if frame.kind == MESSAGE else "timer",
            "topic": self.topics.get(frame.topic_id),
            "topic_id": frame.topic_id,
            "queue_id": frame.queue_id,
            **({"queue_offset": frame.queue_offset} if frame.kind == MESSAGE else {}),
            "log_offset": frame.log_offset,
            "store_ms": frame.store_ms,
            "born_ms": frame.born_ms,
        }
        if frame.kind == TIMER:
            row |= {"due_ms": frame.timer.due_ms, "timer_kind": frame.timer.timer_kind}
        return row | _content(frame)


def decoder_of(disk: Disk, folder: Folder) -> RecordDecoder:
    """A decoder that knows the topics of the newest snapshot and of all state records behind it."""
    decoder = RecordDecoder()
    saved = load_snapshot(disk, folder)
    if saved is not None:
        decoder.state(saved.payload)
    begin = folder.snapshot.log_offset if folder.snapshot is not None else 0
    for frame in dump.frames(disk, folder, Wanted(kinds=frozenset({STATE}), begin=begin)):
        decoder.state(frame.head)
    return decoder


def _content(frame: Frame) -> dict[str, Any]:
    try:
        message = definition_pb2.Message.FromString(frame.head)
        system = definition_pb2.SystemProperties.FromString(frame.system)
    except DecodeError:
        return {"undecoded": True, "body": frame.head}
    body = message.body
    if system.body_encoding == definition_pb2.Encoding.GZIP:
        body = _unpacked(body)
    return {
        "message_id": system.message_id or None,
        "tag": system.tag if system.HasField("tag") else None,
        "keys": list(system.keys),
        "message_group": system.message_group if system.HasField("message_group") else None,
        "properties": dict(message.user_properties),
        "body": body,
    }


def _unpacked(body: bytes) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(body, BODY_MAX)
    except zlib.error:
        return body


def _ops(payload: bytes) -> dict[str, Any]:
    try:
        return {"operations": [_op(op) for op in decode(payload)]}
    except StoreCorrupted:
        return {"undecoded": True, "payload_base64": base64.b64encode(payload).decode()}


def _op(op: Op) -> dict[str, Any]:
    values = op._asdict() if isinstance(op, tuple) else asdict(op)
    return {"operation": type(op).__name__} | {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return "hidden" if value else ""  # the one value of bytes is the key of receipt handles
        case Enum():
            return value.name
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case str() | int() | float() | None:
            return value
        case Iterable():
            return [_plain(inner) for inner in value]
        case _:
            return str(value)
