"""Reads a SendMessage of plain messages from its bytes: checked, cut into what the store keeps, no protobuf object.

Nearly every message that is sent is plain: no delay, message group, transaction, priority or lite topic, and encoded as
every protobuf library writes it, fields in ascending order. For those all checks of `core.validation` are made on the
bytes, and head and system properties are slices of the request. Anything else, also whatever a check refuses, gives
None, and the full path decodes it and gives the verdict: no error is made here. What is stored is byte for byte what
the full path stores, but for the order of user properties, which protobuf leaves open; `make plain-sends` holds one
against the other.

What repeats from message to message (properties, tag, host and queue) is checked once and remembered. In a batch nearly
everything repeats: a message that differs from one before it in id, time and body alone is read by that one's shape.
Called by `rpc.send` through the front, before guard and handler; pure.
"""

from __future__ import annotations

from binascii import hexlify
from dataclasses import dataclass
from functools import lru_cache
from hashlib import md5

from evenq.store import Append
from evenq_broker.core.tags import tag_hash
from evenq_broker.core.validation import (
    DIGEST_HEAD,
    DIGITS_USED,
    KEYS_MAX,
    NORMAL_END,
    Limits,
    is_tag,
)

__all__ = ["PlainSend", "PlainSends"]

_MESSAGES, _TOPIC, _PROPERTY, _SYSTEM, _BODY = 0x0A, 0x0A, 0x12, 0x1A, 0x22
"""First byte of a field: `messages` of the request; `topic`, `user_properties`, `system_properties`, `body` of each."""
_TAG, _KEY, _ID, _HOST, _QUEUE = 0x0A, 0x12, 0x1A, 0x42, 0x68
"""`tag`, `keys`, `message_id`, `born_host`, `queue_id` of system properties."""
_TRACE = b"\x92\x01"
_BORN = (b"\x28\x01\x30\x01\x3a", b"\x30\x01\x3a", b"\x3a", b"\x28\x01\x3a")
"""Up to the length of `born_timestamp`: `body_encoding` IDENTITY and `message_type` NORMAL, each may be left out."""
_SHORT_MAX = 0x7F
_SYSTEM_BYTES_MAX = 8 << 10
_REMEMBERED, _REMEMBERED_BYTES = 4_096, 1_024
_SHAPES_MAX = 4
"""Of one request: the time has one byte less in a quarter of the messages, and queues may go round."""
_SECONDS_END = 6
"""A `Timestamp` from 1978 to 3058 begins with 0x08 and five bytes of seconds."""


