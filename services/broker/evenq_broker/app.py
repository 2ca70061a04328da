"""One broker as an object with ports. `__main__` runs one; the quick start runs several in one process.

Start: open the store, bind the servers (bound ports are advertised), start the loops, open the page, report ready.
Close: report not ready, leave the routes, deliver nothing more; then, within `drain_ms`, wait until members have handed
over their queues, v2 clients have acknowledged their messages and calls have ended; then end loops, flush the store.
Invariant: after `close` nothing of it runs, and its ports and data folder are free.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from evenq.runtime.accelerator import accelerator
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.serving.auth.server_auth import Auth
from evenq.serving.front.front_metrics import front_metrics
from evenq.serving.front.grpc_servers import GrpcServers, ListenAddress, open_grpc_servers, usual_addresses
from evenq.serving.front.health import LIVENESS
from evenq.serving.front.port_openers import PORT_OPENERS, PortOpeners
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.http2.limits import Totals
from evenq.serving.latency import MethodStats
from evenq.serving.program.metrics import Metric, call_metrics, exposition, gathered
from evenq.serving.program.page import MetricsPage
from evenq.store.io.disk import Disk
from evenq_broker.broker import Broker
from evenq_broker.core.cluster.listeners import advertised, parse_listeners
from evenq_broker.core.replication.disk_messages import lead_elsewhere
from evenq_broker.loops.replication.identity import must_be_alone
from evenq_broker.metrics.backlog_metrics import single_queue_metrics
from evenq_broker.metrics.broker_metrics import broker_metrics, constant_labels
from evenq_broker.runtime import ONE_COPY, Leadership
from evenq_broker.settings import BrokerSettings

log = logging.getLogger(__name__)

LAST_CALLS_MS = 1_000
REQUEST_ROOM = 4 << 20
"""Bytes of a request beyond the largest body: properties, and the other messages of a batch."""


def client_addresses(settings: BrokerSettings) -> list[ListenAddress]:
    addresses = usual_addresses(settings.host, settings.port, settings.tls)
    return addresses + [ListenAddress(*spot) for spot in parse_listeners(settings.listeners)]


async def nothing() -> None:
    """Does nothing: no other part uses the ports."""


class BrokerApp:
    """One running broker. Belongs to one event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock,
        rng: random.Random,
        net: Net,
        edges: PortOpeners = PORT_OPENERS,
        disk: Disk | None = None,
        leadership: Leadership | None = None,
        before_listening: Callable[[], Coroutine[Any, Any, None]] = nothing,
        after_listening: Callable[[], Coroutine[Any, Any, None]] = nothing,
    ) -> None:
        """`disk` replaces the data folder of the settings. With a `leadership` this is one term of a replica, which
        opens the page itself and may use the ports until `before_listening` and again from `after_listening` on.
        Raises SettingsError if EVENQ_NATIVE requires an accelerator that is not there.
        """
        accelerator().must_be_right()
        self._before_listening, self._after_listening = before_listening, after_listening
        self.settings = settings
        plain = settings.port >= 0 or any(not listener.tls for listener, *_ in parse_listeners(settings.listeners))
        self._auth = Auth(settings.auth, clock=clock, plain=plain)
        self._is_alone = leadership is None
        self.broker = Broker(
            settings,
            clock=clock,
            rng=rng,
            net=self._auth.net(net),
            disk=disk,
            leadership=leadership or ONE_COPY,
            users=self._auth.users,
        )
        self._clock = clock
        self._edges = edges
        self._servers: GrpcServers | None = None
        self._page: MetricsPage | None = None
        self._ready = False
        self._isolation = ""
        """Reason why nothing can be committed here; empty: it can."""

    @property
    def port(self) -> int:
        """The gRPC port, the one with TLS if there is no plain one; 0 before `start`."""
        return self._servers.port if self._servers else 0

    def port_of(self, listener: str) -> int:
        """Returns the port of a listener (`default`, `tls`, or a name in `listeners`); 0 if there is none."""
        return self._servers.port_of(listener) if self._servers else 0

    @property
    def metrics_port(self) -> int:
        """The HTTP port of metrics and health; 0 if there is none."""
        return self._page.port if self._page is not None else 0

    async def start(self) -> None:
        """Starts to serve. Raises StoreLocked, StoreCorrupted, PortInUse, SettingsError; then nothing of it runs."""
        try:
            await self._start()
        except BaseException:
            await self.close(drain_ms=0)  # delivered messages cannot be acknowledged here any more
            raise

    async def _start(self) -> None:
        settings = self.settings
        if self._is_alone:
            must_be_alone(settings.store.path)
        await self.broker.open()
        rpcs = self._auth.rpcs(self.broker.rpcs())
        # A waiting poll was allowed by the grants at its start: the client polls again and is checked anew.
        self._auth.on_change = self.broker.long_polls.answer_all
        self._auth.start()
        options = GrpcServerOptions(
            front=settings.front,
            limits=settings.front_limits.limits(),
            receive_bytes_max=settings.body_bytes_max + REQUEST_ROOM,
            running_max=settings.calls_max,
        )
        places = client_addresses(settings)
        # After the log is open: until then a replica's forwarder holds connections (decision 83).
        await self._before_listening()
        servers = await open_grpc_servers(
            rpcs, places, settings.tls, clock=self._clock, options=options, edges=self._edges
        )
        self._servers = servers
        self._tell_health()  # the servers answer from now on, but clients should not connect yet
        hosts = {address.listener.name: address.host for address in places}
        addresses = advertised(
            settings.advertise,
            servers.ports,
            hosts=hosts,
            peers_tls=settings.tls.peers,
            broker_name=settings.broker_name,
        )
        await self.broker.start(addresses)
        assert self.broker.runtime.failed is not None
        self.broker.runtime.failed.add_done_callback(self._broke)
        if self._is_alone:
            self._page = await self._edges.open_page(
                host=settings.host,
                port=settings.metrics_port,
                metrics=lambda: exposition(self.metrics(), constant_labels(self.broker.runtime)),
                ready=lambda: not self.why_not_ready(),
                why=self.why_not_ready,
                queues=self.queue_metrics,
            )
        self._ready = True
        self.broker.ledger.store.on_full = self._on_full
        self._on_full()
        log.info("broker serves", extra={"broker": settings.broker_name, "host": settings.host, "port": self.port})

    async def wait(self) -> None:
        """Waits until a loop or the store of the broker fails; then raises that error."""
        assert self.broker.runtime.failed is not None, "wait() comes after start()"
        raise await self.broker.runtime.failed

    async def close(self, drain_ms: int | None = None) -> None:
        """Drains and ends. Idempotent.

        Members hand over their queues, v2 clients acknowledge their messages and running calls end, all within
        `drain_ms` (None: that of the settings). Calls that came late get `LAST_CALLS_MS`.
        """
        self._ready = False
        self._tell_health()
        drain_ms = self.settings.drain_ms if drain_ms is None else drain_ms
        deadline_ms = self._clock.monotonic_ms() + drain_ms
        wait_ms = 0 if self._poisoned() else drain_ms
        self.broker.ending.begin()
        await asyncio.gather(self.broker.leave(wait_ms), self.broker.ending.nothing_in_hand(wait_ms))
        left_ms = max(deadline_ms - self._clock.monotonic_ms(), min(drain_ms, LAST_CALLS_MS))
        if self._servers is not None:
            await self._servers.stop(left_ms)
        # Before the log is closed: that may take seconds, and connections wait for the next leader meanwhile.
        await self._after_listening()
        await self.broker.close()
        await self._auth.close()
        if self._page is not None:
            await self._page.close()
            self._page = None

    def _on_full(self) -> None:
        name, refusal = self.settings.broker_name, self._refusal()
        if refusal and not self._is_alone:
            log.warning("%s %s", name, refusal, extra={"broker": name})
        self._tell_health()

    def _refusal(self) -> str:
        """Returns why the broker refuses messages, and a remedy; empty: it accepts them."""
        if self._isolation:
            return f"refuses messages: {self._isolation}"
        full = self.broker.ledger.store.full
        if full is None:
            return ""
        other = "" if self._is_alone else f"; or: {lead_elsewhere(self.settings.broker_name)}"
        return f"refuses messages: {full}{other}"

    def _tell_health(self) -> None:
        # Not ready while it refuses messages: clients should prefer other brokers, but can still read here.
        if self._servers is not None:
            self._servers.set_serving(serving=not self.why_not_ready())

    def isolate(self, why: str) -> None:
        """See ServesClients."""
        if why != self._isolation:
            self._isolation = why
            self._tell_health()

    def turn_away(self) -> None:
        """See ServesClients."""
        if self._servers is not None:
            self._servers.turn_away()

    @property
    def serves(self) -> bool:
        """Whether it answers clients; with a full disk it answers reads and acknowledgements only."""
        return self._ready

    def why_not_ready(self) -> str:
        """Returns why clients should not connect, in a few words; empty: they may."""
        if not self._ready:
            return "it starts or stops"
        refusal = self._refusal()
        return f"it {refusal}" if refusal else ""

    def _broke(self, failed: asyncio.Future[BaseException]) -> None:
        """Reports this broker as dead: the store or a loop failed, and only a restart helps."""
        if not failed.cancelled() and self._servers is not None:
            self._servers.set_serving(serving=False)
            self._servers.set_serving(serving=False, service=LIVENESS)

    def _poisoned(self) -> bool:
        # Nothing can be committed any more; members wait for the restart. A cancelled waiter cancels `failed` as well.
        failed = self.broker.runtime.failed
        return failed is not None and failed.done() and not failed.cancelled()

    def metrics(self) -> list[Metric]:
        return [*broker_metrics(self.broker), *call_metrics(self._calls), *front_metrics(self._totals)]

    def queue_metrics(self) -> Callable[[], bytes]:
        """Takes the figures of single queues now; the returned function formats their page."""
        return gathered(self._queue_metrics(), constant_labels(self.broker.runtime))

    def _queue_metrics(self) -> list[Metric]:
        parts = self.broker
        return single_queue_metrics(
            parts.kernel, lite=parts.lite, delayed_retries=parts.delayed_retries, backlog=parts.backlog
        )

    def _totals(self) -> list[Totals]:
        return self._servers.totals if self._servers else []

    def _calls(self) -> Mapping[str, MethodStats]:
        return self._servers.stats() if self._servers is not None else {}
