"""Checks of a sent message, and its two parts, ready for the log. Limits and codes: wire contract 3.7.

SendMessage and Publish share them. The message is parsed once, here, and continues as bytes. Fields that belong to a
delivery are removed. The digest is that of the body as it will be delivered (`core.sending.body_digest`), and the type
follows from the fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from evenq import errors
from evenq.model import MIXED_KINDS, MessageType, TopicConfig
from evenq.model.lanes import lane_of
from evenq.store import Append, TimerAppend
from evenq.wire.convert import SecondsAndNanos, duration_ms_of, requested_ms_of, set_ms
from evenq.wire.packing import unpack
from evenq_broker.core.delivery.tags import tag_hash
from evenq_broker.core.lite.lite_topics import lite_problem
from evenq_broker.core.sending.body_digest import digest_field, field_of_sent
from evenq_broker.core.sending.sent_message import SentMessage, SentProperties
from evenq_broker.core.state.frames import text_field
from evenq_broker.core.transactions.half_messages import HALF_MESSAGE

MESSAGE_ID_MAX = 255
KEYS_MAX = 128
MESSAGE_GROUP_BYTES = 64  # the reference refuses groups of 64 bytes and more
SYSTEM_BYTES_MAX = 256 << 10
DELAYED_MESSAGE = 1  # the kind of our timers
FIRST_CHECK_MAX_MS = 3_600_000  # wire contract 3.7: orphaned_transaction_recovery_duration

RESERVED_PROPERTIES = frozenset(
    {
        "1ST_POP_TIME", "ARRIVE_TIME", "BORN_TIMESTAMP", "BUYER_ID", "CLUSTER", "CONSUME_START_TIME",
        "CORRECTION_FLAG", "CORRELATION_ID", "DELAY", "DLQ_ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC", "DUP_INFO",
        "EXTEND_UNIQ_INFO", "INNER_MULTI_QUEUE_OFFSET", "INSTANCE_ID", "KEYS", "MAX_OFFSET", "MAX_RECONSUME_TIMES",
        "MIN_OFFSET", "MQ2_FLAG", "MSG_REGION", "MSG_TYPE", "ORIGIN_MESSAGE_ID", "PGROUP", "POP_CK", "POP_CK_OFFSET",
        "PUSH_REPLY_TIME", "REAL_QID", "REAL_TOPIC", "RECONSUME_TIME", "REPLY_TO_CLIENT", "RETRY_TOPIC", "TAGS",
        "TIMER_DELAY_LEVEL", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY",
        "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TRACE_ON", "TRANSFER_FLAG",
        "TRAN_MSG", "TRAN_PREPARED_QUEUE_OFFSET", "TTL", "UNIQ_KEY", "WAIT", "__BORNHOST", "__CRC32#",
    }
)  # fmt: skip
"""Names that RocketMQ keeps for itself; its proxy and its clients refuse them as user properties."""

_NORMAL, _FIFO, _DELAY, _TRANSACTION, _LITE, _PRIORITY = 1, 2, 3, 4, 5, 6
_TYPE_NAMES = {
    _NORMAL: "NORMAL",
    _FIFO: "FIFO",
    _DELAY: "DELAY",
    _TRANSACTION: "TRANSACTION",
    _LITE: "LITE",
    _PRIORITY: "PRIORITY",
}
_ACCEPTED = {
    MessageType.NORMAL: frozenset({_NORMAL}),
    MessageType.FIFO: frozenset({_FIFO}),
    MessageType.MIXED: frozenset({_NORMAL, _FIFO, _DELAY, _TRANSACTION}),  # MIXED_KINDS
    MessageType.DELAY: frozenset({_DELAY}),
    MessageType.TRANSACTION: frozenset({_TRANSACTION}),
    MessageType.LITE: frozenset({_LITE}),
    MessageType.PRIORITY: frozenset({_PRIORITY}),
}
_IDENTITY = 1
_ENCODING_AND_TYPE = {kind: bytes((0x28, _IDENTITY, 0x30, kind)) for kind in _TYPE_NAMES}
NORMAL_END = _ENCODING_AND_TYPE[_NORMAL]
"""Bytes behind the digest of a plain message, in front of the store's host."""


