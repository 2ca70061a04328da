"""`evenq.v1.Admin/FindMessages`: stored messages by id, key, place or time, on all brokers, for people and tools.

Nothing is delivered and no progress changes. By id and key the store's message index answers, by time its consume
queues; each broker gives at most `count_max` messages and `BYTES_MAX` bytes, the broker asked sorts them and cuts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from evenq.errors import BadRequest, Error, NotImplementedYet, TopicNotFound
from evenq.model import TopicConfig
from evenq.model.names import is_system_topic
from evenq.serving.rpc import Action, Rpc, RpcContext
from evenq.store import StoredMessage
from evenq.wire.convert import ms_of
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2
from evenq_broker.core.frames import delivered, extra_fields
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["find_everywhere", "found_of", "index_must_be_on", "rpcs", "topics_of"]

METHOD = "/evenq.v1.Admin/FindMessages"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
COUNT_DEFAULT = 32
COUNT_MAX = 1_000
BYTES_MAX = 4 << 20
TOPICS_MAX = 1_000
TIME_MAX_MS = (1 << 63) - 1
_READ_BATCH = 64


def rpcs(broker: Broker) -> list[Rpc]:
    """The call of this module."""

    async def find(request: bytes, context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.FindMessagesRequest, request)
        if not asked.local:
            return (await find_everywhere(broker, asked, context)).SerializeToString()
        _must_make_sense(asked)
        return _readable(await _here(broker, asked), context).SerializeToString()

    return [rpc(METHOD, find, admin_pb2.FindMessagesResponse)]


async def find_everywhere(
    broker: Broker, asked: admin_pb2.FindMessagesRequest, context: RpcContext
) -> admin_pb2.FindMessagesResponse:
    """What all brokers have of what the caller may consume. Raises BadRequest, TopicNotFound, NotImplementedYet (no
    index).
    """
    _must_make_sense(asked)
    if asked.topic and not broker.routes.route(asked.topic) and broker.topics.get(asked.topic) is None:
        raise TopicNotFound(f"no topic {asked.topic!r} on any live broker; see `evenq topic list`")
    told = admin_pb2.FindMessagesRequest()
    told.CopyFrom(asked)
    told.local = True
    answer, others = await asyncio.gather(
        _here(broker, told), broker.cluster.ask_peers(METHOD, told.SerializeToString())
    )
    for name, other in others:
        if isinstance(other, Error):
            answer.silent.append(name)
            continue
        part = admin_pb2.FindMessagesResponse.FromString(other)
        check(part.status)
        answer.messages.extend(part.messages)
        answer.positions.extend(part.positions)
        answer.more |= part.more
    ordered = sorted(answer.messages, key=_order, reverse=asked.newest_first)
    kept = _cut(ordered, _count(asked), asked, answer.positions)
    answer.more |= len(kept) < len(ordered)
    del answer.messages[:]
    answer.messages.extend(kept)
    answer.positions.sort(key=lambda at: (at.queue.topic, at.queue.broker_name, at.queue.queue_id))
    return _readable(answer, context)


def _readable(answer: admin_pb2.FindMessagesResponse, context: RpcContext) -> admin_pb2.FindMessagesResponse:
    """Without messages of topics that the caller may not consume, whatever the request named."""
    kept = [found for found in answer.messages if context.may_topic(Action.CONSUME, found.queue.topic)]
    if len(kept) < len(answer.messages):
        del answer.messages[:]
        answer.messages.extend(kept)
    return answer


def topics_of(broker: Broker, name: str) -> list[TopicConfig]:
    """The topic, if it is here; without a name all but the system's own. Raises BadRequest if those are very many."""
    if name:
        found = broker.topics.get(name)
        return [] if found is None else [found]
    topics = [topic for topic in broker.topics.all() if not is_system_topic(topic.name)]
    if len(topics) > TOPICS_MAX:
        raise BadRequest(f"broker {broker.settings.broker_name} has {len(topics)} topics; name the one to search")
    return topics


