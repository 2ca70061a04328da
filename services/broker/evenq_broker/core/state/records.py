"""State of the broker as records of its log: small operations, and snapshots made of the same operations.

All operations are absolute ("this is finished"), so replaying some twice, over a snapshot that already has them, ends
in the same state. A record is a version byte and operations; a snapshot is a record of everything. Unknown versions and
kinds are refused.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from evenq.errors import StoreCorrupted
from evenq.model import GroupConfig, MessageQueue, MessageType, Permission, StartFrom, TopicConfig
from evenq_broker.core.state.policies import balance_json, balance_of, retry_json, retry_of
from evenq_broker.core.state.schedule_records import (
    ScheduleFired,
    ScheduleOp,
    SchedulePut,
    ScheduleRemoved,
    schedule_json,
    schedule_op_of,
)
from evenq_broker.core.state.staging_records import StagingOp, staging_json, staging_op_of

# Kinds 1 to 5, 10, 13 to 16, 24 to 26, 32 and 33 (keys, topics, groups, locks, lite, drains, brokers, staging,
# schedules) are a u32 length and JSON. ChangePut shares kind 3 (TopicRemoved) with the id 0, which no topic has, so an
# older program ignores it. The others:
#
# | kind | operation    | content after the kind byte (big-endian)                                                    |
# |------|--------------|--------------------------------------------------------------------------------------------|
# | 6    | Committed    | u32 group, u32 topic, u32 queue, u64 offset, u8 reset                                       |
# | 7    | Acked        | u32 group, u32 topic, u32 queue, u64 offset                                                 |
# | 8    | Delivered    | 3 u32 place, u64 next, u64 deadline, u16 client length, u16 n, client, n (u64, u32, u16)    |
# | 9    | Invisible    | u32 group, topic, queue, u64 offset, u32 number, u16 attempt, u64 deadline ms               |
# | 11   | HalfPut      | u64 number, u32 topic, u64 timer, i64 timer before, 2 u64 ms begun, due, u16 checks, missed |
# | 12   | HalvesEnded  | u32 n, n u64 numbers, n u8 outcomes                                                         |
# | 17   | Counted      | u32 group, u32 topic, u32 queue, u64 given until, u16 n, n u64 offsets, n u16 deliveries    |

VERSION = 1
_KEY, _TOPIC, _TOPIC_GONE, _GROUP, _GROUP_GONE, _COMMITTED, _ACKED, _DELIVERED, _INVISIBLE, _LOCKED = range(1, 11)
_HALF, _HALVES_ENDED, _UNSUBSCRIBED, _LITE, _LITE_GONE, _DRAIN, _COUNTED = range(11, 18)
_BROKER, _BROKER_GONE, _BROKER_TOPICS, _STAGING, _SCHEDULE = 24, 25, 26, 32, 33
_IN_JSON = frozenset({
    _KEY, _TOPIC, _TOPIC_GONE, _GROUP, _GROUP_GONE, _LOCKED, _UNSUBSCRIBED, _LITE, _LITE_GONE, _DRAIN, _BROKER,
    _BROKER_GONE, _BROKER_TOPICS, _STAGING, _SCHEDULE,
})  # fmt: skip
_COMMITTED_FORM = struct.Struct(">BIIIQB")
_ACKED_FORM = struct.Struct(">BIIIQ")
_DELIVERED_FORM = struct.Struct(">BIIIQQHH")
_INVISIBLE_FORM = struct.Struct(">BIIIQIHQ")
_COUNTED_FORM = struct.Struct(">BIIIQH")
_HALF_FORM = struct.Struct(">BQIQqQQHH")
_LENGTH = struct.Struct(">I")
encode_acked = partial(_ACKED_FORM.pack, _ACKED)
"""`encode_op` of `Acked(*fields)`, the most frequent operation."""


@dataclass(frozen=True, slots=True)
class KeyPut:
    """Key of receipt handles, and the next numbers of topics and groups."""

    key: bytes
    next_topic_id: int = 1
    next_group_id: int = 1
    awaited: tuple[tuple[int, str], ...] = ()
    """Group id and topic name, where the group read a deleted topic of that name. None in older journals."""


@dataclass(frozen=True, slots=True)
class TopicPut:
    topic: TopicConfig


@dataclass(frozen=True, slots=True)
class TopicRemoved:
    topic_id: int


@dataclass(frozen=True, slots=True)
class GroupPut:
    group: GroupConfig


@dataclass(frozen=True, slots=True)
class GroupRemoved:
    group_id: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Offset below which everything is finished. `reset`: an explicit move; what was in flight is forgotten."""

    group_id: int
    topic_id: int
    queue_id: int
    offset: int
    reset: bool = False


