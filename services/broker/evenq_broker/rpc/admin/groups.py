"""`evenq.v1.Admin`: consumer groups, for the command line and other tools. See `rpc.admin.topics` for `local`."""

from __future__ import annotations

from collections.abc import Sequence

from evenq.allocation import requested_strategy
from evenq.errors import BadRequest, GroupNotFound, PreconditionFailed
from evenq.model import GroupConfig, MessageQueue, MessageType, StartFrom, TopicConfig
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.groups.settings import GroupSettings
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.cluster import create_group
from evenq_broker.loops.wire.peers import PeerSettings
from evenq_broker.loops.wire.translation import (
    balance_message,
    balance_of,
    differing_filters,
    member_message,
    queue_message,
    retry_message,
    retry_of,
)
from evenq_broker.rpc.admin.everywhere import LOCAL_HEADER, THEY_DELETE_IT, asked_of_others, must_be_complete
from evenq_broker.rpc.answers import OK, parsed
from evenq_broker.rpc.diagnosis.parts import add_troubles, troubles_of
from evenq_broker.runtime import Runtime

SERVICE = "/evenq.v1.Admin/"


class Groups:
    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        cluster_catalog: ClusterCatalog,
        membership: GroupTables,
        lite: Lites,
        delayed_retries: DelayedRetries,
        group_settings: GroupSettings,
    ) -> None:
        self._kernel = kernel
        self._runtime, self._catalog, self._ledger = kernel.runtime, kernel.catalog, kernel.ledger
        self._cluster, self._cluster_catalog, self._membership = cluster, cluster_catalog, membership
        self._lite, self._delayed_retries, self._group_settings = lite, delayed_retries, group_settings

    def rpcs(self) -> list[Rpc]:
        return [
            rpc(SERVICE + "CreateGroup", self.create),
            rpc(SERVICE + "DeleteGroup", self.delete),
            rpc(SERVICE + "ListGroups", self.list),
            rpc(SERVICE + "DescribeGroup", self.describe),
        ]

    async def everywhere(self, group: str) -> admin_pb2.DescribeGroupResponse:
        """Returns a group, its members and its progress over all brokers. Raises GroupNotFound."""
        request = admin_pb2.DescribeGroupRequest(group=group).SerializeToString()
        return admin_pb2.DescribeGroupResponse.FromString(await self.describe(request, RpcContext("", [], "", None)))

    async def create(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.CreateGroupRequest, data)
        old = self._catalog.groups.get(request.group)
        if request.local and request.HasField("settings"):
            if old is not None and old.revised_ms > request.settings.revised_ms:
                own = self._runtime.settings.broker_name
                raise PreconditionFailed(
                    f"group {request.group} was changed later at {own}, which sends it to the other brokers"
                )
            await self._group_settings.adopt(PeerSettings(request.group, request.settings))
            return admin_pb2.CreateGroupResponse(status=OK).SerializeToString()
        strategy = requested_strategy(request.strategy)  # refuses an unknown name
        warnings = (
            []
            if request.local or strategy != "MACHINE_ROOM"
            else about_rooms(self._runtime, request.group, membership=self._membership)
        )
        group = await self._catalog.create_group(
            request.group,
            ordered=request.ordered if request.HasField("ordered") else None,
            max_attempts=request.max_attempts,
            strategy=strategy,
            start_from=_start_from(request.start_from),
            retry=retry_of(request.retry) if request.HasField("retry") else None,
            balance=balance_of(request.balance) if request.HasField("balance") else None,
            revised_ms=max(self._runtime.clock.now_ms(), old.revised_ms + 1 if old else 0),
        )
        if not request.local:
            failed = await self._cluster_catalog.create_group(create_group(request, group))
            if any(isinstance(error, PreconditionFailed) for _, error in failed):
                self._group_settings.ask_again()
            must_be_complete(failed, f"group {request.group} is created")
        return admin_pb2.CreateGroupResponse(status=OK, warnings=warnings).SerializeToString()

    async def delete(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DeleteGroupRequest, data)
        if request.local:
            await self._cluster_catalog.end_group(request.group)
        else:
            known = await self._must_be_idle(request.group)
            failed = await self._cluster_catalog.delete_group(request.group)
            must_be_complete(failed, f"group {request.group} is deleted", later=THEY_DELETE_IT)
            if not known:
                raise GroupNotFound(f"no consumer group {request.group!r}; see `evenq group list`")
        return admin_pb2.DeleteGroupResponse(status=OK).SerializeToString()

    async def _must_be_idle(self, group: str) -> bool:
        """Returns True if any broker has the group: one that was missing when it was deleted still does. Raises
        BadRequest if any broker that answers has members of it. As for a reset, one that does not answer does not block
        the command.
        """
        look = admin_pb2.DescribeGroupRequest(group=group, local=True).SerializeToString()
        others, _ = await asked_of_others("DescribeGroup", look, admin_pb2.DescribeGroupResponse, cluster=self._cluster)
        members = {member.client_id for member in self._membership.members.listed(group)}
        members.update(member.client_id for part in others for member in part.members)
        if members:
            raise BadRequest(f"group {group} has {len(members)} members, among them {min(members)}; stop them first")
        return self._catalog.groups.get(group) is not None or any(part.summary.group for part in others)

    async def list(self, data: bytes, context: RpcContext) -> bytes:
        parsed(admin_pb2.ListGroupsRequest, data)
        by_name = {group.name: self._summary(group) for group in self._catalog.groups.all()}
        if LOCAL_HEADER not in context.headers:
            others, silent = await asked_of_others(
                "ListGroups", data, admin_pb2.ListGroupsResponse, cluster=self._cluster
            )
            for response in others:
                for other in response.groups:
                    _add_group(by_name, other)
            for summary in by_name.values():
                summary.silent[:] = silent
        summaries = [by_name[name] for name in sorted(by_name)]
        return admin_pb2.ListGroupsResponse(status=OK, groups=summaries).SerializeToString()

    async def describe(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DescribeGroupRequest, data)
        group = self._catalog.groups.get(request.group)
        by_name: dict[str, admin_pb2.GroupSummary] = {}
        silent: list[str] = []
        response = admin_pb2.DescribeGroupResponse(status=OK)
        if group is not None:
            by_name[group.name] = self._summary(group)
            response.members.extend(member_message(m) for m in self._membership.members.members(group.name))
            response.queues.extend([await self._timed(queue) for queue in self._queues(group)])
            response.troubles.CopyFrom(
                troubles_of(self._kernel, group, response.queues, delayed_retries=self._delayed_retries)
            )
        if not request.local:
            local_request = admin_pb2.DescribeGroupRequest(group=request.group, local=True).SerializeToString()
            others, silent = await asked_of_others(
                "DescribeGroup", local_request, admin_pb2.DescribeGroupResponse, cluster=self._cluster
            )
            for other in others:
                _add_group(by_name, other.summary)
                known = {member.client_id for member in response.members}
                response.members.extend(member for member in other.members if member.client_id not in known)
                response.queues.extend(other.queues)
                add_troubles(response.troubles, other.troubles)
        if request.group not in by_name:
            where = f" on a broker that answers ({', '.join(silent)} cannot be reached)" if silent else ""
            raise GroupNotFound(
                f"no consumer group {request.group!r}{where}; create it with `evenq group create {request.group}`"
            )
        response.summary.CopyFrom(by_name[request.group])
        response.summary.silent[:] = silent
        response.members.sort(key=lambda member: member.client_id)
        response.differing_filters.extend(differing_filters(response.members))
        response.summary.members = len(response.members)
        response.summary.topics = len({at.queue.topic for at in response.queues})
        response.queues.sort(key=lambda at: (at.queue.topic, at.queue.broker_name, at.queue.queue_id))
        return response.SerializeToString()

    def _summary(self, group: GroupConfig) -> admin_pb2.GroupSummary:
        queues = self._queues(group)
        return admin_pb2.GroupSummary(
            group=group.name,
            ordered=group.ordered,
            max_attempts=group.max_attempts,
            strategy=group.strategy,
            members=len(self._membership.members.members(group.name)),
            topics=len({at.queue.topic for at in queues}),
            lag=sum(at.lag for at in queues),
            retry=retry_message(group.retry),
            balance=balance_message(group.balance),
        )

    def _queues(self, group: GroupConfig) -> Sequence[admin_pb2.GroupQueue]:
        topics = [self._catalog.topics.by_id(topic_id) for topic_id in self._ledger.progress.topics_of(group.group_id)]
        return [
            self._queue(group, topic, queue_id)
            for topic in topics
            if topic is not None
            for queue_id in [*range(topic.read_queues), *self._left_behind(group, topic)]
        ]

    def _left_behind(self, group: GroupConfig, topic: TopicConfig) -> Sequence[int]:
        """Returns closed queues that the group has not finished (RT-8)."""
        lag, store = self._ledger.progress.lag, self._ledger.store
        return [
            queue_id
            for queue_id in topic.closed
            if lag(group.group_id, topic.topic_id, queue_id, *store.queue_range(topic.topic_id, queue_id))
        ]

    async def _timed(self, queue: admin_pb2.GroupQueue) -> admin_pb2.GroupQueue:
        """Adds the store time of the next message to read."""
        topic = self._catalog.topics.get(queue.queue.topic)
        if topic is not None and queue.committed >= 0:
            at = [max(queue.committed, queue.min_offset)]
            for message in await self._ledger.store.read_at(topic.topic_id, queue.queue.queue_id, at):
                queue.next_store_ms = message.store_ms
        return queue

    def _queue(self, group: GroupConfig, topic: TopicConfig, queue_id: int) -> admin_pb2.GroupQueue:
        queue_key = (group.group_id, topic.topic_id, queue_id)
        queue = MessageQueue(topic.name, self._runtime.settings.broker_name, queue_id)
        low, high = self._ledger.store.queue_range(topic.topic_id, queue_id)
        committed = self._ledger.progress.committed(*queue_key)
        first_lite = topic.message_type is MessageType.LITE and queue_id == 0
        lite = self._lite.lag(group, topic) if first_lite else (0, 0)
        return admin_pb2.GroupQueue(
            queue=queue_message(queue),
            committed=-1 if committed is None else committed,
            min_offset=low,
            max_offset=high,
            lag=self._ledger.progress.lag(*queue_key, low, high) + lite[0],
            inflight=self._ledger.progress.inflight(*queue_key, low, high) + lite[1],
            owner=self._membership.locks.holder(group.name, queue),
        )


