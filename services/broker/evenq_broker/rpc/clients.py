"""Heartbeat and NotifyClientTermination (wire contract 3.5, 3.6): signs of life and of its end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from evenq.errors import Error
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq_broker.loops.liveness import end_client
from evenq_broker.rpc.answers import OK_STATUS, parsed
from evenq_broker.rpc.forwarding import forward, owner_of

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["Clients"]

log = logging.getLogger(__name__)


class Clients:
    """The handlers about clients themselves."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def heartbeat(self, request: bytes, context: RpcContext) -> bytes:
        """Always OK, also for a client never seen before and for one without an id."""
        asked = parsed(service_pb2.HeartbeatRequest, request, context)
        client_id = context.client_id
        if client_id:
            group = asked.group.name
            self._broker.clients.seen(client_id, self._broker.now_ms(), client_type=asked.client_type, group=group)
            if group:
                self._broker.sessions.seen_v2(context, group, asked.client_type, None)
            else:
                self._broker.sessions.touched_v2(client_id)
        return OK_STATUS

    async def terminate(self, request: bytes, context: RpcContext) -> bytes:
        """The client ends: its polls end now, what it held is visible within about a second."""
        parsed(service_pb2.NotifyClientTerminationRequest, request, context)
        client_id = context.client_id
        if client_id:
            self._broker.sessions.left_v2(client_id)
            end_client(self._broker, client_id)
            # Rust tells its access point only (wire contract 3.2), and so does who knows no more than one address.
            if context.language == "RUST" or self._broker.any_broker(context):
                self._broker.spawn(self._tell_others(request, context), name="pass on a termination")
        return OK_STATUS

    async def _tell_others(self, request: bytes, context: RpcContext) -> None:
        for peer in self._broker.cluster.peers():
            address = owner_of(self._broker, peer.name, context)
            if address is None:
                continue
            try:
                await forward(self._broker, address, request, context)
            except Error as error:
                log.info("termination not passed on", extra={"broker": peer.name, "error": str(error)})