@dataclass(frozen=True, kw_only=True)
class MessageLimits:
    """Settings that limit a message."""

    body_bytes_max: int
    properties_max: int
    properties_bytes_max: int
    delay_max_ms: int
    first_check_ms: int = 6_000
    lite_topic_size_max: int = 64
    store_host: str = ""  # `host:port` of this broker, sent to consumers
    only_md5: Callable[[], bool] = lambda: False
    """Returns True if no other digest may be stored now: by the settings, or for a copy of an older version."""

    @cached_property
    def store_host_field(self) -> bytes:
        """`store_host` (10) of system properties, encoded."""
        return text_field(10, self.store_host) if self.store_host else b""


def checked(message: SentMessage, topic: TopicConfig, limits: MessageLimits, *, now_ms: int) -> Append | TimerAppend:
    """Returns the message as it is stored, a timer if it is to be delivered later; `message` is used up. Its queue is
    that of its message group or priority, or the requested one, or -1 for the caller to choose. Raises the error for
    what is wrong.
    """
    system = message.system_properties
    _check_id(system.message_id)
    if message.user_properties:
        _check_properties(message, limits)
    kind = _check_type(system, topic, limits)
    tag = system.tag
    if tag or system.HasField("tag"):
        _check_tag(tag)
    if system.keys:
        _check_keys(system)
    if message.user_properties or tag or system.keys:
        _check_properties_size(message, limits)
    due_ms = 0
    if kind == _DELAY:
        due_ms = _due_ms(system.delivery_timestamp, now_ms, limits)
    elif kind == _TRANSACTION:
        due_ms = now_ms + _first_check_ms(system, limits)
    digest = _check_body(message, system, limits)
    queue_id = _queue_of(system, topic, kind)
    _clear_delivery(system)
    if not system.HasField("born_timestamp"):
        set_ms(system.born_timestamp, now_ms)
    born_ms = _born_ms(system.born_timestamp)
    encoded = system.SerializeToString()
    if len(encoded) > SYSTEM_BYTES_MAX:
        raise errors.PropertiesTooLarge(
            f"the system properties take {len(encoded)} bytes, the limit is {SYSTEM_BYTES_MAX}; "
            "use fewer or shorter keys"
        )
    message.ClearField("system_properties")
    # Later fields win over what the client wrote: body_digest 4, body_encoding 5 = IDENTITY, message_type 6,
    # store_host 10.
    encoded += digest + _ENCODING_AND_TYPE[kind] + limits.store_host_field
    head = message.SerializeToString()
    if due_ms > now_ms:
        timer = HALF_MESSAGE if kind == _TRANSACTION else DELAYED_MESSAGE
        return TimerAppend(
            topic.topic_id,
            queue_id,
            tag_hash(tag),
            due_ms=due_ms,
            kind=timer,
            born_ms=born_ms,
            head=head,
            system=encoded,
        )
    return Append(topic.topic_id, queue_id, tag_hash(tag), born_ms, head, encoded)


def checked_in_block(message: SentMessage, topic: TopicConfig, limits: MessageLimits, *, now_ms: int) -> Append:
    """Returns `checked` for a message of a block, which may leave out the block's one topic and is stored with it."""
    resource = message.topic
    if resource.name not in {"", topic.name}:
        raise errors.MessageCorrupted(f"a block is for one topic: {topic.name}, a message names {resource.name}")
    if resource.resource_namespace:
        raise errors.MessageCorrupted(
            f"a message names a namespace, {resource.resource_namespace[:64]!r}; a block's topic is a full name, "
            f"{topic.name}"
        )
    resource.name = topic.name
    entry = checked(message, topic, limits, now_ms=now_ms)
    if isinstance(entry, TimerAppend):
        raise errors.NotImplementedYet(
            "a block holds no delayed and no transaction messages; send them with SendMessage"
        )
    return entry


def _due_ms(due: SecondsAndNanos, now_ms: int, limits: MessageLimits) -> int:
    """Returns when a delayed message is due, ms since the epoch; a time in the past means immediate delivery."""
    due_ms = requested_ms_of(due, "delivery_timestamp", errors.IllegalDeliveryTime)
    if due_ms - now_ms > limits.delay_max_ms:
        raise errors.IllegalDeliveryTime(
            f"the delivery time is {due_ms - now_ms} ms from now, the limit is {limits.delay_max_ms}; deliver it sooner"
        )
    return due_ms


