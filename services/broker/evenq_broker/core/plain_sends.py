"""Reads a SendMessage of plain messages from its bytes: checked, cut into what the store keeps, no protobuf object.

Nearly every message that is sent is plain: no delay, message group, transaction, priority or lite topic, and encoded as
every protobuf library writes it, fields in ascending order. For those all checks of `core.validation` are made on the
bytes, and head and system properties are slices of the request. Anything else, also whatever a check refuses, gives
None, and the full path decodes it and gives the verdict: no error is made here. What is stored is byte for byte what
the full path stores, but for the order of user properties, which protobuf leaves open; `make plain-sends` holds one
against the other.

What repeats from message to message (topic, properties, tag, host and queue) is checked once and remembered; id and
time, which never repeat, are read by one regular expression. Called by `rpc.send` through the front, before guard and
handler; pure.
"""

from __future__ import annotations

import re
from binascii import hexlify
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
_TAG, _KEY, _HOST, _QUEUE = 0x0A, 0x12, 0x42, 0x68
"""`tag`, `keys`, `born_host`, `queue_id` of system properties."""
_TRACE = b"\x92\x01"
_ID_AND_TIME = re.compile(
    rb"\x1a([\x01-\x7f])([0-9A-Za-z]+)(?:\x28\x01)?(?:\x30\x01)?"
    rb"\x3a(.)(\x08[\x80-\xff]{4}[\x01-\x7f])(?:\x10([\x80-\xff]{0,4}[\x01-\x7f]))?",
    re.DOTALL,
).match
"""Length and text of `message_id`, `body_encoding` IDENTITY and `message_type` NORMAL, each of which may be left out,
and `born_timestamp`: its length, `seconds` of five bytes (from 1978 to 3058), and `nanos`. The lengths are yet to be
compared.
"""
_SHORT_MAX = 0x7F
_SYSTEM_BYTES_MAX = 8 << 10
_REMEMBERED, _REMEMBERED_BYTES = 4_096, 1_024


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
        while at < end:
            if data[at] != _MESSAGES:
                return None
            size, start = _length(data, at + 1)
            at = start + size
            if at > end:
                return None
            if found is None:
                topic = data[start : start + 2 + data[start + 1]]
                found = PlainSend(_known_topic(topic))
            elif not data.startswith(topic, start):
                return None
            if not self._read_message(data, start, start + len(topic), at, found):
                return None
        return found

    def _read_message(  # noqa: PLR0915  # calls cost
        self, data: bytes, start: int, at: int, end: int, found: PlainSend
    ) -> bool:
        """One message of `data[start:end]` with its properties at `at`; False: it is not as usual."""
        properties = at
        while data[at] == _PROPERTY:
            size = data[at + 1]
            at += 2
            if size > _SHORT_MAX:
                size, at = _length(data, at - 1)
            at += size
        if at != properties:
            check = self._known_properties if at - properties <= _REMEMBERED_BYTES else self._are_properties
            if not check(data[properties:at]):
                return False
        head_end = at
        if data[at] != _SYSTEM:
            return False
        size = data[at + 1]
        system_at = at + 2
        if size > _SHORT_MAX:
            size, system_at = _length(data, at + 1)
        body_field = system_at + size
        if size > _SYSTEM_BYTES_MAX or data[body_field] != _BODY:
            return False
        size = data[body_field + 1]
        body = body_field + 2
        if size > _SHORT_MAX:
            size, body = _length(data, body_field + 1)
        if body + size != end or not 0 < size <= self._body_bytes_max:
            return False

        at, tag = system_at, 0
        if data[at] == _TAG:
            size = data[at + 1]
            at += 2 + size
            tag = _known_tag(data[at - size : at]) if size <= _SHORT_MAX else 0
            if not tag:
                return False
        if data[at] == _KEY:
            at = _behind_keys(data, at)
        usual = _ID_AND_TIME(data, at, body_field)
        if usual is None:
            return False
        id_size, message_id, time_size, seconds, nanos = usual.groups()
        if id_size[0] != len(message_id):
            return False
        born_ms = _seconds_ms(seconds)
        if nanos is None:
            if time_size != _SECONDS_ALONE:
                return False
        else:
            nanos_ms = _nanos_ms(nanos)
            if nanos_ms < 0 or time_size[0] != 7 + len(nanos):
                return False
            born_ms += nanos_ms
        at = usual.end()
        queue_id = _known_tail(data[at:body_field]) if body_field - at <= _SHORT_MAX else _tail(data[at:body_field])
        if queue_id < 0:
            return False

        digest = hexlify(md5(data[body:end], usedforsecurity=False).digest()).upper()
        system = b"".join((data[system_at:body_field], DIGEST_HEAD, digest, self._end))
        head = data[start:head_end] + data[body_field:end]
        found.entries.append(Append(0, queue_id, tag, born_ms, head, system))
        found.message_ids.append(message_id)
        found.keys.append(message_id + digest[:DIGITS_USED])
        return True

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


@lru_cache(_REMEMBERED)
def _known_topic(field: bytes) -> str:
    """The name in a field `topic` of a full name. Raises ValueError."""
    size = len(field) - 2
    if field[0] != _TOPIC or field[1] != size or not 3 <= size <= _SHORT_MAX or field[2:4] != bytes((0x12, size - 2)):
        raise ValueError("the topic is no full name")
    return field[4:].decode()


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


def _nanos_ms(encoded: bytes) -> int:
    """The number `nanos` of one to five bytes as ms; -1: it has more than 31 bits."""
    raw = int.from_bytes(encoded, "little")
    if raw >> _NANOS_BITS:
        return -1
    nanos = raw & 0x7F | raw >> 1 & 0x3F80 | raw >> 2 & 0x1FC000 | raw >> 3 & 0xFE00000 | raw >> 4 & 0x70000000
    return nanos // 1_000_000


_NANOS_BITS = 35
"""Of five bytes, of which the last has three."""
_SECONDS_ALONE = b"\x06"


@lru_cache(64)
def _seconds_ms(raw: bytes) -> int:
    """A field `seconds` of five bytes as ms."""
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
