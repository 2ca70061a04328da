"""A batch's messages are alike: what the first one's check found holds for all that differ only in id, birth and body.

Used by SendMessage for batches, which often go on as the one before. `learn` looks at the bytes of a message after
`core.validation.checked` took it and keeps where id, birth time and body stand, and all bytes between. `Pattern.stored`
compares the next message with these: three comparisons instead of forty protobuf calls. Whatever differs (topic, tag,
key, user properties, lengths) gives None, and that message takes the long way. The whole request has been parsed
before, so its strings are valid and its lengths fit; no more than that is trusted. Pure.
"""

from __future__ import annotations

from hashlib import md5
from typing import NamedTuple

from evenq.store import Append
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq_broker.core.validation import MESSAGE_ID_MAX, Limits, born_ms_of, normal_fields

__all__ = ["Pattern", "learn", "spans"]

_MESSAGE = 0x0A  # key of field 1 of SendMessageRequest; one byte, as the keys below
_TOPIC, _SYSTEM, _BODY = 0x0A, 0x1A, 0x22  # fields 1, 3, 4 of Message
_ID, _ENCODING, _BORN = 0x1A, 0x28, 0x3A  # fields 3, 5, 7 of SystemProperties
# tag, keys, id, encoding, type, birth, born host, queue id: nothing that is taken out, checked against the body, or
# makes another message than a NORMAL one.
_PLAIN = frozenset({0x0A, 0x12, _ID, _ENCODING, 0x30, _BORN, 0x42, 0x68})
_GZIP = 2
_timestamp = type(definition_pb2.SystemProperties().born_timestamp).FromString


class _Field(NamedTuple):
    """One field of an encoded message: its key, and where its content stands."""

    key: int
    start: int
    end: int


def spans(request: bytes, count: int) -> list[tuple[int, int]] | None:
    """Where each of the `count` messages of a SendMessageRequest stands; None if it holds anything else."""
    found = []
    at, size = 0, len(request)
    while at < size:
        if request[at] != _MESSAGE:
            return None
        length, at = _varint(request, at + 1)
        found.append((at, at + length))
        at += length
    return found if len(found) == count else None


class Pattern:
    """What the messages of one batch have in common."""

    __slots__ = (
        "_after", "_before", "_between", "_body_bytes_max", "_born_end", "_born_start", "_ending", "_id_end",
        "_id_start", "_place", "_system_end", "_system_start", "_topic",
    )  # fmt: skip

    def __init__(
        self, first: Append, limits: Limits, message: bytes, topic: _Field, system: _Field, one_id: _Field, born: _Field
    ) -> None:  # fmt: skip
        """`message`: the first one's bytes; the fields are places in it, and in every message like it."""
        self._place = (first.topic_id, first.queue_id, first.tag_hash)
        self._topic = message[: topic.end]
        self._before = message[: one_id.start]
        self._between = message[one_id.end : born.start]
        self._after = message[born.end : system.end] + bytes((_BODY,))
        self._id_start, self._id_end = one_id.start, one_id.end
        self._born_start, self._born_end = born.start, born.end
        self._system_start, self._system_end = system.start, system.end
        self._body_bytes_max = limits.body_bytes_max
        self._ending = normal_fields(limits)

    def fits(self, request: bytes, start: int) -> bool:
        """Whether all but id, birth time and body of the message at `start` are those of the first."""
        is_at = request.startswith
        return (
            is_at(self._before, start)
            and is_at(self._between, start + self._id_end)
            and is_at(self._after, start + self._born_end)
        )

    def stored(self, request: bytes, start: int, end: int) -> tuple[bytes, Append] | None:
        """Id and stored form of the message at start..end, with the queue that the first one asked for (-1: none); None
        if it is not like the first.
        """
        if not self.fits(request, start):
            return None
        system_end = start + self._system_end
        length, body_start = _varint(request, system_end + 1)
        message_id = request[start + self._id_start : start + self._id_end]
        if body_start + length != end or not 0 < length <= self._body_bytes_max or not message_id.isalnum():
            return None
        digest = md5(request[body_start:end], usedforsecurity=False).hexdigest().upper().encode()
        system = request[start + self._system_start : system_end]
        born = _timestamp(request[start + self._born_start : start + self._born_end])
        return message_id, Append(
            *self._place,
            born_ms_of(born),
            self._topic + request[system_end:end],
            b"".join((system, b"\x22\x24\x08\x02\x12\x20", digest, self._ending)),
        )


def learn(message: bytes, stored: Append, limits: Limits) -> Pattern | None:
    """The pattern of the encoded `message`, which was checked and became `stored` (its queue is -1 if it asked for
    none). None if it is of a kind that no other can be like.
    """
    fields = _fields(message, 0, len(message))
    if [field.key for field in fields] != [_TOPIC, _SYSTEM, _BODY]:
        return None
    topic, system, _ = fields
    inner = _fields(message, system.start, system.end)
    keys = [field.key for field in inner]
    if not _PLAIN.issuperset(keys) or keys.count(_ID) != 1 or keys.count(_BORN) != 1:
        return None
    if any(field.key == _ENCODING and _varint(message, field.start)[0] == _GZIP for field in inner):
        return None
    one_id, born = inner[keys.index(_ID)], inner[keys.index(_BORN)]
    if born.start < one_id.start or one_id.end - one_id.start > MESSAGE_ID_MAX:
        return None
    pattern = Pattern(stored, limits, message, topic, system, one_id, born)
    again = pattern.stored(message, 0, len(message))
    same = again is not None and (again[1].head, again[1].system) == (stored.head, stored.system)
    return pattern if same else None  # else the client writes fields in an order of its own


def _fields(data: bytes, start: int, end: int) -> list[_Field]:
    """The fields of a message that was parsed before; what has another form than we expect ends the list with key 0."""
    found = []
    at = start
    while at < end:
        key, at = _varint(data, at)
        length, after = _varint(data, at)
        if key & 7 == 2:
            found.append(_Field(key, after, after + length))
            at = after + length
        elif key & 7 == 0:
            found.append(_Field(key, at, after))
            at = after
        else:
            return [*found, _Field(0, at, at)]
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number and where it ends."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