def _add_group(by_name: dict[str, admin_pb2.GroupSummary], other: admin_pb2.GroupSummary) -> None:
    mine = by_name.get(other.group)
    if mine is None:
        by_name[other.group] = other
        return
    mine.lag += other.lag
    mine.members = max(mine.members, other.members)
    mine.topics = max(mine.topics, other.topics)


def _start_from(name: str) -> StartFrom | None:
    if not name:
        return None
    if name not in set(StartFrom):
        raise BadRequest(f"start_from {name[:40]!r} is unknown; give one of {', '.join(StartFrom)}")
    return StartFrom(name)


def about_rooms(runtime: Runtime, group: str, *, membership: GroupTables) -> list[str]:
    """Returns a warning if this broker knows no machine rooms: without them MACHINE_ROOM assigns no queues (AL-20).
    Raises BadRequest without a rebalancer.
    """
    settings = runtime.settings
    if not settings.rebalancer:
        raise BadRequest(
            "MACHINE_ROOM divides the queues of machine rooms, which only a rebalancer knows, and this cluster has no "
            "rebalancer: use MACHINE_ROOM_NEARBY-AVG, or give each consumer "
            "strategy=MachineRoom(frozenset({'room-1'}))"
        )
    if settings.zone or any(member.zone for member in membership.members.members(group)):
        return []
    warning = (
        f"MACHINE_ROOM divides the queues of machine rooms, and broker {settings.broker_name} knows none. Unless the "
        "rebalancer does (its setting machine_rooms, or the zones of its Kubernetes nodes), no member gets a queue: "
        f"set `zone` of brokers and consumers. Check it with evenq group doctor {group}"
    )
    return [warning]
