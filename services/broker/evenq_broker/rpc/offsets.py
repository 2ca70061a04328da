"""`evenq.v1.Admin/ResetOffsets`: an operator moves a group, live or not, on all brokers of the cluster.

The broker asked makes a plan with all others first, then carries it out everywhere; each broker moves its own queues
and tells who reads them. Two receives never see half a reset: what was in flight is forgotten in one step with the move
(D6), pollers wake at once, a member that owns a queue is told on its session and its commits do not count until it has
begun again (`core.resets`). A member may say when it joins that it will not follow: then the whole reset is refused,
because its next commit would undo it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from evenq.errors import BadRequest, Error, GroupNotFound, PreconditionFailed, TopicNotFound
from evenq.model import GroupConfig, MessageQueue, TopicConfig
from evenq.model.names import is_system_topic
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2
from evenq_broker.core.journal import Committed
from evenq_broker.core.resets import Fence, within
from evenq_broker.loops.translation import queue_message
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["FOLLOW_MS", "reset_everywhere", "rpcs"]

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Admin/ResetOffsets"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
FOLLOW_MS = 1_000
"""How long a reset waits for owners to begin again, so that its answer is the last word nearly always."""
_STEP_MS = 20
_MOVES_MAX = 100_000


def rpcs(broker: Broker) -> list[Rpc]:
    """The call of this module."""

    async def reset(request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.ResetOffsetsRequest, request)
        answer = await _here(broker, asked) if asked.local else await reset_everywhere(broker, asked)
        return answer.SerializeToString()

    return [rpc(METHOD, reset, admin_pb2.ResetOffsetsResponse)]


async def reset_everywhere(broker: Broker, asked: admin_pb2.ResetOffsetsRequest) -> admin_pb2.ResetOffsetsResponse:
    """The plan of all brokers, carried out unless `dry_run`. Raises BadRequest, GroupNotFound, TopicNotFound, and
    PreconditionFailed for a group with a member that does not follow.
    """
    _must_make_sense(asked)
    plan = await _all(broker, asked, dry_run=True)
    if not plan.group_known:
        raise GroupNotFound(f"no consumer group {asked.group!r} on any broker; see `evenq group list`")
    if asked.to == admin_pb2.LIKE_GROUP and not plan.source_known:
        raise GroupNotFound(f"no consumer group {asked.source_group!r} to take offsets from; see `evenq group list`")
    if asked.topic and not plan.moves:
        if not asked.queues and asked.to != admin_pb2.LIKE_GROUP:
            raise TopicNotFound(f"no topic {asked.topic!r} on any live broker; see `evenq topic list`")
        if asked.queues:
            named = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in asked.queues[:8])
            raise BadRequest(f"topic {asked.topic!r} has no queue {named}; see `evenq topic show {asked.topic}`")
    if not asked.dry_run:
        for move in plan.moves:
            if move.refused:
                raise PreconditionFailed(f"group {asked.group} is not moved: {move.error}")
        plan = await _all(broker, asked, dry_run=False)
    plan.moves.sort(key=lambda move: (move.queue.topic, move.queue.broker_name, move.queue.queue_id))
    return plan


def _must_make_sense(asked: admin_pb2.ResetOffsetsRequest) -> None:
    if not asked.group:
        raise BadRequest("the request names no consumer group; give one")
    if asked.queues and not asked.topic:
        raise BadRequest("queues are told without their topic; name the topic too")
    if asked.to not in admin_pb2.OffsetTarget.values():
        raise BadRequest(f"target {asked.to} is unknown; give one of {', '.join(admin_pb2.OffsetTarget.keys())}")
    if asked.value < 0:
        raise BadRequest(f"the value is {asked.value}; times, offsets and counts are 0 and more")
    if asked.to == admin_pb2.LIKE_GROUP and asked.source_group in {"", asked.group}:
        raise BadRequest(f"group {asked.group} cannot take the offsets of {asked.source_group!r}; name another group")
    wrong = [queue for queue in asked.queues if queue.topic not in {"", asked.topic}]
    if wrong:
        raise BadRequest(
            f"queue {wrong[0].queue_id} is of topic {wrong[0].topic!r}, the request is about {asked.topic}"
        )


async def _all(
    broker: Broker, asked: admin_pb2.ResetOffsetsRequest, *, dry_run: bool
) -> admin_pb2.ResetOffsetsResponse:
    told = admin_pb2.ResetOffsetsRequest()
    told.CopyFrom(asked)
    told.local, told.dry_run = True, dry_run
    here: Awaitable[admin_pb2.ResetOffsetsResponse] = _here(broker, told)
    answer, answers = await asyncio.gather(here, broker.cluster.ask_peers(METHOD, told.SerializeToString()))
    for name, other in answers:
        try:
            if isinstance(other, Error):
                raise other
            part = admin_pb2.ResetOffsetsResponse.FromString(other)
            check(part.status)
        except Error as error:
            silent = common_pb2.Queue(topic=asked.topic, broker_name=name, queue_id=-1)
            answer.moves.add(queue=silent, before=-1, after=-1, error=error.message)
            continue
        answer.moves.extend(part.moves)
        answer.group_known |= part.group_known
        answer.source_known |= part.source_known
    return answer


# ---------------------------------------------------------------------------------------------------- one broker


async def _here(broker: Broker, asked: admin_pb2.ResetOffsetsRequest) -> admin_pb2.ResetOffsetsResponse:
    group = broker.groups.get(asked.group)
    source = broker.groups.get(asked.source_group) if asked.source_group else None
    answer = admin_pb2.ResetOffsetsResponse(status=OK, group_known=group is not None, source_known=source is not None)
    places = list(_places(broker, asked, group, source))
    if len(places) > _MOVES_MAX:
        raise BadRequest(f"the reset is about {len(places)} queues, the limit is {_MOVES_MAX}; name a topic")
    if not asked.dry_run and places and group is None:
        group = await broker.create_group(asked.group)
    fences: list[tuple[MessageQueue, Fence, admin_pb2.OffsetMove]] = []
    records: list[asyncio.Future[None]] = []
    for topic, queue_id in places:
        move = await _planned(broker, asked, group, source, topic, queue_id)
        answer.moves.append(move)
        if asked.dry_run or group is None or move.refused:
            continue
        move = answer.moves[-1]
        queue = MessageQueue(topic.name, broker.settings.broker_name, queue_id)
        record, fence = _move(broker, group, topic, queue, move)
        if record is not None:
            records.append(record)
        if fence is not None:
            fences.append((queue, fence, move))
    for record in records:
        await record
    await _followed(broker, asked.group, fences)
    return answer


def _places(
    broker: Broker, asked: admin_pb2.ResetOffsetsRequest, group: GroupConfig | None, source: GroupConfig | None
) -> Iterable[tuple[TopicConfig, int]]:
    own = broker.settings.broker_name
    if asked.topic:
        found = broker.topics.get(asked.topic)
        topics = [] if found is None else [found]
    else:
        readers = [one for one in (group, source) if one is not None]
        numbers = sorted({number for one in readers for number in broker.progress.topics_of(one.group_id)})
        topics = [topic for number in numbers if (topic := broker.topics.by_id(number)) is not None]
        topics = [topic for topic in topics if not is_system_topic(topic.name)]
    named = {queue.queue_id for queue in asked.queues if queue.broker_name in {"", own}}
    for topic in topics:
        for queue_id in [*range(topic.read_queues), *(lite.queue_id for lite in broker.lite.topics.of(topic.topic_id))]:
            if asked.queues and queue_id not in named:
                continue
            if asked.to == admin_pb2.LIKE_GROUP and (
                source is None or broker.progress.committed(source.group_id, topic.topic_id, queue_id) is None
            ):
                continue
            yield topic, queue_id


async def _planned(
    broker: Broker,
    asked: admin_pb2.ResetOffsetsRequest,
    group: GroupConfig | None,
    source: GroupConfig | None,
    topic: TopicConfig,
    queue_id: int,
) -> admin_pb2.OffsetMove:
    place = (topic.topic_id, queue_id)
    before = None if group is None else broker.progress.committed(group.group_id, *place)
    found_at = -1
    if asked.to == admin_pb2.TIMESTAMP:
        found_at = await broker.store.offset_at(*place, asked.value)
    low, high = broker.lite.queue_range(*place)  # behind the wait: from here to the move nothing else happens
    match asked.to:
        case admin_pb2.EARLIEST:
            wanted = low
        case admin_pb2.LATEST:
            wanted = high
        case admin_pb2.TIMESTAMP:
            wanted = found_at
        case admin_pb2.OFFSET:
            wanted = asked.value
        case admin_pb2.SKIP:
            wanted = (low if before is None else max(before, low)) + asked.value
        case _:
            copied = None if source is None else broker.progress.committed(source.group_id, *place)
            wanted = low if copied is None else copied
    after, note = within(wanted, low, high)
    lite = broker.lite.topics.at(*place)
    if lite is not None:
        note = f"lite topic {lite.name}" + f"; {note}" * bool(note)
    queue = MessageQueue(topic.name, broker.settings.broker_name, queue_id)
    stays = broker.members.refusing(asked.group, topic.name)
    refusal = (
        f"its member {stays} reads {topic.name} and does not follow resets (as a Spark query with "
        "honorOffsetReset=false); stop it first"
    )
    return admin_pb2.OffsetMove(
        queue=queue_message(queue),
        before=-1 if before is None else before,
        after=after,
        min_offset=low,
        max_offset=high,
        inflight=0 if group is None else broker.progress.inflight(group.group_id, *place),
        owner=broker.locks.holder(asked.group, queue),
        error=refusal if stays else "",
        refused=bool(stays),
        note=note,
    )


def _move(
    broker: Broker, group: GroupConfig, topic: TopicConfig, queue: MessageQueue, move: admin_pb2.OffsetMove
) -> tuple[asyncio.Future[None] | None, Fence | None]:
    place = (group.group_id, topic.topic_id, queue.queue_id)
    record = None
    if broker.progress.commit(*place, move.after, allow_backward=True):
        record = broker.journal.record(Committed(*place, move.after, reset=True))
        log.warning(
            "group moved",
            extra={"group": group.name, "queue": str(queue), "from_offset": move.before, "to_offset": move.after},
        )
        broker.heads.meant(place, move.after, now_ms=broker.clock.monotonic_ms())
    broker.waiting.ready(*place)
    move.owner, fence = broker.sessions.offsets_reset(group.name, queue, move.after)
    return record, fence


async def _followed(broker: Broker, group: str, fences: list[tuple[MessageQueue, Fence, admin_pb2.OffsetMove]]) -> None:
    """Give owners a moment; of one whose listener still works on the old messages, say so."""

    def held() -> list[admin_pb2.OffsetMove]:
        now_ms = broker.clock.monotonic_ms()
        return [
            move for queue, fence, move in fences if broker.sessions.fences.holds(group, queue, fence, now_ms=now_ms)
        ]

    until_ms = broker.clock.monotonic_ms() + FOLLOW_MS
    while held() and broker.clock.monotonic_ms() < until_ms:
        await broker.clock.sleep_ms(_STEP_MS)
    for move in held():
        move.note = f"{move.note}; " * bool(move.note) + f"{move.owner} begins there once its listener has ended"
