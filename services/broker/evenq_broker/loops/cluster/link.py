"""This broker as a member of the cluster: its registrations at nameservers, and the routes that it receives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from evenq.errors import ConnectionFailed, Error
from evenq.runtime.backoff import Backoff
from evenq.runtime.tasks import done_within
from evenq.serving.rpc import RpcContext
from evenq.wire.addresses import BROKER_HEADER, split_addresses
from evenq_broker.core.cluster.routes import RegisteredBroker, RouteTable
from evenq_broker.loops.cluster.known_brokers import BrokerMemory, OwnView
from evenq_broker.loops.cluster.peers import Peers
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.signals import Signal
from evenq_broker.loops.wire.cluster import (
    RouteNews,
    heartbeat,
    heartbeat_interval_ms,
    register,
    route_news,
    unregister,
    wants_everything,
    watch_routes,
)
from evenq_broker.runtime import Runtime

log = logging.getLogger(__name__)
ROUTE_WAIT_MS = 1_000
WELCOME_WAIT_MS = 30_000
"""How long a broker without topics waits for a first nameserver. If both start together, the broker may resolve the
nameserver's name before it exists, and that answer is cached: 30 s at most by CoreDNS, the name server of Kubernetes,
and by gRPC's resolver. With a longer wait, a cluster whose nameservers are really away would not start.
"""
UNREGISTER_TIMEOUT_MS = 1_000


class ClusterLink:
    """Registration and route watch of one broker, and its memory of the others."""

    def __init__(self, kernel: Kernel) -> None:
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._changes = kernel.catalog.changes
        self.own = OwnView(kernel)
        self.peers = Peers(kernel.runtime, kernel.catalog.routes)
        self.known = BrokerMemory(kernel, own=self.own, peers=self.peers)
        """Brokers that belong to the cluster, whether they are there or not."""
        self.nameservers = split_addresses(kernel.runtime.settings.nameservers)
        self._topic_changes = Signal()
        self._topics_version = -1
        self._registrations = [
            Registration(kernel.runtime, self.own, address, self._topic_changes, on_answer=self._look_for_welcome)
            for address in self.nameservers
        ]
        self._watches = [
            RouteWatch(kernel.runtime, kernel.catalog.routes, self, address) for address in self.nameservers
        ]
        self.started = False
        self._unsure_until_ms = -1
        """Monotonic ms until which peers may be missing in the routes; -1: none are."""
        self._heard_routes = False
        self._is_new = False
        """Without topics at its start."""
        self._welcome = asyncio.Event()
        """Set once a nameserver had the registration and had sent its routes."""
        kernel.catalog.changes.on_facts(self._facts_changed)

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Starts the loops; the broker's addresses are known by now."""
        self.started = True
        runtime = self._runtime
        self._is_new = not self._catalog.topics.all()
        if self.nameservers and not self._is_new:  # a restart; an empty broker has no peers to miss
            wait_ms = runtime.settings.route_settle_ms
            self._unsure_until_ms = runtime.clock.monotonic_ms() + wait_ms if wait_ms else -1
        self._changes.facts_changed()
        for registration in self._registrations:
            runtime.spawn(registration.run(), name="registration")
        for watch in self._watches:
            runtime.spawn(watch.run(), name="route watch")

    async def first_word(self) -> None:
        """Waits a second at most for the nameservers' first answers, so that a ready broker knows its peers.

        A broker without topics waits longer, `WELCOME_WAIT_MS` at most, until a nameserver has its registration and
        sent the routes: before, a topic would be created at some brokers of a new cluster only. One that has topics
        serves them, whether nameservers are there or not.
        """
        clock = self._runtime.clock
        first = asyncio.ensure_future(self._first_word())
        await done_within(first, ROUTE_WAIT_MS, clock=clock)
        if not self._is_new or not self.nameservers or self._welcome.is_set():
            return
        log.info("waiting for one of the nameservers %s: this broker has no topics yet", ", ".join(self.nameservers))
        if not await done_within(asyncio.ensure_future(self._welcome.wait()), WELCOME_WAIT_MS, clock=clock):
            log.warning(
                "none of the nameservers %s answered in %d s: topics created now may be missing at other brokers",
                ", ".join(self.nameservers),
                WELCOME_WAIT_MS // 1_000,
                extra={"nameservers": self.nameservers},
            )

    async def goodbye(self) -> None:
        """Leaves the routes: first of all at a shutdown, while the broker still answers. Idempotent."""
        await asyncio.gather(*(registration.goodbye() for registration in self._registrations))

    async def ask_all(
        self, method: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> list[tuple[str, bytes | Error]]:
        """Calls all other brokers of the cluster like `Peers.ask_peers`; a missing one counts as not answering."""
        answers = await self.peers.ask_peers(method, request, metadata=metadata)
        there = {name for name, _ in answers}
        gone = (one.name for one in self.known.missing() if one.name not in there)
        return [*answers, *((name, ConnectionFailed("it is missing")) for name in gone)]

    def stop(self) -> None:
        """Stops reports of changes."""
        self.started = False

    # ------------------------------------------------------------------------------------------------ what changes

    def _facts_changed(self, _group: str, _topic: str) -> None:
        if not self.started:
            return
        topics = self._catalog.topics
        if topics.version != self._topics_version:
            self._topics_version = topics.version
            self._topic_changes.notify()
            self._catalog.routes.set_own(self.own.now(), self._runtime.clock.monotonic_ms())
            self.routes_changed()
        self._changes.facts.notify()

    def followers_changed(self) -> None:
        """Updates the routes: the group that this broker leads has other copies."""
        if self.started:
            self._topic_changes.notify()
            self._catalog.routes.set_own(self.own.now(), self._runtime.clock.monotonic_ms())
            self.routes_changed()

    def routes_received(self) -> None:
        """Notes a nameserver's table. From the first one on, missing brokers have `route_settle_ms` to appear."""
        if self._unsure_until_ms >= 0 and not self._heard_routes:
            self._unsure_until_ms = self._runtime.clock.monotonic_ms() + self._runtime.settings.route_settle_ms
        self._heard_routes = True
        self._look_for_welcome()

    def register_now(self) -> None:
        """Registers at all nameservers again: one does not know this broker."""
        self._topic_changes.notify()

    def routes_changed(self) -> None:
        """Notifies readers of topics with another route: the route table may have changed."""
        self.known.look()
        self._changes.routes_changed(self._catalog.routes.take_changed_topics())

    async def routes_known(self) -> None:
        """Waits after a restart for complete routes: of a settled nameserver, or with all brokers that were there
        before. Ends `route_settle_ms` after the first answer at the latest. Otherwise members would give up queues of
        living brokers that are not known yet.
        """
        while self._unsure_until_ms >= 0:
            seen = self._changes.routes.count
            left_ms = self._unsure_until_ms - self._runtime.clock.monotonic_ms()
            if left_ms <= 0 or self._catalog.routes.sure or self._sees_all_known():
                self._unsure_until_ms = -1
                return
            await self._changes.routes.wait(seen, clock=self._runtime.clock, timeout_ms=left_ms)

    def _sees_all_known(self) -> bool:
        """True if all remembered brokers, also those that the previous leader saw, are in the routes."""
        return self._heard_routes and self.known.all_present()

    def is_nowhere(self, topic: str) -> bool:
        """True if no broker has the topic, and none that is away had it. False while that is not known."""
        return self.settled and not self._catalog.routes.route(topic) and not self.known.away(topic)

    @property
    def settled(self) -> bool:
        """True if the routes name every live broker: a settled nameserver sends them, or there is none."""
        return not self.nameservers or self._catalog.routes.sure

    def leads_anywhere(self, context: RpcContext) -> bool:
        """True if the address that the caller used leads to any broker, and the call names none."""
        listener = context.listener
        shared = listener.name in self._runtime.settings.shared_listener_names or self._catalog.routes.shared(listener)
        return shared and not context.header(BROKER_HEADER)

    @property
    def nameservers_answering(self) -> int:
        """Number of nameservers that send their routes now."""
        return sum(watch.connected for watch in self._watches)

    async def facts_settled(self) -> None:
        """Waits a moment for each nameserver's first answer: a broker that has just started knows no peers yet."""
        if self._watches and not any(watch.connected for watch in self._watches):
            await self._changes.routes.wait(
                self._changes.routes.count, clock=self._runtime.clock, timeout_ms=ROUTE_WAIT_MS
            )

    def _look_for_welcome(self) -> None:
        lines = zip(self._registrations, self._watches, strict=True)
        if any(registration.answers and watch.connected for registration, watch in lines):
            self._welcome.set()

    async def _first_word(self) -> bool:
        for tried in [line.tried for line in self._registrations] + [line.tried for line in self._watches]:
            await tried.wait()
        return True


class RouteWatch:
    """The watch of the routes of one nameserver, into the broker's `RouteTable`.

    A broken `WatchRoutes` stream is opened again after a growing pause, while the table keeps its entries. When a
    topic's route changes, the sessions that read it are notified immediately (NS-8).
    """

    def __init__(self, runtime: Runtime, routes: RouteTable, listener: ClusterLink, address: str) -> None:
        self._runtime, self._routes, self._listener = runtime, routes, listener
        self._address = address
        self.connected = False
        """True between the first event of a stream and its end."""
        self.tried = asyncio.Event()
        """Set when the first snapshot has come, or the first try has failed."""

    async def run(self) -> None:
        """Never ends."""
        backoff = Backoff(self._runtime.rng, max_ms=2_000)
        while True:
            try:
                await self._watch(backoff)
            except Error as error:
                if self.connected:
                    log.warning(
                        "routes of nameserver %s are no longer received: %s",
                        self._address,
                        error.message,
                        extra={"nameserver": self._address},
                    )
            self.connected = False
            self.tried.set()
            self._routes.away(self._address, self._runtime.clock.monotonic_ms())
            await self._runtime.clock.sleep_ms(backoff.next_ms())

    async def _watch(self, backoff: Backoff) -> None:
        request = watch_routes(self._runtime.settings.broker_name)
        stream = self._runtime.net.stream(self._address, "/evenq.v1.Registry/WatchRoutes", request, timeout_ms=None)
        async for data in stream:
            if not self.connected:
                log.info("receiving routes of nameserver %s", self._address, extra={"nameserver": self._address})
            self.connected = True
            self._take(route_news(data))
            self.tried.set()
            backoff.reset()
        raise ConnectionFailed(f"nameserver {self._address} ended the watch of routes; opening it again")

    def _take(self, news: RouteNews) -> None:
        now_ms = self._runtime.clock.monotonic_ms()
        if news.snapshot:
            self._routes.snapshot(
                self._address, news.nameserver, news.brokers, now_ms, settling=news.settling, left=news.left
            )
            self._listener.routes_received()
            if all(view.name != self._runtime.settings.broker_name for view in news.brokers):
                self._listener.register_now()  # it restarted, or dropped this broker: others there wait for it
        else:
            self._routes.changed(self._address, news.brokers, news.removed, now_ms)
        self._listener.routes_changed()


class Registration:
    """Registration of this broker and its contents at one nameserver (NS-4, NS-5), independent of the others.

    It sends everything at the start and immediately after each change, and heartbeats at the interval that this
    nameserver requested. It sends everything again when the nameserver does not know the broker (it restarted, or had
    dropped it). A closing broker unregisters, so it leaves the routes without a time-out.
    """

    def __init__(
        self, runtime: Runtime, own: OwnView, address: str, changes: Signal, *, on_answer: Callable[[], None]
    ) -> None:
        """`on_answer` is called when the nameserver begins to answer."""
        self._on_answer = on_answer
        self._runtime, self._own = runtime, own
        self._address = address
        self._changes = changes
        self._interval_ms = runtime.settings.register_interval_ms
        self._registered: tuple[str, int, tuple[str, ...]] | None = None
        """Incarnation and data version that this nameserver has; None: it needs everything."""
        self._talking = asyncio.Lock()
        self._left = False
        self.answers = False
        """True while the last call went well."""
        self._logged: set[type[Error]] = set()
        """Failures in the log since the last call that went well, each once."""
        self.tried = asyncio.Event()
        """Set when the first try has ended, well or not."""

    async def run(self) -> None:
        """Ends only after `goodbye`; a nameserver that is away is called again after a growing pause."""
        backoff = Backoff(self._runtime.rng, max_ms=2_000)
        while not self._left:
            seen = self._changes.count
            try:
                async with self._talking:
                    await self._tell()
                self._heard()
                backoff.reset()
                wait_ms = self._interval_ms
            except Error as error:
                self._lost(error)
                wait_ms = backoff.next_ms()
            self.tried.set()
            await self._changes.wait(seen, clock=self._runtime.clock, timeout_ms=wait_ms)

    async def goodbye(self) -> None:
        """Leaves the routes now, for good. A nameserver that does not answer detects it by itself."""
        if self._left:
            return
        self._left = True
        request = unregister(self._own.now())
        try:
            async with self._talking:
                await self._call("Unregister", request, UNREGISTER_TIMEOUT_MS)
        except Error as error:
            log.info(
                "nameserver %s was not notified that this broker stops: %s",
                self._address,
                error.message,
                extra={"nameserver": self._address},
            )

    async def _tell(self) -> None:
        if self._left:
            return
        own = self._own.now()
        if self._registered != (own.incarnation, own.data_version, own.followers):
            await self._register(own)
            return
        if wants_everything(await self._call("Heartbeat", heartbeat(own))):
            await self._register(own)

    async def _register(self, own: RegisteredBroker) -> None:
        self._registered = None
        wanted_ms = heartbeat_interval_ms(await self._call("Register", register(own)))
        if wanted_ms:
            self._interval_ms = min(wanted_ms, self._runtime.settings.register_interval_ms)
        self._registered = (own.incarnation, own.data_version, own.followers)

    async def _call(self, rpc: str, request: bytes, timeout_ms: int | None = None) -> bytes:
        limit_ms = timeout_ms or self._runtime.settings.peer_timeout_ms
        return await self._runtime.net.unary(self._address, f"/evenq.v1.Registry/{rpc}", request, timeout_ms=limit_ms)

    def _heard(self) -> None:
        if not self.answers:
            log.info("registered at nameserver %s", self._address, extra={"nameserver": self._address})
            self.answers = True
            self._logged.clear()
            self._on_answer()

    def _lost(self, error: Error) -> None:
        # Refused connections while both start may hide that the nameserver rejects this broker.
        if type(error) not in self._logged:
            self._logged.add(type(error))
            log.warning(
                "not registered at nameserver %s: %s",
                self._address,
                error.message,
                extra={"nameserver": self._address},
            )
        self.answers = False
        self._registered = None