def index_must_be_on(broker: Broker) -> None:
    """Raises NotImplementedYet if this broker keeps no message index."""
    if not broker.settings.store.message_index:
        raise NotImplementedYet(
            f"broker {broker.settings.broker_name} keeps no message index (its setting store.message_index is off), so "
            "messages are found by time or offset only; switch it on and restart the broker: it indexes what is there"
        )


def found_of(broker: Broker, topic: TopicConfig, stored: StoredMessage, *, body_max: int = 0) -> admin_pb2.FoundMessage:
    """The wire form of a stored message; its body cut to `body_max` bytes (0 = whole)."""
    extra = extra_fields(stored.queue_id, stored.queue_offset, stored.store_ms)
    message = definition_pb2.Message.FromString(delivered(stored, extra=extra))
    message.topic.CopyFrom(definition_pb2.Resource(name=topic.name))
    size = len(message.body)
    if body_max and size > body_max:
        message.body = message.body[:body_max]
    own = broker.settings.broker_name
    queue = common_pb2.Queue(topic=topic.name, broker_name=own, queue_id=stored.queue_id)
    return admin_pb2.FoundMessage(queue=queue, message=message, body_bytes=size)


def _must_make_sense(asked: admin_pb2.FindMessagesRequest) -> None:
    if not 0 <= asked.count_max <= COUNT_MAX:
        raise BadRequest(f"count_max is {asked.count_max}, the range is 1 to {COUNT_MAX}, or 0 for {COUNT_DEFAULT}")
    if asked.body_max < 0 or asked.begin_ms < 0 or asked.end_ms < 0:
        raise BadRequest("times and sizes are 0 and more")
    if asked.end_ms and asked.begin_ms > asked.end_ms:
        raise BadRequest(f"the range begins at {asked.begin_ms} ms and ends before, at {asked.end_ms} ms")
    if asked.message_id and asked.key:
        raise BadRequest("the request names a message id and a key; give one of them")
    if not asked.topic and not asked.message_id:
        raise BadRequest("the request names no topic; only a message id is searched for in all topics")
    for queue in (asked.queue, *(at.queue for at in asked.positions)):
        if queue.topic not in {"", asked.topic}:
            raise BadRequest(f"the request is about topic {asked.topic!r} and names a queue of {queue.topic!r}")
    if asked.by_offset and not asked.HasField("queue"):
        raise BadRequest("an offset means nothing without its queue; name broker and queue id")


# ---------------------------------------------------------------------------------------------------- one broker


async def _here(broker: Broker, asked: admin_pb2.FindMessagesRequest) -> admin_pb2.FindMessagesResponse:
    answer = admin_pb2.FindMessagesResponse(status=OK)
    for topic in topics_of(broker, asked.topic):
        if asked.message_id or asked.key:
            await _by_key(broker, topic, asked, answer)
        else:
            await _by_place(broker, topic, asked, answer)
    return answer


async def _by_key(
    broker: Broker, topic: TopicConfig, asked: admin_pb2.FindMessagesRequest, answer: admin_pb2.FindMessagesResponse
) -> None:
    index_must_be_on(broker)
    count = _count(asked)
    looked_at = count + 1 if asked.newest_first else COUNT_MAX + 1  # the index gives the newest first
    stored = await broker.store.find(
        topic.topic_id,
        (asked.message_id or asked.key).encode(),
        begin_ms=asked.begin_ms,
        end_ms=asked.end_ms or TIME_MAX_MS,
        count_max=looked_at,
        bytes_max=BYTES_MAX,
    )
    answer.more |= len(stored) > count
    for one in stored[:count] if asked.newest_first else stored[-count:]:
        found = found_of(broker, topic, one, body_max=asked.body_max)
        system = found.message.system_properties
        hit = system.message_id == asked.message_id if asked.message_id else asked.key in system.keys
        if hit and _in_queue(asked, found):
            answer.messages.append(found)


