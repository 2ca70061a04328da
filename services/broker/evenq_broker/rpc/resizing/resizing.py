"""`evenq.v1.Admin`: more or fewer queues, what queues are for, brokers that take no more messages (RT-8, TQ-14).

Handlers only spread a request over the brokers it is for and add up; `loops.resizing.resizing` does it at each. All
three calls may be repeated, and shrinking and draining are meant to be: each answer tells what is still to be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from evenq.errors import BadRequest, ConnectionFailed, Error, NotFound, PreconditionFailed, TopicNotFound
from evenq.model import MessageType, Permission, TopicConfig
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.cluster.unfinished import Unfinished
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.resizing.resizing import drain, hidden_by, left_here, permit, scale
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.wire.translation import counts_of, entry_of
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.resizing.leaving import UNFINISHED_NAMED_MAX, TopicLeaveHandler, unfinished_message
from evenq_broker.runtime import Runtime

__all__ = ["rpcs"]

SERVICE = "/evenq.v1.Admin/"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
_Change = admin_pb2.DrainBrokerRequest


def rpcs(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    *,
    cluster: ClusterLink,
    cluster_catalog: ClusterCatalog,
    membership: GroupTables,
    lite: Lites,
) -> list[Rpc]:
    """The calls of this module."""
    resizing = _Resizing(
        runtime, catalog, ledger, cluster=cluster, cluster_catalog=cluster_catalog, membership=membership, lite=lite
    )
    return [
        rpc(SERVICE + "ScaleTopic", resizing.scale, admin_pb2.ScaleTopicResponse),
        rpc(SERVICE + "PermitTopic", resizing.permit, admin_pb2.PermitTopicResponse),
        rpc(SERVICE + "DrainBroker", resizing.drain, admin_pb2.DrainBrokerResponse),
        rpc(SERVICE + "ForgetBroker", resizing.forget, admin_pb2.ForgetBrokerResponse),
    ]


class _Resizing:
    def __init__(
        self,
        runtime: Runtime,
        catalog: Catalog,
        ledger: Ledger,
        *,
        cluster: ClusterLink,
        cluster_catalog: ClusterCatalog,
        membership: GroupTables,
        lite: Lites,
    ) -> None:
        self._runtime, self._catalog, self._ledger = runtime, catalog, ledger
        self._cluster, self._membership, self._lite = cluster, membership, lite
        self._cluster_catalog = cluster_catalog
        self._leaving = TopicLeaveHandler(
            runtime, catalog, ledger, cluster=cluster, cluster_catalog=cluster_catalog, membership=membership
        )

    async def scale(self, data: bytes, _context: RpcContext) -> bytes:
        request = parsed(admin_pb2.ScaleTopicRequest, data)
        if not request.queues:
            return await self._leaving.leave(request)
        if not 1 <= request.queues <= 4096:
            raise BadRequest(
                f"topic {request.topic!r} asks for {request.queues} queues a broker, the range is 1 to 4096"
            )
        if request.local:
            if request.dry_run:
                topic, left = hidden_by(
                    self._runtime,
                    self._catalog,
                    self._ledger,
                    request.topic,
                    request.queues,
                    membership=self._membership,
                )
            else:
                topic, left = await scale(
                    self._runtime,
                    self._catalog,
                    self._ledger,
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
                f"topic {request.topic} takes LITE messages: each lite topic is a queue of its own, none can be added"
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
            topic = await permit(
                self._runtime, self._catalog, self._ledger, request.topic, Permission(request.permission)
            )
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
            await drain(self._catalog, self._ledger, on=True)
        elif request.change == _Change.RESUME:
            await drain(self._catalog, self._ledger, on=False)
        left = left_here(self._runtime, self._catalog, self._ledger, membership=self._membership, lite=self._lite)
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
            raise BadRequest("the request names no broker; say which one is gone for good")
        await self._cluster.facts_settled()
        if request.broker_name == self._runtime.settings.broker_name or self._catalog.routes.broker(
            request.broker_name
        ):
            raise PreconditionFailed(
                f"broker {request.broker_name} is there: it cannot be forgotten; drain it with "
                f"`evenq broker drain {request.broker_name}` and stop it first"
            )
        forgotten = await known.forget(request.broker_name)
        if not request.local:
            local_request = admin_pb2.ForgetBrokerRequest(broker_name=request.broker_name, local=True)
            silent: list[str] = []
            for name, result in await self._cluster.peers.ask_peers(
                SERVICE + "ForgetBroker", local_request.SerializeToString()
            ):
                if isinstance(result, Error):
                    silent.append(name)
                    continue
                response = admin_pb2.ForgetBrokerResponse.FromString(result)
                check(response.status)
                forgotten = forgotten or response.known
            if silent:
                raise ConnectionFailed(
                    f"broker {request.broker_name} is forgotten, but not by {', '.join(silent)}, which did not answer "
                    "and will miss it; do it again"
                )
            if not forgotten:
                names = ", ".join(one.name for one in known.missing()) or "none"
                raise NotFound(f"no broker {request.broker_name!r} is missing; those that are: {names}")
        return admin_pb2.ForgetBrokerResponse(status=OK, known=forgotten).SerializeToString()

    async def _writers(self) -> int:
        # The others: a cluster whose last open broker drains takes no messages at all.
        look = admin_pb2.DescribeClusterRequest(local=True).SerializeToString()
        answers = await self._cluster.peers.ask_peers(SERVICE + "DescribeCluster", look)
        responses = (
            admin_pb2.DescribeClusterResponse.FromString(part) for _, part in answers if not isinstance(part, Error)
        )
        return sum(not summary.draining for part in responses for summary in part.brokers)

    async def _places(self, topic: str, broker_name: str) -> list[str]:
        """The live brokers that the request is for. Raises TopicNotFound, NotFound."""
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
