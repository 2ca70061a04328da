"""This broker as a member of the cluster: what it tells the nameservers of itself, and what it hears from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from evenq.errors import ConnectionFailed, Error
from evenq.serving.rpc import RpcContext
from evenq.wire.addresses import BROKER_HEADER, split_addresses
from evenq_broker.loops.cluster.known_brokers import BrokerMemory
from evenq_broker.loops.cluster.own_view import OwnView
from evenq_broker.loops.cluster.peers import Peers
from evenq_broker.loops.cluster.registration import Registration
from evenq_broker.loops.cluster.routes import RouteWatch
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.state.signals import Signal, done_within
from evenq_broker.runtime import Runtime

__all__ = ["ROUTE_WAIT_MS", "WELCOME_WAIT_MS", "ClusterLink"]

log = logging.getLogger(__name__)

ROUTE_WAIT_MS = 1_000
WELCOME_WAIT_MS = 30_000
"""How long a broker without topics waits for a first nameserver. When both are started together, the broker may ask for
the nameserver's name before there is one, and that answer is remembered: 30 s at most by CoreDNS, the name server of
Kubernetes, and by gRPC's resolver. Longer, a cluster whose nameservers are really away would not start.
"""


class ClusterLink:
    """Registration and route watch of one broker, and its memory of the others."""

    def __init__(self, runtime: Runtime, catalog: Catalog, ledger: Ledger) -> None:
        self._runtime, self._catalog = runtime, catalog
        self._changes = catalog.changes
        self.own = OwnView(runtime, catalog)
        self.peers = Peers(runtime, catalog.routes)
        self.known = BrokerMemory(runtime, ledger, catalog.routes, own=self.own, peers=self.peers)
        """Brokers that belong to the cluster, whether they are there or not."""
        self.nameservers = split_addresses(runtime.settings.nameservers)
        self._topic_changes = Signal()
        self._topics_version = -1
        self._registrations = [
            Registration(runtime, self.own, address, self._topic_changes, on_answer=self._look_for_welcome)
            for address in self.nameservers
        ]
        self._watches = [RouteWatch(runtime, catalog.routes, self, address) for address in self.nameservers]
        self.started = False
        """True between `start` and `stop`."""
        self._unsure_until_ms = -1
        """Monotonic ms until which peers may be missing in the routes; -1: none are."""
        self._heard_routes = False
        self._is_new = False
        """Without topics at its start."""
        self._welcome = asyncio.Event()
        """Set once a nameserver had the registration and had sent its routes."""
        catalog.changes.on_facts(self._facts_changed)

    # ------------------------------------------------------------------------------------------------ life

    async def start(self) -> None:
        """Start the loops; the broker's addresses are known by now."""
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
        """Wait a second at most for the nameservers' first word, so that a broker that says it is ready knows its
        peers.

        A broker without topics waits longer, `WELCOME_WAIT_MS` at most, until a nameserver has its registration and
        sent it the routes: before, a topic would be created at some brokers of a new cluster only. One that has topics
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
        """Leave the routes: first of all at a shutdown, while the broker still answers. Idempotent."""
        await asyncio.gather(*(registration.goodbye() for registration in self._registrations))

    async def ask_all(
        self, method: str, request: bytes, *, metadata: Mapping[str, str] | None = None
    ) -> list[tuple[str, bytes | Error]]:
        """Ask all other brokers of the cluster: as `Peers.ask_peers`, and a broker that belongs to the cluster and is
        missing has not answered either.
        """
        answers = await self.peers.ask_peers(method, request, metadata=metadata)
        there = {name for name, _ in answers}
        gone = (one.name for one in self.known.missing() if one.name not in there)
        return [*answers, *((name, ConnectionFailed("it is missing")) for name in gone)]

    def stop(self) -> None:
        """Report no more what changes here."""
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
        """The group that this broker leads has other copies: routes name them."""
        if self.started:
            self._topic_changes.notify()
            self._catalog.routes.set_own(self.own.now(), self._runtime.clock.monotonic_ms())
            self.routes_changed()

    def routes_received(self) -> None:
        """A nameserver sent its table. If it is the first one, its other brokers get the time to come from now on."""
        if self._unsure_until_ms >= 0 and not self._heard_routes:
            self._unsure_until_ms = self._runtime.clock.monotonic_ms() + self._runtime.settings.route_settle_ms
        self._heard_routes = True
        self._look_for_welcome()

    def register_now(self) -> None:
        """A nameserver does not know us: tell all of them that we live."""
        self._topic_changes.notify()

    def routes_changed(self) -> None:
        """The route table may have changed: tell the readers of topics with another route."""
        self.known.look()
        self._changes.routes_changed(self._catalog.routes.take_changed_topics())

    async def routes_known(self) -> None:
        """Wait after a restart of this broker until a nameserver that has settled sent the routes, or any has all
        brokers that were there before, at most until `route_settle_ms` after its first word: members would give up
        queues of living brokers that are not known yet.
        """
        while self._unsure_until_ms >= 0:
            seen = self._changes.routes.count
            left_ms = self._unsure_until_ms - self._runtime.clock.monotonic_ms()
            if left_ms <= 0 or self._catalog.routes.sure or self._sees_all_known():
                self._unsure_until_ms = -1
                return
            await self._changes.routes.wait(seen, clock=self._runtime.clock, timeout_ms=left_ms)

    def _sees_all_known(self) -> bool:
        """A copy that leads from now on remembers whom the leader before it saw, so clients need not wait for it where
        nameservers are replaced, too, as in an upgrade.
        """
        return self._heard_routes and self.known.all_present()

    def is_nowhere(self, topic: str) -> bool:
        """True if no broker has the topic, and none that is away had it when it was there last. False while that is not
        known, as after a start.
        """
        return self.settled and not self._catalog.routes.route(topic) and not self.known.away(topic)

    @property
    def settled(self) -> bool:
        """True if the routes name every live broker: a settled nameserver sends them, or this has none."""
        return not self.nameservers or self._catalog.routes.sure

    def leads_anywhere(self, context: RpcContext) -> bool:
        """True if the address that the caller came through leads to any broker, and the call names none."""
        listener = context.listener
        shared = listener.name in self._runtime.settings.shared_listener_names or self._catalog.routes.shared(listener)
        return shared and not context.header(BROKER_HEADER)

    @property
    def nameservers_answering(self) -> int:
        """Nameservers that tell their routes now."""
        return sum(watch.connected for watch in self._watches)

    async def facts_settled(self) -> None:
        """A broker that has just started knows no peers yet: give each nameserver's first answer a moment."""
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
