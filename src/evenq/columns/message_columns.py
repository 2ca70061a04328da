"""Decoded messages as Arrow columns: for blocks of messages, and records that `records` cannot decode as a block.

Called by `records` and `scanning`. One pass per requested column, because attribute access per row dominates the cost.
The first block imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from evenq.columns.arrow_schema import OutputColumn, arrow_schema
from evenq.columns.extra_columns import EXTRA_COLUMNS, micros, store_times

if TYPE_CHECKING:
    import pyarrow as pa

    from evenq.model.queue import MessageQueue
    from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import Message


def batch_of(messages: Sequence[Message], queue: MessageQueue, columns: tuple[OutputColumn, ...]) -> pa.RecordBatch:
    """Returns messages of one queue as rows. All batches of one column set share one schema object."""
    import pyarrow as pa

    schema = arrow_schema(columns)
    arrays = [
        pa.array(_COLUMNS[column.name](messages, queue), type=field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    if not arrays:  # count() with an empty schema: rows without columns
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(messages), type=pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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


def _born_times(messages: Sequence[Message], _queue: MessageQueue) -> list[int | None]:
    return [
        micros(properties.born_timestamp) if properties.HasField("born_timestamp") else None
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
    "storeTimestamp": store_times,
    **EXTRA_COLUMNS,
}