def _first_check_ms(system: SentProperties, limits: MessageLimits) -> int:
    """Returns the age of the transaction at its first check, ms."""
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return limits.first_check_ms
    requested_ms = duration_ms_of(system.orphaned_transaction_recovery_duration)
    if requested_ms > FIRST_CHECK_MAX_MS:
        raise errors.BadRequest(
            f"the transaction's recovery time is {requested_ms} ms, the limit is {FIRST_CHECK_MAX_MS}; request a first "
            "check within an hour"
        )
    return requested_ms if requested_ms > 0 else limits.first_check_ms


def _born_ms(born: SecondsAndNanos) -> int:
    """Returns ms since the epoch; a time before that is stored as 0 in the record's header, which has no sign."""
    return max(0, requested_ms_of(born, "born_timestamp"))


def level_of(priority: int, levels: int) -> int:
    """Returns the queue of a priority: one for each level, which those above the highest share."""
    return min(priority, levels - 1)


def _queue_of(system: SentProperties, topic: TopicConfig, kind: int) -> int:
    if kind == _PRIORITY:
        return level_of(system.priority, topic.write_queues)
    if system.message_group:
        return lane_of(system.message_group, topic.write_queues)
    queue_id = system.queue_id
    # The SDKs of Go and Python leave 0 there, whatever they chose: it names no queue (wire contract 3.7).
    return queue_id if 0 < queue_id < topic.write_queues else -1


def _clear_delivery(system: SentProperties) -> None:
    # Only a delivery may set these. Times and origin are nested, so later values would merge with them; queue and
    # offset are always overwritten.
    if system.HasField("store_timestamp"):
        system.ClearField("store_timestamp")
    if system.HasField("invisible_duration"):
        system.ClearField("invisible_duration")
    if system.HasField("dead_letter_queue"):
        system.ClearField("dead_letter_queue")
    if system.HasField("receipt_handle"):
        system.ClearField("receipt_handle")
    if system.HasField("delivery_attempt"):
        system.ClearField("delivery_attempt")  # C++ leaves rubbish there (wire contract 3.7)


def _check_id(message_id: str) -> None:
    if not message_id or message_id.isspace():
        raise errors.IllegalMessageId("the message id is blank; give each message an id of its own")
    if len(message_id) > MESSAGE_ID_MAX:
        raise errors.IllegalMessageId(f"the message id has {len(message_id)} characters, the limit is {MESSAGE_ID_MAX}")


def _check_body(message: SentMessage, system: SentProperties, limits: MessageLimits) -> bytes:
    """Checks and unpacks the body; returns its digest as a field."""
    body = message.body
    packed = system.body_encoding > _IDENTITY
    if packed and body:  # delivered as IDENTITY: SDKs disagree on what GZIP means (wire contract 5.3)
        body = message.body = unpack(system.body_encoding, body, limits.body_bytes_max)
    if not body:
        raise errors.BodyEmpty("the message body is empty; send at least one byte")
    if len(body) > limits.body_bytes_max:
        raise errors.BodyTooLarge(
            f"the message body has {len(body)} bytes, the limit is {limits.body_bytes_max}; split or compress it"
        )
    if system.HasField("body_digest") and not packed:
        return field_of_sent(system.body_digest, body, only_md5=limits.only_md5())
    return digest_field(body, only_md5=limits.only_md5())


def _check_properties(message: SentMessage, limits: MessageLimits) -> None:
    properties = message.user_properties
    if len(properties) > limits.properties_max:
        raise errors.PropertiesTooLarge(
            f"the message has {len(properties)} user properties, the limit is {limits.properties_max}"
        )
    for key in properties:
        if not key or not key.isprintable():
            raise errors.IllegalPropertyKey(f"the property key {key!r} is empty or holds a control character")
        if key in RESERVED_PROPERTIES:
            raise errors.IllegalPropertyKey(f"the property key {key!r} is reserved by the protocol; use another name")


def _check_properties_size(message: SentMessage, limits: MessageLimits) -> None:
    system = message.system_properties
    size = len(system.tag.encode()) + sum(len(key.encode()) for key in system.keys)
    size += sum(len(key.encode()) + len(value.encode()) for key, value in message.user_properties.items())
    if size > limits.properties_bytes_max:
        raise errors.PropertiesTooLarge(
            f"tag, keys and user properties take {size} bytes, the limit is {limits.properties_bytes_max} "
            "(properties_bytes_max); put the rest into the body"
        )


