"""From a block of columns to stored messages, and the form in which they wait for their batch's decision.

`build` makes of each row the two parts of a message that the log takes (`core.frames`), in a tight loop over bytes: no
protobuf object for a row of the common kinds. Whatever is unusual (a delivery time, a priority, a text that is not
ASCII, a first tag or message group) goes through `core.validation`, so that rules and errors are those of a send.

A block waits as one timer of the store of kind 3. Its head and its system part, all numbers big-endian:

| bytes | head                   | bytes | system part, for each row                                 |
|-------|------------------------|-------|-----------------------------------------------------------|
| 1     | version, 1             | 8     | tag hash, signed                                          |
| 16    | token of the attempt   | 4, 4  | length of the message's head, of its system part          |
| 4     | sequence               | 4     | queue, signed; -1: the broker chooses                     |
| 4     | rows                   | 8, 8  | due ms (0: at once), born ms; behind all rows their bytes |
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from hashlib import md5
from itertools import pairwise
from operator import le
from typing import Protocol, TypeVar

from evenq.errors import BadRequest, StoreCorrupted
from evenq.model import MessageType, TopicConfig
from evenq.store import Append, StoredTimer, TimerAppend
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq_broker.core.frames import field, text_field, varint, varint_field
from evenq_broker.core.validation import Limits, checked

__all__ = [
    "PASSED_MAX",
    "ROWS_MAX",
    "STAGED_ROWS",
    "Passed",
    "Rows",
    "build",
    "messages_of",
    "rows_of",
    "token_and_sequence",
]

STAGED_ROWS = 3  # the kind of our timers
ROWS_MAX = 20_000
"""Most rows in one block."""
PASSED_MAX = 10_000
"""Most pairs of tag and message group that are remembered for a topic."""
TOKEN_BYTES = 16
DELAYED_MESSAGE = 1  # as `core.validation` has it

_VERSION = 1
_HEAD = struct.Struct(">B16sII")
_ROW = struct.Struct(">qIIiqq")
_ROW_PACK = _ROW.pack
_MD5_DIGITS = 32
_ID_NUMBER_DIGITS = 12  # the last ones of an id
_ID_NUMBER_MAX = (1 << 4 * _ID_NUMBER_DIGITS) - 1
_NONE: Sequence[int] = ()
_ENCODING = b"\x28\x01\x30"  # body_encoding 5 = IDENTITY; the tag of message_type 6
_DIGEST = b"\x22\x24\x08\x02\x12\x20"  # body_digest 4 {type 1 = MD5, checksum 2}
_NORMAL, _FIFO = b"\x01", b"\x02"
_GROUP_TAG = b"\x8a\x01"  # message_group 17
_KEYS_MAX, _KEY_BYTES_MAX = 128, 1_024
T = TypeVar("T")
_PLAIN = {MessageType.NORMAL, MessageType.FIFO, MessageType.MIXED}


class Columns(Protocol):
    """`evenq.v1.RowBlock`."""

    count: int
    bodies: bytes
    body_ends: bytes
    tags: bytes
    tag_ends: bytes
    keys: bytes
    key_ends: bytes
    key_rows: bytes
    property_names: bytes
    property_name_ends: bytes
    property_values: bytes
    property_value_ends: bytes
    property_rows: bytes
    message_groups: bytes
    message_group_ends: bytes
    delivery_ms: bytes
    priorities: bytes
    queue_ids: bytes
    first_row: int
    born_ms: int


@dataclass(slots=True)
class Rows:
    """A column block taken apart; empty sequences: no row has any."""

    count: int
    bodies: list[bytes]
    tags: list[bytes]
    keys: list[list[bytes]]
    properties: list[list[tuple[bytes, bytes]]]
    groups: list[bytes]
    due_ms: Sequence[int]
    priorities: Sequence[int]
    queue_ids: Sequence[int]
    first_row: int
    born_ms: int
    plain_texts: bool
    """Keys and properties need no closer look."""


def rows_of(block: Columns, limits: Limits) -> Rows:
    """Take the columns apart. Raises BadRequest for columns that do not fit together."""
    count = block.count
    if not 0 < count <= ROWS_MAX:
        raise BadRequest(f"the block has {count} rows; stage 1 to {ROWS_MAX} at once")
    keys = _texts("keys", block.keys, block.key_ends)
    names = _texts("property_names", block.property_names, block.property_name_ends)
    values = _texts("property_values", block.property_values, block.property_value_ends, len(names))
    pairs = list(zip(names, values, strict=True))
    keys_by_row = _by_row("key_rows", keys, block.key_rows, count)
    properties = _by_row("property_rows", pairs, block.property_rows, count)
    plain = (
        _plain(block.keys)
        and b" " not in block.keys
        and _within(keys, 1, _KEY_BYTES_MAX)
        and _within(keys_by_row, 0, _KEYS_MAX)
        and _plain(block.property_names)
        and _within(names, 1, limits.properties_bytes_max)
        and block.property_values.isascii()
        and _small(properties, names, values, limits)
    )
    return Rows(
        count=count,
        bodies=_texts("bodies", block.bodies, block.body_ends, count),
        tags=_texts("tags", block.tags, block.tag_ends, count, may_miss=True),
        keys=keys_by_row,
        properties=properties,
        groups=_texts("message_groups", block.message_groups, block.message_group_ends, count, may_miss=True),
        due_ms=_numbers("delivery_ms", block.delivery_ms, "q", count),
        priorities=_numbers("priorities", block.priorities, "i", count),
        queue_ids=_numbers("queue_ids", block.queue_ids, "i", count),
        first_row=block.first_row,
        born_ms=max(0, block.born_ms),
        plain_texts=plain,
    )


def _numbers(name: str, data: bytes, letter: str, count: int) -> Sequence[int]:
    if not data:
        return _NONE
    size = struct.calcsize("<" + letter)
    if len(data) != size * count:
        raise BadRequest(f"the column {name} has {len(data)} bytes, {count} numbers of {size} bytes are due")
    return struct.unpack(f"<{count}{letter}", data)


def _texts(name: str, data: bytes, ends: bytes, count: int = -1, *, may_miss: bool = False) -> list[bytes]:
    if not ends and (may_miss or count <= 0):
        return []
    places = _numbers(f"{name} (ends)", ends, "i", len(ends) // 4 if count < 0 else count)
    _must_rise(name, places, len(data))
    return [data[start:end] for start, end in pairwise((0, *places))]


def _by_row(name: str, items: list[T], rows: bytes, count: int) -> list[list[T]]:
    if not rows:
        if items:
            raise BadRequest(f"the column {name} is missing: {len(items)} values belong to rows")
        return []
    places = _numbers(name, rows, "i", count)
    _must_rise(name, places, len(items))
    return [items[start:end] for start, end in pairwise((0, *places))]


def _must_rise(name: str, places: Sequence[int], end: int) -> None:
    if not places or places[0] < 0 or places[-1] != end or not all(map(le, places, places[1:])):
        raise BadRequest(f"the ends of the column {name} are not ascending numbers up to {end}")


def _plain(text: bytes) -> bool:
    return text.isascii() and text.decode("ascii").isprintable()


def _within(items: Sequence[Sized], low: int, high: int) -> bool:
    return not items or (low <= min(map(len, items)) and max(map(len, items)) <= high)


def _small(rows: Sequence[Sized], names: Sequence[bytes], values: Sequence[bytes], limits: Limits) -> bool:
    """True if no row can be over the limits; false: each is looked at."""
    if not names:
        return True
    count = max(map(len, rows))
    size = max(map(len, names)) + max(map(len, values))
    return count <= limits.properties_max and count * size <= limits.properties_bytes_max


# -- building ---------------------------------------------------------------------------------------------------------


class Passed(dict[tuple[bytes, bytes], tuple[int, int, bytes, bytes]]):
    """Pairs of tag and message group that validation let pass for one topic as it is: tag hash, queue, and the two as
    fields. Kept from block to block, for validation costs as much as ten rows.
    """

    def __init__(self, topic: TopicConfig) -> None:
        super().__init__()
        self.topic = topic


def build(
    rows: Rows, topic: TopicConfig, limits: Limits, *, token: bytes, sequence: int, now_ms: int,
    passed: Passed | None = None,
) -> TimerAppend:  # fmt: skip
    """The block as it waits in the log. Raises what a send of one of its rows would, with the row's number. `passed`:
    of earlier blocks for the same topic and limits.
    """
    if passed is None or passed.topic is not topic:
        passed = Passed(topic)
    maker = _Maker(rows, topic, limits, token, now_ms, passed)
    parts: list[bytes] = []
    table = maker.lines(parts)
    return TimerAppend(
        topic.topic_id, 0, 0, due_ms=0, kind=STAGED_ROWS, born_ms=rows.born_ms,
        head=_HEAD.pack(_VERSION, token, sequence, rows.count), system=b"".join((*table, *parts)),
    )  # fmt: skip


class _Maker:
    """What is the same for the rows of one block."""

    def __init__(
        self, rows: Rows, topic: TopicConfig, limits: Limits, token: bytes, now_ms: int, passed: Passed
    ) -> None:
        self._rows = rows
        self._topic = topic
        self._limits = limits
        self._now_ms = now_ms
        self._name = field(1, text_field(2, topic.name))
        self._id = f"01{token[:10].hex().upper()}"
        seconds, rest = divmod(rows.born_ms, 1_000)
        self._born = field(7, varint_field(1, seconds) + (varint_field(2, rest * 1_000_000) if rest else b""))
        self._ends = [_ENCODING + kind + limits.store_host_field for kind in (_NORMAL, _FIFO)]
        self._passed = passed
        self._pairs = _Properties()

    def lines(self, parts: list[bytes]) -> list[bytes]:
        """The rows' lines in the table; their bytes go to `parts`. The hot path: a usual row calls no helper."""
        rows, passed, name, born_ms = self._rows, self._passed, self._name, self._rows.born_ms
        pair_fields = self._pairs.__getitem__
        no_texts = [b""] * rows.count
        tags, groups = rows.tags or no_texts, rows.groups or no_texts
        same, middle, width = self._same_for_all()
        size_max = self._limits.body_bytes_max if rows.plain_texts else 0
        heads: dict[int, bytes] = {}
        lines: list[bytes] = []
        extra = rows.properties or rows.keys or rows.queue_ids
        unusual = rows.due_ms or rows.priorities
        properties = keys = b""
        for at, body in enumerate(rows.bodies):
            tag, group, size = tags[at], groups[at], len(body)
            known = passed.get((tag, group))
            if known is None or not 0 < size <= size_max or (unusual and self._is_unusual(at)):
                lines.append(self._checked(at, tag, group, parts))
                continue
            tag_hash, queue_id, tag_field, group_field = known
            before = heads.get(size)
            if before is None:
                before = heads[size] = b"\x22" + varint(size)
            if extra:
                if rows.properties:
                    properties = b"".join(map(pair_fields, rows.properties[at]))
                if rows.keys:
                    keys = b"".join([b"\x12" + varint(len(key)) + key for key in rows.keys[at]])
                if queue_id < 0 and rows.queue_ids:
                    queue_id = rows.queue_ids[at]
            start = at * width
            if group:
                cut = start + middle
                rest = same[cut : start + width - len(self._ends[0])]
                system = b"".join((tag_field, keys, same[start:cut], group_field, rest, self._ends[1]))
            else:
                system = tag_field + keys + same[start : start + width]
            parts += (name, properties, before, body, system)
            head_size = len(name) + len(properties) + len(before) + size
            lines.append(_ROW_PACK(tag_hash, head_size, len(system), queue_id, 0, born_ms))
        return lines

    def _same_for_all(self) -> tuple[bytes, int, int]:
        """Of each row the system properties that every row has, as long for each: id, born time, digest and the rest.
        Made by columns: digits that differ are put into so many copies of one row. Also where a row's message group
        belongs, and how long one is.
        """
        rows = self._rows
        before = b"\x1a\x22" + self._id.encode()
        middle = len(before) + _ID_NUMBER_DIGITS + len(self._born)
        row = before + bytes(_ID_NUMBER_DIGITS) + self._born + _DIGEST + bytes(_MD5_DIGITS) + self._ends[0]
        width, first = len(row), rows.first_row & _ID_NUMBER_MAX
        filled = bytearray(row * rows.count)
        numbers = _digits(struct.pack(f">{rows.count}Q", *range(first, first + rows.count)))
        digests = _digits(b"".join([md5(body, usedforsecurity=False).digest() for body in rows.bodies]))
        for at in range(_ID_NUMBER_DIGITS):
            filled[len(before) + at :: width] = numbers[16 - _ID_NUMBER_DIGITS + at :: 16]
        for at in range(_MD5_DIGITS):
            filled[middle + len(_DIGEST) + at :: width] = digests[at::_MD5_DIGITS]
        return bytes(filled), middle, width

    def _is_unusual(self, at: int) -> bool:
        rows = self._rows
        return bool((rows.due_ms and rows.due_ms[at]) or (rows.priorities and rows.priorities[at] >= 0))

    def _message_id(self, at: int) -> bytes:
        return f"{self._id}{(self._rows.first_row + at) & _ID_NUMBER_MAX:0{_ID_NUMBER_DIGITS}X}".encode()

    def _checked(self, at: int, tag: bytes, group: bytes, parts: list[bytes]) -> bytes:
        """The same by way of a protobuf message, as a send goes."""
        rows = self._rows
        queue_id = rows.queue_ids[at] if rows.queue_ids else -1
        try:
            stored = checked(self._message(at, tag, group), self._topic, self._limits, now_ms=self._now_ms)
        except BadRequest as error:
            raise type(error)(f"row {rows.first_row + at}: {error.message}") from error
        except (UnicodeDecodeError, ValueError) as error:
            raise BadRequest(f"row {rows.first_row + at} cannot be a message: {error}") from error
        if stored.queue_id >= 0:
            queue_id = stored.queue_id
        is_timer = isinstance(stored, TimerAppend)
        if not is_timer and self._topic.message_type in _PLAIN and not (rows.priorities and rows.priorities[at] >= 0):
            tag_field = b"\x0a" + varint(len(tag)) + tag if tag else b""
            group_field = _GROUP_TAG + varint(len(group)) + group if group else b""
            if len(self._passed) >= PASSED_MAX:
                self._passed.clear()
            self._passed[tag, group] = stored.tag_hash, stored.queue_id, tag_field, group_field
        due_ms = stored.due_ms if isinstance(stored, TimerAppend) else 0
        parts += (stored.head, stored.system)
        return _ROW.pack(stored.tag_hash, len(stored.head), len(stored.system), queue_id, due_ms, stored.born_ms)

    def _message(self, at: int, tag: bytes, group: bytes) -> definition_pb2.Message:
        rows = self._rows
        message = definition_pb2.Message(body=rows.bodies[at])
        message.topic.name = self._topic.name
        for name, value in rows.properties[at] if rows.properties else ():
            message.user_properties[name.decode()] = value.decode()
        system = message.system_properties
        system.message_id = self._message_id(at).decode()
        if tag:
            system.tag = tag.decode()
        if rows.keys:
            system.keys.extend(key.decode() for key in rows.keys[at])
        if group:
            system.message_group = group.decode()
        if rows.due_ms and rows.due_ms[at]:
            set_ms(system.delivery_timestamp, rows.due_ms[at])
        if rows.priorities and rows.priorities[at] >= 0:
            system.priority = rows.priorities[at]
        set_ms(system.born_timestamp, rows.born_ms)
        return message


