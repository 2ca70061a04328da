"""Stored records as an Arrow batch, without a Python object for any message.

Called by the workers with blocks in the format `log`: frames of the broker's commit log (docs/internals/data_files.md).
Headers are read and checked as numpy columns, `lanes` decodes the protobuf payloads, and Arrow copies the values out of
the block. The values equal those of the format `message`. A few rows, and anything that `lanes` does not decode
(duplicate map keys, text that is not UTF-8, ...), become messages and are decoded as such. A block that is not valid
raises InternalError.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from evenq.columns.alike import Step, Texts, have_doubles, last, walk
from evenq.columns.arrow_schema import HEAD, SYSTEM, TYPES, OutputColumn, arrow_schema
from evenq.columns.extra_columns import EXTRA_COLUMNS
from evenq.columns.lanes import LENGTH, VARINT, Fields, Last, Unusual, fields
from evenq.columns.verifying import RecordChecksumMismatch
from evenq.errors import InternalError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from evenq.model.queue import MessageQueue
    from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import Message

HEADER_BYTES = 88  # the fields below are those of commit-log frames of version 1
MAGIC = 0x45764C31
VERSION_AND_KIND = 0x0101  # of a message
SIZE_AT, KIND_AT, QUEUE_AT, OFFSET_AT, STORED_AT, LENGTHS_AT = 0, 8, 24, 32, 56, 80
COVERED_AT = 12  # what the checksum covers, to the end of the frame
HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
FEW = 24
"""With fewer rows, a parser is faster than the setup of the arrays."""
BLOCK_MAX = (1 << 31) - 1
USER_PROPERTIES, BODY = 2, 4  # of Message
TAG, KEYS, MESSAGE_ID, BORN, MESSAGE_GROUP = 1, 2, 3, 7, 17  # of SystemProperties
TEXTS = {"tag": TAG, "messageId": MESSAGE_ID, "messageGroup": MESSAGE_GROUP}
SECONDS_MAX = 9_000_000_000_000  # fits as microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRecords:
    queue: MessageQueue
    first_offset: int
    sizes: bytes | memoryview
    frames: bytes | memoryview
    head: bool
    system: bool
    checked: bool
    """The broker has compared the checksums."""

    def batch(self, columns: tuple[OutputColumn, ...]) -> pa.RecordBatch:
        """Returns the rows. Raises InternalError for a block that is not valid, RecordChecksumMismatch for damaged
        records, and for partial ones that the broker has not checked.
        """
        headers = _Headers(self)
        if not self.checked:
            headers.verify(self)
        if headers.count >= FEW and not any(column.name in EXTRA_COLUMNS for column in columns):
            try:
                return _BlockColumns(self, headers).batch(columns)
            except Unusual:
                pass
        from evenq.columns.message_columns import batch_of

        return batch_of(list(self._messages(headers)), self.queue, columns)

    def broken(self, what: str) -> InternalError:
        kind = InternalError if self.checked else RecordChecksumMismatch
        return kind(f"the block of {self.queue} from offset {self.first_offset} on {what}")

    def _messages(self, headers: _Headers) -> list[Message]:
        from evenq.wire.convert import set_ms
        from evenq.wire.status import DecodeError
        from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import Message

        view, messages = memoryview(self.frames), []
        for number, begin, system, end, store_ms in headers.rows():
            try:
                message = Message.FromString(bytes(view[begin:system]))
                message.system_properties.MergeFromString(bytes(view[system:end]))
            except DecodeError as error:
                raise self.broken(f"holds no message at offset {number}: {error}") from error
            message.system_properties.queue_offset = number
            set_ms(message.system_properties.store_timestamp, store_ms)
            messages.append(message)
        return messages


class _Headers:
    """The headers of all messages, checked."""

    def __init__(self, records: BlockRecords) -> None:
        self.data = np.frombuffer(records.frames, dtype=np.uint8)
        if len(records.sizes) % 4 or len(self.data) > BLOCK_MAX:
            raise records.broken(f"has a list of sizes of {len(records.sizes)} bytes and {len(self.data)} bytes more")
        sizes = np.frombuffer(records.sizes, dtype="<u4").astype(np.int64)
        self.count = len(sizes)
        self.first_offset = records.first_offset
        ends = np.cumsum(sizes)
        if int(sizes.min(initial=HEADER_BYTES)) < HEADER_BYTES or (int(ends[-1]) if len(ends) else 0) != len(self.data):
            raise records.broken(f"is cut: {self.count} records in {len(self.data)} bytes")
        self.begin = ends - sizes
        if not self.count:
            return
        # A view with a header at every byte: indexing it with the starts reads all headers in one step.
        whole: Any = np.ndarray(
            (len(self.data) - HEADER_BYTES + 1,), dtype=f"V{HEADER_BYTES}", buffer=self.data, strides=(1,)
        )
        self._words: NDArray[np.uint64] = whole[self.begin].view(">u8").reshape(self.count, -1).T.astype(np.uint64)
        lengths = self._word(LENGTHS_AT)
        heads, systems = (lengths >> HALF).astype(np.int64), (lengths & LOW).astype(np.int64)
        claimed = self._word(SIZE_AT)
        self.head = self.begin + HEADER_BYTES
        self.system = self.head + heads if records.head else self.head
        self.end = self.system + systems if records.system else self.system
        right = (
            (claimed & LOW == MAGIC).all()
            and (self._word(KIND_AT) >> np.uint64(16) & np.uint64(0xFFFF) == VERSION_AND_KIND).all()
            and (claimed >> HALF == (HEADER_BYTES + heads + systems).astype(np.uint64)).all()
            and (self.end == ends).all()
        )
        if not right:
            raise records.broken("does not hold records of version 1; use a newer evenq, or format=message")
        queues = self._word(QUEUE_AT)
        at = self._word(OFFSET_AT).view(np.int64)
        if not ((queues == queues[0]).all() and int(queues[0] & LOW) == records.queue.queue_id):
            raise records.broken("holds records of another queue")
        if not (at == np.arange(records.first_offset, records.first_offset + self.count)).all():
            raise records.broken("leaves offsets out")

    def verify(self, records: BlockRecords) -> None:
        """Compares the checksum of each record. Raises RecordChecksumMismatch, also for partial records."""
        from crc32c import crc32c

        if not self.count:
            return
        view = memoryview(records.frames)
        places = zip((self.begin + COVERED_AT).tolist(), self.end.tolist(), strict=True)
        checksums = np.array([crc32c(view[begin:end]) for begin, end in places], dtype=np.uint64)
        wrong = np.flatnonzero(checksums != self._word(KIND_AT) >> HALF)
        # A partial record cannot be compared: the broker must check those.
        if len(wrong) or not (records.head and records.system):
            at = self.first_offset + (int(wrong[0]) if len(wrong) else 0)
            raise RecordChecksumMismatch(f"message {at} of {records.queue} does not match its checksum")

    @property
    def store_ms(self) -> NDArray[np.int64]:
        return self._word(STORED_AT).view(np.int64)

    def rows(self) -> list[tuple[int, int, int, int, int]]:
        """Returns queue offset, start of the head, of the system properties, their end, and store time by message."""
        if not self.count:
            return []
        numbers = range(self.first_offset, self.first_offset + self.count)
        columns = (self.head.tolist(), self.system.tolist(), self.end.tolist(), self.store_ms.tolist())
        return list(zip(numbers, *columns, strict=True))

    def _word(self, at: int) -> NDArray[np.uint64]:
        words: NDArray[np.uint64] = self._words[at // 8]
        return words


class _BlockColumns:
    """The payloads of one block, decoded once for all columns."""

    def __init__(self, records: BlockRecords, headers: _Headers) -> None:
        import pyarrow as pa

        self._records = records
        self._headers = headers
        self._data = headers.data
        self._buffer = pa.py_buffer(records.frames)

    def batch(self, columns: tuple[OutputColumn, ...]) -> pa.RecordBatch:
        import pyarrow as pa

        schema, count = arrow_schema(columns), self._headers.count
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * count, type=pa.struct([])))
        names = {column.name for column in columns}
        try:
            made = self._places(count) | (self._alike(names) or self._of_head(names) | self._of_system(names))
        except pa.ArrowInvalid as error:  # text that is not UTF-8
            raise Unusual from error
        return pa.RecordBatch.from_arrays([made[column.name] for column in columns], schema=schema)

    def _places(self, count: int) -> dict[str, pa.Array]:
        first = self._headers.first_offset
        made = {name: whole.slice(0, count) for name, whole in _same(self._records.queue, count.bit_length()).items()}
        made["queueOffset"] = _numbers("queueOffset", np.arange(first, first + count, dtype=np.int64))
        made["storeTimestamp"] = _moments(self._headers.store_ms * 1000)
        return made

    def _alike(self, names: set[str]) -> dict[str, pa.Array] | None:
        """Returns columns of messages with the same fields; None if they differ, or for rare cases."""
        data, headers, records = self._data, self._headers, self._records
        texts, made, edges = Texts(headers.count), {}, {}
        head: list[Step] | None = []
        if names & HEAD:
            head = walk(data, headers.head, headers.system) if records.head else None
        system: list[Step] | None = []
        if names & SYSTEM:
            system = walk(data, headers.system, headers.end) if records.system else None
        if head is None or system is None:
            return None
        if "body" in names:
            body = last(head, BODY)
            if body is None:
                return None
            made["body"] = self._bytes(body.begin, body.end)
        if "properties" in names:
            pairs = [step for step in head if step.number == USER_PROPERTIES and step.wire_type == LENGTH]
            if not pairs or not self._add_pairs(pairs, texts):
                return None
            edges["properties"] = _edges(headers.count, len(pairs))
        if "keys" in names:
            keys = [step for step in system if step.number == KEYS and step.wire_type == LENGTH]
            if not keys:
                return None
            texts.add("keys", [(step.begin, step.end) for step in keys])
            edges["keys"] = _edges(headers.count, len(keys))
        for name, number in TEXTS.items():
            value = last(system, number) if name in names else None
            if value is not None:
                texts.add(name, [(value.begin, value.end)])
            elif name in names:
                if name == "messageId":
                    return None
                made[name] = _nulls(headers.count)
        if "bornTimestamp" in names:
            moments = [step for step in system if step.number == BORN and step.wire_type == LENGTH]
            if len(moments) != 1:
                return None
            made["bornTimestamp"] = self._born(Last.of_all(moments[0].begin, moments[0].end))
        return made | self._text_columns(texts, edges)

    def _add_pairs(self, pairs: list[Step], texts: Texts) -> bool:
        """Adds names and values of the properties; False: some pairs have no name, or no value."""
        begin, end = (np.concatenate([step[part] for step in pairs]) for part in (2, 3))
        inside = walk(self._data, begin, end)
        if inside is None:
            return False
        for name, number in (("names", 1), ("values", 2)):
            texts_at = last(inside, number)
            if texts_at is None:
                return False
            parts = (np.split(places, len(pairs)) for places in (texts_at.begin, texts_at.end))
            texts.add(name, list(zip(*parts, strict=True)))
        return True

    def _text_columns(self, texts: Texts, edges: dict[str, pa.Array]) -> dict[str, pa.Array]:
        import pyarrow as pa

        made = dict(texts.taken(self._buffer))
        if "keys" in edges:
            made["keys"] = pa.ListArray.from_arrays(edges["keys"], made["keys"], type=_kind("keys"))
        if "properties" in edges:
            names, values = made.pop("names"), made.pop("values")
            if have_doubles(names, len(names) // self._headers.count):
                raise Unusual  # the last pair of a name counts
            made["properties"] = pa.MapArray.from_arrays(edges["properties"], names, values, _kind("properties"))
        return made

    def _of_head(self, names: set[str]) -> dict[str, pa.Array]:
        if not names & HEAD:
            return {}
        if not self._records.head:
            raise self._records.broken("comes without the requested heads")
        begin, end = self._headers.head, self._headers.system
        body, pairs = Last(begin), _Repeated()
        for occurrences in fields(self._data, begin, end):
            if occurrences.wire_type == LENGTH and occurrences.number == BODY:
                body.take(occurrences)
            elif occurrences.wire_type == LENGTH and occurrences.number == USER_PROPERTIES:
                pairs.add(occurrences)
        made = {}
        if "body" in names:
            made["body"] = self._bytes(body.begin, body.end)
        if "properties" in names:
            made["properties"] = self._properties(pairs)
        return made

    def _of_system(self, names: set[str]) -> dict[str, pa.Array]:
        if not names & SYSTEM:
            return {}
        if not self._records.system:
            raise self._records.broken("comes without the requested system properties")
        begin, end = self._headers.system, self._headers.end
        last = {number: Last(begin) for number in (TAG, MESSAGE_ID, BORN, MESSAGE_GROUP)}
        keys = _Repeated()
        for occurrences in fields(self._data, begin, end):
            if occurrences.wire_type != LENGTH:
                continue
            if occurrences.number == KEYS:
                keys.add(occurrences)
            elif occurrences.number in last:
                if occurrences.number == BORN and _again(last[BORN], occurrences):
                    raise Unusual  # two values of a message field are merged
                last[occurrences.number].take(occurrences)
        made = {}
        if "tag" in names:
            made["tag"] = self._texts(last[TAG], nullable=True)
        if "keys" in names:
            made["keys"] = self._keys(keys)
        if "messageId" in names:
            made["messageId"] = self._texts(last[MESSAGE_ID], nullable=False)
        if "messageGroup" in names:
            made["messageGroup"] = self._texts(last[MESSAGE_GROUP], nullable=True)
        if "bornTimestamp" in names:
            made["bornTimestamp"] = self._born(last[BORN])
        return made

    def _bytes(self, begin: Any, end: Any, absent: Any = None) -> pa.Array:
        """Returns the values at ascending places: every other element of one Arrow array (value, gap, value, ...)."""
        import pyarrow as pa

        count = len(begin)
        if not count:
            return pa.array([], type=pa.binary())
        edges = np.empty(2 * count, dtype=np.int32)
        edges[0::2], edges[1::2] = begin, end
        whole = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), self._buffer])
        chosen = _every_other(count) if absent is None else pa.array(np.arange(0, 2 * count, 2), mask=absent)
        return whole.take(chosen)

    def _texts(self, last: Last, *, nullable: bool) -> pa.Array:
        import pyarrow as pa

        if nullable and last.present is None:
            return pa.nulls(self._headers.count, pa.string())
        absent = ~last.present if nullable and last.present is not None and not last.present.all() else None
        return self._bytes(last.begin, last.end, absent).cast(pa.string())

    def _keys(self, repeated: _Repeated) -> pa.Array:
        import pyarrow as pa

        _, edges, begin, end = repeated.ordered(self._headers.count)
        values = self._bytes(begin, end).cast(pa.string())
        return pa.ListArray.from_arrays(pa.array(edges), values, type=_kind("keys"))

    def _properties(self, repeated: _Repeated) -> pa.Array:
        import pyarrow as pa

        rows, edges, begin, end = repeated.ordered(self._headers.count)
        key, value = Last(begin), Last(begin)
        for part in fields(self._data, begin, end):
            if part.wire_type == LENGTH and part.number in {1, 2}:
                (key if part.number == 1 else value).take(part)
        names = self._bytes(key.begin, key.end).cast(pa.string())
        if len(rows) > self._headers.count or (rows[1:] == rows[:-1]).any():
            codes = names.dictionary_encode().indices.to_numpy()
            pairs = np.sort(rows * len(rows) + codes)
            if (pairs[1:] == pairs[:-1]).any():
                raise Unusual  # the last pair of a name counts
        values = self._bytes(value.begin, value.end).cast(pa.string())
        return pa.MapArray.from_arrays(pa.array(edges), names, values, _kind("properties"))

    def _born(self, last: Last) -> pa.Array:
        import pyarrow as pa

        if last.present is None:
            return pa.nulls(self._headers.count, _kind("bornTimestamp"))
        count = self._headers.count
        parts = {1: np.zeros(count, dtype=np.int64), 2: np.zeros(count, dtype=np.int64)}  # seconds, nanos
        for occurrences in fields(self._data, last.begin, last.end):
            if occurrences.wire_type == VARINT and occurrences.number in parts:
                parts[occurrences.number][slice(None) if occurrences.rows is None else occurrences.rows] = (
                    occurrences.begin
                )
        seconds, nanos = parts[1], parts[2].astype(np.int32)  # truncates as a parser does
        if int(seconds.max()) > SECONDS_MAX or int(seconds.min()) < -SECONDS_MAX:
            raise Unusual
        micros = seconds * 1_000_000 + nanos // 1_000
        return _moments(micros, None if last.present.all() else ~last.present)


class _Repeated:
    """All occurrences of a field."""

    def __init__(self) -> None:
        self._fields: list[Fields] = []

    def add(self, fields: Fields) -> None:
        self._fields.append(fields)

    def ordered(self, count: int) -> tuple[Any, Any, Any, Any]:
        """Returns, ordered by place: row of each occurrence, edges of the rows in that list, starts and ends."""
        if not self._fields:
            none = np.zeros(0, dtype=np.int64)
            return none, np.zeros(count + 1, dtype=np.int32), none, none
        every = np.arange(count)
        rows = np.concatenate([every if fields.rows is None else fields.rows for fields in self._fields])
        begin = np.concatenate([fields.begin for fields in self._fields])
        end = np.concatenate([fields.end for fields in self._fields])
        order = np.argsort(begin, kind="stable")
        edges = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(np.bincount(rows, minlength=count), out=edges[1:])
        return rows[order], edges, begin[order], end[order]


def _again(last: Last, fields: Fields) -> bool:
    if last.present is None:
        return False
    return bool(last.present.any() if fields.rows is None else last.present[fields.rows].any())


def _moments(micros: Any, absent: Any = None) -> pa.Array:
    import pyarrow as pa

    if absent is None:
        return _numbers("storeTimestamp", micros)
    return pa.array(micros, type=pa.int64(), mask=absent).cast(_kind("storeTimestamp"))


def _numbers(name: str, values: NDArray[np.int64]) -> pa.Array:
    """Returns values, none of them null, with the type of a column."""
    import pyarrow as pa

    return pa.Array.from_buffers(_kind(name), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


@lru_cache(maxsize=64)
def _same(queue: MessageQueue, bits: int) -> dict[str, pa.Array]:
    """Returns the columns that are equal for all messages of a queue, for up to `2 ** bits` of them."""
    import pyarrow as pa

    count = 1 << bits
    return {
        "topic": pa.repeat(pa.scalar(queue.topic), count),
        "brokerName": pa.repeat(pa.scalar(queue.broker_name), count),
        "queueId": pa.repeat(pa.scalar(queue.queue_id, pa.int32()), count),
    }


@lru_cache(maxsize=64)
def _edges(count: int, each: int) -> pa.Array:
    """Returns the edges of `count` lists with `each` elements."""
    import pyarrow as pa

    return pa.array(np.arange(0, count * each + 1, each, dtype=np.int32))


@lru_cache(maxsize=64)
def _nulls(count: int) -> pa.Array:
    import pyarrow as pa

    return pa.nulls(count, pa.string())


@lru_cache(maxsize=64)
def _every_other(count: int) -> pa.Array:
    import pyarrow as pa

    return pa.array(np.arange(0, 2 * count, 2))


@lru_cache(maxsize=len(TYPES))
def _kind(name: str) -> pa.DataType:
    return arrow_schema((OutputColumn(name, nullable=True),)).field(0).type
