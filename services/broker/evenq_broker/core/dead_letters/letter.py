"""Dead letters: what a copy in `%DLQ%group` tells of the original, and the way back from the copy to a message.

Beside the protocol's own field (`dead_letter_queue`: topic and message id), user properties that every SDK shows tell
the rest; they are taken off again when a letter is replayed. Messages are decoded and encoded by `loops.wire.copies`;
here are the changes. Pure.
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

__all__ = [
    "Death", "LetterFields", "LetterOrigin", "Reason", "mark_dead", "mark_replayed", "mark_retried", "replay_group",
]  # fmt: skip

PREFIX = "DLQ_"
ORIGIN_TOPIC, ORIGIN_BROKER = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_BROKER"
ORIGIN_QUEUE, ORIGIN_OFFSET = "DLQ_ORIGIN_QUEUE_ID", "DLQ_ORIGIN_OFFSET"
MESSAGE_ID, ATTEMPTS, REASON = "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ATTEMPTS", "DLQ_REASON"
MESSAGE_GROUP, MESSAGE_TYPE = "DLQ_ORIGIN_MESSAGE_GROUP", "DLQ_ORIGIN_TYPE"
RETRY_BROKER, RETRY_QUEUE, RETRY_OFFSET = "RETRY_ORIGIN_BROKER", "RETRY_ORIGIN_QUEUE_ID", "RETRY_ORIGIN_OFFSET"
"""Where the message of a delayed copy lies, which its topic and offset in the retry topic do not tell."""


class Reason(StrEnum):
    """Why a message is dead."""

    ATTEMPTS = "attempts"
    """The group's deliveries are used up."""
    FORWARDED = "forwarded"
    """Its consumer asked for it."""
    SENT_BACK = "sent-back"
    """A member of the classic kind asked for it."""
    TOO_LARGE = "too-large"
    """The SDK of a client that asked for messages cannot receive one of this size."""


class Death(NamedTuple):
    """Where and why a message died."""

    topic: TopicConfig
    broker_name: str
    queue_id: int
    offset: int
    attempts: int
    """Deliveries it had; 0: not known."""
    reason: Reason


class LetterOrigin(NamedTuple):
    """The protocol's own word on where a letter comes from."""

    topic: str
    message_id: str


@dataclass(slots=True, kw_only=True)
class LetterFields:
    """What becomes different when a message becomes a letter, or a letter a message; changed in place."""

    message_id: str
    message_type: str
    """The protocol's name of the kind."""
    message_group: str | None
    """None: it has none."""
    priority: int
    origin: LetterOrigin | None
    properties: MutableMapping[str, str]
    """User properties."""


def mark_retried(properties: MutableMapping[str, str], broker_name: str, queue_id: int, offset: int) -> None:
    """Tell where the message lies of which this is a first delayed copy."""
    properties[RETRY_BROKER], properties[RETRY_QUEUE], properties[RETRY_OFFSET] = (
        broker_name,
        str(queue_id),
        str(offset),
    )


def mark_dead(fields: LetterFields, death: Death) -> None:
    """Tell where the message was sent to and why it died; one that has an origin already keeps it. A copy in a retry
    topic of an older version does not know the place of its origin, so none is said.
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
    """Make a message of `target` of the letter again. Returns its queue: that of its message group or priority, else
    the one whose `turn` it is. In a FIFO topic a letter without a message group is a group of its own.
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
    """Name of the group whose progress on the dead-letter topic says what was replayed."""
    name = DLQ_PREFIX + group
    if len(name) <= GROUP_LENGTH_MAX:
        return name
    return DLQ_PREFIX + blake2b(group.encode(), digest_size=16).hexdigest()