class Acked(NamedTuple):
    """One finished offset. The most frequent operation, so it is the cheapest kind of value."""

    group_id: int
    topic_id: int
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """Offsets given to a client; `next_offset` is the first one never looked at."""

    group_id: int
    topic_id: int
    queue_id: int
    next_offset: int
    deadline_ms: int
    """End of the invisible time, ms since the epoch; 0: none while the client lives."""
    client_id: str
    offsets: tuple[int, ...]
    numbers: tuple[int, ...]
    attempts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Invisible:
    """New end of one delivery; `attempt` is what it counts as."""

    group_id: int
    topic_id: int
    queue_id: int
    offset: int
    number: int
    attempt: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Deliveries to members that pull (`core.delivery.counts`). Numbers only grow: the larger one wins."""

    group_id: int
    topic_id: int
    queue_id: int
    given_until: int
    """Unfinished offsets below it were given to a holder that is gone."""
    offsets: tuple[int, ...] = ()
    deliveries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Locked:
    """New holder of a queue's lock; empty: it is free."""

    group: str
    queue: MessageQueue
    client_id: str
    epoch: int = 0
    counter: int = 0
    """With `epoch`: the newest generation that the lock was granted under."""


class HalfPut(NamedTuple):
    """An open transaction (`core.transactions.table`)."""

    number: int
    topic_id: int
    timer_id: int
    previous_id: int  # the timer before; -1: there is only one
    first_ms: int
    due_ms: int
    checks: int
    missed: int


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """End of a group's progress on a topic: an operator removed the subscription."""

    group_id: int
    topic_id: int


@dataclass(frozen=True, slots=True)
class LiteOpened:
    """A lite topic in this queue of its parent, from the offset `base` on (`core.lite.lite_topics`)."""

    topic_id: int
    queue_id: int
    base: int
    name: str


@dataclass(frozen=True, slots=True)
class LiteClosed:
    """End of the lite topic of this queue, with every group's progress on it."""

    topic_id: int
    queue_id: int


@dataclass(frozen=True, slots=True)
class DrainPut:
    """Whether the broker is drained: then it takes no new messages."""

    on: bool


@dataclass(frozen=True, slots=True)
class BrokerKnown:
    """Another broker of the cluster."""

    name: str
    gone_ms: int = 0  # when it was first missed, ms since the epoch; 0: it was there
    unread: int = 0  # messages that it still held, drained, when it ended, and that no group ever read
    dead_letters: int = 0  # dead letters that it still held then


@dataclass(frozen=True, slots=True)
class BrokerForgotten:
    """A broker that left for good."""

    name: str


@dataclass(frozen=True, slots=True)
class BrokerTopics:
    """Numbers of readable queues of these topics at another broker; those of other topics stay."""

    name: str
    read_queues: Mapping[str, int]  # by topic; 0: none any more


class ChangeKind(StrEnum):
    TOPIC_DELETED = "topic-deleted"
    TOPIC_MADE = "topic-made"  # Made, or widened
    GROUP_DELETED = "group-deleted"


@dataclass(frozen=True, slots=True)
class ChangePut:
    """A change that some broker has not confirmed (`core.cluster.unconfirmed_changes`)."""

    kind: ChangeKind
    name: str
    uid: str  # uid of the topic; empty for a group
    at_ms: int  # when it was requested, ms since the epoch
    waiting: tuple[str, ...]  # brokers that have not confirmed it, ascending; none: it is forgotten


