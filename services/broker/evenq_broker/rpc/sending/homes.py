"""Messages with a message group go to the group's home broker, whichever broker their producer chose (checklist 21).

The SDKs hash groups differently, so only the servers can keep one order for all of them. One hop; a message that was
passed on is stored where it came. A home that does not answer fails the send: the producer tries again, and the order
stands. Called by `rpc.sending.send` for topics that take ordered messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.model.lanes import home_of
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.core.state.frames import field
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.rpc.answers import OK_STATUS, parsed, several
from evenq_broker.rpc.cluster.forwarding import forward, owner_of
from evenq_broker.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Homes"]


class Homes:
    """The homes of message groups."""

    def __init__(
        self,
        runtime: Runtime,
        catalog: Catalog,
        send: Callable[[bytes, RpcContext], Awaitable[bytes]],
        *,
        cluster: ClusterLink,
    ) -> None:
        self._runtime, self._catalog = runtime, catalog
        self._cluster = cluster
        self._send = send

    async def elsewhere(
        self, request: service_pb2.SendMessageRequest, data: bytes, context: RpcContext
    ) -> bytes | None:
        """The answer, if some of the messages belong to other brokers; None: store them here."""
        if self._runtime.settings.message_group_home != "cluster":
            return None
        topic = request.messages[0].topic.name
        names = [at.broker.name for at in self._catalog.routes.route(topic) if at.counts.permission.writable]
        if len(names) < 2:
            return None
        addresses = [
            owner_of(self._runtime, self._catalog, home_of(group, names), context, cluster=self._cluster)
            if (group := message.system_properties.message_group)
            else None
            for message in request.messages
        ]
        first = addresses[0]
        if all(address == first for address in addresses):
            return None if first is None else await forward(self._runtime, first, data, context)
        return await self._apart(request, addresses, context)

    async def _apart(
        self, request: service_pb2.SendMessageRequest, addresses: list[str | None], context: RpcContext
    ) -> bytes:
        """A list for several homes: one call for each, one answer."""
        entries: list[service_pb2.SendResultEntry | None] = [None] * len(addresses)
        for address in dict.fromkeys(addresses):
            places = [at for at, owner in enumerate(addresses) if owner == address]
            part = service_pb2.SendMessageRequest(messages=[request.messages[at] for at in places]).SerializeToString()
            if address is None:
                data = await self._send(part, context)
            else:
                data = await forward(self._runtime, address, part, context)
            response = parsed(service_pb2.SendMessageResponse, data)
            for at, entry in zip(places, response.entries, strict=True):
                entries[at] = entry
        sent = [entry for entry in entries if entry is not None]
        frames = b"".join(field(2, entry.SerializeToString()) for entry in sent)
        bad = [entry.status for entry in sent if entry.status.code != definition_pb2.OK]
        if not bad:
            return OK_STATUS + frames
        same = len(bad) == len(sent) and len({status.code for status in bad}) == 1
        return field(1, bad[0].SerializeToString() if same else several()) + frames
