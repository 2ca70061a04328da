"""One rebalancer, wired: settings, clock, lease, the term it leads, the watch over Kubernetes, and the listener.

`__main__` runs it alone, the quick start beside others. Always true: only who holds the lease decides, with the engine
of its own term; without a lease this is one term that lasts as long as the process. After `close` nothing of it runs,
its ports are free and its lease is given back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.auth.server_auth import Auth
from evenq.serving.front.edges import EDGES, Edges
from evenq.serving.front.front_metrics import front_metrics
from evenq.serving.front.grpc_servers import GrpcServers, open_grpc_servers, usual_addresses
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.program.metrics import call_metrics, exposition
from evenq.serving.program.page import MetricsPage
from evenq_rebalancer.core.assignment_engine import AssignmentEngine
from evenq_rebalancer.loops.leading import UNKNOWN, Lease, LeaseCandidate, identity_of
from evenq_rebalancer.loops.leases import lease_of
from evenq_rebalancer.loops.topology import TopologyWatch, topology_of
from evenq_rebalancer.metrics import leading_metrics, metrics
from evenq_rebalancer.rpc.leader_gate import LeaderGate
from evenq_rebalancer.rpc.streams import ReportStreams
from evenq_rebalancer.settings import RebalancerSettings
from evenq_rebalancer.stats import RebalancerStats
from evenq_rebalancer.term import Term

__all__ = ["Rebalancer"]

log = logging.getLogger(__name__)


class Rebalancer:
    """The program as an object. Belongs to one event loop."""

    def __init__(
        self,
        settings: RebalancerSettings,
        *,
        clock: Clock,
        edges: Edges = EDGES,
        lease_of: Callable[[RebalancerSettings], Lease | None] = lease_of,
    ) -> None:
        """`lease_of`: the lease that the settings name; None: this rebalancer is the only one."""
        self.settings = settings
        self.stats = RebalancerStats()
        self._clock = clock
        self._edges = edges
        self._auth = Auth(settings.auth, clock=clock, plain=settings.port >= 0)
        self._lease = lease_of(settings)
        self._leading: LeaseCandidate | None = None
        self._topology: TopologyWatch | None = topology_of(settings, clock=clock, changed=self._places_changed)
        self._term = self._new_term(clock.now_ms())
        self._led = False
        self._nonce = f"{random.SystemRandom().getrandbits(48):012x}"
        """Random per start: tells two lives of one address apart."""
        self._servers: GrpcServers | None = None
        self._page: MetricsPage | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._broken: asyncio.Future[None] | None = None

    @property
    def port(self) -> int:
        """The gRPC port that is listened on, that with TLS if there is no plain one; 0 before `start`."""
        return self._servers.port if self._servers else 0

    @property
    def address(self) -> str:
        """What brokers are given, after `start`: `host:port`, or `evenqs://host:port` where it is with TLS."""
        assert self._servers is not None, "not started"
        settings = self.settings
        return self._servers.address(settings.host, tls=settings.tls.peers, advertise=settings.advertise)

    @property
    def metrics_port(self) -> int:
        """The HTTP port of metrics and health; 0 if there is none."""
        return self._page.port if self._page else 0

    @property
    def engine(self) -> AssignmentEngine:
        """Of the present term; empty while this process does not lead."""
        return self._term.engine

    @property
    def streams(self) -> ReportStreams:
        """Report streams of the present term."""
        return self._term.streams

    def leads(self) -> bool:
        """True while this process may decide."""
        return self._led and (self._leading is None or self._leading.leads())

    async def start(self) -> None:
        """Listen, and decide while leading. Raises PortInUse, SettingsError."""
        settings = self.settings
        self._broken = asyncio.get_running_loop().create_future()
        leader_gate = LeaderGate(term=lambda: self._term.rpcs if self.leads() else None, leader=self._leader)
        rpcs = self._auth.rpcs(leader_gate.rpcs(self._term.rpcs))
        places = usual_addresses(settings.host, settings.port, settings.tls)
        options = GrpcServerOptions(front=settings.front, limits=settings.front_limits.limits())
        servers = await open_grpc_servers(
            rpcs, places, settings.tls, clock=self._clock, options=options, edges=self._edges
        )
        self._servers = servers
        self._auth.start()
        try:
            self._page = await self._edges.open_page(
                host=settings.host,
                port=settings.metrics_port,
                metrics=self._metrics,
                ready=lambda: servers.serving,
            )
        except BaseException:
            await self.close()
            raise
        if self._topology is not None:
            self._topology.start()
        self._campaign()
        log.info(
            "rebalancer listens at %s:%d",
            settings.host,
            self.port,
            extra={"host": settings.host, "port": self.port, "metrics_port": self.metrics_port},
        )

    async def wait(self) -> None:
        """Until a loop ends, which only a mistake of ours makes it do; then raises what ended it."""
        assert self._broken is not None
        await asyncio.shield(self._broken)

    async def close(self) -> None:
        """Let go of the lease, then drain: report streams end at once (brokers keep their answers), running calls
        within `drain_ms`.
        """
        if self._leading is not None:
            await self._leading.resign()
        if self._topology is not None:
            self._topology.stop()
        if self._servers is not None:
            await self._servers.stop(self.settings.drain_ms)
        if self._page is not None:
            await self._page.close()
        await self._auth.close()
        tasks, self._tasks = list(self._tasks), set()
        self._term.end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- inside

    def _campaign(self) -> None:
        if self._lease is None:
            self._began(self._clock.now_ms())
            return
        self._leading = LeaseCandidate(
            self._lease,
            identity=identity_of(self.address, self._nonce),
            timing=self.settings.timing(),
            clock=self._clock,
            began=self._began,
            ended=self._ended,
        )
        self._keep(spawn(self._leading.run(), name="leading"))
        self._keep(spawn(self._leading.watch(), name="leading by time"))

    def _began(self, epoch: int) -> None:
        self._term.end()
        self._term = self._new_term(epoch)
        self._led = True
        for task in self._term.start():
            self._keep(task)

    def _ended(self) -> None:
        self._led = False
        self._term.end()
        self._term = self._new_term(self._clock.now_ms())

    def _new_term(self, epoch: int) -> Term:
        term = Term(epoch, self.settings, clock=self._clock, stats=self.stats, leads=self.leads)
        if self._topology is not None:
            term.engine.facts.set_places(self._topology.zone_of, self._topology.place_of)
        return term

    def _places_changed(self, addresses: frozenset[str] | None) -> None:
        self._term.engine.facts.places_changed(addresses)
        self._term.poke()

    def _leader(self) -> str:
        return self._leading.leader() if self._leading is not None else UNKNOWN

    def _metrics(self) -> bytes:
        stats = self._servers.stats() if self._servers else {}
        listed = [
            *metrics(self.engine, self.stats, self.streams),
            *leading_metrics(leads=self.leads, transitions=lambda: self._leading.transitions if self._leading else 0),
            *call_metrics(lambda: stats),
            *front_metrics(lambda: self._servers.totals if self._servers else []),
        ]
        constant = {"cluster": self.settings.cluster, "node_type": "rebalancer", "node_id": self._nonce}
        return exposition(listed, constant)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._broken is None or self._broken.done():
            return
        error = task.exception()
        self._broken.set_exception(error if error is not None else Error(f"the loop {task.get_name()!r} ended"))
