"""The nameserver as an object: the quick start runs it inside its own process, `__main__` runs it alone.

`start` returns when calls are served. `close` ends the watches with an error, so that watchers call another nameserver.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.auth.server_auth import Auth
from evenq.serving.front.front_metrics import front_metrics
from evenq.serving.front.grpc_servers import GrpcServers, open_grpc_servers, usual_addresses
from evenq.serving.front.port_openers import PORT_OPENERS, PortOpeners
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.program.metrics import call_metrics, exposition
from evenq.serving.program.page import MetricsPage
from evenq_nameserver.loops.expiry import expire_forever
from evenq_nameserver.metrics import metrics
from evenq_nameserver.rpc.registry import RegistryService
from evenq_nameserver.settings import NameserverSettings
from evenq_nameserver.stats import NameserverStats

log = logging.getLogger(__name__)


class Nameserver:
    """One nameserver, independent of all others (NS-2)."""

    def __init__(
        self, settings: NameserverSettings, *, clock: Clock, rng: random.Random, edges: PortOpeners = PORT_OPENERS
    ) -> None:
        self.settings = settings
        self.identity = f"{rng.getrandbits(64):016x}"
        """Random per start: route versions of two nameservers, or of two starts of one, are not comparable."""
        self._clock = clock
        self._edges = edges
        self._auth = Auth(settings.auth, clock=clock, plain=settings.port >= 0)
        self._stats = NameserverStats()
        self._service: RegistryService | None = None
        self._servers: GrpcServers | None = None
        self._page: MetricsPage | None = None
        self._expiry: asyncio.Task[Any] | None = None

    @property
    def port(self) -> int:
        """The gRPC port, with TLS if there is no plain one; after `start`."""
        assert self._servers is not None, "not started"
        return self._servers.port

    @property
    def address(self) -> str:
        """Address for brokers, after `start`: `host:port`, or `evenqs://host:port` with TLS."""
        assert self._servers is not None, "not started"
        return self._servers.address(self.settings.host, tls=self.settings.tls.peers)

    @property
    def metrics_port(self) -> int:
        """HTTP port, after `start`; -1 if there is none."""
        return self._page.port if self._page is not None else -1

    async def start(self) -> None:
        """Listens (NS-3). Raises PortInUse, SettingsError."""
        settings = self.settings
        service = RegistryService(settings=settings, clock=self._clock, identity=self.identity, stats=self._stats)
        rpcs = self._auth.rpcs(service.rpcs())
        places = usual_addresses(settings.host, settings.port, settings.tls)
        options = GrpcServerOptions(front=settings.front, limits=settings.front_limits.limits())
        servers = await open_grpc_servers(
            rpcs, places, settings.tls, clock=self._clock, options=options, edges=self._edges
        )
        self._service, self._servers = service, servers
        self._auth.start()
        expiry = expire_forever(
            service.registry,
            service.announce,
            service.settled,
            expiry_ms=settings.expiry_ms,
            clock=self._clock,
            stats=self._stats,
        )
        self._expiry = spawn(expiry, name="expiry")
        listed = [*metrics(service, self._stats), *call_metrics(servers.stats), *front_metrics(lambda: servers.totals)]
        try:
            constant = {"cluster": settings.cluster, "node_type": "nameserver", "node_id": self.identity}
            self._page = await self._edges.open_page(
                host=settings.host,
                port=settings.metrics_port,
                metrics=lambda: exposition(listed, constant),
                ready=lambda: servers.serving,
            )
        except BaseException:
            await self.close()
            raise
        fields = {"address": self.address, "metrics_port": self.metrics_port}
        log.info("nameserver ready", extra={**fields, "nameserver": self.identity})

    async def run(self, stop: asyncio.Event) -> None:
        """Starts, waits for `stop`, and closes. Raises the error of the expiry loop if it fails."""
        await self.start()
        try:
            assert self._expiry is not None
            waiting = spawn(stop.wait(), name="stop")
            await asyncio.wait((waiting, self._expiry), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self._expiry.done():
                self._expiry.result()
        finally:
            await self.close()

    async def close(self) -> None:
        """Stops serving; running calls get `drain_ms`. May be called twice."""
        if self._expiry is not None:
            self._expiry.cancel()
        await self._auth.close()
        if self._service is not None:
            self._service.close()
        if self._servers is not None:
            await self._servers.stop(self.settings.drain_ms)
        if self._page is not None:
            await self._page.close()
