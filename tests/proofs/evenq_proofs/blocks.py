"""Requests of `evenq.v1.Data` that many tests send: a place in a topic, and a block of messages for it."""

from __future__ import annotations

from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2


def place(queue_id: int, broker: str = "a", topic: str = "t") -> common_pb2.Queue:
    """A queue on the wire."""
    return common_pb2.Queue(topic=topic, broker_name=broker, queue_id=queue_id)


def block(queue: common_pb2.Queue, *bodies: str, message_group: str = "") -> data_pb2.PublishRequest:
    """Messages with these bodies; their ids come from them."""
    request = data_pb2.PublishRequest(queue=queue)
    for body in bodies:
        message = request.messages.add(body=body.encode())
        message.system_properties.message_id = f"id-{body[:20]}"
        if message_group:
            message.system_properties.message_group = message_group
    return request
