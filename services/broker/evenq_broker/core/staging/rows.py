"""Rows staged from a block of columns: their messages, and the form in which they wait for their batch's decision.

`build` makes of each row the two parts of a message that the log takes (`core.state.frames`). It is a tight loop over
bytes, without a protobuf object for rows of the common kinds. Unusual rows have a delivery time, a priority, a text
that is not ASCII, or a tag or message group that is new. They go through `core.sending.validation`, so that rules and
errors are those of a send.

A block waits as one timer of the store of kind 3. Its head and its system part, all numbers big-endian:

| bytes | head                   | bytes | system part, for each row                                 |
|-------|------------------------|-------|-----------------------------------------------------------|
| 1     | version, 1             | 8     | tag hash, signed                                          |
| 16    | token of the attempt   | 4, 4  | length of the message's head, of its system part          |
| 4     | sequence               | 4     | queue, signed; -1: the broker chooses                     |
| 4     | rows                   | 8, 8  | due ms (0: none), born ms; behind all rows their bytes    |
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import add
from zlib import crc32

from evenq.errors import BadRequest, StoreCorrupted
from evenq.model import MessageType, TopicConfig
from evenq.store import Append, AppendBlock, StoredTimer, TimerAppend
from evenq.wire.convert import set_ms
from evenq_broker.core.sending.body_digest import CRC32_DIGITS, CRC32_HEAD, EIGHT_DIGITS, md5_field
from evenq_broker.core.sending.sent_message import EmptyMessage, SentMessage
from evenq_broker.core.sending.validation import MessageLimits, checked
from evenq_broker.core.staging.row_columns import ROWS_MAX, Rows, rows_of
from evenq_broker.core.state.frames import field, text_field, varint, varint_field

__all__ = [
    "PASSED_MAX",
    "ROWS_MAX",
    "STAGED_ROWS",
    "Passed",
    "Rows",
    "block_of",
    "build",
    "messages_of",
    "rows_of",
    "token_and_sequence",
]

STAGED_ROWS = 3  # the kind of our timers
PASSED_MAX = 10_000
"""Most pairs of tag and message group that are remembered for a topic."""
TOKEN_BYTES = 16
DELAYED_MESSAGE = 1  # as in `core.sending.validation`

_VERSION = 1
_HEAD = struct.Struct(">B16sII")
_ROW = struct.Struct(">qIIiqq")
_ROW_PACK = _ROW.pack
_ID_NUMBER_DIGITS = 12  # the last ones of an id
_ID_NUMBER_MAX = (1 << 4 * _ID_NUMBER_DIGITS) - 1
_ENCODING = b"\x28\x01\x30"  # body_encoding 5 = IDENTITY; the tag of message_type 6
_NORMAL, _FIFO = b"\x01", b"\x02"
_GROUP_TAG = b"\x8a\x01"  # message_group 17
_PLAIN = {MessageType.NORMAL, MessageType.FIFO, MessageType.MIXED}


# -- building ---------------------------------------------------------------------------------------------------------


class Passed(dict[tuple[bytes, bytes], tuple[int, int, bytes, bytes]]):
    """Pairs of tag and message group that validation accepted for one topic -> tag hash, queue, and the two as fields.
    Kept from block to block, because validation costs as much as ten rows.
    """

    def __init__(self, topic: TopicConfig) -> None:
        super().__init__()
        self.topic = topic


def build(
    rows: Rows,
    topic: TopicConfig,
    limits: MessageLimits,
    *,
    token: bytes,
    sequence: int,
    now_ms: int,
    empty_message: EmptyMessage,
    passed: Passed | None = None,
) -> TimerAppend:
    """Returns the block as it waits in the log. Raises what a send of one of its rows would, with the row's number.
    `empty_message`: makes the message that an unusual row fills; `passed`: of earlier blocks for the same topic and
    limits.
    """
    if passed is None or passed.topic is not topic:
        passed = Passed(topic)
    maker = _Maker(rows, topic, limits, token, now_ms, passed, empty_message)
    return TimerAppend(
        topic.topic_id,
        0,
        0,
        due_ms=0,
        kind=STAGED_ROWS,
        born_ms=rows.born_ms,
        head=_HEAD.pack(_VERSION, token, sequence, rows.count),
        system=maker.columns() or maker.rows(),
    )


class _Maker:
    """Maker of the rows of one block, with what they share."""

    def __init__(
        self,
        rows: Rows,
        topic: TopicConfig,
        limits: MessageLimits,
        token: bytes,
        now_ms: int,
        passed: Passed,
        empty_message: EmptyMessage,
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
        self._empty_message = empty_message

    def columns(self) -> bytes:
        """Returns the rows' lines in the table, then their bytes. The hot path: all usual rows together, by columns.
        Empty if a row is unusual, or has a tag or message group that was not validated yet: then `rows` takes them one
        by one.
        """
        rows = self._rows
        sizes = list(map(len, rows.bodies))
        if (
            not rows.plain_texts
            or any(rows.due_ms)
            or max(rows.priorities, default=-1) >= 0
            or not 0 < min(sizes) <= max(sizes) <= self._limits.body_bytes_max
        ):
            return b""
        judged = self._judged()
        if judged is None:
            return b""
        tag_hashes, queue_ids, tag_fields, group_fields = judged
        if rows.queue_ids:
            queue_ids = [own if chosen < 0 else chosen for chosen, own in zip(queue_ids, rows.queue_ids, strict=True)]
        befores = {size: b"\x22" + varint(size) for size in {*sizes}}
        name = self._name
        heads = {size: len(name) + len(before) + size for size, before in befores.items()}
        head_sizes = list(map(heads.__getitem__, sizes))
        shares, share_sizes = self._shares(group_fields)
        columns: list[Sequence[bytes]] = [[name] * rows.count]
        if rows.property_fields:
            columns.append(rows.property_fields)
            head_sizes = list(map(add, head_sizes, map(len, rows.property_fields)))
        columns += (list(map(befores.__getitem__, sizes)), rows.bodies)
        if rows.tags:
            columns.append(tag_fields)
            share_sizes = list(map(add, share_sizes, map(len, tag_fields)))
        if rows.key_fields:
            columns.append(rows.key_fields)
            share_sizes = list(map(add, share_sizes, map(len, rows.key_fields)))
        columns.append(shares)
        width = len(columns)
        parts = [b""] * (1 + rows.count * width)
        parts[0] = b"".join(
            map(_ROW_PACK, tag_hashes, head_sizes, share_sizes, queue_ids, repeat(0), repeat(rows.born_ms))
        )
        for at, column in enumerate(columns, 1):
            parts[at::width] = column
        return b"".join(parts)

    def _judged(self) -> tuple[Sequence[int], Sequence[int], Sequence[bytes], Sequence[bytes]] | None:
        """Returns tag hash, queue, and tag and group as fields, of each row; None if one was not validated yet."""
        rows, passed = self._rows, self._passed
        pairs = zip(rows.tags or repeat(b"", rows.count), rows.groups or repeat(b"", rows.count), strict=True)
        known = list(map(passed.get, pairs)) if rows.tags or rows.groups else [passed.get((b"", b""))] * rows.count
        judged = [one for one in known if one is not None]
        if len(judged) < rows.count:
            return None
        tag_hashes, queue_ids, tag_fields, group_fields = zip(*judged, strict=True)
        return tag_hashes, queue_ids, tag_fields, group_fields

    def _shares(self, group_fields: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
        """Returns the system properties of each row behind tag and keys, and their sizes."""
        same, middle, width, others = self._same_for_all()
        starts = range(0, len(same), width)
        last = width - len(self._ends[0])
        normal, ordered = self._ends
        if self._rows.groups:
            shares = [
                b"".join((same[start : start + middle], group, same[start + middle : start + last], ordered))
                if group
                else same[start : start + last] + normal
                for start, group in zip(starts, group_fields, strict=True)
            ]
        else:
            shares = [same[start : start + width] for start in starts]
        for at, digest in others.items():
            group = group_fields[at]
            shares[at] = same[starts[at] : starts[at] + middle] + group + digest + (ordered if group else normal)
        return shares, list(map(len, shares)) if others or self._rows.groups else [width] * self._rows.count

    def rows(self) -> bytes:
        """Returns the same, made row by row, for blocks with unusual rows."""
        rows, passed, name, born_ms = self._rows, self._passed, self._name, self._rows.born_ms
        no_texts = [b""] * rows.count
        tags, groups = rows.tags or no_texts, rows.groups or no_texts
        keys, properties = rows.key_fields or no_texts, rows.property_fields or no_texts
        same, middle, width, others = self._same_for_all()
        size_max = self._limits.body_bytes_max if rows.plain_texts else 0
        unusual = rows.due_ms or rows.priorities
        parts: list[bytes] = []
        lines: list[bytes] = []
        for at, body in enumerate(rows.bodies):
            tag, group, size = tags[at], groups[at], len(body)
            known = passed.get((tag, group))
            if known is None or not 0 < size <= size_max or (unusual and self._is_unusual(at)):
                lines.append(self._checked(at, tag, group, parts))
                continue
            tag_hash, queue_id, tag_field, group_field = known
            if queue_id < 0 and rows.queue_ids:
                queue_id = rows.queue_ids[at]
            before = b"\x22" + varint(size)
            start = at * width
            cut = start + middle
            digest = others.get(at) or same[cut : start + width - len(self._ends[0])]
            end = self._ends[bool(group)]
            system = b"".join((tag_field, keys[at], same[start:cut], group_field, digest, end))
            parts += (name, properties[at], before, body, system)
            head_size = len(name) + len(properties[at]) + len(before) + size
            lines.append(_ROW_PACK(tag_hash, head_size, len(system), queue_id, 0, born_ms))
        return b"".join((*lines, *parts))

    def _same_for_all(self) -> tuple[bytes, int, int, dict[int, bytes]]:
        """Returns the system properties that all rows have in the same length: id, born time, digest and the rest. Made
        by columns: digits that differ are put into copies of one row. Also returns the place of a row's message group,
        the length of one row, and the digests of rows that have no CRC32 (`core.sending.body_digest`).
        """
        rows = self._rows
        before = b"\x1a\x22" + self._id.encode()
        middle = len(before) + _ID_NUMBER_DIGITS + len(self._born)
        row = before + bytes(_ID_NUMBER_DIGITS) + self._born + CRC32_HEAD + bytes(CRC32_DIGITS) + self._ends[0]
        width, first = len(row), rows.first_row & _ID_NUMBER_MAX
        filled = bytearray(row * rows.count)
        numbers = _digits(struct.pack(f">{rows.count}Q", *range(first, first + rows.count)))
        crcs = list(map(crc32, rows.bodies))
        crc_min = 1 << 32 if self._limits.only_md5() else EIGHT_DIGITS
        others = {}
        if min(crcs) < crc_min:
            others = {at: md5_field(rows.bodies[at]) for at, crc in enumerate(crcs) if crc < crc_min}
        digests = _digits(struct.pack(f">{rows.count}I", *crcs))
        for at in range(_ID_NUMBER_DIGITS):
            filled[len(before) + at :: width] = numbers[16 - _ID_NUMBER_DIGITS + at :: 16]
        for at in range(CRC32_DIGITS):
            filled[middle + len(CRC32_HEAD) + at :: width] = digests[at::CRC32_DIGITS]
        return bytes(filled), middle, width, others

    def _is_unusual(self, at: int) -> bool:
        rows = self._rows
        return bool((rows.due_ms and rows.due_ms[at]) or (rows.priorities and rows.priorities[at] >= 0))

    def _message_id(self, at: int) -> bytes:
        return f"{self._id}{(self._rows.first_row + at) & _ID_NUMBER_MAX:0{_ID_NUMBER_DIGITS}X}".encode()

    def _checked(self, at: int, tag: bytes, group: bytes, parts: list[bytes]) -> bytes:
        """Makes one row from a whole message, as a send does."""
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

    def _message(self, at: int, tag: bytes, group: bytes) -> SentMessage:
        rows = self._rows
        message = self._empty_message()
        message.body = rows.bodies[at]
        message.topic.name = self._topic.name
        for name, value in rows.properties(at):
            message.user_properties[name.decode()] = value.decode()
        system = message.system_properties
        system.message_id = self._message_id(at).decode()
        if tag:
            system.tag = tag.decode()
        system.keys.extend(key.decode() for key in rows.keys(at))
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


# -- reading back -----------------------------------------------------------------------------------------------------


def token_and_sequence(timer: StoredTimer) -> tuple[bytes, int]:
    """Returns token and sequence of a block. Raises StoreCorrupted for an unknown version."""
    if len(timer.head) != _HEAD.size or timer.head[0] != _VERSION:
        raise StoreCorrupted(
            f"staged rows have version {timer.head[0] if timer.head else 'none'}, this program reads {_VERSION}"
        )
    _, token, sequence, _ = _HEAD.unpack(timer.head)
    return token, sequence


def messages_of(
    timer: StoredTimer, topic: TopicConfig, *, queue_id: int, now_ms: int
) -> Iterator[Append | TimerAppend]:
    """Yields the messages of a block in order; those without a queue of their own get `queue_id`. Messages whose
    delivery time is still to come are timers; `block_of` is for blocks without them.
    """
    token_and_sequence(timer)
    count = _HEAD.unpack(timer.head)[3]
    data, queues, topic_id = timer.system, topic.write_queues, topic.topic_id
    at = count * _ROW.size
    for tag_hash, head_size, system_size, row_queue, due_ms, born_ms in _ROW.iter_unpack(data[:at]):
        middle = at + head_size
        end = middle + system_size
        queue = queue_id if row_queue < 0 else row_queue if row_queue < queues else row_queue % queues
        if due_ms > now_ms:
            yield TimerAppend(
                topic_id,
                queue,
                tag_hash,
                due_ms=due_ms,
                kind=DELAYED_MESSAGE,
                born_ms=born_ms,
                head=data[at:middle],
                system=data[middle:end],
            )
        else:
            yield Append(topic_id, queue, tag_hash, born_ms, data[at:middle], data[middle:end])
        at = end


def block_of(timer: StoredTimer, topic: TopicConfig, *, queue_id: int, now_ms: int) -> AppendBlock | None:
    """Returns the same for the store as one piece, without an object for each message; None if some have a delivery
    time that is still to come.
    """
    token_and_sequence(timer)
    start = _HEAD.unpack(timer.head)[3] * _ROW.size
    tag_hashes, heads, systems, row_queues, due_ms, born_ms = zip(*_ROW.iter_unpack(timer.system[:start]), strict=True)
    if max(due_ms) > now_ms:
        return None
    queue_ids: Sequence[int] = [queue_id] * len(row_queues)
    if max(row_queues) >= 0:
        queues = topic.write_queues
        queue_ids = [queue_id if one < 0 else one if one < queues else one % queues for one in row_queues]
    return AppendBlock(
        topic.topic_id,
        timer.system,
        start,
        queue_ids=queue_ids,
        tag_hashes=tag_hashes,
        born_ms=born_ms,
        head_bytes=heads,
        system_bytes=systems,
    )
