"""`evenq.v1.Admin/FindMessages`: stored messages by id, key, queue or time, on all brokers.

Nothing is delivered and no progress changes. The message index finds ids and keys, the consume queues find times. Each
broker returns at most `count_max` messages and `BYTES_MAX` bytes; the broker that answers sorts and cuts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from evenq.errors import BadRequest, NotImplementedYet, TopicNotFound
from evenq.model import TopicConfig
from evenq.model.names import is_system_topic
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Action, Rpc, RpcContext
from evenq.store import StoredMessage
from evenq.wire.convert import ms_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2
from evenq_broker.core.state.frames import delivered, extra_fields
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.rpc.answers import OK, answers_of, parsed
from evenq_broker.runtime import Runtime

METHOD = "/evenq.v1.Admin/FindMessages"
COUNT_DEFAULT = 32
COUNT_MAX = 1_000
BYTES_MAX = 4 << 20
TOPICS_MAX = 1_000
TIME_MAX_MS = (1 << 63) - 1
_READ_BATCH = 64
_QUEUE_BYTES_MIN = 64 << 10
_Order = tuple[int, str, int, int]
_FIRST: _Order = (0, "", 0, 0)


def rpcs(kernel: Kernel, *, cluster: ClusterLink) -> list[Rpc]:
    async def find(data: bytes, context: RpcContext) -> bytes:
        request = parsed(admin_pb2.FindMessagesRequest, data)
        if not request.local:
            return (await find_everywhere(kernel, request, context, cluster=cluster)).SerializeToString()
        _must_make_sense(request)
        return _readable(await _here(kernel, request), context).SerializeToString()

    return [rpc(METHOD, find)]


async def find_everywhere(
    kernel: Kernel, request: admin_pb2.FindMessagesRequest, context: RpcContext, *, cluster: ClusterLink
) -> admin_pb2.FindMessagesResponse:
    """Returns messages that the caller may consume. Raises BadRequest, TopicNotFound, NotImplementedYet (no index)."""
    _must_make_sense(request)
    if (
        request.topic
        and not kernel.catalog.routes.route(request.topic)
        and kernel.catalog.topics.get(request.topic) is None
    ):
        raise TopicNotFound(f"no topic {request.topic!r} on any live broker; see `evenq topic list`")
    local_request = admin_pb2.FindMessagesRequest()
    local_request.CopyFrom(request)
    local_request.local = True
    response, others = await asyncio.gather(
        _here(kernel, local_request),
        cluster.ask_all(METHOD, local_request.SerializeToString()),
    )
    oldest = [_oldest(response)] if response.more else []
    for part in answers_of(admin_pb2.FindMessagesResponse, others, silent=response.silent):
        oldest += [_oldest(part)] if part.more else []
        response.messages.extend(part.messages)
        response.positions.extend(part.positions)
        response.more |= part.more
    ordered = sorted(response.messages, key=_order, reverse=request.newest_first)
    if request.newest_first:
        ordered = [match for match in ordered if _order(match) >= max(oldest, default=_FIRST)]
    kept = _cut(ordered, _count(request), request, response.positions)
    response.more |= len(kept) < len(response.messages)
    del response.messages[:]
    response.messages.extend(kept)
    response.positions.sort(key=lambda at: (at.queue.topic, at.queue.broker_name, at.queue.queue_id))
    return _readable(response, context)


def _oldest(part: admin_pb2.FindMessagesResponse) -> _Order:
    """Returns the end of a list of newest messages that a limit cut: its source may have others before it, which are
    newer than older messages of another source.
    """
    return min(map(_order, part.messages), default=_FIRST)


def _readable(response: admin_pb2.FindMessagesResponse, context: RpcContext) -> admin_pb2.FindMessagesResponse:
    """Removes messages of topics that the caller may not consume, whatever the request names."""
    kept = [message for message in response.messages if context.may_topic(Action.CONSUME, message.queue.topic)]
    if len(kept) < len(response.messages):
        del response.messages[:]
        response.messages.extend(kept)
    return response


def topics_of(kernel: Kernel, name: str) -> list[TopicConfig]:
    """Returns the topic if it is here; without a name all but system topics. Raises BadRequest above `TOPICS_MAX`."""
    if name:
        named = kernel.catalog.topics.get(name)
        return [] if named is None else [named]
    topics = [topic for topic in kernel.catalog.topics.all() if not is_system_topic(topic.name)]
    if len(topics) > TOPICS_MAX:
        raise BadRequest(
            f"broker {kernel.runtime.settings.broker_name} has {len(topics)} topics; name the one to search"
        )
    return topics


def index_must_be_on(runtime: Runtime) -> None:
    """Raises NotImplementedYet if this broker keeps no message index."""
    if not runtime.settings.store.message_index:
        raise NotImplementedYet(
            f"broker {runtime.settings.broker_name} keeps no message index (its setting store.message_index is off), "
            "so messages are found by time or offset only; turn it on and restart the broker, which then builds it"
        )


def found_of(
    runtime: Runtime, topic: TopicConfig, stored: StoredMessage, *, body_max: int = 0
) -> admin_pb2.FoundMessage:
    """Returns the wire form of a stored message; `body_max`: longest part of the body, bytes (0 = whole)."""
    extra = extra_fields(stored.queue_id, stored.queue_offset, stored.store_ms)
    message = definition_pb2.Message.FromString(delivered(stored, extra=extra))
    message.topic.CopyFrom(definition_pb2.Resource(name=topic.name))
    size = len(message.body)
    if body_max and size > body_max:
        message.body = message.body[:body_max]
    own = runtime.settings.broker_name
    queue = common_pb2.Queue(topic=topic.name, broker_name=own, queue_id=stored.queue_id)
    return admin_pb2.FoundMessage(queue=queue, message=message, body_bytes=size)


def _must_make_sense(request: admin_pb2.FindMessagesRequest) -> None:
    if not 0 <= request.count_max <= COUNT_MAX:
        raise BadRequest(f"count_max is {request.count_max}, the range is 1 to {COUNT_MAX}, or 0 for {COUNT_DEFAULT}")
    if request.body_max < 0 or request.begin_ms < 0 or request.end_ms < 0:
        raise BadRequest("a time or size is negative; give 0 or more")
    if request.end_ms and request.begin_ms > request.end_ms:
        raise BadRequest(f"the range begins at {request.begin_ms} ms and ends earlier, at {request.end_ms} ms")
    if request.message_id and request.key:
        raise BadRequest("the request names a message id and a key; give one of them")
    if not request.topic and not request.message_id:
        raise BadRequest("the request names no topic; only a message id can be searched in all topics")
    for queue in (request.queue, *(at.queue for at in request.positions)):
        if queue.topic not in {"", request.topic}:
            raise BadRequest(f"the request is about topic {request.topic!r} and names a queue of {queue.topic!r}")
    if request.by_offset and not request.HasField("queue"):
        raise BadRequest("the request has an offset without a queue; name broker and queue id")


async def _here(kernel: Kernel, request: admin_pb2.FindMessagesRequest) -> admin_pb2.FindMessagesResponse:
    response = admin_pb2.FindMessagesResponse(status=OK)
    for topic in topics_of(kernel, request.topic):
        if request.message_id or request.key:
            await _by_key(kernel, topic, request, response)
        else:
            await _by_place(kernel, topic, request, response)
    return response


async def _by_key(
    kernel: Kernel, topic: TopicConfig, request: admin_pb2.FindMessagesRequest, response: admin_pb2.FindMessagesResponse
) -> None:
    index_must_be_on(kernel.runtime)
    count = _count(request)
    looked_at = count + 1 if request.newest_first else COUNT_MAX + 1  # the index returns the newest first
    stored = await kernel.ledger.store.find(
        topic.topic_id,
        (request.message_id or request.key).encode(),
        begin_ms=request.begin_ms,
        end_ms=request.end_ms or TIME_MAX_MS,
        count_max=looked_at,
        bytes_max=BYTES_MAX,
    )
    response.more |= len(stored) > count
    for one in stored[:count] if request.newest_first else stored[-count:]:
        match = found_of(kernel.runtime, topic, one, body_max=request.body_max)
        system = match.message.system_properties
        hit = system.message_id == request.message_id if request.message_id else request.key in system.keys
        if hit and _in_queue(request, match):
            response.messages.append(match)


async def _by_place(
    kernel: Kernel, topic: TopicConfig, request: admin_pb2.FindMessagesRequest, response: admin_pb2.FindMessagesResponse
) -> None:
    own = kernel.runtime.settings.broker_name
    queue_ids = range(topic.queues_ever)
    if request.HasField("queue"):
        if request.queue.broker_name not in {"", own}:
            return
        if request.queue.queue_id not in queue_ids:
            raise BadRequest(
                f"topic {topic.name} has queues 0 to {topic.read_queues - 1}, not {request.queue.queue_id}"
            )
        queue_ids = range(request.queue.queue_id, request.queue.queue_id + 1)
    known = {at.queue.queue_id: at.offset for at in request.positions if at.queue.broker_name == own}
    found = _newest if request.newest_first else _from_position
    share = max(BYTES_MAX // len(queue_ids), _QUEUE_BYTES_MIN)
    oldest = []
    for queue_id in queue_ids:
        low, high = await _range(kernel.ledger, topic, queue_id, request, known.get(queue_id))
        part = admin_pb2.FindMessagesResponse()
        queue = common_pb2.Queue(topic=topic.name, broker_name=own, queue_id=queue_id)
        stored = await found(kernel.ledger, topic, queue_id, low, high, _count(request), share)
        if request.newest_first:
            behind, part.more = high, bool(stored) and stored[0].queue_offset > low
        else:
            behind = stored[-1].queue_offset + 1 if stored else min(low, high)
            part.more = behind < high
        part.messages.extend(found_of(kernel.runtime, topic, one, body_max=request.body_max) for one in stored)
        response.positions.add(queue=queue, offset=behind)
        response.messages.extend(part.messages)
        response.more |= part.more
        oldest += [_oldest(part)] if part.more else []
    if request.newest_first and oldest:
        kept = [match for match in response.messages if _order(match) >= max(oldest)]
        del response.messages[:]
        response.messages.extend(kept)


async def _range(
    ledger: Ledger, topic: TopicConfig, queue_id: int, request: admin_pb2.FindMessagesRequest, position: int | None
) -> tuple[int, int]:
    ids = (topic.topic_id, queue_id)
    begin = await ledger.store.offset_at(*ids, request.begin_ms) if request.begin_ms else 0
    end = await ledger.store.offset_at(*ids, request.end_ms + 1) if request.end_ms else None
    low, high = ledger.store.queue_range(*ids)
    if request.by_offset:
        begin = request.offset
    if position is not None:
        begin = position
    return min(max(begin, low), high), high if end is None else min(end, high)


async def _from_position(
    ledger: Ledger, topic: TopicConfig, queue_id: int, start: int, end: int, count: int, bytes_max: int
) -> list[StoredMessage]:
    """Returns the messages from `start` on, within count and bytes, at least one."""
    collected: list[StoredMessage] = []
    while start < end and len(collected) < count and bytes_max > 0:
        batch_size = min(end - start, count - len(collected), _READ_BATCH)
        read = await ledger.store.read(topic.topic_id, queue_id, start, count_max=batch_size, bytes_max=bytes_max)
        messages = [message for message in read.messages if message.queue_offset < end]
        collected += messages
        bytes_max -= sum(len(message.head) for message in messages)
        if not messages or read.next_offset <= start:
            break
        start = read.next_offset
    return collected


async def _newest(
    ledger: Ledger, topic: TopicConfig, queue_id: int, start: int, end: int, count: int, bytes_max: int
) -> list[StoredMessage]:
    """Returns the messages before `end`, the oldest first, within count and bytes, at least one."""
    collected: list[StoredMessage] = []
    step = _READ_BATCH
    while start < end and len(collected) < count and bytes_max > 0:
        begin = max(start, end - min(step, count - len(collected)))
        read = await ledger.store.read(topic.topic_id, queue_id, begin, count_max=end - begin, bytes_max=bytes_max)
        messages = [message for message in read.messages if message.queue_offset < end]
        if begin < read.next_offset < end and end - begin > 1:
            step = (end - begin) // 2  # the limit of bytes cut the newest ones: read fewer
            continue
        collected = messages + collected
        bytes_max -= sum(len(message.head) for message in messages)
        end = begin
    return collected


def _count(request: admin_pb2.FindMessagesRequest) -> int:
    return request.count_max or COUNT_DEFAULT


def _order(match: admin_pb2.FoundMessage) -> _Order:
    system = match.message.system_properties
    return ms_of(system.store_timestamp), match.queue.broker_name, match.queue.queue_id, system.queue_offset


def _in_queue(request: admin_pb2.FindMessagesRequest, match: admin_pb2.FoundMessage) -> bool:
    if not request.HasField("queue"):
        return True
    at = match.queue
    return at.queue_id == request.queue.queue_id and request.queue.broker_name in {"", at.broker_name}


def _cut(
    ordered: Sequence[admin_pb2.FoundMessage],
    count: int,
    request: admin_pb2.FindMessagesRequest,
    positions: Iterable[admin_pb2.QueuePosition],
) -> list[admin_pb2.FoundMessage]:
    """Returns the first messages within count and bytes; moves positions back to those that are left out."""
    kept: list[admin_pb2.FoundMessage] = []
    budget = BYTES_MAX
    for match in ordered:
        budget -= len(match.message.body)
        if len(kept) >= count or (budget < 0 and kept):
            break
        kept.append(match)
    if not request.newest_first:
        left: dict[tuple[str, int], int] = {}
        for match in ordered[len(kept) :]:
            left.setdefault(
                (match.queue.broker_name, match.queue.queue_id), match.message.system_properties.queue_offset
            )
        for at in positions:
            at.offset = left.get((at.queue.broker_name, at.queue.queue_id), at.offset)
    return kept