def is_tag(tag: str) -> bool:
    """Returns True if a message may have this tag, its length apart."""
    return bool(tag) and not tag.isspace() and "|" not in tag and tag.isprintable()


def _check_tag(tag: str) -> None:
    if not is_tag(tag):
        raise errors.IllegalMessageTag(
            f"the tag {tag!r} is blank or holds '|' or a control character; leave it out or use a word"
        )


def _check_keys(system: SentProperties) -> None:
    if len(system.keys) > KEYS_MAX:
        raise errors.IllegalMessageKey(f"the message has {len(system.keys)} keys, the limit is {KEYS_MAX}")
    for key in system.keys:
        if not key or key.isspace() or not key.isprintable():
            raise errors.IllegalMessageKey(
                f"the key {key!r} is blank or holds a control character; leave it out or use a word"
            )


def _check_type(system: SentProperties, topic: TopicConfig, limits: MessageLimits) -> int:
    declared = int(system.message_type)
    derived = declared
    if system.HasField("delivery_timestamp"):
        derived = _DELAY
        if system.message_group:
            raise errors.MessageTypeConflict(
                f"the message has the message group {system.message_group[:64]!r} and a delivery time; leave out one "
                "of the two"
            )
    elif system.HasField("message_group"):
        derived = _FIFO
        _check_group(system.message_group)
    elif system.HasField("lite_topic"):
        derived = _LITE
    elif system.HasField("priority"):
        derived = _PRIORITY
    elif declared in {_FIFO, _DELAY, 0}:
        derived = _NORMAL
    if declared not in {0, derived}:
        raise errors.MessageTypeConflict(
            f"the message says {_TYPE_NAMES.get(declared, declared)} but its fields make it {_TYPE_NAMES[derived]}: "
            "a message group makes FIFO, a delivery time makes DELAY, "
            "a priority makes PRIORITY, a lite topic makes LITE"
        )
    if system.HasField("priority"):
        _check_priority(system.priority, derived)
    elif derived == _NORMAL and topic.message_type is MessageType.PRIORITY:
        derived = _PRIORITY  # the lowest
    if system.HasField("lite_topic") and derived != _LITE:
        raise errors.MessageTypeConflict(
            f"the message has a lite topic and is {_TYPE_NAMES.get(derived, derived)}; leave out one of the two"
        )
    if derived not in _TYPE_NAMES:
        raise errors.NotImplementedYet(f"this version does not store messages of type {derived}; send another kind")
    if derived == _LITE:
        _check_lite(system.lite_topic, limits)
    if derived not in _ACCEPTED[topic.message_type]:
        kind = MessageType(_TYPE_NAMES[derived])
        what = f"topic {topic.name} takes {topic.message_type} messages, this one is {kind}"
        if {kind, topic.message_type} <= {*MIXED_KINDS}:
            raise errors.MessageTypeConflict(
                f"{what}; let the topic take both with `evenq topic create {topic.name} --type MIXED`, or change the "
                "message"
            )
        raise errors.MessageTypeConflict(
            f"{what}; change the message, or send it to a topic made with `evenq topic create NAME --type {kind}`"
        )
    return derived


def _check_lite(name: str, limits: MessageLimits) -> None:
    problem = lite_problem(name, limits.lite_topic_size_max)
    if problem:
        raise errors.IllegalLiteTopic(problem)


def _check_priority(priority: int, derived: int) -> None:
    if priority < 0:
        raise errors.BadRequest(f"the priority is {priority}, the least is 0; leave it out or give 0 or more")
    if derived != _PRIORITY:
        raise errors.MessageTypeConflict(
            f"the message has a priority and is {_TYPE_NAMES[derived]}; leave out the priority, or the message group "
            "or delivery time"
        )


def _check_group(message_group: str) -> None:
    if not message_group or message_group.isspace():
        raise errors.IllegalMessageGroup("the message group is blank; leave it out or name it")
    if len(message_group.encode()) >= MESSAGE_GROUP_BYTES:
        raise errors.IllegalMessageGroup(
            f"the message group {message_group!r} has {len(message_group.encode())} bytes, the limit is "
            f"{MESSAGE_GROUP_BYTES - 1}"
        )
