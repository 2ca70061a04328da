"""`evenq.v1.Admin/ResetOffsets`: an operator moves a group, live or not, on all brokers of the cluster.

The broker asked makes a plan with all others first, then carries it out everywhere; each broker moves its own queues
and tells who reads them. Two receives never see half a reset: what was in flight is forgotten in one step with the move
(D6), pollers wake at once, a member that owns a queue is notified on its session and its commits do not count until it
has begun again (`core.groups.resets`). A member may say when it joins that it will not follow: then the whole reset is
refused, because its next commit would undo it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable

from evenq.errors import BadRequest, Error, GroupNotFound, PreconditionFailed, TopicNotFound
from evenq.model import GroupConfig, MessageQueue, TopicConfig
from evenq.model.names import is_system_topic
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2
from evenq_broker.core.diagnosis.stuck_queues import StuckQueues
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.groups.resets import ResetFence, within
from evenq_broker.core.state.records import Committed
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.translation import queue_message
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.runtime import Runtime

__all__ = ["FOLLOW_MS", "reset_everywhere", "rpcs"]

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Admin/ResetOffsets"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
FOLLOW_MS = 1_000
"""How long a reset waits for owners to begin again, so that its answer is the last word nearly always."""
_STEP_MS = 20
_MOVES_MAX = 100_000


def rpcs(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    *,
    cluster: ClusterLink,
    membership: GroupTables,
    sessions: Sessions,
    long_polls: LongPolls,
    lite: Lites,
    stuck_queues: StuckQueues,
) -> list[Rpc]:
    """The call of this module."""

    async def reset(data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ResetOffsetsRequest, data)
        response = (
            await _here(
                runtime,
                catalog,
                ledger,
                request,
                membership=membership,
                sessions=sessions,
                long_polls=long_polls,
                lite=lite,
                stuck_queues=stuck_queues,
            )
            if request.local
            else await reset_everywhere(
                runtime,
                catalog,
                ledger,
                request,
                cluster=cluster,
                membership=membership,
                sessions=sessions,
                long_polls=long_polls,
                lite=lite,
                stuck_queues=stuck_queues,
            )
        )
        return response.SerializeToString()

    return [rpc(METHOD, reset, admin_pb2.ResetOffsetsResponse)]


async def reset_everywhere(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    request: admin_pb2.ResetOffsetsRequest,
    *,
    cluster: ClusterLink,
    membership: GroupTables,
    sessions: Sessions,
    long_polls: LongPolls,
    lite: Lites,
    stuck_queues: StuckQueues,
) -> admin_pb2.ResetOffsetsResponse:
    """The plan of all brokers, carried out unless `dry_run`. Raises BadRequest, GroupNotFound, TopicNotFound, and
    PreconditionFailed for a group with a member that does not follow.
    """
    _must_make_sense(request)
    # Every broker says what it would do before any does it: one that refuses leaves the group where it is everywhere.
    plan = await _all(
        runtime,
        catalog,
        ledger,
        request,
        dry_run=True,
        cluster=cluster,
        membership=membership,
        sessions=sessions,
        long_polls=long_polls,
        lite=lite,
        stuck_queues=stuck_queues,
    )
    if not plan.group_known:
        raise GroupNotFound(f"no consumer group {request.group!r} on any broker; see `evenq group list`")
    if request.to == admin_pb2.LIKE_GROUP and not plan.source_known:
        raise GroupNotFound(f"no consumer group {request.source_group!r} to take offsets from; see `evenq group list`")
    if request.topic and not plan.moves:
        if not request.queues and request.to != admin_pb2.LIKE_GROUP:
            raise TopicNotFound(f"no topic {request.topic!r} on any live broker; see `evenq topic list`")
        if request.queues:
            named = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in request.queues[:8])
            raise BadRequest(f"topic {request.topic!r} has no queue {named}; see `evenq topic show {request.topic}`")
    if not request.dry_run:
        for move in plan.moves:
            if move.refused:
                raise PreconditionFailed(f"group {request.group} is not moved: {move.error}")
        plan = await _all(
            runtime,
            catalog,
            ledger,
            request,
            dry_run=False,
            cluster=cluster,
            membership=membership,
            sessions=sessions,
            long_polls=long_polls,
            lite=lite,
            stuck_queues=stuck_queues,
        )
    plan.moves.sort(key=lambda move: (move.queue.topic, move.queue.broker_name, move.queue.queue_id))
    return plan


def _must_make_sense(request: admin_pb2.ResetOffsetsRequest) -> None:
    if not request.group:
        raise BadRequest("the request names no consumer group; give one")
    if request.queues and not request.topic:
        raise BadRequest("queues are given without their topic; name the topic too")
    if request.to not in admin_pb2.OffsetTarget.values():
        raise BadRequest(f"target {request.to} is unknown; give one of {', '.join(admin_pb2.OffsetTarget.keys())}")
    if request.value < 0:
        raise BadRequest(f"the value is {request.value}; times, offsets and counts are 0 and more")
    if request.to == admin_pb2.LIKE_GROUP and request.source_group in {"", request.group}:
        raise BadRequest(
            f"group {request.group} cannot take the offsets of {request.source_group!r}; name another group"
        )
    wrong = [queue for queue in request.queues if queue.topic not in {"", request.topic}]
    if wrong:
        raise BadRequest(
            f"queue {wrong[0].queue_id} is of topic {wrong[0].topic!r}, the request is about {request.topic}"
        )


async def _all(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    request: admin_pb2.ResetOffsetsRequest,
    *,
    dry_run: bool,
    cluster: ClusterLink,
    membership: GroupTables,
    sessions: Sessions,
    long_polls: LongPolls,
    lite: Lites,
    stuck_queues: StuckQueues,
) -> admin_pb2.ResetOffsetsResponse:
    local_request = admin_pb2.ResetOffsetsRequest()
    local_request.CopyFrom(request)
    local_request.local, local_request.dry_run = True, dry_run
    here: Awaitable[admin_pb2.ResetOffsetsResponse] = _here(
        runtime,
        catalog,
        ledger,
        local_request,
        membership=membership,
        sessions=sessions,
        long_polls=long_polls,
        lite=lite,
        stuck_queues=stuck_queues,
    )
    response, answers = await asyncio.gather(here, cluster.ask_all(METHOD, local_request.SerializeToString()))
    for name, other in answers:
        try:
            if isinstance(other, Error):
                raise other
            part = admin_pb2.ResetOffsetsResponse.FromString(other)
            check(part.status)
        except Error as error:
            silent = common_pb2.Queue(topic=request.topic, broker_name=name, queue_id=-1)
            response.moves.add(queue=silent, before=-1, after=-1, error=error.message)
            continue
        response.moves.extend(part.moves)
        response.group_known |= part.group_known
        response.source_known |= part.source_known
    return response


# ---------------------------------------------------------------------------------------------------- one broker


async def _here(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    request: admin_pb2.ResetOffsetsRequest,
    *,
    membership: GroupTables,
    sessions: Sessions,
    long_polls: LongPolls,
    lite: Lites,
    stuck_queues: StuckQueues,
) -> admin_pb2.ResetOffsetsResponse:
    group = catalog.groups.get(request.group)
    source = catalog.groups.get(request.source_group) if request.source_group else None
    response = admin_pb2.ResetOffsetsResponse(status=OK, group_known=group is not None, source_known=source is not None)
    places = list(_places(runtime, catalog, ledger, request, group, source, lite=lite))
    if len(places) > _MOVES_MAX:
        raise BadRequest(f"the reset is about {len(places)} queues, the limit is {_MOVES_MAX}; name a topic")
    if not request.dry_run and places and group is None:
        group = await catalog.create_group(request.group)
    fences: list[tuple[MessageQueue, ResetFence, admin_pb2.OffsetMove]] = []
    records: list[asyncio.Future[None]] = []
    for topic, queue_id in places:
        move = await _planned(
            runtime, ledger, request, group, source, topic, queue_id, membership=membership, lite=lite
        )
        response.moves.append(move)
        if request.dry_run or group is None or move.refused:
            continue
        # A repeated field keeps a copy: what is added to the move from here on must be in the answer.
        move = response.moves[-1]
        queue = MessageQueue(topic.name, runtime.settings.broker_name, queue_id)
        record, fence = _move(
            runtime,
            ledger,
            group,
            topic,
            queue,
            move,
            sessions=sessions,
            long_polls=long_polls,
            stuck_queues=stuck_queues,
        )
        if record is not None:
            records.append(record)
        if fence is not None:
            fences.append((queue, fence, move))
    # Waited for after the last was recorded, so that all share a sync.
    for record in records:
        await record
    await _followed(runtime, request.group, fences, sessions=sessions)
    return response


def _places(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    request: admin_pb2.ResetOffsetsRequest,
    group: GroupConfig | None,
    source: GroupConfig | None,
    *,
    lite: Lites,
) -> Iterable[tuple[TopicConfig, int]]:
    own = runtime.settings.broker_name
    if request.topic:
        known = catalog.topics.get(request.topic)
        topics = [] if known is None else [known]
    else:
        readers = [one for one in (group, source) if one is not None]
        numbers = sorted({number for one in readers for number in ledger.progress.topics_of(one.group_id)})
        topics = [topic for number in numbers if (topic := catalog.topics.by_id(number)) is not None]
        topics = [topic for topic in topics if not is_system_topic(topic.name)]
    named = {queue.queue_id for queue in request.queues if queue.broker_name in {"", own}}
    for topic in topics:
        for queue_id in [*range(topic.read_queues), *(one.queue_id for one in lite.topics.of(topic.topic_id))]:
            if request.queues and queue_id not in named:
                continue
            if request.to == admin_pb2.LIKE_GROUP and (
                source is None or ledger.progress.committed(source.group_id, topic.topic_id, queue_id) is None
            ):
                continue
            yield topic, queue_id


async def _planned(
    runtime: Runtime,
    ledger: Ledger,
    request: admin_pb2.ResetOffsetsRequest,
    group: GroupConfig | None,
    source: GroupConfig | None,
    topic: TopicConfig,
    queue_id: int,
    *,
    membership: GroupTables,
    lite: Lites,
) -> admin_pb2.OffsetMove:
    ids = (topic.topic_id, queue_id)
    before = None if group is None else ledger.progress.committed(group.group_id, *ids)
    found_at = -1
    if request.to == admin_pb2.TIMESTAMP:
        found_at = await ledger.store.offset_at(*ids, request.value)
    low, high = lite.queue_range(*ids)  # behind the wait: from here to the move nothing else happens
    match request.to:
        case admin_pb2.EARLIEST:
            target = low
        case admin_pb2.LATEST:
            target = high
        case admin_pb2.TIMESTAMP:
            target = found_at
        case admin_pb2.OFFSET:
            target = request.value
        case admin_pb2.SKIP:
            target = (low if before is None else max(before, low)) + request.value
        case _:
            copied = None if source is None else ledger.progress.committed(source.group_id, *ids)
            target = low if copied is None else copied
    after, note = within(target, low, high)
    lite_topic = lite.topics.at(*ids)
    if lite_topic is not None:
        note = f"lite topic {lite_topic.name}" + f"; {note}" * bool(note)
    queue = MessageQueue(topic.name, runtime.settings.broker_name, queue_id)
    stays = membership.members.refusing(request.group, topic.name)
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
        inflight=0 if group is None else ledger.progress.inflight(group.group_id, *ids, low, high),
        owner=membership.locks.holder(request.group, queue),
        error=refusal if stays else "",
        refused=bool(stays),
        note=note,
    )


def _move(
    runtime: Runtime,
    ledger: Ledger,
    group: GroupConfig,
    topic: TopicConfig,
    queue: MessageQueue,
    move: admin_pb2.OffsetMove,
    *,
    sessions: Sessions,
    long_polls: LongPolls,
    stuck_queues: StuckQueues,
) -> tuple[asyncio.Future[None] | None, ResetFence | None]:
    queue_key = (group.group_id, topic.topic_id, queue.queue_id)
    record = ledger.journal.confirmed()  # what brought it there already may not be safe yet
    if ledger.progress.commit(*queue_key, move.after, allow_backward=True):
        record = ledger.journal.record(Committed(*queue_key, move.after, reset=True))
        log.warning(
            "group %s: an operator moved queue %s from offset %d to %d",
            group.name,
            queue,
            move.before,
            move.after,
            extra={"group": group.name, "queue": str(queue)},
        )
        stuck_queues.meant(queue_key, move.after, now_ms=runtime.clock.monotonic_ms())
    long_polls.ready(*queue_key)
    move.owner, fence = sessions.offsets_reset(group.name, queue, move.after)
    return record, fence


async def _followed(
    runtime: Runtime,
    group: str,
    fences: list[tuple[MessageQueue, ResetFence, admin_pb2.OffsetMove]],
    *,
    sessions: Sessions,
) -> None:
    """Give owners a moment; of one whose listener still works on the old messages, say so."""

    def held() -> list[admin_pb2.OffsetMove]:
        now_ms = runtime.clock.monotonic_ms()
        return [move for queue, fence, move in fences if sessions.fences.holds(group, queue, fence, now_ms=now_ms)]

    until_ms = runtime.clock.monotonic_ms() + FOLLOW_MS
    while held() and runtime.clock.monotonic_ms() < until_ms:
        await runtime.clock.sleep_ms(_STEP_MS)
    for move in held():
        move.note = (
            f"{move.note}; " * bool(move.note) + f"{move.owner} begins there once its running listener call has ended"
        )
