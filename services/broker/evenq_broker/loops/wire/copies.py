"""Copies of stored messages for another topic: dead letters and their replays, delayed retries, given-up transactions.

A stored message is the wire message in two parts (`core.state.frames`). They are decoded here, changed and encoded
again; `core.dead_letters.letter` decides the origin in a dead letter. Called by `loops.dead_letters`,
`loops.transactions` and `rpc.dead_letters`.
"""

from __future__ import annotations

from evenq.model import MessageQueue, TopicConfig
from evenq.store import Append, StoredMessage, StoredTimer, TimerAppend
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq_broker.core.dead_letters.letter import (
    Death,
    LetterFields,
    LetterOrigin,
    mark_dead,
    mark_replayed,
    mark_retried,
)
from evenq_broker.core.sending.validation import DELAYED_MESSAGE
from evenq_broker.core.transactions.half_messages import HalfHeader, unpack_half


def properties_of(message: StoredMessage) -> tuple[definition_pb2.Message, definition_pb2.SystemProperties]:
    """Returns the two decoded parts of a message."""
    return (
        definition_pb2.Message.FromString(message.head),
        definition_pb2.SystemProperties.FromString(message.system),
    )


def origin_topic(message: StoredMessage) -> str:
    """Returns the name of the topic that a dead letter came from; empty: not known."""
    return definition_pb2.SystemProperties.FromString(message.system).dead_letter_queue.topic


def lite_topic_of(message: StoredMessage) -> str:
    """Returns its lite topic; empty: it has none."""
    return definition_pb2.SystemProperties.FromString(message.system).lite_topic


def attempt_of(message: StoredMessage) -> int:
    """Returns the number of the next delivery in a delayed copy; 0: it has none."""
    return definition_pb2.SystemProperties.FromString(message.system).delivery_attempt


# ------------------------------------------------------------------------------------------------------- dead letters


def letter(message: StoredMessage, death: Death, target: TopicConfig) -> Append:
    """Returns the copy for the dead-letter topic. One from there, or a retry topic, keeps its first origin."""
    head, system = properties_of(message)
    fields = _fields(head, system)
    mark_dead(fields, death)
    _write(fields, system)
    system.ClearField("delivery_attempt")
    return _append(message, head, system, target, 0)


def replayed(message: StoredMessage, target: TopicConfig, turn: int) -> Append:
    """Returns the message of `target`, in the queue of its message group, or by `turn`. FIFO: a group of its own."""
    head, system = properties_of(message)
    fields = _fields(head, system)
    queue_id = mark_replayed(fields, target, turn)
    _write(fields, system)
    return _append(message, head, system, target, queue_id)


def _fields(head: definition_pb2.Message, system: definition_pb2.SystemProperties) -> LetterFields:
    origin = system.dead_letter_queue
    return LetterFields(
        message_id=system.message_id,
        message_type=definition_pb2.MessageType.Name(system.message_type),
        message_group=system.message_group if system.HasField("message_group") else None,
        priority=system.priority,
        origin=LetterOrigin(origin.topic, origin.message_id) if system.HasField("dead_letter_queue") else None,
        properties=head.user_properties,
    )


def _write(fields: LetterFields, system: definition_pb2.SystemProperties) -> None:
    known = fields.message_type in definition_pb2.MessageType.keys()  # noqa: SIM118  not a dict
    kind = definition_pb2.MessageType.Value(fields.message_type) if known else definition_pb2.NORMAL
    system.message_type = kind
    if fields.message_group is None:
        system.ClearField("message_group")
    else:
        system.message_group = fields.message_group
    if fields.origin is None:
        system.ClearField("dead_letter_queue")
    else:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = fields.origin


def _append(
    message: StoredMessage,
    head: definition_pb2.Message,
    system: definition_pb2.SystemProperties,
    target: TopicConfig,
    queue_id: int,
) -> Append:
    _move(head, target)
    return Append(
        target.topic_id,
        queue_id,
        message.tag_hash,
        message.born_ms,
        head.SerializeToString(),
        system.SerializeToString(),
    )


# ------------------------------------------------------------------------------------------------ retries, given up


def retry_copy(
    message: StoredMessage, origin: MessageQueue, target: TopicConfig, *, due_ms: int, attempt: int
) -> TimerAppend:
    """Returns the delayed copy for a group's retry topic; `attempt`: of its delivery, at `due_ms` since the epoch."""
    head, system = properties_of(message)
    _move(head, target)
    system.delivery_attempt = attempt
    if not system.HasField("dead_letter_queue"):
        system.dead_letter_queue.topic = origin.topic
        system.dead_letter_queue.message_id = system.message_id
        mark_retried(head.user_properties, origin.broker_name, origin.queue_id, message.queue_offset)
    return TimerAppend(
        target.topic_id,
        0,
        message.tag_hash,
        due_ms=due_ms,
        kind=DELAYED_MESSAGE,
        born_ms=message.born_ms,
        head=head.SerializeToString(),
        system=system.SerializeToString(),
    )


def given_up_message(timer: StoredTimer, header: HalfHeader, topic: TopicConfig, target: TopicConfig) -> Append:
    """Returns the message for operators of given-up transactions: with its origin and the number of its checks."""
    head = definition_pb2.Message.FromString(unpack_half(timer.head)[1])
    _move(head, target)
    head.user_properties["TRANSACTION_CHECK_TIMES"] = str(header.checks)
    head.user_properties["REAL_TOPIC"] = topic.name
    system = definition_pb2.SystemProperties.FromString(timer.system)
    system.message_type = definition_pb2.NORMAL
    system.dead_letter_queue.topic = topic.name
    system.dead_letter_queue.message_id = system.message_id
    return Append(
        target.topic_id, 0, timer.tag_hash, timer.born_ms, head.SerializeToString(), system.SerializeToString()
    )


def _move(head: definition_pb2.Message, target: TopicConfig) -> None:
    head.topic.Clear()
    head.topic.name = target.name