class HalvesEnded(NamedTuple):
    """Ended transactions; `outcomes` are numbers of `core.transactions.table.TransactionOutcome`."""

    numbers: tuple[int, ...]
    outcomes: tuple[int, ...]


Op = (
    KeyPut
    | TopicPut
    | TopicRemoved
    | GroupPut
    | GroupRemoved
    | Committed
    | Acked
    | Delivered
    | Invisible
    | Counted
    | Locked
    | Unsubscribed
    | LiteOpened
    | LiteClosed
    | DrainPut
    | BrokerKnown
    | BrokerForgotten
    | BrokerTopics
    | ChangePut
    | HalfPut
    | HalvesEnded
    | StagingOp
    | ScheduleOp
)


def encode(ops: Iterable[Op]) -> bytes:
    """Encodes operations as one record."""
    return b"".join((bytes((VERSION,)), *map(encode_op, ops)))


def encode_op(op: Op) -> bytes:
    """Encodes one operation, without the version byte."""
    match op:
        case Acked():
            return encode_acked(*op)
        case Delivered():
            return _encode_delivered(op)
        case Invisible():
            position = (op.group_id, op.topic_id, op.queue_id, op.offset)
            return _INVISIBLE_FORM.pack(_INVISIBLE, *position, op.number, op.attempt, op.deadline_ms)
        case Committed():
            return _COMMITTED_FORM.pack(_COMMITTED, op.group_id, op.topic_id, op.queue_id, op.offset, op.reset)
        case Counted():
            return _encode_counted(op)
        case HalfPut():
            return _HALF_FORM.pack(_HALF, *op[:-2], min(op.checks, 0xFFFF), min(op.missed, 0xFFFF))
        case HalvesEnded():
            return _encode_ended(op)
        case TopicPut():
            return _encode_topic(op.topic)
        case GroupPut():
            return _encode_group(op.group)
        case TopicRemoved():
            return _json(_TOPIC_GONE, {"id": op.topic_id})
        case ChangePut():
            return _json(_TOPIC_GONE, {"id": 0, "change": [str(op.kind), op.name, op.uid, op.at_ms, op.waiting]})
        case GroupRemoved():
            return _json(_GROUP_GONE, {"id": op.group_id})
        case Unsubscribed():
            return _json(_UNSUBSCRIBED, {"group": op.group_id, "topic": op.topic_id})
        case LiteOpened():
            return _json(_LITE, {"topic": op.topic_id, "queue": op.queue_id, "base": op.base, "name": op.name})
        case LiteClosed():
            return _json(_LITE_GONE, {"topic": op.topic_id, "queue": op.queue_id})
        case DrainPut():
            return _json(_DRAIN, {"on": op.on})
        case BrokerKnown():
            return _json(_BROKER, {"name": op.name, "gone": op.gone_ms, "unread": op.unread, "dead": op.dead_letters})
        case BrokerForgotten():
            return _json(_BROKER_GONE, {"name": op.name})
        case BrokerTopics():
            return _json(_BROKER_TOPICS, {"name": op.name, "read": dict(op.read_queues)})
        case Locked():
            queue, generation = op.queue, [op.epoch, op.counter]
            place = [queue.topic, queue.broker_name, queue.queue_id]
            return _json(_LOCKED, {"group": op.group, "queue": place, "client": op.client_id, "generation": generation})
        case StagingOp():
            return _json(_STAGING, staging_json(op))
        case SchedulePut() | ScheduleFired() | ScheduleRemoved():
            return _json(_SCHEDULE, schedule_json(op))
        case KeyPut():
            return _json(
                _KEY,
                {"key": op.key.hex(), "topic": op.next_topic_id, "group": op.next_group_id, "awaited": op.awaited},
            )


