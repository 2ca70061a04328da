"""Blocks for brokers from Arrow batches: rows are divided by target, in order, and their columns packed.

Called by a task's writer. The packed form is an encoded `evenq.v1.RowBlock` made of Arrow's buffers. So no row is
touched here, and each byte is copied once, in `joined`. A protobuf object would copy each byte two more times. Only the
first batch imports pyarrow.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from evenq.client.core.sending.queue_choice import queue_of_group
from evenq.errors import SettingsError
from evenq.model.queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

    from evenq.wire.stubs.evenq.v1.staging_pb2 import StageRequest

Packed = list[bytes | memoryview]
"""An encoded message in pieces. Views keep Arrow's buffers alive."""
CHECKSUM_SPAN = 1 << 64


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """Target of rows; broker "" and queue -1: any queue of the topic."""

    topic: str
    broker_name: str = ""
    queue_id: int = -1


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one batch under evenq's names; None: the batch lacks the column."""

    body: Any
    topic: Any = None
    tag: Any = None
    keys: Any = None
    key: Any = None
    """Kafka's: at most one key per row."""
    properties: Any = None
    headers: Any = None
    """Kafka's: names and values in a list."""
    message_group: Any = None
    delivery_timestamp: Any = None
    priority: Any = None
    broker_name: Any = None
    queue_id: Any = None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Columns:
        return cls(
            **{COLUMN_NAMES[name]: column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        )


COLUMN_NAMES = {
    "body": "body",
    "value": "body",
    "topic": "topic",
    "tag": "tag",
    "keys": "keys",
    "key": "key",
    "properties": "properties",
    "headers": "headers",
    "messageGroup": "message_group",
    "deliveryTimestamp": "delivery_timestamp",
    "priority": "priority",
    "brokerName": "broker_name",
    "queueId": "queue_id",
    "partition": "queue_id",
}
"""Column name of either style -> field of `Columns`."""


def parted(
    batch: pa.RecordBatch, topic: str, routes: Mapping[str, Sequence[MessageQueue]]
) -> Iterator[tuple[SinkTarget, pa.RecordBatch]]:
    """Yields the rows of each target, in order. `routes`: all writable queues of each topic. Raises SettingsError for a
    row without a topic, or with a broker that does not serve its topic.
    """
    import pyarrow as pa

    columns = Columns.of(batch)
    fixed = (columns.topic, columns.message_group, columns.broker_name)
    if all(column is None for column in fixed):
        yield SinkTarget(topic), batch
        return
    # Only these few columns become Python objects; bodies and properties stay in Arrow's buffers.
    nothing: list[Any] = [None] * batch.num_rows
    lists = [nothing if column is None else column.to_pylist() for column in (*fixed, columns.queue_id)]
    topics, groups, brokers, queues = lists
    rows: dict[SinkTarget, list[int]] = {}
    homes: dict[tuple[str, str], SinkTarget] = {}
    for at, name in enumerate(topics):
        chosen = topic or name
        if not chosen:
            raise SettingsError("a row has no topic: its column topic is null or empty; fill it, or give option topic")
        group = groups[at]
        if group:
            # The SDK's hash, so that rows and single messages of a group are in the same queue (PR-7).
            target = homes.get((chosen, group))
            if target is None:
                home = queue_of_group(group, routes[chosen])
                target = homes[chosen, group] = SinkTarget(chosen, home.broker_name, home.queue_id)
        elif brokers[at]:
            queue_id = -1 if queues[at] is None else queues[at]
            target = SinkTarget(chosen, brokers[at], queue_id)
            _must_be_there(target, routes[chosen])
        else:
            target = SinkTarget(chosen)
        rows.setdefault(target, []).append(at)
    if len(rows) == 1:
        yield next(iter(rows)), batch  # `take` would copy it
        return
    for target, places in rows.items():
        yield target, batch.take(pa.array(places, pa.int32()))


def _must_be_there(target: SinkTarget, queues: Sequence[MessageQueue]) -> None:
    there = [queue.queue_id for queue in queues if queue.broker_name == target.broker_name]
    if not there or (target.queue_id >= 0 and target.queue_id not in there):
        named = f"queue {target.queue_id} of " if target.queue_id >= 0 else ""
        raise SettingsError(
            f"a row names {named}broker {target.broker_name!r}, and topic {target.topic} has no such writable queue; "
            f"its queues are {', '.join(f'{queue.broker_name}:{queue.queue_id}' for queue in queues)}"
        )


def pieces(batch: pa.RecordBatch, *, rows_max: int, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yields pieces of about that size, in order. Equal batches are always cut at the same rows."""
    count = batch.num_rows
    if not count:
        return
    size = max(1, batch.get_total_buffer_size() // count) if count else 1
    step = max(1, min(rows_max, bytes_max // size))
    for start in range(0, count, step):
        yield batch.slice(start, step)


def checksum_of(batch: pa.RecordBatch) -> int:
    """Returns the sum of a hash of each row: equal for the same rows in any order and any division into batches."""
    columns = [column.cast("int64") if "timestamp" in str(column.type) else column for column in batch.columns]
    total = 0
    for row in zip(*(column.to_pylist() for column in columns), strict=True):
        # Version 2: the same bytes for equal rows, in every version of Python.
        total += int.from_bytes(blake2b(marshal.dumps(row, 2), digest_size=8).digest())
    return total % CHECKSUM_SPAN


def pack(batch: pa.RecordBatch, *, first_row: int, born_ms: int) -> Packed:
    from evenq.wire.stubs.evenq.v1.staging_pb2 import RowBlock

    columns = Columns.of(batch)
    # Protobuf fields may have any order: protobuf encodes the small ones, and the columns follow unchanged.
    block = _Block(RowBlock(count=batch.num_rows, first_row=first_row, born_ms=born_ms).SerializeToString())
    block.texts("bodies", "body_ends", columns.body)
    if columns.tag is not None:
        block.texts("tags", "tag_ends", columns.tag)
    if columns.message_group is not None:
        block.texts("message_groups", "message_group_ends", columns.message_group)
    if columns.keys is not None:
        block.texts("keys", "key_ends", _values(columns.keys))
        block.add("key_rows", _row_ends(columns.keys))
    elif columns.key is not None:
        # A row without a key has no key, not an empty one.
        block.texts("keys", "key_ends", columns.key.drop_null())
        block.add("key_rows", _key_rows(columns.key))
    if columns.properties is not None:
        block.pairs(columns.properties, columns.properties.keys, columns.properties.items)
    elif columns.headers is not None:
        pairs = columns.headers.values
        block.pairs(columns.headers, pairs.field(0), pairs.field(1))
    if columns.delivery_timestamp is not None:
        block.add("delivery_ms", _millis(columns.delivery_timestamp))
    if columns.priority is not None:
        block.add("priorities", _whole_numbers(columns.priority))
    if columns.queue_id is not None:
        block.add("queue_ids", _whole_numbers(columns.queue_id))
    return block.packed


def joined(request: StageRequest, rows: Packed) -> bytes:
    number = request.DESCRIPTOR.fields_by_name["rows"].number
    return b"".join((request.SerializeToString(), _field_head(number, sum(map(len, rows))), *rows))


class _Block:
    """A `RowBlock` that is being encoded."""

    def __init__(self, begun: bytes) -> None:
        self.packed: Packed = [begun]

    def add(self, name: str, column: memoryview | bytes) -> None:
        """Adds a field of bytes; nothing for an empty one."""
        if column:
            self.packed += (_field_head(_numbers()[name], len(column)), column)

    def texts(self, name: str, ends_name: str, column: Any) -> None:
        """Adds a column of texts and the ends of each."""
        texts, ends = _texts(column)
        self.add(name, texts)
        self.add(ends_name, ends)

    def pairs(self, lists: Any, names: Any, values: Any) -> None:
        start, count = _span(lists)
        self.texts("property_names", "property_name_ends", names.slice(start, count))
        self.texts("property_values", "property_value_ends", values.slice(start, count))
        self.add("property_rows", _row_ends(lists))


@cache
def _numbers() -> dict[str, int]:
    from evenq.wire.stubs.evenq.v1.staging_pb2 import RowBlock

    return {field.name: field.number for field in RowBlock.DESCRIPTOR.fields}


def _field_head(number: int, size: int) -> bytes:
    return _varint(number << 3 | 2) + _varint(size)  # 2: protobuf's wire type of fields with a length


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _key_rows(key: Any) -> memoryview | bytes:
    import pyarrow as pa
    import pyarrow.compute as pc

    return _bytes_of(pc.cumulative_sum(pc.cast(pc.is_valid(key), pa.int32())), 4)


def _texts(column: Any) -> tuple[memoryview | bytes, memoryview | bytes]:
    """Returns all texts joined, and the end of each; null is empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type != pa.binary():
        column = column.cast(pa.binary())
    if column.null_count:
        column = pc.fill_null(column, b"")
    count = len(column)
    if not count:
        return b"", b""
    _, offsets, data = column.buffers()
    ends = pa.Array.from_buffers(pa.int32(), count + 1, [None, offsets], offset=column.offset)
    start, end = ends[0].as_py(), ends[count].as_py()
    if start:
        # A slice of a larger batch does not begin at 0 in its buffer: ends are relative to its start.
        ends = pc.subtract(ends, pa.scalar(start, pa.int32()))
    texts = b"" if data is None else memoryview(data)[start:end]
    return texts, _bytes_of(ends.slice(1), 4)


def _span(lists: Any) -> tuple[int, int]:
    """Returns start and number of the values of a column of lists or maps, in its child array."""
    offsets = lists.offsets
    start = offsets[0].as_py()
    return start, offsets[len(lists)].as_py() - start


def _values(lists: Any) -> Any:
    start, count = _span(lists)
    return lists.values.slice(start, count)


def _row_ends(lists: Any) -> memoryview | bytes:
    import pyarrow.compute as pc

    offsets = lists.offsets
    return _bytes_of(pc.subtract(offsets, offsets[0]).slice(1), 4)


def _millis(column: Any) -> memoryview | bytes:
    import pyarrow as pa
    import pyarrow.compute as pc

    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return _bytes_of(pc.fill_null(pc.divide(micros, 1_000), 0), 8)


def _whole_numbers(column: Any) -> memoryview | bytes:
    import pyarrow as pa
    import pyarrow.compute as pc

    return _bytes_of(pc.fill_null(column.cast(pa.int32()), -1), 4)


def _bytes_of(column: Any, size: int) -> memoryview | bytes:
    if not len(column):
        return b""
    start = column.offset * size
    return memoryview(column.buffers()[1])[start : start + len(column) * size]
