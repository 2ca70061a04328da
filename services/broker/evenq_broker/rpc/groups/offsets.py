"""`evenq.v1.Admin/ResetOffsets`: an operator moves a group, live or not, on all brokers of the cluster.

The broker first collects a plan from all brokers, then each broker moves its own queues and notifies their owners. No
receive sees half a reset: deliveries in flight are dropped in the same step as the move (D6), and waiting polls wake
immediately. The commits and delivery counts of an owner are ignored until it has started at the new offset
(`core.groups.resets`). A member may join with the flag that it does not follow resets. Then the reset is refused: its
next commit would undo it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable

from evenq.errors import BadRequest, Error, GroupNotFound, PreconditionFailed, TopicNotFound
from evenq.model import GroupConfig, MessageQueue, TopicConfig
from evenq.model.names import is_system_topic
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2
from evenq_broker.core.diagnosis.stuck_queues import StuckQueues
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.groups.resets import ResetFence, within
from evenq_broker.core.state.records import Committed
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.translation import queue_message
from evenq_broker.rpc.answers import OK, answer_of, parsed

log = logging.getLogger(__name__)

METHOD = "/evenq.v1.Admin/ResetOffsets"
FOLLOW_MS = 1_000
"""How long a reset waits for owners to start at the new offset, so that its answer is nearly always final."""
_STEP_MS = 20
_MOVES_MAX = 100_000


class OffsetResets:
    """The resets of one broker: of its own queues, and as the broker that an operator called."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        membership: GroupTables,
        sessions: Sessions,
        long_polls: LongPolls,
        lite: Lites,
        stuck_queues: StuckQueues,
    ) -> None:
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._membership, self._sessions = cluster, membership, sessions
        self._long_polls, self._lite, self._stuck_queues = long_polls, lite, stuck_queues

    def rpcs(self) -> list[Rpc]:
        return [rpc(METHOD, self.reset)]

    async def reset(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ResetOffsetsRequest, data)
        response = await self._here(request) if request.local else await self.everywhere(request)
        return response.SerializeToString()

    async def everywhere(self, request: admin_pb2.ResetOffsetsRequest) -> admin_pb2.ResetOffsetsResponse:
        """Returns the plan of all brokers, carried out unless `dry_run`. Raises BadRequest, GroupNotFound,
        TopicNotFound, and PreconditionFailed for a group with a member that does not follow.
        """
        _must_make_sense(request)
        # All brokers plan before any of them moves: if one refuses, the group stays where it is everywhere.
        plan = await self._all(request, dry_run=True)
        if not plan.group_known:
            raise GroupNotFound(f"no consumer group {request.group!r} on any broker; see `evenq group list`")
        if request.to == admin_pb2.LIKE_GROUP and not plan.source_known:
            raise GroupNotFound(
                f"no consumer group {request.source_group!r} to take offsets from; see `evenq group list`"
            )
        if request.topic and not plan.moves:
            if not request.queues and request.to != admin_pb2.LIKE_GROUP:
                raise TopicNotFound(f"no topic {request.topic!r} on any live broker; see `evenq topic list`")
            if request.queues:
                named = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in request.queues[:8])
                raise BadRequest(
                    f"topic {request.topic!r} has no queue {named}; see `evenq topic show {request.topic}`"
                )
        if not request.dry_run:
            for move in plan.moves:
                if move.refused:
                    raise PreconditionFailed(f"group {request.group} is not moved: {move.error}")
            plan = await self._all(request, dry_run=False)
        plan.moves.sort(key=lambda move: (move.queue.topic, move.queue.broker_name, move.queue.queue_id))
        return plan

    async def _all(self, request: admin_pb2.ResetOffsetsRequest, *, dry_run: bool) -> admin_pb2.ResetOffsetsResponse:
        local_request = admin_pb2.ResetOffsetsRequest()
        local_request.CopyFrom(request)
        local_request.local, local_request.dry_run = True, dry_run
        here: Awaitable[admin_pb2.ResetOffsetsResponse] = self._here(local_request)
        response, answers = await asyncio.gather(here, self._cluster.ask_all(METHOD, local_request.SerializeToString()))
        for name, other in answers:
            try:
                part = answer_of(admin_pb2.ResetOffsetsResponse, other)
            except Error as error:
                silent = common_pb2.Queue(topic=request.topic, broker_name=name, queue_id=-1)
                response.moves.add(queue=silent, before=-1, after=-1, error=error.message)
                continue
            response.moves.extend(part.moves)
            response.group_known |= part.group_known
            response.source_known |= part.source_known
        return response

    async def _here(self, request: admin_pb2.ResetOffsetsRequest) -> admin_pb2.ResetOffsetsResponse:
        group = self._catalog.groups.get(request.group)
        source = self._catalog.groups.get(request.source_group) if request.source_group else None
        response = admin_pb2.ResetOffsetsResponse(
            status=OK, group_known=group is not None, source_known=source is not None
        )
        places = list(self._places(request, group, source))
        if len(places) > _MOVES_MAX:
            raise BadRequest(f"the reset is about {len(places)} queues, the limit is {_MOVES_MAX}; name a topic")
        if not request.dry_run and places and group is None:
            group = await self._catalog.create_group(request.group)
        fences: list[tuple[MessageQueue, ResetFence, admin_pb2.OffsetMove]] = []
        records: list[asyncio.Future[None]] = []
        for topic, queue_id in places:
            move = await self._planned(request, group, source, topic, queue_id)
            response.moves.append(move)
            if request.dry_run or group is None or move.refused:
                continue
            # A repeated field keeps a copy: later changes of the move must be made to the copy in the answer.
            move = response.moves[-1]
            move.error = self._catalog.gone(group, topic)  # while `_planned` waited
            if move.error:
                continue
            queue = MessageQueue(topic.name, self._runtime.settings.broker_name, queue_id)
            record, fence = self._move(group, topic, queue, move)
            if record is not None:
                records.append(record)
            if fence is not None:
                fences.append((queue, fence, move))
        # Awaited after the last was recorded, so that all share a sync.
        for record in records:
            await record
        await self._followed(request.group, fences)
        return response

    def _places(
        self, request: admin_pb2.ResetOffsetsRequest, group: GroupConfig | None, source: GroupConfig | None
    ) -> Iterable[tuple[TopicConfig, int]]:
        own = self._runtime.settings.broker_name
        if request.topic:
            known = self._catalog.topics.get(request.topic)
            topics = [] if known is None else [known]
        else:
            readers = [one for one in (group, source) if one is not None]
            numbers = sorted({number for one in readers for number in self._ledger.progress.topics_of(one.group_id)})
            topics = [topic for number in numbers if (topic := self._catalog.topics.by_id(number)) is not None]
            topics = [topic for topic in topics if not is_system_topic(topic.name)]
        named = {queue.queue_id for queue in request.queues if queue.broker_name in {"", own}}
        for topic in topics:
            for queue_id in [
                *range(topic.read_queues),
                *(one.queue_id for one in self._lite.topics.of(topic.topic_id)),
            ]:
                if request.queues and queue_id not in named:
                    continue
                if request.to == admin_pb2.LIKE_GROUP and (
                    source is None or self._ledger.progress.committed(source.group_id, topic.topic_id, queue_id) is None
                ):
                    continue
                yield topic, queue_id

    async def _planned(
        self,
        request: admin_pb2.ResetOffsetsRequest,
        group: GroupConfig | None,
        source: GroupConfig | None,
        topic: TopicConfig,
        queue_id: int,
    ) -> admin_pb2.OffsetMove:
        ids = (topic.topic_id, queue_id)
        before = None if group is None else self._ledger.progress.committed(group.group_id, *ids)
        found_at = -1
        if request.to == admin_pb2.TIMESTAMP:
            found_at = await self._ledger.store.offset_at(*ids, request.value)
        low, high = self._lite.queue_range(*ids)  # after the await: from here to the move nothing else happens
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
                copied = None if source is None else self._ledger.progress.committed(source.group_id, *ids)
                target = low if copied is None else copied
        after, note = within(target, low, high)
        lite_topic = self._lite.topics.at(*ids)
        if lite_topic is not None:
            note = f"lite topic {lite_topic.name}" + f"; {note}" * bool(note)
        queue = MessageQueue(topic.name, self._runtime.settings.broker_name, queue_id)
        stays = self._membership.members.refusing(request.group, topic.name)
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
            inflight=0 if group is None else self._ledger.progress.delivered(group.group_id, *ids, low, high),
            owner=self._membership.locks.holder(request.group, queue),
            error=refusal if stays else "",
            refused=bool(stays),
            note=note,
        )

    def _move(
        self, group: GroupConfig, topic: TopicConfig, queue: MessageQueue, move: admin_pb2.OffsetMove
    ) -> tuple[asyncio.Future[None] | None, ResetFence | None]:
        queue_key = (group.group_id, topic.topic_id, queue.queue_id)
        record = self._ledger.journal.confirmed()  # the record of the present offset may not be safe yet
        if self._ledger.progress.commit(*queue_key, move.after, allow_backward=True):
            record = self._ledger.journal.record(Committed(*queue_key, move.after, reset=True))
            log.log(
                logging.WARNING if move.before >= 0 else logging.INFO,  # a first offset, as of a table, skips nothing
                "group %s: an operator moved queue %s from offset %d to %d",
                group.name,
                queue,
                move.before,
                move.after,
                extra={"group": group.name, "queue": str(queue)},
            )
            self._stuck_queues.meant(queue_key, move.after, now_ms=self._runtime.clock.monotonic_ms())
        self._long_polls.ready(*queue_key)
        move.owner, fence = self._sessions.offsets_reset(group.name, queue, move.after)
        return record, fence

    async def _followed(self, group: str, fences: list[tuple[MessageQueue, ResetFence, admin_pb2.OffsetMove]]) -> None:
        """Waits a moment for owners; notes those whose listener still works on old messages."""

        def held() -> list[admin_pb2.OffsetMove]:
            now_ms = self._runtime.clock.monotonic_ms()
            return [
                move for queue, fence, move in fences if self._sessions.fences.holds(group, queue, fence, now_ms=now_ms)
            ]

        until_ms = self._runtime.clock.monotonic_ms() + FOLLOW_MS
        while held() and self._runtime.clock.monotonic_ms() < until_ms:
            await self._runtime.clock.sleep_ms(_STEP_MS)
        for move in held():
            move.note = (
                f"{move.note}; " * bool(move.note)
                + f"{move.owner} starts there when its running listener call has ended"
            )


def _must_make_sense(request: admin_pb2.ResetOffsetsRequest) -> None:
    if not request.group:
        raise BadRequest("the request names no consumer group; give one")
    if request.queues and not request.topic:
        raise BadRequest("queues are given without their topic; name the topic as well")
    if request.to not in admin_pb2.OffsetTarget.values():
        raise BadRequest(f"target {request.to} is unknown; give one of {', '.join(admin_pb2.OffsetTarget.keys())}")
    if request.value < 0:
        raise BadRequest(f"the value is {request.value}; give a time, offset or count of 0 or more")
    if request.to == admin_pb2.LIKE_GROUP and request.source_group in {"", request.group}:
        raise BadRequest(
            f"group {request.group} cannot take the offsets of {request.source_group!r}; name another group"
        )
    wrong = [queue for queue in request.queues if queue.topic not in {"", request.topic}]
    if wrong:
        raise BadRequest(
            f"queue {wrong[0].queue_id} is of topic {wrong[0].topic!r}, the request is about {request.topic}"
        )