def _encode_topic(topic: TopicConfig) -> bytes:
    value = {
        "name": topic.name,
        "id": topic.topic_id,
        "type": str(topic.message_type),
        "read": topic.read_queues,
        "write": topic.write_queues,
        "permission": int(topic.permission),
        "retention_ms": topic.retention_ms,
        "widest": topic.widest,
        "chosen": topic.chosen,
        "uid": topic.uid,
    }
    return _json(_TOPIC, value)


def _encode_group(group: GroupConfig) -> bytes:
    value = {
        "name": group.name,
        "id": group.group_id,
        "ordered": group.ordered,
        "attempts": group.max_attempts,
        "start": str(group.start_from),
        "strategy": group.strategy,
        "retry": retry_json(group.retry),
        "balance": balance_json(group.balance),
        "revised": group.revised_ms,
        "made": group.made_ms,
    }
    return _json(_GROUP, value)


def _encode_delivered(op: Delivered) -> bytes:
    client = op.client_id.encode()
    count = len(op.offsets)
    return b"".join(
        (
            _DELIVERED_FORM.pack(
                _DELIVERED, op.group_id, op.topic_id, op.queue_id, op.next_offset, op.deadline_ms, len(client), count
            ),
            client,
            struct.pack(f">{count}Q{count}I{count}H", *op.offsets, *op.numbers, *op.attempts),
        )
    )


def _encode_counted(op: Counted) -> bytes:
    count = len(op.offsets)
    return b"".join(
        (
            _COUNTED_FORM.pack(_COUNTED, op.group_id, op.topic_id, op.queue_id, op.given_until, count),
            struct.pack(f">{count}Q{count}H", *op.offsets, *op.deliveries),
        )
    )


def _encode_ended(op: HalvesEnded) -> bytes:
    count = len(op.numbers)
    return struct.pack(f">BI{count}Q{count}B", _HALVES_ENDED, count, *op.numbers, *op.outcomes)


def _json(kind: int, value: dict[str, Any]) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return bytes((kind,)) + _LENGTH.pack(len(text)) + text


def decode(record: bytes) -> Iterator[Op]:
    """Yields the operations of a record or snapshot, in order. Raises StoreCorrupted for an unknown version or kind."""
    if not record or record[0] != VERSION:
        raise StoreCorrupted(
            f"a state record has version {record[0] if record else 'none'}, this program reads version {VERSION}"
        )
    at = 1
    try:
        while at < len(record):
            op, at = _decode_op(record, at)
            yield op
    except (struct.error, IndexError, ValueError, KeyError, TypeError) as error:
        raise StoreCorrupted(f"a state record is damaged near byte {at} of {len(record)}: {error}") from error


def _decode_op(record: bytes, at: int) -> tuple[Op, int]:
    kind = record[at]
    if kind == _ACKED:
        return Acked(*_ACKED_FORM.unpack_from(record, at)[1:]), at + _ACKED_FORM.size
    if kind == _INVISIBLE:
        _, group, topic, queue, offset, number, attempt, deadline = _INVISIBLE_FORM.unpack_from(record, at)
        return Invisible(group, topic, queue, offset, number, attempt, deadline), at + _INVISIBLE_FORM.size
    if kind == _COMMITTED:
        _, group, topic, queue, offset, reset = _COMMITTED_FORM.unpack_from(record, at)
        return Committed(group, topic, queue, offset, bool(reset)), at + _COMMITTED_FORM.size
    if kind == _DELIVERED:
        return _decode_delivered(record, at)
    if kind == _COUNTED:
        return _decode_counted(record, at)
    if kind == _HALF:
        return HalfPut(*_HALF_FORM.unpack_from(record, at)[1:]), at + _HALF_FORM.size
    if kind == _HALVES_ENDED:
        return _decode_ended(record, at)
    if kind not in _IN_JSON:
        raise StoreCorrupted(f"a state record holds an operation of kind {kind}, which this program does not know")
    (length,) = _LENGTH.unpack_from(record, at + 1)
    start = at + 1 + _LENGTH.size
    return _from_json(kind, json.loads(record[start : start + length])), start + length


