"""The rebalancer as an object: settings, clock, lease, term, Kubernetes watch and listener.

`__main__` runs it alone, the quick start beside others. Only the holder of the lease decides, with the engine of its
own term; without a lease one term lasts as long as the process. After `close` no task of it runs, its ports are free
and its lease is released.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from evenq.errors import Error
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.auth.server_auth import Auth
from evenq.serving.front.front_metrics import front_metrics
from evenq.serving.front.grpc_servers import GrpcServers, open_grpc_servers, usual_addresses
from evenq.serving.front.port_openers import PORT_OPENERS, PortOpeners
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.program.metrics import call_metrics, exposition
from evenq.serving.program.page import MetricsPage
from evenq.serving.rpc import Rpc
from evenq_rebalancer.core.assignment_engine import AssignmentEngine
from evenq_rebalancer.core.decisions import Decision
from evenq_rebalancer.loops.debouncer import Debouncer
from evenq_rebalancer.loops.leading import UNKNOWN, Lease, LeaseCandidate, identity_of
from evenq_rebalancer.loops.leases import lease_of
from evenq_rebalancer.loops.topology import TopologyWatch, topology_of
from evenq_rebalancer.metrics import leading_metrics, metrics
from evenq_rebalancer.rpc.assignment import AssignmentService
from evenq_rebalancer.rpc.leader_gate import BEAT_MS, LeaderGate
from evenq_rebalancer.rpc.streams import ReportStreams
from evenq_rebalancer.settings import RebalancerSettings
from evenq_rebalancer.stats import RebalancerStats

log = logging.getLogger(__name__)


class Rebalancer:
    """One rebalancer on one event loop."""

    def __init__(
        self,
        settings: RebalancerSettings,
        *,
        clock: Clock,
        edges: PortOpeners = PORT_OPENERS,
        lease_of: Callable[[RebalancerSettings], Lease | None] = lease_of,
    ) -> None:
        """`lease_of` returns the lease of the settings; None: this rebalancer is the only one."""
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
        """Random per start: distinguishes processes that had the same address."""
        self._servers: GrpcServers | None = None
        self._page: MetricsPage | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._broken: asyncio.Future[None] | None = None

    @property
    def port(self) -> int:
        """The gRPC port, with TLS if there is no plain one; 0 before `start`."""
        return self._servers.port if self._servers else 0

    @property
    def address(self) -> str:
        """Address for brokers, after `start`: `host:port`, or `evenqs://host:port` with TLS."""
        assert self._servers is not None, "not started"
        settings = self.settings
        return self._servers.address(settings.host, tls=settings.tls.peers, advertise=settings.advertise)

    @property
    def metrics_port(self) -> int:
        """The HTTP port of metrics and health; 0 if there is none."""
        return self._page.port if self._page else 0

    @property
    def engine(self) -> AssignmentEngine:
        """Engine of the present term; empty while this process does not lead."""
        return self._term.engine

    @property
    def streams(self) -> ReportStreams:
        """Report streams of the present term."""
        return self._term.streams

    def leads(self) -> bool:
        """True while this process may decide."""
        return self._led and (self._leading is None or self._leading.leads())

    async def start(self) -> None:
        """Listens, and decides while leading. Raises PortInUse, SettingsError."""
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
        """Waits until a loop ends, which is always a bug, and raises its error."""
        assert self._broken is not None
        await asyncio.shield(self._broken)

    async def close(self) -> None:
        """Releases the lease and drains: running calls get `drain_ms`; brokers keep their last answers."""
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


class Term:
    """One term of leadership: a new engine with its loops, report streams and calls. `leads` is called before decisions
    are published.

    A leader uses only reports of its own term, so no state of an older term is mixed in.
    """

    def __init__(
        self,
        epoch: int,
        settings: RebalancerSettings,
        *,
        clock: Clock,
        stats: RebalancerStats,
        leads: Callable[[], bool],
    ) -> None:
        self.engine = AssignmentEngine(epoch=epoch, limits=settings.limits())
        self.streams = ReportStreams()
        self._clock = clock
        self._leads = leads
        self._debouncer = Debouncer(
            self.engine,
            clock=clock,
            stats=stats,
            debounce_ms=settings.debounce_ms,
            debounce_max_ms=settings.debounce_max_ms,
            publish=self._publish,
        )
        assignment = AssignmentService(self.engine, self.streams, clock=clock, poke=self._debouncer.poke)
        self.rpcs: dict[str, Rpc] = {rpc.method: rpc for rpc in assignment.rpcs()}
        """Calls by method."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> list[asyncio.Task[None]]:
        """Starts the loops; they never end by themselves."""
        self._tasks = [
            spawn(self._debouncer.run(), name="debouncer"),
            spawn(self._debouncer.watch(), name="debouncer by time"),
            spawn(self._beat(), name="signs of life"),
        ]
        return self._tasks

    def poke(self) -> None:
        """Requests a round after a change outside of the reports."""
        self._debouncer.poke()

    def end(self) -> None:
        """Ends the loops and all report streams."""
        for task in self._tasks:
            task.cancel()
        self.streams.end()

    def _publish(self, decisions: Sequence[Decision]) -> None:
        if self._leads():
            self.streams.publish(decisions)

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep_ms(BEAT_MS)
            if self._leads():
                self.streams.beat()
