"""`evenq.v1.Admin`: more or fewer queues, what queues are for, brokers that take no more messages (RT-8, TQ-14).

Handlers only spread a request over the brokers it is for and add up; `loops.resizing` does it at each. All three calls
may be repeated, and shrinking and draining are meant to be: each answer tells what is still to be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from evenq.errors import BadRequest, ConnectionFailed, Error, NotFound, PreconditionFailed, TopicNotFound
from evenq.model import MessageType, Permission, TopicConfig
from evenq.serving.rpc import Rpc, RpcContext
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.loops.resizing import Unfinished, drain, hidden_by, left_here, permit, scale
from evenq_broker.loops.translation import counts_of, entry_of
from evenq_broker.rpc.access import rpc
from evenq_broker.rpc.answers import parsed
from evenq_broker.rpc.leaving import UNFINISHED_TOLD_MAX, Leaving, unfinished_message

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["rpcs"]

SERVICE = "/evenq.v1.Admin/"
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")
_Change = admin_pb2.DrainBrokerRequest


def rpcs(broker: Broker) -> list[Rpc]:
    """The calls of this module."""
    resizing = _Resizing(broker)
    return [
        rpc(SERVICE + "ScaleTopic", resizing.scale, admin_pb2.ScaleTopicResponse),
        rpc(SERVICE + "PermitTopic", resizing.permit, admin_pb2.PermitTopicResponse),
        rpc(SERVICE + "DrainBroker", resizing.drain, admin_pb2.DrainBrokerResponse),
        rpc(SERVICE + "ForgetBroker", resizing.forget, admin_pb2.ForgetBrokerResponse),
    ]


class _Resizing:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leaving = Leaving(broker)

    async def scale(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.ScaleTopicRequest, request)
        if not asked.queues:
            return await self._leaving.leave(asked)
        if not 1 <= asked.queues <= 4096:
            raise BadRequest(f"topic {asked.topic!r} asks for {asked.queues} queues a broker, the range is 1 to 4096")
        if asked.local:
            if asked.dry_run:
                topic, left = hidden_by(self._broker, asked.topic, asked.queues)
            else:
                topic, left = await scale(
                    self._broker, asked.topic, asked.queues, force=asked.force, close_unread=asked.close_unread
                )
            resized = self._resized(self._broker.settings.broker_name, topic, left.unfinished)
            resized.unread, resized.stored = left.unread, left.stored
            return admin_pb2.ScaleTopicResponse(status=OK, brokers=[resized]).SerializeToString()
        if self._broker.routes.kind_of(asked.topic) is MessageType.LITE:
            raise BadRequest(
                f"topic {asked.topic} takes LITE messages: each lite topic is a queue of its own, none can be added"
            )
        names = await self._places(asked.topic, asked.broker_name)
        told = admin_pb2.ScaleTopicRequest()
        told.CopyFrom(asked)
        told.broker_name, told.local = "", True
        found = await self._everywhere(names, "ScaleTopic", told.SerializeToString())
        return admin_pb2.ScaleTopicResponse(status=OK, brokers=found).SerializeToString()

    async def permit(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.PermitTopicRequest, request)
        if asked.permission not in [int(known) for known in Permission]:
            raise BadRequest(f"permission {asked.permission} is unknown; give READ_WRITE, READ, WRITE or NONE")
        if asked.local:
            topic = await permit(self._broker, asked.topic, Permission(asked.permission))
            resized = self._resized(self._broker.settings.broker_name, topic, ())
            return admin_pb2.PermitTopicResponse(status=OK, brokers=[resized]).SerializeToString()
        names = await self._places(asked.topic, asked.broker_name)
        told = admin_pb2.PermitTopicRequest(topic=asked.topic, permission=asked.permission, local=True)
        found = await self._everywhere(names, "PermitTopic", told.SerializeToString())
        return admin_pb2.PermitTopicResponse(status=OK, brokers=found).SerializeToString()

    async def drain(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.DrainBrokerRequest, request)
        own, cluster = self._broker.settings.broker_name, self._broker.cluster
        if asked.broker_name not in {"", own}:
            await cluster.facts_settled()
            if self._broker.routes.broker(asked.broker_name) is None:
                names = ", ".join(view.name for view in self._broker.routes.brokers())
                raise NotFound(f"no live broker is named {asked.broker_name!r}; the cluster has {names}")
            return await cluster.ask(asked.broker_name, SERVICE + "DrainBroker", request)
        if asked.change == _Change.DRAIN:
            await drain(self._broker, on=True)
        elif asked.change == _Change.RESUME:
            await drain(self._broker, on=False)
        left = left_here(self._broker)
        return admin_pb2.DrainBrokerResponse(
            status=OK,
            broker_name=own,
            draining=self._broker.draining,
            empty=left.empty,
            unfinished=map(unfinished_message, left.unfinished[:UNFINISHED_TOLD_MAX]),
            lag=sum(one.lag for one in left.unfinished),
            delayed=left.delayed,
            unread=left.unread,
            dead_letters=left.dead_letters,
            writers=await self._writers(),
        ).SerializeToString()

    async def forget(self, request: bytes, _context: RpcContext) -> bytes:
        asked = parsed(admin_pb2.ForgetBrokerRequest, request)
        known, cluster = self._broker.cluster.known, self._broker.cluster
        if asked.local and asked.leaving:
            known.brokers.leaves(asked.broker_name, asked.leaving, unread=asked.unread, dead_letters=asked.dead_letters)
            return admin_pb2.ForgetBrokerResponse(status=OK, known=True).SerializeToString()
        if not asked.broker_name:
            raise BadRequest("the request names no broker; say which one is gone for good")
        await cluster.facts_settled()
        if asked.broker_name == self._broker.settings.broker_name or self._broker.routes.broker(asked.broker_name):
            raise PreconditionFailed(
                f"broker {asked.broker_name} is there: it cannot be forgotten; drain it with "
                f"`evenq broker drain {asked.broker_name}` and stop it first"
            )
        found = await known.forget(asked.broker_name)
        if not asked.local:
            told = admin_pb2.ForgetBrokerRequest(broker_name=asked.broker_name, local=True)
            silent: list[str] = []
            for name, answer in await cluster.ask_peers(SERVICE + "ForgetBroker", told.SerializeToString()):
                if isinstance(answer, Error):
                    silent.append(name)
                    continue
                response = admin_pb2.ForgetBrokerResponse.FromString(answer)
                check(response.status)
                found = found or response.known
            if silent:
                raise ConnectionFailed(
                    f"broker {asked.broker_name} is forgotten, but not by {', '.join(silent)}, which did not answer "
                    "and will miss it; do it again"
                )
            if not found:
                names = ", ".join(one.name for one in known.missing()) or "none"
                raise NotFound(f"no broker {asked.broker_name!r} is missing; those that are: {names}")
        return admin_pb2.ForgetBrokerResponse(status=OK, known=found).SerializeToString()

    async def _writers(self) -> int:
        # The others: a cluster whose last open broker drains takes no messages at all.
        look = admin_pb2.DescribeClusterRequest(local=True).SerializeToString()
        answers = await self._broker.cluster.ask_peers(SERVICE + "DescribeCluster", look)
        found = (
            admin_pb2.DescribeClusterResponse.FromString(answer)
            for _, answer in answers
            if not isinstance(answer, Error)
        )
        return sum(not summary.draining for answer in found for summary in answer.brokers)

    async def _places(self, topic: str, broker_name: str) -> list[str]:
        """The live brokers that the request is for. Raises TopicNotFound, NotFound."""
        await self._broker.cluster.facts_settled()
        names = [at.broker.name for at in self._broker.routes.route(topic)]
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
            if broker_name == self._broker.settings.broker_name:
                handler = self.scale if method == "ScaleTopic" else self.permit
                data = await handler(request, RpcContext("", [], "", None))
            else:
                data = await self._broker.cluster.ask(broker_name, SERVICE + method, request)
            answer = response.FromString(data)
            check(answer.status)
            return answer.brokers[0]
        except Error as error:
            return admin_pb2.ResizedTopic(broker_name=broker_name, error=error.message)

    def _resized(self, name: str, topic: TopicConfig, left: Iterable[Unfinished]) -> admin_pb2.ResizedTopic:
        entry = entry_of(topic.name, counts_of(name, topic, draining=self._broker.draining))
        told = list(map(unfinished_message, left))[:UNFINISHED_TOLD_MAX]
        return admin_pb2.ResizedTopic(broker_name=name, entry=entry, unfinished=told)
