"""From stored records to an Arrow batch, without a Python object for any message.

Called by the workers with blocks in the format `log`: frames of the commit log as the broker has them
(docs/internals/data_files.md). Headers are read and compared as numpy columns, the protobuf payloads by `lanes`, and
Arrow copies the values out of the block. The values are the same as in the format `message`: for a few rows, and for
whatever `lanes` does not do (map keys given twice, text that is not UTF-8, ...), the messages are put together and go
that way. Bytes that are no such block raise InternalError.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from evenq.errors import InternalError
from pyspark_evenq.arrow_schema import HEAD, SYSTEM, TYPES, Column, arrow_schema
from pyspark_evenq.extra_columns import EXTRA_COLUMNS
from pyspark_evenq.lanes import LENGTH, VARINT, Fields, Last, Unusual, fields
from pyspark_evenq.verifying import RecordsDamaged

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from evenq.model.queue import MessageQueue
    from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import Message

__all__ = ["Records"]

HEADER_BYTES = 88  # the fields below are those of commit-log frames of version 1
MAGIC = 0x45764C31
VERSION_AND_KIND = 0x0101  # of a message
SIZE_AT, KIND_AT, QUEUE_AT, OFFSET_AT, STORED_AT, LENGTHS_AT = 0, 8, 24, 32, 56, 80
COVERED_AT = 12  # what the checksum covers, to the end of the frame
HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)
FEW = 24
"""Rows that a parser has done before the arrays are set up."""
BLOCK_MAX = (1 << 31) - 1
USER_PROPERTIES, BODY = 2, 4  # of Message
TAG, KEYS, MESSAGE_ID, BORN, MESSAGE_GROUP = 1, 2, 3, 7, 17  # of SystemProperties
SECONDS_MAX = 9_000_000_000_000  # what fits as microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of one block, with all that is needed to take them apart."""

    queue: MessageQueue
    first_offset: int
    sizes: bytes
    frames: bytes | memoryview
    head: bool
    """Whether the frames hold it."""
    system: bool
    checked: bool
    """Whether the broker has compared the checksums."""

    def batch(self, wanted: tuple[Column, ...]) -> pa.RecordBatch:
        """The rows. Raises InternalError if this is not the block that it says, RecordsDamaged if the broker
        has not checked the records and should.
        """
        headers = _Headers(self)
        if not self.checked:
            headers.verify(self)
        if headers.count >= FEW and not any(column.name in EXTRA_COLUMNS for column in wanted):
            try:
                return _Block(self, headers).batch(wanted)
            except Unusual:
                pass
        from pyspark_evenq.blocks import batch_of

        return batch_of(list(self._messages(headers)), self.queue, wanted)

    def broken(self, what: str) -> InternalError:
        """The error for a block that makes no sense."""
        kind = InternalError if self.checked else RecordsDamaged
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
    """What stands in front of each message, compared with what should."""

    def __init__(self, records: Records) -> None:
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

    def verify(self, records: Records) -> None:
        """Compare the checksum of each record, which must be whole."""
        from crc32c import crc32c

        if not self.count:
            return
        view = memoryview(records.frames)
        covered = map(view.__getitem__, map(slice, (self.begin + COVERED_AT).tolist(), self.end.tolist()))
        found = np.fromiter(map(crc32c, covered), dtype=np.uint64, count=self.count)
        wrong = np.flatnonzero(found != self._word(KIND_AT) >> HALF)
        if len(wrong) or not (records.head and records.system):
            at = self.first_offset + (int(wrong[0]) if len(wrong) else 0)
            raise RecordsDamaged(f"message {at} of {records.queue} does not fit its checksum")

    @property
    def store_ms(self) -> NDArray[np.int64]:
        """When each message was stored."""
        return self._word(STORED_AT).view(np.int64)

    def rows(self) -> list[tuple[int, int, int, int, int]]:
        """Queue offset, begin of the head, of the system properties, their end, and store time of each message."""
        if not self.count:
            return []
        numbers = range(self.first_offset, self.first_offset + self.count)
        columns = (self.head.tolist(), self.system.tolist(), self.end.tolist(), self.store_ms.tolist())
        return list(zip(numbers, *columns, strict=True))

    def _word(self, at: int) -> NDArray[np.uint64]:
        """The eight bytes at a place of every header."""
        words: Any = np.ndarray((len(self.data) - 7,), dtype=">u8", buffer=self.data, strides=(1,))
        found: NDArray[np.uint64] = words[self.begin + at].astype(np.uint64)
        return found


