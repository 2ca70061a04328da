"""Reader of plain SendMessage and Publish requests: checks them and cuts them for the store, without protobuf objects.

Nearly every message is plain: it has no delay, message group, transaction, priority or lite topic. It is encoded as
every protobuf library does it, with fields in ascending order. For these, all checks of `core.sending.validation` are
made on the bytes, and head and system properties are slices of the request. Anything else, also what a check refuses,
gives None; then the full path decodes it and decides, so no error is made here. The stored bytes are those that the
full path stores, except for the order of user properties, which protobuf leaves open; `make plain-sends` compares both.

What repeats from message to message (topic, properties, tag, host and queue) is checked once and remembered. Id and
time, which never repeat, are read by one regular expression. Called by `rpc.sending.send` and `rpc.sending.publishing`
through the front, before guard and handler; pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

from evenq.store import Append
from evenq.wire.convert import NANOS_MAX
from evenq_broker.core.delivery.tags import tag_hash
from evenq_broker.core.sending.body_digest import CRC32_HEAD, EIGHT_DIGITS, md5_field
from evenq_broker.core.sending.validation import KEYS_MAX, NORMAL_END, RESERVED_PROPERTIES, MessageLimits, is_tag

_MESSAGES, _TOPIC, _PROPERTY, _SYSTEM, _BODY = 0x0A, 0x0A, 0x12, 0x1A, 0x22
"""First byte of a field: `messages` of the request; `topic`, `user_properties`, `system_properties`, `body` of each."""
_BLOCK_QUEUE, _BLOCK_MESSAGES = 0x0A, 0x12  # the same of a PublishRequest: `queue`, `messages`
_QUEUE_BROKER, _QUEUE_ID = 0x12, 0x18  # `broker_name`, `queue_id` of `queue`
_MINUS_ONE = b"\xff" * 9 + b"\x01"
_TAG, _KEY, _HOST, _QUEUE = 0x0A, 0x12, 0x42, 0x68
"""`tag`, `keys`, `born_host`, `queue_id` of system properties."""
_TRACE = b"\x92\x01"
_ID_AND_TIME = re.compile(
    rb"\x1a([\x01-\x7f])([0-9A-Za-z]+)(?:\x28\x01)?(?:\x30\x01)?"
    rb"\x3a(.)(\x08[\x80-\xff]{4}[\x01-\x7f])(?:\x10([\x80-\xff]{0,4}[\x01-\x7f]))?",
    re.DOTALL,
).match
"""Length and text of `message_id`; `body_encoding` IDENTITY and `message_type` NORMAL, both optional; the length of
`born_timestamp`, its `seconds` of five bytes (from 1978 to 3058), and `nanos`. Lengths are compared later.
"""
_NANOS = re.compile(rb"[\x80-\xff]{0,4}[\x01-\x7f]", re.DOTALL).fullmatch
_SHORT_MAX = 0x7F
_ONE_MORE = bytes(0 < byte <= _SHORT_MAX for byte in range(256))
"""By the second byte of a length: whether it is the last."""
_UNLIKE_MAX = 4
"""When this many more messages differ from the previous one than equal it, no more are compared."""
_SYSTEM_BYTES_MAX = 8 << 10
_NO_CRC = 1 << 32  # more than each CRC32
_REMEMBERED, _REMEMBERED_BYTES = 4_096, 1_024


class _Shape:
    """Shape of a message, for later ones that differ only in id, time and body."""

    __slots__ = ("born_ms", "first", "moment", "nanos", "places", "second_ms", "tail")

    def __init__(self) -> None:
        self.first = b""
        """From its start to the length of its id. Empty: no message is compared with it."""
        self.moment = b""
        """From behind its id to `nanos`, or to the end of a time without them."""
        self.tail = b""
        """From behind its time to the first byte of the field `body`."""
        self.nanos = b""  # the last ones of that length; `born_ms` fits them
        self.second_ms = self.born_ms = 0
        self.places: tuple[int, ...] = (0,) * 7
        """Offsets in it: id, its end, `nanos`, its end, `body`, end of topic and properties, system properties."""


_NO_SHAPE = _Shape()


class PlainSend:
    """A plain request, not yet checked against its topic."""

    __slots__ = ("entries", "keys", "message_ids", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic  # name of the topic of all of them
        self.entries: list[Append] = []
        """For the store; without a topic id, and with the requested queue, 0 = none."""
        self.message_ids: list[bytes] = []
        self.keys: list[bytes] = []
        """Keys in the window of duplicates (`core.sending.dedup_window`), without the topic."""


class PlainBlock(PlainSend):
    """A plain block: all messages are for one queue."""

    __slots__ = ("queue_id",)

    def __init__(self, topic: str, queue_id: int) -> None:
        super().__init__(topic)
        self.queue_id = queue_id  # queue that the block names; -1: the broker chooses


class PlainSends:
    """Reader of requests under the limits of one broker."""

    def __init__(self, limits: MessageLimits, *, broker_name: str = "") -> None:
        """`broker_name`: blocks may name queues of this broker."""
        self._limits = limits
        self._here = ("", broker_name)
        self._body_bytes_max = limits.body_bytes_max
        self._end = NORMAL_END + limits.store_host_field
        self._crc_min = EIGHT_DIGITS
        """A lower CRC32 is not stored, but MD5 (`core.sending.body_digest`). Set for each request."""
        # Producers repeat their properties (decision 44); bounded, because an attacker does not.
        self._known_properties = lru_cache(_REMEMBERED)(self._are_properties)

    def read(self, request: bytes) -> PlainSend | None:
        """Returns the messages of a SendMessageRequest, ready for the store; None: the full path must decide."""
        self._crc_min = _NO_CRC if self._limits.only_md5() else EIGHT_DIGITS
        try:
            return self._read(request)
        except (IndexError, ValueError):  # it ends too early, or a text is not UTF-8
            return None

    def read_block(self, request: bytes) -> PlainBlock | None:
        """Does the same for a PublishRequest to a queue of this broker."""
        self._crc_min = _NO_CRC if self._limits.only_md5() else EIGHT_DIGITS
        try:
            return self._read_block(request)
        except (IndexError, ValueError):
            return None

    def _read(self, data: bytes) -> PlainSend | None:
        size, start = _length(data, 1)
        topic = data[start : start + 2 + data[start + 1]]
        send = PlainSend(_known_topic(topic))
        if start + size == len(data) and data[0] == _MESSAGES:  # one, as most requests have
            only = self._read_message(data, start, start + len(topic), len(data), send, b"", False)
            return send if only is not None else None
        return send if self._read_messages(data, 0, _MESSAGES, send, topic, b"") else None

    def _read_block(self, data: bytes) -> PlainBlock | None:
        size, start = _length(data, 1)
        at = start + size
        if data[0] != _BLOCK_QUEUE or size > _REMEMBERED_BYTES:
            return None
        queue = _known_queue(data[start:at])
        if queue.broker_name not in self._here:
            return None
        block = PlainBlock(queue.topic, queue.queue_id)
        topic, left_out = queue.topic_field, b""
        _, start = _length(data, at + 1)
        if data[start] != _TOPIC:  # all of them leave it out, or none
            topic, left_out = left_out, topic
        return block if self._read_messages(data, at, _BLOCK_MESSAGES, block, topic, left_out) else None

    def _read_messages(self, data: bytes, at: int, tag: int, send: PlainSend, topic: bytes, left_out: bytes) -> bool:
        """Reads the fields `tag` from `at` to the end, and nothing else: messages that begin with `topic`, or that are
        stored with the topic that they `left_out`. Returns False if one is not plain.

        A message that differs from the one before it only in id, time and body is compared with that and not read
        again.
        """
        end, body_bytes_max, system_end, crc_min = len(data), self._body_bytes_max, self._end, self._crc_min
        add, add_id, add_key = send.entries.append, send.message_ids.append, send.keys.append
        learning, unlike, shape, first, moment, tail, tag_number, queue_id = True, 0, _NO_SHAPE, b"", b"", b"", 0, 0
        id_at, id_behind, nanos_at, nanos_behind, body_at, head_bytes, system_at = shape.places
        while at < end:
            if data[at] != tag:
                return False
            size = data[at + 1]
            start = at + 2
            if size > _SHORT_MAX:
                if _ONE_MORE[data[start]]:
                    size = size & 0x7F | data[start] << 7
                    start += 1
                else:
                    size, start = _length(data, at + 1)
            at = start + size
            if at > end:
                return False
            if first and data.startswith(first, start):
                message_id = data[start + id_at : start + id_behind]
                if (
                    data.startswith(moment, start + id_behind)
                    and data.startswith(tail, start + nanos_behind)
                    and message_id.isalnum()
                ):
                    nanos = data[start + nanos_at : start + nanos_behind]
                    if nanos == shape.nanos or self._take_nanos(shape, nanos):
                        body_field = start + body_at
                        size = data[body_field + 1]
                        body = body_field + 2
                        if size > _SHORT_MAX:
                            if _ONE_MORE[data[body]]:
                                size = size & 0x7F | data[body] << 7
                                body += 1
                            else:
                                size, body = _length(data, body_field + 1)
                        if body + size != at or not 0 < size <= body_bytes_max:
                            return False
                        mark = b"%08X" % (crc := crc32(data[body:at]))
                        digest = md5_field(data[body:at]) if crc < crc_min else CRC32_HEAD + mark
                        head = left_out + data[start : start + head_bytes] + data[body_field:at]
                        system = data[start + system_at : body_field] + digest + system_end
                        add(Append(0, queue_id, tag_number, shape.born_ms, head, system))
                        add_id(message_id)
                        add_key(message_id + mark)
                        continue
            if not data.startswith(topic, start):
                return False
            learn = learning and at < end
            message = self._read_message(data, start, start + len(topic), at, send, left_out, learn)
            if message is None:
                return False
            if learn:
                unlike += 1
                learning = 2 * unlike <= len(send.entries) + _UNLIKE_MAX
                shape, moment, tail, first = message, message.moment, message.tail, message.first if learning else b""
                id_at, id_behind, nanos_at, nanos_behind, body_at, head_bytes, system_at = shape.places
                tag_number, queue_id = send.entries[-1].tag_hash, send.entries[-1].queue_id
        return True

    @staticmethod
    def _take_nanos(shape: _Shape, nanos: bytes) -> bool:
        """Takes another time of the same second; False: it is not encoded as usual."""
        if not _NANOS(nanos):
            return False
        nanos_ms = _nanos_ms(nanos)
        if nanos_ms < 0:
            return False
        shape.nanos, shape.born_ms = nanos, shape.second_ms + nanos_ms
        return True

    def _read_message(  # calls cost
        self, data: bytes, start: int, at: int, end: int, send: PlainSend, left_out: bytes, learn: bool
    ) -> _Shape | None:
        """Reads the message `data[start:end]`, properties at `at`; None: not plain. `learn`: returns its shape."""
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
                return None
        head_end = at
        if data[at] != _SYSTEM:
            return None
        size = data[at + 1]
        system_at = at + 2
        if size > _SHORT_MAX:
            size, system_at = _length(data, at + 1)
        body_field = system_at + size
        if size > _SYSTEM_BYTES_MAX or data[body_field] != _BODY:
            return None
        size = data[body_field + 1]
        body = body_field + 2
        if size > _SHORT_MAX:
            size, body = _length(data, body_field + 1)
        if body + size != end or not 0 < size <= self._body_bytes_max:
            return None

        at, tag = system_at, 0
        if data[at] == _TAG:
            size = data[at + 1]
            at += 2 + size
            tag = known_tag(data[at - size : at]) if size <= _SHORT_MAX else 0
            if not tag:
                return None
        if data[at] == _KEY:
            at = _behind_keys(data, at)
        if head_end - properties + at - system_at > self._limits.properties_bytes_max:
            return None  # this is more than the texts: the full path counts only those
        usual = _ID_AND_TIME(data, at, body_field)
        if usual is None:
            return None
        id_size, message_id, time_size, seconds, nanos = usual.groups()
        if id_size[0] != len(message_id):
            return None
        born_ms = _seconds_ms(seconds)
        nanos_ms, size = (0, _SECONDS_BYTES) if nanos is None else (_nanos_ms(nanos), _SECONDS_BYTES + 1 + len(nanos))
        if nanos_ms < 0 or time_size[0] != size:
            return None
        born_ms += nanos_ms
        at = usual.end()
        queue_id = _known_tail(data[at:body_field]) if body_field - at <= _SHORT_MAX else _tail(data[at:body_field])
        if queue_id < 0:
            return None

        mark = b"%08X" % (crc := crc32(data[body:end]))
        digest = md5_field(data[body:end]) if crc < self._crc_min else CRC32_HEAD + mark
        head = left_out + data[start:head_end] + data[body_field:end]
        send.entries.append(Append(0, queue_id, tag, born_ms, head, data[system_at:body_field] + digest + self._end))
        send.message_ids.append(message_id)
        send.keys.append(message_id + mark)
        return _learned(data, start, head_end, system_at, usual, body_field, born_ms) if learn else _NO_SHAPE

    def _are_properties(self, data: bytes) -> bool:
        """Returns True for fields `user_properties` that the full path accepts and stores unchanged."""
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
            text = key.decode()
            if not key or key in seen or not text.isprintable() or text in RESERVED_PROPERTIES or data[value] != 0x12:
                return False
            seen.add(key)
            size, begin = _length(data, value + 1)
            if begin + size != at:
                return False
            data[begin:at].decode()
            total += len(key) + size
        return len(seen) <= self._limits.properties_max and total <= self._limits.properties_bytes_max


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Reads a length of up to four bytes. Returns it and the position behind it. Raises ValueError for one that is
    longer, or that protobuf would write shorter.
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
    """Returns the name in a field `topic` of a full name. Raises ValueError."""
    size = len(field) - 2
    if field[0] != _TOPIC or field[1] != size or not 3 <= size <= _SHORT_MAX or field[2:4] != bytes((0x12, size - 2)):
        raise ValueError("the topic is not a full name")
    return field[4:].decode()


def _learned(
    data: bytes, start: int, head_end: int, system_at: int, usual: re.Match[bytes], body_at: int, born_ms: int
) -> _Shape:
    shape = _Shape()
    id_at, id_behind = usual.span(2)
    nanos_at, nanos_behind = usual.span(5)
    if nanos_at < 0:  # it has none
        nanos_at = nanos_behind = usual.end()
    shape.first = data[start:id_at]
    shape.moment = data[id_behind:nanos_at]
    shape.tail = data[nanos_behind : body_at + 1]
    shape.nanos = data[nanos_at:nanos_behind]
    shape.second_ms, shape.born_ms = _seconds_ms(usual[4]), born_ms
    places = id_at, id_behind, nanos_at, nanos_behind, body_at, head_end, system_at
    shape.places = tuple(place - start for place in places)
    return shape


@dataclass(frozen=True, slots=True)
class _BlockQueue:
    """Queue of a PublishRequest."""

    topic: str
    broker_name: str
    queue_id: int
    topic_field: bytes  # the field `topic` of its messages


@lru_cache(_REMEMBERED)
def _known_queue(field: bytes) -> _BlockQueue:
    """Reads the content of a field `queue`. Raises IndexError or ValueError for one that is not as usual."""
    size, end = field[1], len(field)
    at = 2 + size
    name = field[2:at]
    if field[0] != _TOPIC or not 0 < size <= _SHORT_MAX - 2:
        raise ValueError("the topic is left out, or unusually long")
    broker_name, queue_id = b"", 0
    if at < end and field[at] == _QUEUE_BROKER:
        size, start = _length(field, at + 1)
        at = start + size
        broker_name = field[start:at]
    if at < end and field[at] == _QUEUE_ID:
        if field[at + 1 :] == _MINUS_ONE:
            queue_id, at = -1, end
        else:
            queue_id, at = _length(field, at + 1)
    if at != end:
        raise ValueError("something else is there")
    topic_field = bytes((_TOPIC, len(name) + 2, 0x12, len(name))) + name
    return _BlockQueue(name.decode(), broker_name.decode(), queue_id, topic_field)


@lru_cache(_REMEMBERED)
def known_tag(raw: bytes) -> int:
    """Returns the hash of a tag; 0: no message may have it."""
    tag = raw.decode()
    return tag_hash(tag) if is_tag(tag) else 0


def _behind_keys(system: bytes, at: int) -> int:
    """Returns the position behind `keys`. Raises ValueError for one that is not as usual."""
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
    """Returns the number `nanos` of one to five bytes as ms; -1: it is a second or more."""
    raw = int.from_bytes(encoded, "little")
    if raw >> _NANOS_BITS:
        return -1
    nanos = raw & 0x7F | raw >> 1 & 0x3F80 | raw >> 2 & 0x1FC000 | raw >> 3 & 0xFE00000 | raw >> 4 & 0x70000000
    return nanos // 1_000_000 if nanos <= NANOS_MAX else -1


_NANOS_BITS = 35  # bits in five bytes, of which the last has three
_SECONDS_BYTES = 6  # bytes of a usual field `seconds`


@lru_cache(64)
def _seconds_ms(raw: bytes) -> int:
    """Returns a field `seconds` of five bytes as ms."""
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(raw[1:])) * 1000


def _tail(tail: bytes) -> int:
    """Returns the queue that the fields behind `born_timestamp` request, 0 = none; -1: something unusual is there."""
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
