"""Sends to other brokers: to the owners of message groups and lite topics, or to any broker that has the topic.

A send of the public protocol names no broker. Where one address leads to all brokers, it may arrive at a broker that
does not own its messages, is drained, or does not have the topic. One hop: a forwarded message is stored where it
arrives. Called by `rpc.sending.send`.
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
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.answers import several
from evenq_broker.rpc.cluster.forwarding import forward, owner_of
from evenq_broker.rpc.lite.lite import owner_elsewhere
from evenq_broker.rpc.sending.homes import Homes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

OWNED = frozenset({MessageType.FIFO, MessageType.MIXED, MessageType.LITE})
"""Types of topics whose messages may have an owner among the brokers."""


def must_be_one_topic(message: object, resource: definition_pb2.Resource) -> None:
    """Raises MessageCorrupted if the message is not of the topic `resource`."""
    topic = message.topic  # type: ignore[attr-defined]  # a v2 Message
    if topic != resource:
        raise MessageCorrupted(
            f"the request holds messages of topics {resource.name!r} and {topic.name!r}; send one topic at a time"
        )


class Elsewhere:
    def __init__(
        self,
        kernel: Kernel,
        send: Callable[[bytes, RpcContext], Awaitable[bytes]],
        *,
        cluster: ClusterLink,
        lite: Lites,
    ) -> None:
        """`send`: stores or forwards a part of a list that belongs to several brokers."""
        self._kernel = kernel
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster, self._lite, self._send = cluster, lite, send
        self._homes = Homes(kernel, cluster=cluster)
        self._turn = 0

    async def at_owners(
        self, request: service_pb2.SendMessageRequest, data: bytes, kind: MessageType, context: RpcContext
    ) -> bytes | None:
        """Returns the answer of the owners of the messages; None: all belong to this broker, or to none."""
        if kind is MessageType.LITE:
            return await self._at_lite_owners(request, data, context)
        if kind not in OWNED:
            return None
        return await self._homes.elsewhere(request, data, context, send_here=self._send)

    async def at_any(self, topic: str, data: bytes, context: RpcContext) -> bytes | None:
        """Returns the answer of another broker that accepts messages of the topic, in turn; None: there is none."""
        names = [at.broker.name for at in self._catalog.routes.route(topic) if at.counts.permission.writable]
        self._turn += 1
        if not names:
            return None
        name = names[self._turn % len(names)]
        address = owner_of(self._kernel, name, context, cluster=self._cluster)
        return None if address is None else await forward(self._runtime, address, data, context)

    async def _at_lite_owners(
        self, request: service_pb2.SendMessageRequest, data: bytes, context: RpcContext
    ) -> bytes | None:
        topic = request.messages[0].topic.name
        names = (message.system_properties.lite_topic for message in request.messages)
        owners = [
            owner_elsewhere(self._kernel, topic, name, context, cluster=self._cluster, lite=self._lite)
            for name in names
        ]
        if not any(owners):
            return None
        if len(set(owners)) == 1:
            address = owner_of(self._kernel, owners[0], context, cluster=self._cluster)
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