class _Block:
    """The payloads of one block, taken apart once for all columns."""

    def __init__(self, records: Records, headers: _Headers) -> None:
        import pyarrow as pa

        self._records = records
        self._headers = headers
        self._data = headers.data
        self._buffer = pa.py_buffer(records.frames)

    def batch(self, wanted: tuple[Column, ...]) -> pa.RecordBatch:
        """The rows. Raises Unusual."""
        import pyarrow as pa

        schema, count = arrow_schema(wanted), self._headers.count
        if not wanted:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * count, type=pa.struct([])))
        names = {column.name for column in wanted}
        try:
            made = self._places(count) | self._of_head(names) | self._of_system(names)
        except pa.ArrowInvalid as error:  # text that is not UTF-8
            raise Unusual from error
        return pa.RecordBatch.from_arrays([made[column.name] for column in wanted], schema=schema)

    def _places(self, count: int) -> dict[str, pa.Array]:
        import pyarrow as pa

        queue, first = self._records.queue, self._headers.first_offset
        return {
            "topic": pa.repeat(pa.scalar(queue.topic), count),
            "brokerName": pa.repeat(pa.scalar(queue.broker_name), count),
            "queueId": pa.repeat(pa.scalar(queue.queue_id, pa.int32()), count),
            "queueOffset": pa.array(np.arange(first, first + count, dtype=np.int64)),
            "storeTimestamp": _moments(self._headers.store_ms * 1000),
        }

    def _of_head(self, names: set[str]) -> dict[str, pa.Array]:
        if not names & HEAD:
            return {}
        if not self._records.head:
            raise self._records.broken("comes without the heads that were asked for")
        begin, end = self._headers.head, self._headers.system
        body, pairs = Last(begin), _Repeated()
        for found in fields(self._data, begin, end):
            if found.wire_type == LENGTH and found.number == BODY:
                body.take(found)
            elif found.wire_type == LENGTH and found.number == USER_PROPERTIES:
                pairs.add(found)
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
            raise self._records.broken("comes without the system properties that were asked for")
        begin, end = self._headers.system, self._headers.end
        last = {number: Last(begin) for number in (TAG, MESSAGE_ID, BORN, MESSAGE_GROUP)}
        keys = _Repeated()
        for found in fields(self._data, begin, end):
            if found.wire_type != LENGTH:
                continue
            if found.number == KEYS:
                keys.add(found)
            elif found.number in last:
                if found.number == BORN and _again(last[BORN], found):
                    raise Unusual  # two values of a message field are merged
                last[found.number].take(found)
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
        """The values at ascending places. All bytes between the first and the last are one Arrow array, value, gap,
        value, ...; every other element of it is taken.
        """
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

    def _keys(self, found: _Repeated) -> pa.Array:
        import pyarrow as pa

        _, edges, begin, end = found.ordered(self._headers.count)
        values = self._bytes(begin, end).cast(pa.string())
        return pa.ListArray.from_arrays(pa.array(edges), values, type=_kind("keys"))

    def _properties(self, found: _Repeated) -> pa.Array:
        import pyarrow as pa

        rows, edges, begin, end = found.ordered(self._headers.count)
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
        for found in fields(self._data, last.begin, last.end):
            if found.wire_type == VARINT and found.number in parts:
                parts[found.number][slice(None) if found.rows is None else found.rows] = found.begin
        seconds, nanos = parts[1], parts[2].astype(np.int32)  # which cuts it as a parser does
        if int(seconds.max()) > SECONDS_MAX or int(seconds.min()) < -SECONDS_MAX:
            raise Unusual
        micros = seconds * 1_000_000 + nanos // 1_000
        return _moments(micros, None if last.present.all() else ~last.present)


class _Repeated:
    """All occurrences of a field."""

    def __init__(self) -> None:
        self._found: list[Fields] = []

    def add(self, found: Fields) -> None:
        self._found.append(found)

    def ordered(self, count: int) -> tuple[Any, Any, Any, Any]:
        """Row of each occurrence, the edges of the rows in that list, and where each begins and ends; by place."""
        if not self._found:
            none = np.zeros(0, dtype=np.int64)
            return none, np.zeros(count + 1, dtype=np.int32), none, none
        every = np.arange(count)
        rows = np.concatenate([every if found.rows is None else found.rows for found in self._found])
        begin = np.concatenate([found.begin for found in self._found])
        end = np.concatenate([found.end for found in self._found])
        order = np.argsort(begin, kind="stable")
        edges = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(np.bincount(rows, minlength=count), out=edges[1:])
        return rows[order], edges, begin[order], end[order]


def _again(last: Last, found: Fields) -> bool:
    if last.present is None:
        return False
    return bool(last.present.any() if found.rows is None else last.present[found.rows].any())


def _moments(micros: Any, absent: Any = None) -> pa.Array:
    import pyarrow as pa

    return pa.array(micros, type=pa.int64(), mask=absent).cast(_kind("storeTimestamp"))


@lru_cache(maxsize=64)
def _every_other(count: int) -> pa.Array:
    import pyarrow as pa

    return pa.array(np.arange(0, 2 * count, 2))


@lru_cache(maxsize=len(TYPES))
def _kind(name: str) -> pa.DataType:
    return arrow_schema((Column(name, nullable=True),)).field(0).type
