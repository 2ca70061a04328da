"""One rebalancer, wired: settings, clock, lease, the term it leads, the watch over Kubernetes, and the door.

`__main__` runs it alone, the quick start beside others. Always true: only who holds the lease decides, with the board
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
from evenq.serving.auth import Auth
from evenq.serving.door import DoorOptions
from evenq.serving.doors import Doors, open_doors, usual_places
from evenq.serving.edges import EDGES, Edges
from evenq.serving.front_metrics import front_metrics
from evenq.serving.metrics import door_metrics, exposition
from evenq.serving.page import Page
from evenq_rebalancer.core.board import Board
from evenq_rebalancer.loops.leading import UNKNOWN, Leading, Lease, identity_of
from evenq_rebalancer.loops.leases import lease_of
from evenq_rebalancer.loops.topology import TopologyWatch, topology_of
from evenq_rebalancer.metrics import leading_metrics, metrics
from evenq_rebalancer.rpc.leadership import Doorkeeper
from evenq_rebalancer.rpc.streams import Streams
from evenq_rebalancer.settings import Settings
from evenq_rebalancer.stats import Stats
from evenq_rebalancer.term import Term

__all__ = ["Rebalancer"]

log = logging.getLogger(__name__)


class Rebalancer:
    """The program as an object. Belongs to one event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        edges: Edges = EDGES,
        lease_of: Callable[[Settings], Lease | None] = lease_of,
    ) -> None:
        """`lease_of`: the lease that the settings name; None: this rebalancer is the only one."""
        self.settings = settings
        self.stats = Stats()
        self._clock = clock
        self._edges = edges
        self._auth = Auth(settings.auth, clock=clock, plain=settings.port >= 0)
        self._lease = lease_of(settings)
        self._leading: Leading | None = None
        self._topology: TopologyWatch | None = topology_of(settings, clock=clock, changed=self._places_changed)
        self._term = self._new_term(clock.now_ms())
        self._led = False
        self._nonce = f"{random.SystemRandom().getrandbits(48):012x}"
        """Random per start: tells two lives of one address apart."""
        self._doors: Doors | None = None
        self._page: Page | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._broken: asyncio.Future[None] | None = None

    @property
    def port(self) -> int:
        """The gRPC port that is listened on, that with TLS if there is no plain one; 0 before `start`."""
        return self._doors.port if self._doors else 0

    @property
    def address(self) -> str:
        """What brokers are given, after `start`: `host:port`, or `evenqs://host:port` where it is with TLS."""
        assert self._doors is not None, "not started"
        settings = self.settings
        return self._doors.address(settings.host, tls=settings.tls.peers, advertise=settings.advertise)

    @property
    def metrics_port(self) -> int:
        """The HTTP port of metrics and health; 0 if there is none."""
        return self._page.port if self._page else 0

    @property
    def board(self) -> Board:
        """Of the present term; empty while this process does not lead."""
        return self._term.board

    @property
    def streams(self) -> Streams:
        """Report streams of the present term."""
        return self._term.streams

    def leads(self) -> bool:
        """True while this process may decide."""
        return self._led and (self._leading is None or self._leading.leads())

    async def start(self) -> None:
        """Listen, and decide while leading. Raises PortInUse, SettingsError."""
        settings = self.settings
        self._broken = asyncio.get_running_loop().create_future()
        keeper = Doorkeeper(term=lambda: self._term.rpcs if self.leads() else None, leader=self._leader)
        rpcs = self._auth.rpcs(keeper.rpcs(self._term.rpcs))
        places = usual_places(settings.host, settings.port, settings.tls)
        options = DoorOptions(front=settings.front, limits=settings.front_limits.limits())
        doors = await open_doors(rpcs, places, settings.tls, clock=self._clock, options=options, edges=self._edges)
        self._doors = doors
        self._auth.start()
        try:
            self._page = await self._edges.open_page(
                host=settings.host,
                port=settings.metrics_port,
                metrics=self._metrics,
                ready=lambda: doors.serving,
            )
        except BaseException:
            await self.close()
            raise
        if self._topology is not None:
            self._topology.start()
        self._campaign()
        log.info(
            "rebalancer serves", extra={"host": settings.host, "port": self.port, "metrics_port": self.metrics_port}
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
        if self._doors is not None:
            await self._doors.stop(self.settings.drain_ms)
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
        self._leading = Leading(
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
            term.board.facts.set_places(self._topology.zone_of, self._topology.place_of)
        return term

    def _places_changed(self, addresses: frozenset[str] | None) -> None:
        self._term.board.facts.places_changed(addresses)
        self._term.poke()

    def _leader(self) -> str:
        return self._leading.leader() if self._leading is not None else UNKNOWN

    def _metrics(self) -> bytes:
        stats = self._doors.stats() if self._doors else {}
        listed = [
            *metrics(self.board, self.stats, self.streams),
            *leading_metrics(leads=self.leads, transitions=lambda: self._leading.transitions if self._leading else 0),
            *door_metrics(lambda: stats),
            *front_metrics(lambda: self._doors.totals if self._doors else []),
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
