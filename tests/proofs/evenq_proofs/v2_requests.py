"""Requests of a v2 client as one call each. Only fields that are given are set, so that tests see the defaults of servers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"


def v2_message(topic: str, message_id: str = "", body: bytes = b"x", **system: Any) -> definition_pb2.Message:
    """`system`: fields of its system properties."""
    message = definition_pb2.Message(body=body)
    message.topic.name = topic
    message.system_properties.message_id = message_id
    for name, value in system.items():
        setattr(message.system_properties, name, value)
    return message


def send_request(topic: str, message_id: str = "", body: bytes = b"x", **system: Any) -> service_pb2.SendMessageRequest:
    """One message."""
    return service_pb2.SendMessageRequest(messages=[v2_message(topic, message_id, body, **system)])


def receive_request(
    group: str,
    topic: str,
    *,
    queue: int = 0,
    poll_ms: int | None = None,
    invisible_ms: int | None = None,
    tags: str | None = None,
    **fields: Any,
) -> service_pb2.ReceiveMessageRequest:
    """`queue`: -1 for any."""
    request = service_pb2.ReceiveMessageRequest(**fields)
    request.group.name, request.message_queue.topic.name, request.message_queue.id = group, topic, queue
    if poll_ms is not None:
        set_duration_ms(request.long_polling_timeout, poll_ms)
    if invisible_ms is not None:
        set_duration_ms(request.invisible_duration, invisible_ms)
    if tags is not None:
        request.filter_expression.type, request.filter_expression.expression = definition_pb2.TAG, tags
    return request


def ack_request(group: str, topic: str, *handles: str) -> service_pb2.AckMessageRequest:
    request = service_pb2.AckMessageRequest()
    request.group.name, request.topic.name = group, topic
    for handle in handles:
        request.entries.add(receipt_handle=handle)
    return request


def nack_request(
    group: str, topic: str, handle: str, invisible_ms: int, **fields: Any
) -> service_pb2.ChangeInvisibleDurationRequest:
    request = service_pb2.ChangeInvisibleDurationRequest(receipt_handle=handle, **fields)
    request.group.name, request.topic.name = group, topic
    set_duration_ms(request.invisible_duration, invisible_ms)
    return request


def consumer_settings(client_type: Any, group: str, *topics: str) -> service_pb2.TelemetryCommand:
    command = service_pb2.TelemetryCommand()
    command.settings.client_type = client_type
    command.settings.subscription.group.name = group
    for topic in topics:
        command.settings.subscription.subscriptions.add().topic.name = topic
    return command


def messages_of(frames: Iterable[Any]) -> list[Any]:
    """Those of the frames that a call to receive answers."""
    return [frame.message for frame in frames if frame.HasField("message")]


async def receive_frames(
    net: Any, address: str, request: Any, *, timeout_ms: int = 60_000, metadata: Any = None
) -> Any:
    """All frames that the call answers."""
    stream = net.stream(
        address, V2 + "ReceiveMessage", request.SerializeToString(), timeout_ms=timeout_ms, metadata=metadata
    )
    return [service_pb2.ReceiveMessageResponse.FromString(frame) async for frame in stream]


async def receive_messages(net: Any, address: str, request: Any, **options: Any) -> list[Any]:
    return messages_of(await receive_frames(net, address, request, **options))
