"""The other brokers of the cluster, and calls to them. Each call has a deadline; answers name silent peers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from evenq.errors import ConnectionFailed, Error
from evenq_broker.core.cluster.routes import RegisteredBroker, RouteTable
from evenq_broker.runtime import Runtime

log = logging.getLogger(__name__)

PAUSE_MS = 300
"""Longer than the time after which a rejected connection is tried again (`evenq.wire.net`)."""


class Peers:
    """The other live brokers, as the routes have them."""

    def __init__(self, runtime: Runtime, routes: RouteTable) -> None:
        self._runtime, self._routes = runtime, routes
        self._settings = runtime.settings

    def all(self) -> list[RegisteredBroker]:
        """Returns all other live brokers, ascending by name."""
        own = self._settings.broker_name
        return [view for view in self._routes.brokers() if view.name != own and view.broker_id == 0]

    def address_of(self, peer: RegisteredBroker) -> str:
        """Returns the address of another broker, as the net takes it."""
        return peer.peer_address(tls=self._settings.tls.peers).address

    async def ask_peers(
        self, method: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> list[tuple[str, bytes | Error]]:
        """Calls all other brokers in parallel with a repeatable request; returns each name with answer or error."""
        peers = self.all()
        answers = await asyncio.gather(*(self._ask(peer, method, request, metadata) for peer in peers))
        return [(peer.name, result) for peer, result in zip(peers, answers, strict=True)]

    async def ask(
        self,
        broker_name: str,
        method: str,
        request: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        repeatable: bool = False,
        leaving: bool = False,
    ) -> bytes:
        """Calls one other broker. A `repeatable` request is sent once more after `PAUSE_MS`, for a broker that just
        came back. `leaving`: also one that has left the routes lately and may still answer. Raises ConnectionFailed
        (also for an unknown broker), RequestTimeout.
        """
        routes = self._routes
        now_ms = self._runtime.clock.monotonic_ms()
        view = routes.reachable(broker_name, now_ms) if leaving else routes.broker(broker_name)
        if view is None:
            raise ConnectionFailed(
                f"broker {broker_name!r} is not alive: no nameserver knows it; query the route again"
            )
        address = self.address_of(view)
        try:
            return await self._call(address, method, request, metadata)
        except ConnectionFailed:
            if not repeatable:
                raise
        await self._runtime.clock.sleep_ms(PAUSE_MS)
        return await self._call(address, method, request, metadata)

    async def _call(self, address: str, method: str, request: bytes, metadata: Mapping[str, str] | None) -> bytes:
        return await self._runtime.net.unary(
            address, method, request, timeout_ms=self._settings.peer_timeout_ms, metadata=metadata
        )

    async def _ask(
        self, peer: RegisteredBroker, method: str, request: bytes, metadata: Mapping[str, str] | None
    ) -> bytes | Error:
        try:
            return await self.ask(peer.name, method, request, metadata=metadata, repeatable=True)
        except Error as error:
            log.warning("broker %s does not answer %s: %s", peer.name, method, error.message, extra={"peer": peer.name})
            return error