async def _by_place(
    broker: Broker, topic: TopicConfig, asked: admin_pb2.FindMessagesRequest, answer: admin_pb2.FindMessagesResponse
) -> None:
    own = broker.settings.broker_name
    wanted = range(topic.queues_ever)
    if asked.HasField("queue"):
        if asked.queue.broker_name not in {"", own}:
            return
        if asked.queue.queue_id not in wanted:
            raise BadRequest(f"topic {topic.name} has queues 0 to {topic.read_queues - 1}, not {asked.queue.queue_id}")
        wanted = range(asked.queue.queue_id, asked.queue.queue_id + 1)
    known = {at.queue.queue_id: at.offset for at in asked.positions if at.queue.broker_name == own}
    budget = BYTES_MAX
    for queue_id in wanted:
        low, high = await _range(broker, topic, queue_id, asked, known.get(queue_id))
        if asked.newest_first:
            low = max(low, high - _count(asked))
        found = await _read(broker, topic, queue_id, low, high, _count(asked), max(budget, 1 << 16))
        budget -= sum(len(one.head) for one in found)
        behind = found[-1].queue_offset + 1 if found else max(low, min(high, low))
        place = common_pb2.Queue(topic=topic.name, broker_name=own, queue_id=queue_id)
        answer.positions.add(queue=place, offset=behind)
        answer.more |= behind < high
        answer.messages.extend(found_of(broker, topic, one, body_max=asked.body_max) for one in found)


async def _range(
    broker: Broker, topic: TopicConfig, queue_id: int, asked: admin_pb2.FindMessagesRequest, position: int | None
) -> tuple[int, int]:
    place = (topic.topic_id, queue_id)
    begin = await broker.store.offset_at(*place, asked.begin_ms) if asked.begin_ms else 0
    end = await broker.store.offset_at(*place, asked.end_ms + 1) if asked.end_ms else None
    low, high = broker.store.queue_range(*place)
    if asked.by_offset:
        begin = asked.offset
    if position is not None:
        begin = position
    return min(max(begin, low), high), high if end is None else min(end, high)


async def _read(
    broker: Broker, topic: TopicConfig, queue_id: int, start: int, end: int, count: int, bytes_max: int
) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while start < end and len(found) < count and bytes_max > 0:
        wanted = min(end - start, count - len(found), _READ_BATCH)
        read = await broker.store.read(topic.topic_id, queue_id, start, count_max=wanted, bytes_max=bytes_max)
        messages = [message for message in read.messages if message.queue_offset < end]
        found += messages
        bytes_max -= sum(len(message.head) for message in messages)
        if not messages or read.next_offset <= start:
            break
        start = read.next_offset
    return found


# ---------------------------------------------------------------------------------------------------- sorting, cutting


def _count(asked: admin_pb2.FindMessagesRequest) -> int:
    return asked.count_max or COUNT_DEFAULT


def _order(found: admin_pb2.FoundMessage) -> tuple[int, str, int, int]:
    system = found.message.system_properties
    return ms_of(system.store_timestamp), found.queue.broker_name, found.queue.queue_id, system.queue_offset


def _in_queue(asked: admin_pb2.FindMessagesRequest, found: admin_pb2.FoundMessage) -> bool:
    if not asked.HasField("queue"):
        return True
    at = found.queue
    return at.queue_id == asked.queue.queue_id and asked.queue.broker_name in {"", at.broker_name}


def _cut(
    ordered: Sequence[admin_pb2.FoundMessage],
    count: int,
    asked: admin_pb2.FindMessagesRequest,
    positions: Iterable[admin_pb2.QueuePosition],
) -> list[admin_pb2.FoundMessage]:
    """The first of them within count and bytes; positions go back to what is left out."""
    kept: list[admin_pb2.FoundMessage] = []
    budget = BYTES_MAX
    for found in ordered:
        budget -= len(found.message.body)
        if len(kept) >= count or (budget < 0 and kept):
            break
        kept.append(found)
    if not asked.newest_first:
        left: dict[tuple[str, int], int] = {}
        for found in ordered[len(kept) :]:
            left.setdefault(
                (found.queue.broker_name, found.queue.queue_id), found.message.system_properties.queue_offset
            )
        for at in positions:
            at.offset = left.get((at.queue.broker_name, at.queue.queue_id), at.offset)
    return kept
