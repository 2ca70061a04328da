"""Conversion of messages between model and wire: a producer encodes a message once, a consumer decodes it once.

`encode` runs in the caller's thread. Its bytes pass unchanged through batches and retries (architecture 2), so a retry
has the same message id.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from evenq.errors import BodyTooLarge, MessageCorrupted, QueueClosed
from evenq.model import Message, MessageQueue, MessageType, QueueOffset, ReceivedMessage
from evenq.model.names import RETRY_PREFIX
from evenq.wire.convert import ms_of, set_ms
from evenq.wire.packing import IDENTITY, pack, unpack
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from evenq.wire.stubs.evenq.v1 import data_pb2

RETRY_ORIGIN = "RETRY_ORIGIN_"
TRACEPARENT = "traceparent"
IS_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
"""W3C Trace Context, version 00; instrumentations keep it in this property, tools read the protocol's own field."""
UNPACKED_BYTES_MAX = 64 << 20
"""Largest unpacked body from a foreign server; evenq's own servers unpack bodies themselves."""


def encode(
    message: Message, *, message_id: str, born_ms: int, born_host: str, compression: str = "", packed_from: int = 0
) -> bytes:
    """Returns the encoded v2 Message. Its type is FIFO with a message group, DELAY with a delivery time, PRIORITY with
    a priority, LITE with a lite topic, otherwise NORMAL.

    A body of `packed_from` bytes or more is packed by the method `compression` (empty: none).
    """
    body, encoding = message.body, IDENTITY
    if compression and len(body) >= packed_from:
        body, encoding = pack(compression, body)
    wire = v2.Message(body=body)
    wire.topic.name = message.topic
    system = wire.system_properties
    if message.properties:
        wire.user_properties.update(message.properties)
        trace_context = message.properties.get(TRACEPARENT)
        if trace_context is not None and IS_TRACEPARENT(trace_context):
            system.trace_context = trace_context
    system.message_id = message_id
    system.body_encoding = v2.Encoding.ValueType(encoding)
    system.born_host = born_host
    set_ms(system.born_timestamp, born_ms)
    system.message_type = v2.NORMAL
    if message.tag is not None:
        system.tag = message.tag
    if message.keys:
        system.keys.extend(message.keys)
    if message.message_group is not None:
        system.message_group = message.message_group
        system.message_type = v2.FIFO
    due_ms = message.due_ms(born_ms)
    if due_ms is not None:
        set_ms(system.delivery_timestamp, due_ms)
        system.message_type = v2.DELAY
    if message.priority is not None:
        system.priority = message.priority
        system.message_type = v2.PRIORITY
    if message.lite_topic is not None:
        system.lite_topic = message.lite_topic
        system.message_type = v2.LITE
    return wire.SerializeToString()


def decode(wire: v2.Message, *, broker_name: str) -> ReceivedMessage:
    """Returns the message for a listener. A message of a retry topic shows the topic that it was sent to (RD-2).

    Raises MessageCorrupted if a compressed body does not unpack.
    """
    system = wire.system_properties
    body = wire.body
    if system.body_encoding > v2.IDENTITY:
        try:
            body = unpack(system.body_encoding, body, UNPACKED_BYTES_MAX)
        except (MessageCorrupted, BodyTooLarge) as error:
            raise MessageCorrupted(f"message {system.message_id} cannot be unpacked: {error}") from error
    topic = wire.topic.name
    came_back = topic.startswith(RETRY_PREFIX) and system.dead_letter_queue.topic
    return ReceivedMessage(
        topic=system.dead_letter_queue.topic if came_back else topic,
        body=body,
        message_id=system.message_id,
        tag=system.tag if system.HasField("tag") else None,
        keys=tuple(system.keys),
        properties=_without_origin(wire.user_properties) if came_back else dict(wire.user_properties),
        message_group=system.message_group if system.HasField("message_group") else None,
        priority=system.priority if system.HasField("priority") else None,
        lite_topic=system.lite_topic if system.HasField("lite_topic") else None,
        queue=MessageQueue(topic, broker_name, system.queue_id),
        queue_offset=QueueOffset(system.queue_offset),
        born_ms=ms_of(system.born_timestamp),
        store_ms=ms_of(system.store_timestamp),
        delivery_attempt=system.delivery_attempt or 1,
        receipt_handle=system.receipt_handle,
        trace_context=system.trace_context if system.HasField("trace_context") else None,
    )


def _without_origin(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the sender's properties. A copy in a retry topic also has the place of the original message."""
    return {key: value for key, value in properties.items() if not key.startswith(RETRY_ORIGIN)}


def check_published(response: data_pb2.PublishResponse) -> None:
    """Raises QueueClosed if the broker reports the queue as the cause, otherwise the class of the status."""
    if response.closed:
        raise QueueClosed(response.status.message)
    check(response.status)


def queue_of(wire: v2.MessageQueue) -> MessageQueue:
    """Returns the queue of an entry in a route or an assignment."""
    return MessageQueue(wire.topic.name, wire.broker.name, wire.id)


def type_of(name: MessageType) -> v2.MessageType.ValueType:
    """Returns the wire's number. MIXED has none and is sent as unspecified."""
    if name is MessageType.MIXED:
        return v2.MESSAGE_TYPE_UNSPECIFIED
    return v2.MessageType.Value(name.value)


def repeated(number: int, encoded: Sequence[bytes]) -> bytes:
    """Returns encoded messages as the repeated field `number`, without encoding them again."""
    parts: list[bytes] = []
    tag = bytes([number << 3 | 2])
    for item in encoded:
        size = len(item)
        head = bytearray(tag)
        while size > 0x7F:
            head.append(size & 0x7F | 0x80)
            size >>= 7
        head.append(size)
        parts += (bytes(head), item)
    return b"".join(parts)
