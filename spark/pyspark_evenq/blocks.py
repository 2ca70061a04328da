"""From an encoded block to an Arrow batch.

Called by the workers, once per block of about 1 MiB. A block holds records as they are stored (`records` takes them
apart) or messages: those are parsed once, then there is one pass per wanted column, because attribute access per row
is what costs. Nothing is computed for columns that were not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from evenq.errors import InternalError
from pyspark_evenq.arrow_schema import Column, arrow_schema
from pyspark_evenq.extra_columns import EXTRA_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from evenq.model.queue import MessageQueue
    from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import Message
    from evenq.wire.stubs.evenq.v1.data_pb2 import ScanBlock
    from pyspark_evenq.records import Records

__all__ = ["batch_of", "count_of", "parse", "records_of", "tag_set", "with_tags"]

MICROS_MAX = (1 << 63) - 1


def parse(encoded: bytes) -> ScanBlock:
    """The block; its messages are views into one parsed buffer. Raises InternalError for bytes that are none."""
    from evenq.wire.status import DecodeError
    from evenq.wire.stubs.evenq.v1.data_pb2 import ScanBlock

    try:
        return ScanBlock.FromString(encoded)
    except DecodeError as error:
        raise InternalError(f"the broker sent {len(encoded)} bytes that are no block: {error}") from error


def count_of(block: ScanBlock) -> int:
    """How many messages are in it."""
    return len(block.records.sizes) // 4 if block.HasField("records") else len(block.messages)


def records_of(block: ScanBlock, queue: MessageQueue) -> Records | None:
    """The records that it holds in place of messages."""
    if not block.HasField("records"):
        return None
    from pyspark_evenq.records import Records

    held = block.records
    return Records(
        queue=queue, first_offset=block.first_offset, sizes=held.sizes, frames=held.frames, head=held.head,
        system=held.system, checked=held.checked,
    )  # fmt: skip


def tag_set(expression: str) -> frozenset[str]:
    """The tags of `a || b`; empty if every tag is wanted."""
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    return frozenset() if "*" in tags else tags


def with_tags(messages: Sequence[Message], wanted: frozenset[str]) -> Sequence[Message]:
    """The messages that have one of the tags. Brokers filter by the tag's hash, and two tags may share one."""
    return [message for message in messages if message.system_properties.tag in wanted] if wanted else messages


def batch_of(messages: Sequence[Message], queue: MessageQueue, wanted: tuple[Column, ...]) -> pa.RecordBatch:
    """Messages of one queue as rows. All batches of one column set share one schema object."""
    import pyarrow as pa

    schema = arrow_schema(wanted)
    arrays = [
        pa.array(_COLUMNS[column.name](messages, queue), type=field.type)
        for column, field in zip(wanted, schema, strict=True)
    ]
    if not arrays:  # count() with an empty schema: rows without columns
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(messages), type=pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _micros(timestamp: Any) -> int:
    # A producer's clock may say anything; what no column can hold is the nearest that it can.
    micros = int(timestamp.seconds) * 1_000_000 + int(timestamp.nanos) // 1_000
    return min(max(micros, -MICROS_MAX), MICROS_MAX)


def _tags(messages: Sequence[Message], _queue: MessageQueue) -> list[str | None]:
    return [
        properties.tag if properties.HasField("tag") else None
        for properties in (message.system_properties for message in messages)
    ]


def _groups(messages: Sequence[Message], _queue: MessageQueue) -> list[str | None]:
    return [
        properties.message_group if properties.HasField("message_group") else None
        for properties in (message.system_properties for message in messages)
    ]


def _store_times(messages: Sequence[Message], _queue: MessageQueue) -> list[int | None]:
    return [
        _micros(properties.store_timestamp) if properties.HasField("store_timestamp") else None
        for properties in (message.system_properties for message in messages)
    ]


def _born_times(messages: Sequence[Message], _queue: MessageQueue) -> list[int | None]:
    return [
        _micros(properties.born_timestamp) if properties.HasField("born_timestamp") else None
        for properties in (message.system_properties for message in messages)
    ]


_COLUMNS: dict[str, Callable[[Sequence[Message], MessageQueue], list[Any]]] = {
    "topic": lambda messages, queue: [queue.topic] * len(messages),
    "brokerName": lambda messages, queue: [queue.broker_name] * len(messages),
    "queueId": lambda messages, queue: [queue.queue_id] * len(messages),
    "queueOffset": lambda messages, _: [message.system_properties.queue_offset for message in messages],
    "messageId": lambda messages, _: [message.system_properties.message_id for message in messages],
    "tag": _tags,
    "keys": lambda messages, _: [list(message.system_properties.keys) for message in messages],
    "messageGroup": _groups,
    "body": lambda messages, _: [message.body for message in messages],
    "properties": lambda messages, _: [list(message.user_properties.items()) for message in messages],
    "bornTimestamp": _born_times,
    "storeTimestamp": _store_times,
    **EXTRA_COLUMNS,
}