class PlainSend:
    """A request that is as usual, not yet held against its topic."""

    __slots__ = ("entries", "keys", "message_ids", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        """Name of the topic of all of them."""
        self.entries: list[Append] = []
        """For the store; without a topic id, and with the queue that was asked for, 0 = none."""
        self.message_ids: list[bytes] = []
        self.keys: list[bytes] = []
        """Names in the window of duplicates (`core.recent`), without the topic."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What messages of a request have in common if they differ in id, time within a second and body alone."""

    before_id: bytes
    """Topic, properties, and system properties up to the message id."""
    id_size: int
    between: bytes
    """From behind the id to the nanoseconds of `born_timestamp`."""
    nanos_size: int
    """0: the time is a whole second."""
    tail: bytes
    """From behind the time to the body."""
    head: bytes
    """Topic and properties."""
    system_at: int
    """Where system properties begin, from the message's begin."""
    tag: int
    queue_id: int
    seconds_ms: int


class PlainSends:
    """Reads requests under the limits of one broker."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._body_bytes_max = limits.body_bytes_max
        self._end = NORMAL_END + limits.store_host_field
        self._known_properties = lru_cache(_REMEMBERED)(self._are_properties)

    def read(self, request: bytes) -> PlainSend | None:
        """The messages, ready for the store; None: the full path must look."""
        try:
            return self._read(request)
        except (IndexError, ValueError):  # it ends too early, or a text is no UTF-8
            return None

    def _read(self, data: bytes) -> PlainSend | None:
        end, at = len(data), 0
        found: PlainSend | None = None
        topic = b""
        shapes: list[_Shape] = []
        while at < end:
            if data[at] != _MESSAGES:
                return None
            size, start = _length(data, at + 1)
            at = start + size
            if at > end:
                return None
            if found is None:
                topic, name = _topic(data, start)
                found = PlainSend(name)
            for shape in shapes:
                if data.startswith(shape.before_id, start) and self._read_alike(data, start, at, shape, found):
                    break
            else:
                if not data.startswith(topic, start):
                    return None
                new = self._read_message(data, start, start + len(topic), at, found)
                if new is None:
                    return None
                if len(shapes) < _SHAPES_MAX:
                    shapes.append(new)
        return found

    def _read_alike(self, data: bytes, start: int, end: int, shape: _Shape, found: PlainSend) -> bool:
        """A message of `data[start:end]` that begins as those of the shape; False: it differs in more than id, time
        and body.
        """
        id_at = start + len(shape.before_id)
        behind = id_at + shape.id_size
        nanos_at = behind + len(shape.between)
        tail_at = nanos_at + shape.nanos_size
        body_field = tail_at + len(shape.tail)
        if not (
            data.startswith(shape.between, behind)
            and data.startswith(shape.tail, tail_at)
            and data[body_field] == _BODY
        ):
            return False
        size, body = _length(data, body_field + 1)
        message_id = data[id_at:behind]
        nanos = data[nanos_at:tail_at]
        nanos_ms = _nanos_ms(nanos) if nanos else 0
        if (
            body + size != end
            or not 0 < size <= self._body_bytes_max
            or nanos_ms < 0
            or not message_id.isascii()
            or message_id.isspace()
        ):
            return False
        system = data[start + shape.system_at : body_field]
        head = shape.head + data[body_field:end]
        self._add(
            found, Append(0, shape.queue_id, shape.tag, shape.seconds_ms + nanos_ms, head, system), message_id,
            data[body:end],
        )  # fmt: skip
        return True

    def _add(self, found: PlainSend, entry: Append, message_id: bytes, body: bytes) -> None:
        """Keep a message whose system properties are still as they came."""
        digest = hexlify(md5(body, usedforsecurity=False).digest()).upper()
        entry.system = b"".join((entry.system, DIGEST_HEAD, digest, self._end))
        found.entries.append(entry)
        found.message_ids.append(message_id)
        found.keys.append(message_id + digest[:DIGITS_USED])

    def _read_message(self, data: bytes, start: int, at: int, end: int, found: PlainSend) -> _Shape | None:
        """One message of `data[start:end]` with its properties at `at`, and its shape; None: it is not as usual."""
        properties = at
        while data[at] == _PROPERTY:
            size, at = _length(data, at + 1)
            at += size
        if at != properties:
            check = self._known_properties if at - properties <= _REMEMBERED_BYTES else self._are_properties
            if not check(data[properties:at]):
                return None
        head_end = at
        if data[at] != _SYSTEM:
            return None
        size = data[at + 1]
        at += 2
        if size > _SHORT_MAX:
            size, at = _length(data, at - 1)
        body_field = at + size
        if size > _SYSTEM_BYTES_MAX or data[body_field] != _BODY:
            return None
        system_at, system = at, data[at:body_field]
        size, body = _length(data, body_field + 1)
        if body + size != end or not 0 < size <= self._body_bytes_max:
            return None

        at = tag = 0
        if system[0] == _TAG:
            at = system[1] + 2
            tag = _known_tag(system[2:at]) if at <= _SHORT_MAX else 0
            if not tag:
                return None
        if system[at] == _KEY:
            at = _behind_keys(system, at)
        if system[at] != _ID:
            return None
        size = system[at + 1]
        behind = at + 2 + size
        message_id = system[at + 2 : behind]
        if not 0 < size <= _SHORT_MAX or message_id.decode().isspace():
            return None
        for before in _BORN:
            if system.startswith(before, behind):
                break
        else:
            return None
        moment = behind + len(before) + 1
        at = moment + system[moment - 1]
        tail = system[at:]
        queue_id = _known_tail(tail) if len(tail) <= _SHORT_MAX else _tail(tail)
        born_ms = _moment_ms(system[moment:at])
        if born_ms < 0 or queue_id < 0 or at > len(system):
            return None

        head = data[start:head_end]
        self._add(
            found, Append(0, queue_id, tag, born_ms, head + data[body_field:end], system), message_id, data[body:end]
        )
        seconds_end = moment + _SECONDS_END
        nanos_at = min(seconds_end + 1, at)
        return _Shape(
            before_id=data[start : system_at + behind - len(message_id)], id_size=len(message_id),
            between=system[behind:nanos_at], nanos_size=at - nanos_at, tail=tail, head=head,
            system_at=system_at - start, tag=tag, queue_id=queue_id, seconds_ms=_seconds_ms(system[moment:seconds_end]),
        )  # fmt: skip

    def _are_properties(self, data: bytes) -> bool:
        """Are these fields `user_properties` of which the full path would store the same, and takes?"""
        seen: set[bytes] = set()
        at = total = 0
        while at < len(data):
            size, start = _length(data, at + 1)
            at = start + size
            if data[start] != 0x0A:
                return False
            size, begin = _length(data, start + 1)
            value = begin + size
            key = data[begin:value]
            if not key or key in seen or not key.decode().isprintable() or data[value] != 0x12:
                return False
            seen.add(key)
            size, begin = _length(data, value + 1)
            if begin + size != at:
                return False
            data[begin:at].decode()
            total += len(key) + size
        return len(seen) <= self._limits.properties_max and total <= self._limits.properties_bytes_max


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A length of up to three bytes and the place behind it. Raises ValueError for one that protobuf would write
    shorter, or that is longer.
    """
    size = data[at]
    if size <= _SHORT_MAX:
        return size, at + 1
    more = data[at + 1]
    if more <= _SHORT_MAX:
        if not more:
            raise ValueError("a number is longer than it need be")
        return size & 0x7F | more << 7, at + 2
    last = data[at + 2]
    if last > _SHORT_MAX or not last:
        if last:
            high = data[at + 3]
            if 0 < high <= _SHORT_MAX:
                return size & 0x7F | (more & 0x7F) << 7 | (last & 0x7F) << 14 | high << 21, at + 4
        raise ValueError("a number is longer than it need be, or than any request")
    return size & 0x7F | (more & 0x7F) << 7 | last << 14, at + 3


def _topic(data: bytes, at: int) -> tuple[bytes, str]:
    """The field `topic` of a full name and that name. Raises ValueError."""
    size = data[at + 1]
    end = at + 2 + size
    if data[at] != _TOPIC or size > _SHORT_MAX or size < 3 or data[at + 2] != 0x12 or data[at + 3] != size - 2:
        raise ValueError("the topic is no full name")
    return data[at:end], data[at + 4 : end].decode()


@lru_cache(_REMEMBERED)
def _known_tag(raw: bytes) -> int:
    """The hash of a tag; 0: no message may have it."""
    tag = raw.decode()
    return tag_hash(tag) if is_tag(tag) else 0


def _behind_keys(system: bytes, at: int) -> int:
    """The place behind `keys`. Raises ValueError for one that is not as usual."""
    count = 0
    while system[at] == _KEY:
        size = system[at + 1]
        text = system[at + 2 : at + 2 + size].decode()
        if not 0 < size <= _SHORT_MAX or not text.isprintable() or text.isspace():
            raise ValueError("a key is not as usual")
        at += 2 + size
        count += 1
    if count > KEYS_MAX:
        raise ValueError("there are too many keys")
    return at


def _moment_ms(moment: bytes) -> int:
    """Ms since the epoch of an encoded `Timestamp`; -1: it is not as usual."""
    seconds_ms = _seconds_ms(moment[:_SECONDS_END])
    size = len(moment)
    if size == _SECONDS_END or seconds_ms < 0:
        return seconds_ms
    if not _SECONDS_END + 1 < size <= _SECONDS_END + 6 or moment[_SECONDS_END] != 0x10:
        return -1
    nanos_ms = _nanos_ms(moment[_SECONDS_END + 1 :])
    return -1 if nanos_ms < 0 else seconds_ms + nanos_ms


def _nanos_ms(encoded: bytes) -> int:
    """The number `nanos` of one to five bytes as ms; -1: it is not as usual."""
    size, raw = len(encoded), int.from_bytes(encoded, "little")
    if raw & _HIGH_BITS != _HIGH_BITS >> 8 * (5 - size) or not 0 < encoded[-1] <= _NANOS_ENDS[size]:
        return -1
    nanos = raw & 0x7F | raw >> 1 & 0x3F80 | raw >> 2 & 0x1FC000 | raw >> 3 & 0xFE00000 | raw >> 4 & 0x70000000
    return nanos // 1_000_000


_HIGH_BITS = 0x80_80_80_80
"""What tells of the first four bytes of a number that more follow."""
_NANOS_ENDS = (0, _SHORT_MAX, _SHORT_MAX, _SHORT_MAX, _SHORT_MAX, 7)
"""Most that the last byte of `nanos` may be, by its size: it has 31 bits."""


@lru_cache(64)
def _seconds_ms(raw: bytes) -> int:
    """The field `seconds` of five bytes as ms; -1: it is none."""
    if len(raw) != _SECONDS_END or raw[0] != 0x08 or not 0 < raw[5] <= _SHORT_MAX or min(raw[1:5]) <= _SHORT_MAX:
        return -1
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(raw[1:])) * 1000


def _tail(tail: bytes) -> int:
    """The queue that what follows `born_timestamp` asks for, 0 = none; -1: something unusual is there."""
    at, end, queue_id = 0, len(tail), 0
    if at < end and tail[at] == _HOST:
        size = tail[1]
        at = 2 + size
        tail[2:at].decode()
        if not 0 < size <= _SHORT_MAX:
            return -1
    if at < end and tail[at] == _QUEUE:
        queue_id, at = _length(tail, at + 1)
        if not queue_id:
            return -1
    if tail.startswith(_TRACE, at):
        size, start = _length(tail, at + 2)
        at = start + size
        tail[start:at].decode()
    return queue_id if at == end else -1


_known_tail = lru_cache(_REMEMBERED)(_tail)
