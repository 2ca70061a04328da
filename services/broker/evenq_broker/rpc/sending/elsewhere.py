"""Sends that other brokers take: the owners of message groups and lite topics, or any that has the topic.

A send of the public protocol names no broker. It may arrive at one that is not the home of its messages, that is
drained, or that has not the topic at all, where one address leads to all brokers. One hop; what was passed on is stored
where it came. Called by `rpc.sending.send`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from evenq.errors import MessageCorrupted
from evenq.model import MessageType
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.rpc.answers import several
from evenq_broker.rpc.cluster.forwarding import forward, owner_of
from evenq_broker.rpc.lite.lite import owner_elsewhere
from evenq_broker.rpc.sending.homes import Homes
from evenq_broker.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["OWNED", "Elsewhere", "must_be_one_topic"]

OWNED = frozenset({MessageType.FIFO, MessageType.MIXED, MessageType.LITE})
"""Types of topics whose messages may belong to one broker of the cluster."""


def must_be_one_topic(message: object, resource: definition_pb2.Resource) -> None:
    """Raises MessageCorrupted."""
    topic = message.topic  # type: ignore[attr-defined]  # a v2 Message
    if topic != resource:
        raise MessageCorrupted(
            f"the request holds messages of topics {resource.name!r} and {topic.name!r}; send one topic at a time"
        )


class Elsewhere:
    """The other brokers, as a send sees them."""

    def __init__(
        self,
        runtime: Runtime,
        catalog: Catalog,
        send: Callable[[bytes, RpcContext], Awaitable[bytes]],
        *,
        cluster: ClusterLink,
        lite: Lites,
    ) -> None:
        """`send`: stores or passes on a part of a list that belongs to several brokers."""
        self._runtime, self._catalog = runtime, catalog
        self._cluster, self._lite, self._send = cluster, lite, send
        self._homes = Homes(runtime, catalog, cluster=cluster)
        self._turn = 0

    async def at_owners(
        self, request: service_pb2.SendMessageRequest, data: bytes, kind: MessageType, context: RpcContext
    ) -> bytes | None:
        """The answer of the brokers that the messages belong to; None: they are all this one's, or no broker's."""
        if kind is MessageType.LITE:
            return await self._at_lite_owners(request, data, context)
        if kind not in OWNED:
            return None
        return await self._homes.elsewhere(request, data, context, send_here=self._send)

    async def at_any(self, topic: str, data: bytes, context: RpcContext) -> bytes | None:
        """The answer of another broker that takes messages for the topic, of several in turn; None: there is none."""
        names = [at.broker.name for at in self._catalog.routes.route(topic) if at.counts.permission.writable]
        self._turn += 1
        if not names:
            return None
        name = names[self._turn % len(names)]
        address = owner_of(self._runtime, self._catalog, name, context, cluster=self._cluster)
        return None if address is None else await forward(self._runtime, address, data, context)

    async def _at_lite_owners(
        self, request: service_pb2.SendMessageRequest, data: bytes, context: RpcContext
    ) -> bytes | None:
        topic = request.messages[0].topic.name
        names = (message.system_properties.lite_topic for message in request.messages)
        owners = [
            owner_elsewhere(self._runtime, self._catalog, topic, name, context, cluster=self._cluster, lite=self._lite)
            for name in names
        ]
        if not any(owners):
            return None
        if len(set(owners)) == 1:
            address = owner_of(self._runtime, self._catalog, owners[0], context, cluster=self._cluster)
            assert address is not None
            return await forward(self._runtime, address, data, context)
        for message in request.messages:
            must_be_one_topic(message, request.messages[0].topic)
        singles = [service_pb2.SendMessageRequest(messages=[one]).SerializeToString() for one in request.messages]
        answers = await asyncio.gather(*(self._send(single, context) for single in singles))
        entries = [service_pb2.SendMessageResponse.FromString(part).entries[0] for part in answers]
        codes = {entry.status.code for entry in entries}
        response = service_pb2.SendMessageResponse(entries=entries)
        response.status.ParseFromString(several()) if len(codes) > 1 else response.status.CopyFrom(entries[0].status)
        return response.SerializeToString()
