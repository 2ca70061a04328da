"""One broker as an object with ports: what `__main__` runs alone and the quick start beside others in one process.

Start: open the store, bind the servers (the bound port is what is advertised), start the loops, open the page, say
ready. Close: not ready, out of the routes, nothing handed out any more, members asked to hand their queues over and
waited for, v2 clients waited for until they acknowledged what they have, running calls ended, all within `drain_ms`;
then loops ended, store flushed. Always true after `close`: nothing of it runs, its ports and its data folder are free.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.serving.auth.server_auth import Auth
from evenq.serving.front.edges import EDGES, Edges
from evenq.serving.front.front_metrics import front_metrics
from evenq.serving.front.grpc_servers import GrpcServers, ListenAddress, open_grpc_servers, usual_addresses
from evenq.serving.front.health import LIVENESS
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

__all__ = ["BrokerApp", "client_addresses"]

log = logging.getLogger(__name__)

LAST_CALLS_MS = 1_000
REQUEST_ROOM = 4 << 20
"""Bytes a request may have beyond one largest body: properties, and the other messages of a batch."""


def client_addresses(settings: BrokerSettings) -> list[ListenAddress]:
    """Where a broker serves its clients."""
    addresses = usual_addresses(settings.host, settings.port, settings.tls)
    return addresses + [ListenAddress(*spot) for spot in parse_listeners(settings.listeners)]


async def nothing() -> None:
    """Nothing else uses the ports."""


class BrokerApp:
    """The program as an object. Belongs to one event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        clock: Clock,
        rng: random.Random,
        net: Net,
        edges: Edges = EDGES,
        disk: Disk | None = None,
        leadership: Leadership | None = None,
        before_listening: Callable[[], Coroutine[Any, Any, None]] = nothing,
        after_listening: Callable[[], Coroutine[Any, Any, None]] = nothing,
    ) -> None:
        """`disk` stands in for the data folder of the settings. With a `leadership` this is one term of a replica,
        which has a page of its own, and may use the ports until `before_listening` and from `after_listening` on.
        """
        self._before_listening, self._after_listening = before_listening, after_listening
        self.settings = settings
        plain = settings.port >= 0 or any(not listener.tls for listener, *_ in parse_listeners(settings.listeners))
        self._auth = Auth(settings.auth, clock=clock, plain=plain)
        self._is_alone = leadership is None
        self.broker = Broker(
            settings, clock=clock, rng=rng, net=self._auth.net(net), disk=disk, leadership=leadership or ONE_COPY,
            users=self._auth.users,
        )  # fmt: skip
        self._clock = clock
        self._edges = edges
        self._servers: GrpcServers | None = None
        self._page: MetricsPage | None = None
        self._ready = False
        self._isolation = ""
        """Why nothing can be confirmed here; empty: it can."""

    @property
    def port(self) -> int:
        """The gRPC port that is listened on, that with TLS if there is no plain one; 0 before `start`."""
        return self._servers.port if self._servers else 0

    def port_of(self, listener: str) -> int:
        """Port of the listener with this name (`default`, `tls`, or of `listeners`); 0 if there is none."""
        return self._servers.port_of(listener) if self._servers else 0

    @property
    def metrics_port(self) -> int:
        """The HTTP port of metrics and health; 0 if there is none."""
        return self._page.port if self._page is not None else 0

    async def start(self) -> None:
        """Serve. Raises StoreLocked, StoreCorrupted, PortInUse, SettingsError; then nothing of it is left running."""
        try:
            await self._start()
        except BaseException:
            await self.close(drain_ms=0)  # what was handed out cannot be acknowledged here
            raise

    async def _start(self) -> None:
        settings = self.settings
        if self._is_alone:
            must_be_alone(settings.store.path)
        await self.broker.open()
        rpcs = self._auth.rpcs(self.broker.rpcs())
        # A poll that waits was allowed by the grants of its beginning: its client asks again, and is judged by those of
        # now.
        self._auth.on_change = self.broker.long_polls.answer_all
        self._auth.start()
        options = GrpcServerOptions(
            front=settings.front,
            limits=settings.front_limits.limits(),
            receive_bytes_max=settings.body_bytes_max + REQUEST_ROOM,
            running_max=settings.calls_max,
        )
        places = client_addresses(settings)
        # Behind the opening of the log: until then a replica's forwarder holds connections, which would else be refused
        # (decision 83).
        await self._before_listening()
        servers = await open_grpc_servers(
            rpcs, places, settings.tls, clock=self._clock, options=options, edges=self._edges
        )
        self._servers = servers
        self._tell_health()  # they answer from now on, and no client should come yet
        hosts = {address.listener.name: address.host for address in places}
        addresses = advertised(
            settings.advertise, servers.ports, hosts=hosts, peers_tls=settings.tls.peers,
            broker_name=settings.broker_name,
        )  # fmt: skip
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
        """Until a loop of the broker ends, which only a mistake of ours makes it do; then raises what ended it."""
        assert self.broker.runtime.failed is not None, "wait() comes after start()"
        raise await self.broker.runtime.failed

    async def close(self, drain_ms: int | None = None) -> None:
        """Drain and end. Idempotent.

        Members hand their queues over, v2 clients acknowledge what they have in hand and running calls end, within
        `drain_ms` (of the settings, if it is None) together; calls that came late get `LAST_CALLS_MS` of their own.
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
        # Before the log is closed, which may take seconds: connections wait for the next leader meanwhile.
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
        """Why the broker takes no messages, and what to do; empty: it takes them."""
        if self._isolation:
            return f"refuses messages: {self._isolation}"
        full = self.broker.ledger.store.full
        if full is None:
            return ""
        other = "" if self._is_alone else f"; or: {lead_elsewhere(self.settings.broker_name)}"
        return f"refuses messages: {full}{other}"

    def _tell_health(self) -> None:
        # A broker that refuses messages is no place to come to; what it has can be read all the same.
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
        """It answers clients, if only reads and acknowledgements for want of space."""
        return self._ready

    def why_not_ready(self) -> str:
        """Why clients should not come, in a few words; empty: they may."""
        if not self._ready:
            return "it starts or stops"
        refusal = self._refusal()
        return f"it {refusal}" if refusal else ""

    def _broke(self, failed: asyncio.Future[BaseException]) -> None:
        """The store or a loop failed for good: only a restart helps."""
        if not failed.cancelled() and self._servers is not None:
            self._servers.set_serving(serving=False)
            self._servers.set_serving(serving=False, service=LIVENESS)

    def _poisoned(self) -> bool:
        # Nothing can be committed any more; members wait for the restart.
        failed = self.broker.runtime.failed
        return (
            failed is not None and failed.done() and not failed.cancelled()
        )  # who waited for it may have been cancelled

    def metrics(self) -> list[Metric]:
        """Of broker, calls and front."""
        return [*broker_metrics(self.broker), *call_metrics(self._calls), *front_metrics(self._totals)]

    def queue_metrics(self) -> Callable[[], bytes]:
        """The page of single queues: what it holds is taken now, and put into words by the call."""
        return gathered(self._queue_metrics(), constant_labels(self.broker.runtime))

    def _queue_metrics(self) -> list[Metric]:
        parts = self.broker
        return single_queue_metrics(
            parts.runtime,
            parts.catalog,
            parts.ledger,
            lite=parts.lite,
            delayed_retries=parts.delayed_retries,
            backlog=parts.backlog,
        )

    def _totals(self) -> list[Totals]:
        return self._servers.totals if self._servers else []

    def _calls(self) -> Mapping[str, MethodStats]:
        return self._servers.stats() if self._servers is not None else {}
