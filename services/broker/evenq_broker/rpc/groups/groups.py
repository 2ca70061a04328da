"""`evenq.v1.Groups`: sessions of members, member lists, queue locks.

Handlers only translate; `loops.groups.sessions` and the member and lock tables decide. A member lives as long as the
stream of its session. The first request is its Join, each later one a sign of life. If the stream ends without a Leave,
the member has a short grace period.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import assert_never

from evenq.errors import (
    BadRequest,
    ClientIdRequired,
    DuplicateClientId,
    Error,
    Forbidden,
    PreconditionFailed,
    TopicNotFound,
)
from evenq.model import MessageQueue
from evenq.model.names import RETRY_PREFIX
from evenq.model.session_events import (
    AssignmentChanged,
    BrokerLeaving,
    MembersChanged,
    OffsetsReset,
    QueueWanted,
    SettingsChanged,
)
from evenq.runtime.tasks import spawn
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import status_of
from evenq.wire.stubs.evenq.v1 import common_pb2, groups_pb2
from evenq_broker.core.delivery.counts import FINISHED
from evenq_broker.core.groups.members import Member
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.groups.mailbox import Mail, Session
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.progress.counting import deliveries_of
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.translation import (
    generation_of,
    group_settings,
    member_message,
    member_of,
    queue_message,
    queue_of,
)
from evenq_broker.rpc.answers import OK, parsed

LOCK_WAIT_MAX_MS = 60_000
QUEUES_PER_LOCK_MAX = 4_096
EPOCH_AHEAD_MAX_MS = 9 * 365 * 86_400_000
"""Less than the ten years of a rebalancer (`evenq_rebalancer.core.assignment_engine`), which then moves its own epoch
ahead of one that a lock was granted under. Otherwise such a lock would refuse every real generation.
"""
DEADLINE_MARGIN_MS = 100
LISTS_KEPT_MAX = 1_000


class GroupHandler:
    def __init__(self, kernel: Kernel, *, membership: GroupTables, sessions: Sessions) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._membership, self._sessions = membership, sessions
        self._lists: dict[str, tuple[Sequence[Member], bytes]] = {}

    def rpcs(self) -> list[Rpc]:
        service = "/evenq.v1.Groups/"
        return [
            rpc(service + "Session", self.session),
            rpc(service + "ListMembers", self.list_members),
            rpc(service + "LockQueues", self.lock_queues),
            rpc(service + "UnlockQueues", self.unlock_queues),
        ]

    async def session(self, requests: AsyncIterator[bytes], context: RpcContext) -> AsyncGenerator[bytes, None]:
        try:
            join = await self._first(requests)
            group = await self._catalog.ensure_group(join.group)
            session = self._sessions.join(
                group.name, self._member(join, context), incarnation=join.incarnation, hands_over=join.hands_over
            )
        except Error as error:
            duplicate = isinstance(error, DuplicateClientId)
            refused = groups_pb2.SessionRefused(status=status_of(error), duplicate=duplicate)
            yield groups_pb2.SessionEvent(refused=refused).SerializeToString()
            return
        listening = spawn(self._listen(session, requests, context), name="session")
        try:
            yield self._welcome(session)
            while mail := await session.take(self._sessions):
                for news in mail:
                    yield self._event(session.group, news)
            await self._refusal(listening)
        except Error as error:
            refused = groups_pb2.SessionRefused(status=status_of(error))
            yield groups_pb2.SessionEvent(refused=refused).SerializeToString()
        finally:
            listening.cancel()
            self._sessions.broken(session)

    def _event(self, group: str, news: Mail) -> bytes:
        """Returns an encoded event; a list of members is encoded once for all sessions of its group."""
        if not isinstance(news, MembersChanged):
            return _event(group, news)
        known = self._lists.get(group)
        if known is not None and known[0] is news.members:
            return known[1]
        if len(self._lists) >= LISTS_KEPT_MAX:
            self._lists.clear()
        encoded = _event(group, news)
        self._lists[group] = (news.members, encoded)
        return encoded

    async def _first(self, requests: AsyncIterator[bytes]) -> groups_pb2.Join:
        async for data in requests:
            request = parsed(groups_pb2.SessionRequest, data)
            if request.WhichOneof("request") == "join":
                return request.join
            break
        raise BadRequest("the first request of a session is its Join, with group and member")

    async def _listen(self, session: Session, requests: AsyncIterator[bytes], context: RpcContext) -> None:
        # Ends when the peer stops sending; the session then ends too, with a grace period unless there was a Leave.
        try:
            async for data in requests:
                request = parsed(groups_pb2.SessionRequest, data)
                match request.WhichOneof("request"):
                    case "beat":
                        self._sessions.beat(session)
                    case "leave":
                        self._sessions.leave(session)
                        return
                    case "join":
                        self._sessions.update(session, self._member(request.join, context, session))
                    case None:
                        raise BadRequest("an empty session request; send a Beat, a Join or a Leave")
        finally:
            self._sessions.broken(session)

    async def _refusal(self, listening: asyncio.Task[None]) -> None:
        # If a request that was not valid ended the stream, the member gets the reason.
        if listening.done() and not listening.cancelled() and (error := listening.exception()) is not None:
            raise error

    def _member(self, join: groups_pb2.Join, context: RpcContext, session: Session | None = None) -> Member:
        if not join.member.client_id:
            raise ClientIdRequired("a member needs a client_id that no other member of its group has")
        if session is not None and (join.group, join.member.client_id) != (session.group, session.client_id):
            raise BadRequest(
                f"this stream belongs to {session.client_id!r} in group {session.group}, the Join names "
                f"{join.member.client_id!r} in group {join.group}; open another stream for another member"
            )
        member = member_of(join.member, joined_ms=self._runtime.clock.now_ms(), address=context.host)
        missing = [one.topic for one in member.subscriptions if ("topic", one.topic) in context.refused]
        self._sessions.refuse(join.group, member.client_id, missing)
        if not missing:
            return member
        # Queues of a topic that the member may not read are divided among the others.
        may = tuple(one for one in member.subscriptions if ("topic", one.topic) not in context.refused)
        if all(one.topic.startswith(RETRY_PREFIX) for one in may):
            names = ", ".join(sorted(missing))
            raise Forbidden(
                f"member {member.client_id} may not consume topic {names}; give its user the action consume on them"
            )
        return replace(member, subscriptions=may)

    def _welcome(self, session: Session) -> bytes:
        settings = self._runtime.settings
        config = self._catalog.groups.get(session.group)
        return groups_pb2.SessionEvent(
            welcome=groups_pb2.Welcome(
                beat_interval_ms=settings.session_beat_interval_ms,
                session_timeout_ms=settings.session_timeout_ms,
                revoke_ms=settings.revoke_ms,
                members=[member_message(member) for member in self._sessions.members(session.group)],
                settings=None if config is None else group_settings(config),
            )
        ).SerializeToString()

    async def list_members(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(groups_pb2.ListMembersRequest, data)
        if self._catalog.groups.get(request.group) is None:
            self._catalog.may_make_group(request.group)  # does not create it: the call needs only a right to describe
        members = [member_message(member) for member in self._membership.members.members(request.group)]
        return groups_pb2.ListMembersResponse(status=OK, members=members).SerializeToString()

    async def lock_queues(self, data: bytes, context: RpcContext) -> bytes:
        request = parsed(groups_pb2.LockQueuesRequest, data)
        ahead_ms = request.generation.epoch - self._runtime.clock.now_ms()
        if ahead_ms > EPOCH_AHEAD_MAX_MS:
            raise BadRequest(
                f"epoch {request.generation.epoch} of the generation is {ahead_ms} ms in the future, the limit is "
                f"{EPOCH_AHEAD_MAX_MS}; use the generation of the newest assignment"
            )
        group = await self._catalog.ensure_group(request.group)
        asked = _bounded(request.queues)
        refused = {queue_of(queue) for queue in asked if ("topic", queue.topic) in context.refused}
        queues = [one if (one := queue_of(queue)) in refused else self._own_queue(queue) for queue in asked]
        if refused:  # its user may not read them any more: other members may
            self._sessions.locking.unlock(group.name, request.client_id, sorted(refused))
        # Closed queues have no owner.
        open_ones = [queue for queue in queues if queue not in refused and self._is_read(queue)]
        granted = await self._sessions.locking.lock(
            group.name,
            request.client_id,
            open_ones,
            wait_ms=self._patience_ms(request.wait_ms, context),
            generation=generation_of(request.generation),
            anew=request.anew,
        )
        own = {queue for queue, is_own in zip(open_ones, granted, strict=True) if is_own and self._is_read(queue)}
        response = groups_pb2.LockQueuesResponse(status=OK)
        for queue in queues:
            is_own = queue in own
            given_until, counts = deliveries_of(self._kernel, group.name, queue) if is_own else (0, ())
            response.queues.add(
                queue=queue_message(queue),
                granted=is_own,
                holder="" if queue in refused else self._membership.locks.holder(group.name, queue),
                committed=self._committed(group.group_id, queue) if is_own else -1,
                given_until=given_until,
                counts=[_count(offset, number) for offset, number in counts],
                uid=self._uid(queue) if is_own else "",
            )
        return response.SerializeToString()

    async def unlock_queues(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(groups_pb2.UnlockQueuesRequest, data)
        self._sessions.locking.unlock(
            request.group, request.client_id, [queue_of(queue) for queue in _bounded(request.queues)]
        )
        return groups_pb2.UnlockQueuesResponse(status=OK).SerializeToString()

    def _patience_ms(self, wait_ms: int, context: RpcContext) -> int:
        if context.deadline_ms is not None:
            left_ms = context.deadline_ms - self._runtime.clock.monotonic_ms() - DEADLINE_MARGIN_MS
            wait_ms = min(wait_ms, left_ms)
        return max(0, min(wait_ms, LOCK_WAIT_MAX_MS))

    def _own_queue(self, queue: common_pb2.Queue) -> MessageQueue:
        own = self._runtime.settings.broker_name
        if queue.broker_name != own:
            raise PreconditionFailed(
                f"queue {queue.topic}@{queue.broker_name}:{queue.queue_id} is not at broker {own}; "
                f"call {queue.broker_name or 'the broker of its route'}"
            )
        topic = self._catalog.topics.get(queue.topic)
        if topic is None:
            raise TopicNotFound(
                f"no topic {queue.topic!r} on broker {own}; create it with `evenq topic create {queue.topic}`"
            )
        if not 0 <= queue.queue_id < topic.queues_ever:
            raise BadRequest(f"topic {queue.topic} has queues 0 to {topic.read_queues - 1}, not {queue.queue_id}")
        return queue_of(queue)

    def _is_read(self, queue: MessageQueue) -> bool:
        topic = self._catalog.topics.get(queue.topic)
        return topic is not None and topic.permission.readable and queue.queue_id < topic.read_queues

    def _uid(self, queue: MessageQueue) -> str:
        topic = self._catalog.topics.get(queue.topic)
        return "" if topic is None else self._catalog.queue_uid(topic)

    def _committed(self, group_id: int, queue: MessageQueue) -> int:
        topic = self._catalog.topics.get(queue.topic)
        committed = None if topic is None else self._ledger.progress.committed(group_id, topic.topic_id, queue.queue_id)
        return -1 if committed is None else committed


def _bounded(queues: Sequence[common_pb2.Queue]) -> Sequence[common_pb2.Queue]:
    if len(queues) > QUEUES_PER_LOCK_MAX:
        raise BadRequest(f"{len(queues)} queues in one call, the limit is {QUEUES_PER_LOCK_MAX}; use several calls")
    return queues


def _count(offset: int, number: int) -> common_pb2.DeliveryCount:
    if number == FINISHED:
        return common_pb2.DeliveryCount(offset=offset, finished=True)
    return common_pb2.DeliveryCount(offset=offset, deliveries=number)


def _event(group: str, news: Mail) -> bytes:
    match news:
        case MembersChanged(members):
            changed = groups_pb2.MembersChanged(group=group, members=[member_message(member) for member in members])
            return groups_pb2.SessionEvent(members_changed=changed).SerializeToString()
        case SettingsChanged(config):
            configured = groups_pb2.SettingsChanged(group=group, settings=group_settings(config))
            return groups_pb2.SessionEvent(settings_changed=configured).SerializeToString()
        case AssignmentChanged(topic, generation, share):
            generation_message = common_pb2.Generation(epoch=generation.epoch, counter=generation.counter)
            decided = groups_pb2.AssignmentChanged(group=group, topic=topic, generation=generation_message, share=share)
            return groups_pb2.SessionEvent(assignment_changed=decided).SerializeToString()
        case QueueWanted(queue):
            wanted = groups_pb2.QueueWanted(group=group, queue=queue_message(queue))
            return groups_pb2.SessionEvent(queue_wanted=wanted).SerializeToString()
        case OffsetsReset(queues):
            moved = groups_pb2.OffsetsReset(group=group, queues=[queue_message(queue) for queue in queues])
            return groups_pb2.SessionEvent(offsets_reset=moved).SerializeToString()
        case BrokerLeaving(drain_ms):
            return groups_pb2.SessionEvent(
                broker_leaving=groups_pb2.BrokerLeaving(drain_ms=drain_ms)
            ).SerializeToString()
        case _:
            assert_never(news)
