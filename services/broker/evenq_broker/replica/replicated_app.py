"""A broker that is one copy of its group, as an object: it follows, leads for terms, and follows again.

It always listens for the other copies at a separate port, and shows one page of metrics and health. `composition`
builds its parts; this module starts them, and ends them in order.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial
from typing import Any

from evenq.model import Listener
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.runtime.tasks import spawn
from evenq.serving.auth.server_auth import Auth
from evenq.serving.front.grpc_servers import GrpcServers, ListenAddress, open_grpc_servers
from evenq.serving.front.port_openers import PORT_OPENERS, PortOpeners
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.program.page import MetricsPage
from evenq_broker.app import BrokerApp
from evenq_broker.core.replication.disk_messages import copy_ends
from evenq_broker.core.replication.record import NO_LEADER
from evenq_broker.replica.composition import CopyParts
from evenq_broker.replica.copy_log import ReplicaMachine, load_identity
from evenq_broker.runtime import Runtime
from evenq_broker.settings import BrokerSettings

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 2 << 20
"""Largest message between copies; larger groups of records are sent in pieces."""


class ReplicatedApp:
    """One running copy. Belongs to one event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock,
        rng: random.Random,
        net: Net,
        edges: PortOpeners = PORT_OPENERS,
        machine: ReplicaMachine | None = None,
    ) -> None:
        """`machine` replaces the data folder and the place of the group record in the settings."""
        self.settings, self._clock, self._rng, self._net = settings, clock, rng, net
        self._edges, self._machine = edges, machine or ReplicaMachine()
        self._auth = Auth(settings.auth, clock=clock, plain=settings.tls.certificate is None)
        self._parts: CopyParts | None = None
        self._servers: GrpcServers | None = None
        self._page: MetricsPage | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._stopping = False

    @property
    def parts(self) -> CopyParts:
        """The parts; exist after `start`."""
        assert self._parts is not None
        return self._parts

    async def start(self) -> None:
        """Starts to follow or to lead. Raises StoreLocked, StoreCorrupted, StoreError, PortInUse, SettingsError; then
        nothing of it keeps running.
        """
        try:
            await self._start()
        except BaseException:
            if self._parts is not None:
                await self._parts.log.forget_group()
            await self.close()
            raise

    async def _start(self) -> None:
        settings, clock, rng, net, edges = self.settings, self._clock, self._rng, self._net, self._edges
        identity = await load_identity(settings, self._machine)
        runtime = Runtime(settings, clock=clock, rng=rng, net=self._auth.net(net))
        runtime.begin(())
        new_broker = partial(BrokerApp, clock=clock, rng=rng, net=net, edges=edges, disk=self._machine.disk)
        parts = self._parts = CopyParts(runtime, self._machine, identity, new_broker)
        driver = parts.driver
        await parts.log.open(parts.place.coordinator)
        await self._listen(parts)
        await parts.forwarding.open()
        self._page = await edges.open_page(
            host=settings.host,
            port=settings.metrics_port,
            metrics=parts.metrics,
            ready=lambda: not parts.readiness.why_not(),
            why=parts.readiness.why_not,
            queues=parts.queue_metrics,
        )
        parts.links.start()
        assert runtime.failed is not None
        runtime.failed.add_done_callback(lambda failed: None if failed.cancelled() else driver.fail(failed.result()))
        driver.start()
        for loop in parts.loops():
            self._tasks.append(spawn(loop, name="replica log"))
            self._tasks[-1].add_done_callback(driver.ended)
        log.info(
            "broker %d of group %s follows or leads",
            settings.replication.broker_id,
            settings.broker_name,
            extra={"broker": settings.broker_name, "members": settings.replication.members},
        )

    async def _listen(self, parts: CopyParts) -> None:
        settings, own = self.settings, self.settings.replication
        port = own.port or int(own.addresses[own.broker_id].rpartition(":")[2])
        listener = Listener("replication", tls=settings.tls.peers)
        self._auth.start()
        self._servers = await open_grpc_servers(
            self._auth.rpcs(parts.rpcs()),
            [ListenAddress(listener, own.host or settings.host, port)],
            settings.tls,
            clock=self._clock,
            options=GrpcServerOptions(receive_bytes_max=REQUEST_BYTES_MAX),
            edges=self._edges,
        )

    async def wait(self) -> None:
        """Waits until only a restart helps; then raises the reason."""
        error = await asyncio.shield(self.parts.driver.failed)
        raise copy_ends(error, self.settings.broker_name, self.settings.replication.broker_id)

    async def close(self) -> None:
        """Hands over to another copy if this one leads, then ends. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        if self._parts is not None:
            await self._end(self._parts)
        await self._auth.close()

    async def _end(self, parts: CopyParts) -> None:
        driver = parts.driver
        parts.readiness.stopping = True
        if not driver.failed.done() and driver.leads:
            handed = await driver.drain()
            if handed.leader == NO_LEADER:
                log.warning("no other copy took over", extra={"broker": self.settings.broker_name})
        whole = not driver.failed.done()  # it may have failed meanwhile
        await parts.forwarding.drain(leads_elsewhere=whole and not driver.leads)
        await driver.close()
        await parts.forwarding.leave()
        await parts.links.close()  # otherwise the next leader would wait for this copy, which was in sync
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await parts.log.close(clean=whole)
        if self._servers is not None:
            await self._servers.stop(0)
        if self._page is not None:
            await self._page.close()
        await parts.place.close()
