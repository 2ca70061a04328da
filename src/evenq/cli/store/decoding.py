"""Records of a broker's store as plain values: topic names from state records, messages from their protobuf.

The store itself depends on neither format. A record that cannot be decoded becomes its bytes in base64, so that a dump
never stops there.
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

BODY_MAX: Final = 64 << 20
HOT: Final = b'"name"'  # most records do not contain it, and so name no topic


class RecordDecoder:
    """A decoder with the topic names of the state records so far."""

    def __init__(self) -> None:
        self.topics: dict[int, str] = {}

    def state(self, payload: bytes) -> None:
        """Adds topic names of a state record or snapshot. Removed topics stay: their messages are still in the log."""
        if HOT not in payload:
            return
        try:
            for op in decode(payload):
                if isinstance(op, TopicPut):
                    self.topics[op.topic.topic_id] = op.topic.name
        except StoreCorrupted:
            return  # written by a newer broker; ids are shown instead

    def topic_ids(self, name: str) -> frozenset[int]:
        """Returns the ids of a topic and of removed topics of this name; a number is an id. Raises NotFound."""
        if name.isdecimal() and name not in self.topics.values():
            return frozenset({int(name)})
        ids = frozenset(number for number, known in self.topics.items() if known == name)
        if not ids:
            known = ", ".join(sorted(set(self.topics.values()))[:20]) or "none"
            raise NotFound(f"topic {name} is not in this folder; there are: {known}. A topic id is accepted too")
        return ids

    def row(self, frame: Frame) -> dict[str, Any]:
        """Returns one record as plain values; `body` is bytes."""
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
    """Returns a decoder with the topics of the newest snapshot and of all later state records."""
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
            return "hidden" if value else ""  # only the key of receipt handles is bytes
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