def _decode_delivered(record: bytes, at: int) -> tuple[Op, int]:
    _, group, topic, queue, following, deadline, client_length, count = _DELIVERED_FORM.unpack_from(record, at)
    at += _DELIVERED_FORM.size
    client = record[at : at + client_length].decode()
    form = struct.Struct(f">{count}Q{count}I{count}H")
    values = form.unpack_from(record, at + client_length)
    offsets, numbers, attempts = values[:count], values[count : 2 * count], values[2 * count :]
    op = Delivered(group, topic, queue, following, deadline, client, offsets, numbers, attempts)
    return op, at + client_length + form.size


def _decode_counted(record: bytes, at: int) -> tuple[Op, int]:
    _, group, topic, queue, given_until, count = _COUNTED_FORM.unpack_from(record, at)
    form = struct.Struct(f">{count}Q{count}H")
    at += _COUNTED_FORM.size
    values = form.unpack_from(record, at)
    return Counted(group, topic, queue, given_until, values[:count], values[count:]), at + form.size


def _decode_ended(record: bytes, at: int) -> tuple[Op, int]:
    (count,) = _LENGTH.unpack_from(record, at + 1)
    form = struct.Struct(f">{count}Q{count}B")
    values = form.unpack_from(record, at + 1 + _LENGTH.size)
    return HalvesEnded(values[:count], values[count:]), at + 1 + _LENGTH.size + form.size


def _from_json(kind: int, value: dict[str, Any]) -> Op:
    if kind == _TOPIC:
        topic = TopicConfig(
            name=value["name"],
            topic_id=value["id"],
            message_type=MessageType(value["type"]),
            read_queues=value["read"],
            write_queues=value["write"],
            permission=Permission(value["permission"]),
            # None in older journals:
            widest=value.get("widest", 0),
            retention_ms=value.get("retention_ms"),
            chosen=value.get("chosen", False),
            uid=value.get("uid", ""),
        )
        return TopicPut(topic)
    if kind == _GROUP:
        return GroupPut(
            GroupConfig(
                name=value["name"],
                group_id=value["id"],
                ordered=value["ordered"],
                max_attempts=value["attempts"],
                start_from=StartFrom(value["start"]),
                strategy=value["strategy"],
                retry=retry_of(value.get("retry")),  # none in older journals
                balance=balance_of(value.get("balance")),
                revised_ms=value.get("revised", 0),
                made_ms=value.get("made", 0),
            )
        )
    if kind == _UNSUBSCRIBED:
        return Unsubscribed(value["group"], value["topic"])
    if kind == _LITE:
        return LiteOpened(value["topic"], value["queue"], value["base"], value["name"])
    if kind == _STAGING:
        return staging_op_of(value)
    if kind == _SCHEDULE:
        return schedule_op_of(value)
    if kind == _DRAIN:
        return DrainPut(value["on"])
    if kind == _BROKER:
        return BrokerKnown(value["name"], value["gone"], value["unread"], value["dead"])
    if kind == _BROKER_GONE:
        return BrokerForgotten(value["name"])
    if kind == _BROKER_TOPICS:
        return BrokerTopics(value["name"], value["read"])
    if kind == _LITE_GONE:
        return LiteClosed(value["topic"], value["queue"])
    if kind == _LOCKED:
        return Locked(value["group"], MessageQueue(*value["queue"]), value["client"], *value["generation"])
    if kind == _TOPIC_GONE:
        if "change" not in value:
            return TopicRemoved(value["id"])
        change, name, uid, at_ms, waiting = value["change"]
        return ChangePut(ChangeKind(change), name, uid, at_ms, tuple(waiting))
    if kind == _GROUP_GONE:
        return GroupRemoved(value["id"])
    awaited = tuple((int(group_id), str(topic)) for group_id, topic in value.get("awaited", ()))
    return KeyPut(bytes.fromhex(value["key"]), value["topic"], value["group"], awaited)
