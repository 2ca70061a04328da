"""Heartbeat and NotifyClientTermination (wire contract 3.5, 3.6): signs of life and of its end."""

from __future__ import annotations

import logging

from evenq.errors import Error
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.rpc.answers import OK_STATUS, parsed
from evenq_broker.rpc.cluster.forwarding import forward, owner_of
from evenq_broker.runtime import Runtime

__all__ = ["Clients"]

log = logging.getLogger(__name__)


class Clients:
    """The handlers about clients themselves."""

    def __init__(
        self,
        runtime: Runtime,
        catalog: Catalog,
        *,
        cluster: ClusterLink,
        clients: ConnectedClients,
        sessions: Sessions,
    ) -> None:
        self._runtime, self._catalog = runtime, catalog
        self._cluster, self._clients, self._sessions = cluster, clients, sessions

    async def heartbeat(self, data: bytes, context: RpcContext) -> bytes:
        """Always OK, also for a client never seen before and for one without an id."""
        request = parsed(service_pb2.HeartbeatRequest, data, context)
        client_id = context.client_id
        if client_id:
            group = request.group.name
            self._clients.table.seen(client_id, self._runtime.now_ms(), client_type=request.client_type, group=group)
            if group:
                self._sessions.seen_v2(context, group, request.client_type, None)
            else:
                self._sessions.touched_v2(client_id)
        return OK_STATUS

    async def terminate(self, data: bytes, context: RpcContext) -> bytes:
        """The client ends: its polls end now, what it held is visible within about a second."""
        parsed(service_pb2.NotifyClientTerminationRequest, data, context)
        client_id = context.client_id
        if client_id:
            self._sessions.left_v2(client_id)
            self._clients.end(client_id)
            self._clients.table.goodbye(client_id, self._runtime.now_ms())
            # Rust tells its access point only (wire contract 3.2), and so does who knows no more than one address.
            if context.language == "RUST" or self._cluster.leads_anywhere(context):
                self._runtime.spawn(self._tell_others(data, context), name="pass on a termination")
        return OK_STATUS

    async def _tell_others(self, data: bytes, context: RpcContext) -> None:
        for peer in self._cluster.peers.all():
            address = owner_of(self._runtime, self._catalog, peer.name, context, cluster=self._cluster)
            if address is None:
                continue
            try:
                await forward(self._runtime, address, data, context)
            except Error as error:
                log.info("end of a client not forwarded to broker %s: %s", peer.name, error.message)
