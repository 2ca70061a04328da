"""Dead letters: the origin that a copy in `%DLQ%group` names, and the way back from the copy to a message.

Beside the protocol's own field (`dead_letter_queue`: topic and message id), user properties, which every SDK shows,
hold the rest; a replay removes them. `loops.wire.copies` decodes and encodes messages; this module changes them. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from evenq.model import MessageType, TopicConfig
from evenq.model.names import DLQ_PREFIX, GROUP_LENGTH_MAX
from evenq_broker.core.sending.validation import level_of

PREFIX = "DLQ_"
ORIGIN_TOPIC, ORIGIN_BROKER = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_BROKER"
ORIGIN_QUEUE, ORIGIN_OFFSET = "DLQ_ORIGIN_QUEUE_ID", "DLQ_ORIGIN_OFFSET"
MESSAGE_ID, ATTEMPTS, REASON = "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ATTEMPTS", "DLQ_REASON"
MESSAGE_GROUP, MESSAGE_TYPE = "DLQ_ORIGIN_MESSAGE_GROUP", "DLQ_ORIGIN_TYPE"
RETRY_BROKER, RETRY_QUEUE, RETRY_OFFSET = "RETRY_ORIGIN_BROKER", "RETRY_ORIGIN_QUEUE_ID", "RETRY_ORIGIN_OFFSET"
"""Place of the message of a delayed copy, which the copy's topic and offset in the retry topic do not show."""


class Reason(StrEnum):
    ATTEMPTS = "attempts"  # the group's attempts are used up
    FORWARDED = "forwarded"  # its consumer forwarded it
    SENT_BACK = "sent-back"  # a member of the classic kind sent it back
    TOO_LARGE = "too-large"  # the SDK of the receiving client cannot take a message of this size


class Death(NamedTuple):
    """Place of a message, and the reason for which it became a dead letter."""

    topic: TopicConfig
    broker_name: str
    queue_id: int
    offset: int
    attempts: int  # deliveries it had; 0: not known
    reason: Reason


class LetterOrigin(NamedTuple):
    """Origin of a dead letter in the protocol's own field."""

    topic: str
    message_id: str


@dataclass(slots=True, kw_only=True)
class LetterFields:
    """Fields that differ between a message and its dead letter; changed in place."""

    message_id: str
    message_type: str  # the protocol's name of the kind
    message_group: str | None  # None: it has none
    priority: int
    origin: LetterOrigin | None
    properties: MutableMapping[str, str]  # user properties


def mark_retried(properties: MutableMapping[str, str], broker_name: str, queue_id: int, offset: int) -> None:
    """Notes the place of the message of which this is a first delayed copy."""
    properties[RETRY_BROKER], properties[RETRY_QUEUE], properties[RETRY_OFFSET] = (
        broker_name,
        str(queue_id),
        str(offset),
    )


def mark_dead(fields: LetterFields, death: Death) -> None:
    """Notes the origin of the message and the reason; an origin that it has already stays. A copy in a retry topic of
    an older version does not name the place of its origin, so the place stays unknown.
    """
    properties = fields.properties
    if RETRY_OFFSET in properties:
        for origin, retried in (
            (ORIGIN_BROKER, RETRY_BROKER),
            (ORIGIN_QUEUE, RETRY_QUEUE),
            (ORIGIN_OFFSET, RETRY_OFFSET),
        ):
            properties[origin] = properties.pop(retried, "")
    elif fields.origin is None:
        properties[ORIGIN_BROKER] = death.broker_name
        properties[ORIGIN_QUEUE] = str(death.queue_id)
        properties[ORIGIN_OFFSET] = str(death.offset)
    if fields.origin is None:
        fields.origin = LetterOrigin(death.topic.name, fields.message_id)
    properties[ORIGIN_TOPIC], properties[MESSAGE_ID] = fields.origin
    properties[REASON] = death.reason.value
    if death.attempts:
        properties[ATTEMPTS] = str(death.attempts)
    if fields.message_group is not None:
        properties[MESSAGE_GROUP] = fields.message_group
        fields.message_group = None
    if MESSAGE_TYPE not in properties:
        properties[MESSAGE_TYPE] = fields.message_type
    fields.message_type = MessageType.NORMAL.value


def mark_replayed(fields: LetterFields, target: TopicConfig, turn: int) -> int:
    """Turns the dead letter into a message of `target` again. Returns its queue: that of its message group or priority,
    otherwise the one whose `turn` it is. In a FIFO topic one without a message group is a group of its own.
    """
    properties = fields.properties
    group, kind = properties.get(MESSAGE_GROUP, ""), properties.get(MESSAGE_TYPE, MessageType.NORMAL.value)
    for key in [key for key in properties if key.startswith(PREFIX)]:
        del properties[key]
    fields.origin = None
    mixed = target.message_type is MessageType.MIXED
    fields.message_type = kind if mixed else target.message_type.value
    if fields.message_type == MessageType.FIFO:
        fields.message_group = group or fields.message_id
    queue_id = turn % target.write_queues
    if fields.message_type == MessageType.PRIORITY:
        queue_id = level_of(fields.priority, target.write_queues)
    if fields.message_group is not None:
        queue_id = zlib.crc32(fields.message_group.encode()) % target.write_queues
    return queue_id


def replay_group(group: str) -> str:
    """Returns the name of the group whose progress on the dead-letter topic shows what was replayed."""
    name = DLQ_PREFIX + group
    if len(name) <= GROUP_LENGTH_MAX:
        return name
    return DLQ_PREFIX + blake2b(group.encode(), digest_size=16).hexdigest()
