"""Attributes of spans and metrics, by the semantic conventions for messaging and for RocketMQ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from evenq.client.core.clients.observer import ClientIdentity
from evenq.errors import Error
from evenq.model import Message, MessageQueue, ReceivedMessage
from evenq.model.span_attributes import (
    ATTEMPT,
    BODY_SIZE,
    CLIENT_ID,
    DELAY_LEVEL,
    DELIVERY_TIMESTAMP,
    DESTINATION,
    GROUP,
    KEYS,
    MESSAGE_GROUP,
    MESSAGE_ID,
    MODEL,
    OPERATION_NAME,
    OPERATION_TYPE,
    PARTITION,
    SERVER_ADDRESS,
    SERVER_PORT,
    SYSTEM,
    TAG,
    TYPE,
)

__all__ = [
    "Attributes",
    "error_type",
    "metric_attributes",
    "partition_of",
    "received_attributes",
    "sent_attributes",
    "span_attributes",
    "topic_of",
]

Attributes = dict[str, str | int | Sequence[str]]
REMEMBERED = 1_024
"""Most combinations of client, operation and topic whose attributes are kept."""


@lru_cache(REMEMBERED)
def metric_attributes(client: ClientIdentity, name: str, kind: str, topic: str) -> Attributes:
    """Returns the attributes of an operation on all instruments; `topic` empty: several, or not known. Not to be
    changed.
    """
    attributes: Attributes = {SYSTEM: "rocketmq", OPERATION_NAME: name, OPERATION_TYPE: kind}
    if topic:
        attributes[DESTINATION] = topic
    if client.group:
        attributes[GROUP] = client.group
    host, _, port = client.endpoint.partition(";")[0].partition("?")[0].rpartition(":")
    if host:
        attributes[SERVER_ADDRESS] = host.strip("[]")
        attributes[SERVER_PORT] = int(port)
    return attributes


@lru_cache(REMEMBERED)
def span_attributes(client: ClientIdentity, name: str, kind: str, topic: str) -> Attributes:
    """Returns the attributes that a span of the operation has from its start. Not to be changed."""
    attributes = dict(metric_attributes(client, name, kind, topic))
    if client.client_id:
        attributes[CLIENT_ID] = client.client_id
    if client.group:
        attributes[MODEL] = client.model.value.lower()
    return attributes


def sent_attributes(message: Message, *, transaction: bool) -> Attributes:
    """Returns the attributes of a message to send."""
    attributes = _common(message, transaction=transaction)
    if message.delivery_ms is not None or message.delay is not None:
        due_ms = message.due_ms(0)
        if message.delivery_ms is not None and due_ms is not None:
            attributes[DELIVERY_TIMESTAMP] = due_ms
    elif message.delay_level > 0:
        attributes[DELAY_LEVEL] = message.delay_level
    return attributes


def received_attributes(message: ReceivedMessage) -> Attributes:
    """Returns the attributes of the only message of an operation."""
    attributes = _common(message, transaction=False)
    del attributes[TYPE]
    if message.message_group is not None:
        attributes[TYPE] = "fifo"  # the other types are not part of a received message
    attributes[MESSAGE_ID] = message.message_id
    attributes[PARTITION] = partition_of(message.queue)
    attributes[ATTEMPT] = message.delivery_attempt
    return attributes


def _common(message: Message | ReceivedMessage, *, transaction: bool) -> Attributes:
    attributes: Attributes = {BODY_SIZE: len(message.body), TYPE: "transaction" if transaction else "normal"}
    if message.tag is not None:
        attributes[TAG] = message.tag
    if message.keys:
        attributes[KEYS] = tuple(message.keys)
    if message.message_group is not None:
        attributes[TYPE] = "fifo"
        attributes[MESSAGE_GROUP] = message.message_group
    elif message.lite_topic is not None:
        attributes[TYPE] = "lite"
    elif message.priority is not None:
        attributes[TYPE] = "priority"
    elif isinstance(message, Message) and message.due_ms(0) is not None:
        attributes[TYPE] = "delay"
    return attributes


def partition_of(queue: MessageQueue) -> str:
    """Returns the name of a queue, unique within its topic."""
    return f"{queue.broker_name}/{queue.queue_id}"


def topic_of(messages: Sequence[ReceivedMessage]) -> str:
    """Returns the topic of all messages; empty: there are several, or no message."""
    topics = {message.topic for message in messages}
    return topics.pop() if len(topics) == 1 else ""


def error_type(error: BaseException) -> str:
    """Returns the class of an error; errors of the SDK and of Python without their module."""
    kind = type(error)
    if isinstance(error, Error) or kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
