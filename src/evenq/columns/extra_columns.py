"""The columns of `schemaStyle=kafka` and of `includeSystem`, from encoded messages.

Called by `message_columns`. Kafka's `partition` is one number for broker and queue. `partition_of` depends only on
these two, so it never changes when other brokers join or leave, and every worker can compute it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

from evenq.errors import Unsupported
from evenq.model.queue import MessageQueue

if TYPE_CHECKING:
    from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import Message

QUEUES_MAX = 4_096  # a topic has no more on one broker
NAMES_MAX = (1 << 31) // QUEUES_MAX
MICROS_MAX = (1 << 63) - 1
LOG_APPEND_TIME = 1  # Kafka's number for a timestamp that the broker gave


def partition_of(queue: MessageQueue) -> int:
    """Returns `(crc32(broker name) mod 524288) * 4096 + queue id`, an int >= 0. It is unique within a topic unless two
    broker names share their number, which `must_be_unique` rejects (ten brokers: 1 in 11,000 clusters).
    """
    return zlib.crc32(queue.broker_name.encode()) % NAMES_MAX * QUEUES_MAX + queue.queue_id


def must_be_unique(queues: Collection[MessageQueue]) -> None:
    """Raises Unsupported if two queues of a topic have the same partition number."""
    seen: dict[tuple[str, int], MessageQueue] = {}
    for queue in sorted(queues):
        other = seen.setdefault((queue.topic, partition_of(queue)), queue)
        if other != queue:
            raise Unsupported(
                f"{other} and {queue} both have the partition number {partition_of(queue)}, because the names of their "
                "brokers have the same checksum; read without schemaStyle=kafka, where brokerName and queueId "
                "distinguish them"
            )


def micros(timestamp: Any) -> int:
    # A producer may set any time; one out of a column's range becomes the nearest possible value.
    exact = int(timestamp.seconds) * 1_000_000 + int(timestamp.nanos) // 1_000
    return min(max(exact, -MICROS_MAX), MICROS_MAX)


def _keys(messages: Sequence[Message], _queue: MessageQueue) -> list[bytes | None]:
    return [keys[0].encode() if (keys := message.system_properties.keys) else None for message in messages]


def store_times(messages: Sequence[Message], _queue: MessageQueue) -> list[int | None]:
    return [
        micros(properties.store_timestamp) if properties.HasField("store_timestamp") else None
        for properties in (message.system_properties for message in messages)
    ]


def _headers(messages: Sequence[Message], _queue: MessageQueue) -> list[list[dict[str, Any]] | None]:
    return [
        [{"key": name, "value": value.encode()} for name, value in sorted(message.user_properties.items())] or None
        for message in messages
    ]


def _delivery_times(messages: Sequence[Message], _queue: MessageQueue) -> list[int | None]:
    return [
        micros(properties.delivery_timestamp) if properties.HasField("delivery_timestamp") else None
        for properties in (message.system_properties for message in messages)
    ]


def _types(messages: Sequence[Message], _queue: MessageQueue) -> list[str]:
    from evenq.wire.stubs.apache.rocketmq.v2.definition_pb2 import MessageType

    return [MessageType.Name(message.system_properties.message_type) for message in messages]


def _optional(name: Literal["delivery_attempt", "priority"]) -> Callable[[Sequence[Message], MessageQueue], list[Any]]:
    return lambda messages, _: [
        getattr(properties, name) if properties.HasField(name) else None
        for properties in (message.system_properties for message in messages)
    ]


EXTRA_COLUMNS: dict[str, Callable[[Sequence[Message], MessageQueue], list[Any]]] = {
    "key": _keys,
    "value": lambda messages, _: [message.body for message in messages],
    "partition": lambda messages, queue: [partition_of(queue)] * len(messages),
    "offset": lambda messages, _: [message.system_properties.queue_offset for message in messages],
    "timestamp": store_times,
    "timestampType": lambda messages, _: [LOG_APPEND_TIME] * len(messages),
    "headers": _headers,
    "bornHost": lambda messages, _: [message.system_properties.born_host or None for message in messages],
    "storeHost": lambda messages, _: [message.system_properties.store_host or None for message in messages],
    "messageType": _types,
    "deliveryTimestamp": _delivery_times,
    "deliveryAttempt": _optional("delivery_attempt"),
    "priority": _optional("priority"),
}
