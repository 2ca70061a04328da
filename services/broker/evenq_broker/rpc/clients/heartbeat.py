"""Heartbeat and NotifyClientTermination (wire contract 3.5, 3.6)."""

from __future__ import annotations

from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.groups.departures import Departures
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.rpc.answers import OK_STATUS, parsed
from evenq_broker.rpc.cluster.forwarding import MARK
from evenq_broker.runtime import Runtime


class Clients:
    """The handlers of Heartbeat and NotifyClientTermination."""

    def __init__(
        self, runtime: Runtime, *, clients: ConnectedClients, departures: Departures, sessions: Sessions
    ) -> None:
        self._runtime = runtime
        self._clients, self._departures, self._sessions = clients, departures, sessions

    async def heartbeat(self, data: bytes, context: RpcContext) -> bytes:
        """Returns OK, also for a new client and for one without an id."""
        request = parsed(service_pb2.HeartbeatRequest, data, context)
        client_id = context.client_id
        if client_id:
            group = request.group.name
            client = self._clients.table.seen(
                client_id,
                self._runtime.now_ms(),
                client_type=request.client_type,
                group=group,
                language=context.language,
            )
            if client.refused:
                return OK_STATUS
            if group:
                self._sessions.seen_v2(context, group, request.client_type, None)
            else:
                self._sessions.touched_v2(client_id)
        return OK_STATUS

    async def terminate(self, data: bytes, context: RpcContext) -> bytes:
        """Ends a client. With MARK the call comes from a broker of an older version, which sends it to all others."""
        parsed(service_pb2.NotifyClientTerminationRequest, data, context)
        client_id = context.client_id
        if client_id:
            self._sessions.left_v2(client_id)
            self._departures.goodbye(client_id, spread=MARK not in context.headers)
        return OK_STATUS