def _digits(numbers: bytes) -> bytes:
    return numbers.hex().upper().encode()


class _Properties(dict[tuple[bytes, bytes], bytes]):
    """User properties as fields, made when first asked for: rows of one block often have the same."""

    def __missing__(self, pair: tuple[bytes, bytes]) -> bytes:
        name, value = pair
        inner = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(value)) + value
        encoded = self[pair] = b"\x12" + varint(len(inner)) + inner
        return encoded


# -- reading back -----------------------------------------------------------------------------------------------------


def token_and_sequence(timer: StoredTimer) -> tuple[bytes, int]:
    """Whose block it is. Raises StoreCorrupted for a version nobody knows."""
    if len(timer.head) != _HEAD.size or timer.head[0] != _VERSION:
        raise StoreCorrupted(
            f"staged rows have version {timer.head[0] if timer.head else 'none'}, this program reads {_VERSION}"
        )
    _, token, sequence, _ = _HEAD.unpack(timer.head)
    return token, sequence


def messages_of(
    timer: StoredTimer, topic: TopicConfig, *, queue_id: int, now_ms: int
) -> Iterator[Append | TimerAppend]:
    """The messages of a block in order; `queue_id` takes those that have no queue of their own. Those whose delivery
    time is still to come are timers.
    """
    token_and_sequence(timer)
    count = _HEAD.unpack(timer.head)[3]
    data, queues, topic_id = timer.system, topic.write_queues, topic.topic_id
    at = count * _ROW.size
    for tag_hash, head_size, system_size, wanted, due_ms, born_ms in _ROW.iter_unpack(data[:at]):
        middle = at + head_size
        end = middle + system_size
        queue = queue_id if wanted < 0 else wanted if wanted < queues else wanted % queues
        if due_ms > now_ms:
            yield TimerAppend(
                topic_id, queue, tag_hash, due_ms=due_ms, kind=DELAYED_MESSAGE, born_ms=born_ms, head=data[at:middle],
                system=data[middle:end],
            )  # fmt: skip
        else:
            yield Append(topic_id, queue, tag_hash, born_ms, data[at:middle], data[middle:end])
        at = end
