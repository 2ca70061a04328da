"""Dead letters: what a copy in `%DLQ%group` tells of the original, and the way back from the copy to a message.

Beside the protocol's own field (`dead_letter_queue`: topic and message id), user properties that every SDK shows tell
the rest; they are taken off again when a letter is replayed. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from evenq.model import MessageType, TopicConfig
from evenq.model.names import DLQ_PREFIX, GROUP_LENGTH_MAX
from evenq.store import Append, StoredMessage
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq_broker.core.sending.validation import level_of

__all__ = ["Death", "Reason", "letter", "origin_topic", "properties_of", "replay_group", "replayed"]

PREFIX = "DLQ_"
ORIGIN_TOPIC, ORIGIN_BROKER = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_BROKER"
ORIGIN_QUEUE, ORIGIN_OFFSET = "DLQ_ORIGIN_QUEUE_ID", "DLQ_ORIGIN_OFFSET"
MESSAGE_ID, ATTEMPTS, REASON = "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ATTEMPTS", "DLQ_REASON"
MESSAGE_GROUP, MESSAGE_TYPE = "DLQ_ORIGIN_MESSAGE_GROUP", "DLQ_ORIGIN_TYPE"


class Reason(StrEnum):
    """Why a message is dead."""

    ATTEMPTS = "attempts"
    """The group's deliveries are used up."""
    FORWARDED = "forwarded"
    """Its consumer asked for it."""
    SENT_BACK = "sent-back"
    """A member of the classic kind asked for it."""


class Death(NamedTuple):
    """Where and why a message died."""

    topic: TopicConfig
    broker_name: str
    queue_id: int
    offset: int
    attempts: int
    """Deliveries it had; 0: not known."""
    reason: Reason


def letter(message: StoredMessage, death: Death, target: TopicConfig) -> Append:
    """The copy for the dead-letter topic. A message that was there, or in a retry topic, keeps its first origin."""
    head = definition_pb2.Message.FromString(message.head)
    head.topic.Clear()
    head.topic.name = target.name
    system = definition_pb2.SystemProperties.FromString(message.system)
    if not system.HasField("dead_letter_queue"):
        system.dead_letter_queue.topic = death.topic.name
        system.dead_letter_queue.message_id = system.message_id
    properties = head.user_properties
    properties[ORIGIN_TOPIC] = system.dead_letter_queue.topic
    properties[MESSAGE_ID] = system.dead_letter_queue.message_id
    properties[ORIGIN_BROKER] = death.broker_name
    properties[ORIGIN_QUEUE] = str(death.queue_id)
    properties[ORIGIN_OFFSET] = str(death.offset)
    properties[REASON] = death.reason.value
    if death.attempts:
        properties[ATTEMPTS] = str(death.attempts)
    if system.HasField("message_group"):
        properties[MESSAGE_GROUP] = system.message_group
        system.ClearField("message_group")
    if MESSAGE_TYPE not in properties:
        properties[MESSAGE_TYPE] = definition_pb2.MessageType.Name(system.message_type)
    system.message_type = definition_pb2.NORMAL
    system.ClearField("delivery_attempt")
    return Append(
        target.topic_id, 0, message.tag_hash, message.born_ms, head.SerializeToString(), system.SerializeToString()
    )


def properties_of(message: StoredMessage) -> tuple[definition_pb2.Message, definition_pb2.SystemProperties]:
    """A letter's two halves, decoded."""
    return (
        definition_pb2.Message.FromString(message.head),
        definition_pb2.SystemProperties.FromString(message.system),
    )


def origin_topic(message: StoredMessage) -> str:
    """Name of the topic that a letter came from; empty: not known."""
    system = definition_pb2.SystemProperties.FromString(message.system)
    return system.dead_letter_queue.topic


def replayed(message: StoredMessage, target: TopicConfig, turn: int) -> Append:
    """The letter as a message of `target` again, in the queue of its message group or else the one whose `turn` it is.

    A FIFO topic takes a letter without a message group as a group of its own.
    """
    head, system = properties_of(message)
    properties = dict(head.user_properties)
    for key in [key for key in properties if key.startswith(PREFIX)]:
        del head.user_properties[key]
    head.topic.Clear()
    head.topic.name = target.name
    system.ClearField("dead_letter_queue")
    system.message_type = _type(properties, target)
    group = properties.get(MESSAGE_GROUP, "")
    if system.message_type == definition_pb2.FIFO:
        system.message_group = group or system.message_id
    queue_id = turn % target.write_queues
    if system.message_type == definition_pb2.PRIORITY:
        queue_id = level_of(system.priority, target.write_queues)
    if system.HasField("message_group"):
        queue_id = zlib.crc32(system.message_group.encode()) % target.write_queues
    return Append(
        target.topic_id,
        queue_id,
        message.tag_hash,
        message.born_ms,
        head.SerializeToString(),
        system.SerializeToString(),
    )


def _type(properties: Mapping[str, str], target: TopicConfig) -> definition_pb2.MessageType.ValueType:
    if target.message_type is not MessageType.MIXED:
        return definition_pb2.MessageType.Value(target.message_type.value)
    name = properties.get(MESSAGE_TYPE, "NORMAL")
    known = name in definition_pb2.MessageType.keys()  # noqa: SIM118  not a dict
    return definition_pb2.MessageType.Value(name) if known else definition_pb2.NORMAL


def replay_group(group: str) -> str:
    """Name of the group whose progress on the dead-letter topic says what was replayed."""
    name = DLQ_PREFIX + group
    if len(name) <= GROUP_LENGTH_MAX:
        return name
    return DLQ_PREFIX + blake2b(group.encode(), digest_size=16).hexdigest()
