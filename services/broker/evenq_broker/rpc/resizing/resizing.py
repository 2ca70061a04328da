"""`evenq.v1.Admin`: number and permission of queues, draining and forgetting of brokers (RT-8, TQ-14).

Handlers send a request to its brokers and merge the answers; `loops.resizing.resizing` does the work at each. All calls
may be repeated. Shrinking and draining are repeated until the answer shows no more unread messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from evenq.errors import BadRequest, ConnectionFailed, Error, NotFound, PreconditionFailed, TopicNotFound
from evenq.model import MessageType, Permission, TopicConfig
from evenq.serving.auth.calls import rpc
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.cluster.unfinished import Unfinished
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.sending.schedules import TOPIC_MAX, ScheduleTable
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.resizing.resizing import drain, hidden_by, leave, left_here, look, permit, scale
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.translation import counts_of, entry_of, queue_message
from evenq_broker.rpc.answers import OK, answers_of, parsed

SERVICE = "/evenq.v1.Admin/"
_Change = admin_pb2.DrainBrokerRequest
UNFINISHED_NAMED_MAX = 1_000


class ResizeHandler:
    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        cluster_catalog: ClusterCatalog,
        membership: GroupTables,
        lite: Lites,
        schedules: ScheduleTable,
    ) -> None:
        self._kernel = kernel
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster, self._membership, self._lite = cluster, membership, lite
        self._schedules = schedules
        self._cluster_catalog = cluster_catalog
        self._leaving = TopicLeaveHandler(
            kernel, cluster=cluster, cluster_catalog=cluster_catalog, membership=membership, schedules=schedules
        )

    def rpcs(self) -> list[Rpc]:
        return [
            rpc(SERVICE + "ScaleTopic", self.scale),
            rpc(SERVICE + "PermitTopic", self.permit),
            rpc(SERVICE + "DrainBroker", self.drain),
            rpc(SERVICE + "ForgetBroker", self.forget),
        ]

    async def scale(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ScaleTopicRequest, data)
        if not request.queues:
            return await self._leaving.leave(request)
        if not 1 <= request.queues <= 4096:
            raise BadRequest(
                f"topic {request.topic!r} requests {request.queues} queues on each broker, the range is 1 to 4096"
            )
        if request.local:
            if request.dry_run:
                topic, left = hidden_by(self._kernel, request.topic, request.queues, membership=self._membership)
            else:
                topic, left = await scale(
                    self._kernel,
                    request.topic,
                    request.queues,
                    force=request.force,
                    close_unread=request.close_unread,
                    membership=self._membership,
                )
            resized = self._resized(self._runtime.settings.broker_name, topic, left.unfinished)
            resized.unread, resized.stored = left.unread, left.stored
            return admin_pb2.ScaleTopicResponse(status=OK, brokers=[resized]).SerializeToString()
        if self._catalog.routes.kind_of(request.topic) is MessageType.LITE:
            raise BadRequest(
                f"topic {request.topic} takes LITE messages: each lite topic is a queue, and none can be added"
            )
        names = await self._places(request.topic, request.broker_name)
        local_request = admin_pb2.ScaleTopicRequest()
        local_request.CopyFrom(request)
        local_request.broker_name, local_request.local = "", True
        brokers = await self._everywhere(names, "ScaleTopic", local_request.SerializeToString())
        if not request.dry_run and not request.broker_name:
            await self._cluster_catalog.topic_widened(request.topic)
        return admin_pb2.ScaleTopicResponse(status=OK, brokers=brokers).SerializeToString()

    async def permit(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.PermitTopicRequest, data)
        if request.permission not in [int(known) for known in Permission]:
            raise BadRequest(f"permission {request.permission} is unknown; give READ_WRITE, READ, WRITE or NONE")
        if request.local:
            topic = await permit(self._kernel, request.topic, Permission(request.permission))
            resized = self._resized(self._runtime.settings.broker_name, topic, ())
            return admin_pb2.PermitTopicResponse(status=OK, brokers=[resized]).SerializeToString()
        names = await self._places(request.topic, request.broker_name)
        local_request = admin_pb2.PermitTopicRequest(topic=request.topic, permission=request.permission, local=True)
        brokers = await self._everywhere(names, "PermitTopic", local_request.SerializeToString())
        return admin_pb2.PermitTopicResponse(status=OK, brokers=brokers).SerializeToString()

    async def drain(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.DrainBrokerRequest, data)
        own = self._runtime.settings.broker_name
        if request.broker_name not in {"", own}:
            await self._cluster.facts_settled()
            if self._catalog.routes.broker(request.broker_name) is None:
                names = ", ".join(view.name for view in self._catalog.routes.brokers())
                raise NotFound(f"no live broker is named {request.broker_name!r}; the cluster has {names}")
            return await self._cluster.peers.ask(request.broker_name, SERVICE + "DrainBroker", data)
        if request.change == _Change.DRAIN:
            await drain(self._kernel, on=True)
        elif request.change == _Change.RESUME:
            await drain(self._kernel, on=False)
        left = left_here(self._kernel, membership=self._membership, lite=self._lite, schedules=self._schedules)
        return admin_pb2.DrainBrokerResponse(
            status=OK,
            broker_name=own,
            draining=self._catalog.draining,
            empty=left.empty,
            unfinished=map(unfinished_message, left.unfinished[:UNFINISHED_NAMED_MAX]),
            lag=sum(one.lag for one in left.unfinished),
            delayed=left.delayed,
            unread=left.unread,
            dead_letters=left.dead_letters,
            writers=await self._writers(),
            schedules=len(left.schedules),
            # All of them: a drain moves those that are named.
            schedule_names=left.schedules[: self._runtime.settings.schedules_max],
        ).SerializeToString()

    async def forget(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ForgetBrokerRequest, data)
        known = self._cluster.known
        if request.local and request.leaving:
            known.brokers.leaves(
                request.broker_name, request.leaving, unread=request.unread, dead_letters=request.dead_letters
            )
            return admin_pb2.ForgetBrokerResponse(status=OK, known=True).SerializeToString()
        if not request.broker_name:
            raise BadRequest("the request names no broker; name the one that is gone for good")
        await self._cluster.facts_settled()
        if request.broker_name == self._runtime.settings.broker_name or self._catalog.routes.broker(
            request.broker_name
        ):
            raise PreconditionFailed(
                f"broker {request.broker_name} is alive and cannot be forgotten; drain it with "
                f"`evenq broker drain {request.broker_name}` and stop it first"
            )
        forgotten = await known.forget(request.broker_name)
        if not request.local:
            local_request = admin_pb2.ForgetBrokerRequest(broker_name=request.broker_name, local=True)
            silent: list[str] = []
            answers = await self._cluster.peers.ask_peers(SERVICE + "ForgetBroker", local_request.SerializeToString())
            for response in answers_of(admin_pb2.ForgetBrokerResponse, answers, silent=silent):
                forgotten = forgotten or response.known
            if silent:
                raise ConnectionFailed(
                    f"broker {request.broker_name} is forgotten, but not by {', '.join(silent)}, which did not answer "
                    "and still wait for it; repeat it"
                )
            if not forgotten:
                names = ", ".join(one.name for one in known.missing()) or "none"
                raise NotFound(f"no broker {request.broker_name!r} is missing; those that are: {names}")
        return admin_pb2.ForgetBrokerResponse(status=OK, known=forgotten).SerializeToString()

    async def _writers(self) -> int:
        # Without this broker: a cluster whose last open broker drains accepts no messages at all.
        look = admin_pb2.DescribeClusterRequest(local=True).SerializeToString()
        answers = await self._cluster.peers.ask_peers(SERVICE + "DescribeCluster", look)
        responses = (
            admin_pb2.DescribeClusterResponse.FromString(part) for _, part in answers if not isinstance(part, Error)
        )
        return sum(not summary.draining for part in responses for summary in part.brokers)

    async def _places(self, topic: str, broker_name: str) -> list[str]:
        """Returns the live brokers that the request is for. Raises TopicNotFound, NotFound."""
        await self._cluster.facts_settled()
        names = [at.broker.name for at in self._catalog.routes.route(topic)]
        if not names:
            raise TopicNotFound(f"no topic {topic!r} on any live broker; create it with `evenq topic create {topic}`")
        if broker_name and broker_name not in names:
            raise NotFound(f"topic {topic} is not on broker {broker_name!r}; it is on {', '.join(names)}")
        return [broker_name] if broker_name else names

    async def _everywhere(self, names: Iterable[str], method: str, request: bytes) -> list[admin_pb2.ResizedTopic]:
        return list(await asyncio.gather(*(self._at(name, method, request) for name in names)))

    async def _at(self, broker_name: str, method: str, request: bytes) -> admin_pb2.ResizedTopic:
        response = admin_pb2.ScaleTopicResponse if method == "ScaleTopic" else admin_pb2.PermitTopicResponse
        try:
            if broker_name == self._runtime.settings.broker_name:
                handler = self.scale if method == "ScaleTopic" else self.permit
                data = await handler(request, RpcContext("", [], "", None))
            else:
                data = await self._cluster.peers.ask(broker_name, SERVICE + method, request)
            reply = response.FromString(data)
            check(reply.status)
            return reply.brokers[0]
        except Error as error:
            return admin_pb2.ResizedTopic(broker_name=broker_name, error=error.message)

    def _resized(self, name: str, topic: TopicConfig, left: Iterable[Unfinished]) -> admin_pb2.ResizedTopic:
        entry = entry_of(topic.name, counts_of(name, topic, draining=self._catalog.draining))
        shown = list(map(unfinished_message, left))[:UNFINISHED_NAMED_MAX]
        return admin_pb2.ResizedTopic(broker_name=name, entry=entry, unfinished=shown)


class TopicLeaveHandler:
    """The handler of ScaleTopic for 0 queues: the topic leaves a broker (TQ-4; `loops.resizing.resizing`).

    Before, the other brokers learn that an operator chose the topic's brokers, so that none restores it by its use.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        cluster: ClusterLink,
        cluster_catalog: ClusterCatalog,
        membership: GroupTables,
        schedules: ScheduleTable,
    ) -> None:
        self._kernel, self._schedules = kernel, schedules
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster, self._cluster_catalog, self._membership = cluster, cluster_catalog, membership

    async def leave(self, request: admin_pb2.ScaleTopicRequest) -> bytes:
        """Takes one step at the named broker, or with `local` here."""
        if request.local:
            resized = await self._here(request)
            return admin_pb2.ScaleTopicResponse(status=OK, brokers=[resized]).SerializeToString()
        await self._cluster.facts_settled()
        self._must_be_leavable(request)
        if not request.dry_run:
            await self._choose_others(request)
        request.local = True
        if request.broker_name == self._runtime.settings.broker_name:
            return await self.leave(request)
        return await self._cluster.peers.ask(
            request.broker_name, "/evenq.v1.Admin/ScaleTopic", request.SerializeToString()
        )

    async def _choose_others(self, request: admin_pb2.ScaleTopicRequest) -> None:
        staying = {
            at.broker.name: 0
            for at in self._catalog.routes.route(request.topic)
            if at.broker.name != request.broker_name
        }
        placements = await self._cluster_catalog.create_topic(request.topic, brokers=staying)
        failed = [f"{one.broker_name} ({one.error})" for one in placements if one.error]
        if failed:
            raise ConnectionFailed(f"topic {request.topic} was not changed on {', '.join(failed)}; repeat it")

    def _must_be_leavable(self, request: admin_pb2.ScaleTopicRequest) -> None:
        topic, name, routes = request.topic, request.broker_name, self._catalog.routes
        names = [at.broker.name for at in routes.route(topic)]
        if not names:
            raise TopicNotFound(f"no topic {topic!r} on any live broker; see `evenq topic list`")
        if not name:
            raise BadRequest(
                f"0 queues: a topic leaves one broker at a time, so name the broker; `evenq topic delete {topic}` "
                "deletes it everywhere"
            )
        if name not in names:
            raise NotFound(f"topic {topic} is not on broker {name!r}; it is on {', '.join(names)}")
        if routes.kind_of(topic) is MessageType.LITE:
            raise BadRequest(f"topic {topic} takes LITE messages: its lite topics are spread over all brokers")
        if len(names) == 1:
            raise BadRequest(
                f"topic {topic} is on broker {name} alone; add another broker first with `evenq topic create "
                f"{topic} --broker NAME`, or delete it with `evenq topic delete {topic}`"
            )

    async def _here(self, request: admin_pb2.ScaleTopicRequest) -> admin_pb2.ResizedTopic:
        own = self._runtime.settings.broker_name
        if request.dry_run:
            topic, remains = look(self._kernel, request.topic, membership=self._membership, schedules=self._schedules)
        else:
            topic, remains = await leave(
                self._kernel,
                request.topic,
                close_unread=request.close_unread,
                force=request.force,
                membership=self._membership,
                schedules=self._schedules,
            )
        return admin_pb2.ResizedTopic(
            broker_name=own,
            entry=entry_of(topic.name, counts_of(own, topic, draining=self._catalog.draining)),
            unfinished=map(unfinished_message, remains.unfinished[:UNFINISHED_NAMED_MAX]),
            unread=remains.unread,
            stored=remains.stored,
            delayed=remains.delayed,
            gone=remains.gone,
            schedules=len(remains.schedules),
            schedule_names=remains.schedules[:TOPIC_MAX],
        )


def unfinished_message(one: Unfinished) -> admin_pb2.UnfinishedQueue:
    """Returns the wire form of a queue that a group has not finished."""
    queue = queue_message(one.queue)
    return admin_pb2.UnfinishedQueue(queue=queue, group=one.group, lag=one.lag, inflight=one.inflight)
