"""Maintains `core.cluster.known_brokers`: compares it with the routes when they change, journals the result, and
reports the end of a drained broker.

A broker in any route is there. A missing one counts only by a nameserver that knows all brokers: one that has just
started, or is away, makes no broker missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from evenq.errors import Error
from evenq.runtime.accelerator import accelerator
from evenq.runtime.version import software_version
from evenq_broker.core.cluster.known_brokers import Away, KnownBrokers
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.cluster.unfinished import Left
from evenq_broker.core.state.records import BrokerForgotten, BrokerKnown, BrokerTopics
from evenq_broker.loops.cluster.peers import Peers
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.wire.cluster import goodbye
from evenq_broker.loops.wire.translation import counts_of

log = logging.getLogger(__name__)
FORGET = "/evenq.v1.Admin/ForgetBroker"
GOODBYE_MS = 1_000


class OwnView:
    """This broker's view of itself: sent to the nameservers and peers, and in its own route table. It is made anew when
    topics or addresses have changed.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self.incarnation = f"{kernel.runtime.rng.getrandbits(64):016x}"
        """Random per start: distinguishes a restart from a twin with the same name."""
        self._view: RegisteredBroker | None = None

    def now(self) -> RegisteredBroker:
        """Returns the present view; one object until something changes."""
        runtime, topics = self._runtime, self._catalog.topics
        view, followers = self._view, runtime.leadership.followers()
        same = view is not None and view.data_version == topics.version and view.followers == followers
        if view is None or not same or view.addresses is not runtime.addresses:
            name, draining = runtime.settings.broker_name, self._catalog.draining
            view = self._view = RegisteredBroker(
                name=name,
                cluster=runtime.settings.cluster,
                epoch=runtime.leadership.epoch,
                incarnation=self.incarnation,
                addresses=runtime.addresses,
                version=accelerator().named(software_version()),
                start_ms=runtime.started_ms,
                copies=runtime.leadership.copies,
                followers=followers,
                data_version=topics.version,
                topics={topic.name: counts_of(name, topic, draining=draining) for topic in topics.all()},
            )
        return view


class BrokerMemory:
    """This broker's memory of the others."""

    def __init__(self, kernel: Kernel, *, own: OwnView, peers: Peers) -> None:
        self._runtime, self._ledger, self._routes = kernel.runtime, kernel.ledger, kernel.catalog.routes
        self._own, self._peers = own, peers
        self.brokers = KnownBrokers()
        self.on_forgotten: list[Callable[[str], None]] = []
        """Called with the name of a broker that is forgotten; filled at the start."""
        replays = dict.fromkeys((BrokerKnown, BrokerForgotten, BrokerTopics), self.brokers.apply)
        kernel.ledger.keeps(replays, self.brokers.dump)
        self._learned: dict[str, RegisteredBroker] = {}
        """As last compared: routes are compared topic by topic only for brokers that sent something new."""
        self._last: dict[str, RegisteredBroker] = {}
        """Known brokers as last seen, also those away: readers continue at the followers of one without a leader."""

    def look(self) -> None:
        """Compares the brokers with the routes, which may have changed."""
        routes, own = self._routes, self._runtime.settings.broker_name
        views = {view.name: view for view in routes.brokers() if view.name != own}
        present = {name: view.incarnation for name, view in views.items()}
        ops = self.brokers.look(present, self._runtime.clock.now_ms(), sure=routes.sure)
        news = [
            op
            for name, view in views.items()
            if self._learned.get(name) is not view
            for op in self.brokers.learn(name, _read_queues(view))
        ]
        self._learned = views
        self._last |= {name: view for name, view in views.items() if name in self.brokers}
        if ops:
            self._ledger.journal.record(*ops)
        for one in news:
            self._ledger.journal.record(one)
        for op in ops:
            if isinstance(op, BrokerForgotten):
                self._last.pop(op.name, None)
                self._forgotten(op.name)
            if isinstance(op, BrokerKnown) and op.gone_ms:
                log.warning(
                    "broker %s is missing: its messages cannot be read until it is back",
                    op.name,
                    extra={"missing": op.name, "unread": op.unread, "dead_letters": op.dead_letters},
                )

    def all_present(self) -> bool:
        """True if each broker that was there, as far as this broker remembers, is in a route now."""
        present = {view.name for view in self._routes.brokers()}
        return all(name in present for name in self.brokers.expected())

    def missing(self) -> list[BrokerKnown]:
        """Returns missing brokers, ascending."""
        return self.brokers.missing()

    def out_of_reach(self) -> list[str]:
        """Returns missing brokers that may hold unread messages because they were not drained, ascending."""
        return [one.name for one in self.brokers.missing() if not one.unread and not one.dead_letters]

    def away(self, topic: str) -> list[Away]:
        """Returns brokers that had readable queues of the topic and are not there now, ascending."""
        away = self.brokers.away(topic, {view.name for view in self._routes.brokers()})
        return [
            replace(one, followers=last.followers) if (last := self._last.get(one.name)) is not None else one
            for one in away
        ]

    def homes(self, topic: str, within_ms: int) -> list[str]:
        """Returns brokers with writable queues that went at most `within_ms` ago: homes of their message groups."""
        runtime = self._runtime
        since_ms = runtime.clock.now_ms() - within_ms
        names = self.brokers.homes(topic, self._routes, since_ms, runtime.started_ms)
        return [name for name in names if name not in self._last or _takes(self._last[name], topic)]

    def names(self) -> list[str]:
        """Returns all other brokers that belong to the cluster, ascending."""
        return sorted({*self.brokers.expected(), *(one.name for one in self.brokers.missing())})

    def topic_deleted(self, topic: str) -> None:
        """Notes that an operator deleted the topic everywhere; it is in the journal's record of this step."""
        ops = self.brokers.topic_deleted(topic)
        if ops:
            self._ledger.journal.record(*ops)

    async def forget(self, name: str) -> bool:
        """Forgets a broker HERE, durably; False if it was not known."""
        op = self.brokers.forget(name)
        self._forgotten(name)  # listeners may also wait for one that this broker never saw
        if op is None:  # maybe forgotten by a record that is not safe yet (decision 62)
            await self._ledger.journal.settled()
            return False
        self._last.pop(name, None)
        await self._ledger.journal.record(op)
        return True

    def _forgotten(self, name: str) -> None:
        for listener in self.on_forgotten:
            listener(name)

    async def goodbye(self, left: Left) -> None:
        """Reports the end of this drained broker, if no group waits for what is `left`: others then do not miss it.
        With schedules it is missed: otherwise a new one of the same name would fire beside it after its return.
        """
        if not left.empty or left.schedules:
            return
        request = goodbye(self._own.now(), left)
        try:
            async with asyncio.timeout(GOODBYE_MS / 1000):
                await self._peers.ask_peers(FORGET, request)
        except (TimeoutError, Error) as error:
            log.info("not all brokers were notified that this drained broker stops: %s", error or "no answer in time")


def _takes(view: RegisteredBroker, topic: str) -> bool:
    counts = view.topics.get(topic)
    return counts is not None and counts.permission.writable


def _read_queues(view: RegisteredBroker) -> dict[str, int]:
    return {topic: counts.read_queues for topic, counts in view.topics.items() if counts.permission.readable}
