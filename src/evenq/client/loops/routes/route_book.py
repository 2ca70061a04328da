"""The routes a client knows: fetched on first use, again when they are old or an error says so.

A cached route survives failed refreshes (wire contract 3.4). One fetch per topic runs at a time; all who wait share it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from evenq.client.core.calls import RouteCalls
from evenq.client.core.routes.route import Route, RouteLeader
from evenq.errors import ConnectionFailed, Error, TopicNotFound
from evenq.model import MessageQueue
from evenq.model.names import RETRY_PREFIX
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

__all__ = ["RouteBook"]

log = logging.getLogger(__name__)

MISSING_MS = 20_000
OLD_MS = 10_000
"""How long a route with an older leader than the known one is ignored: access points hear of a new one at different
times. If it goes on, the broker group was made anew.
"""
LATE_MAX = 10_000
NO_LEADER = RouteLeader("", 0)


class RouteBook:
    """Belongs to one client and its loop."""

    def __init__(
        self, calls: RouteCalls, clock: Clock, *, refresh_ms: int, on_moved: Callable[[], None] = lambda: None
    ) -> None:
        """`on_moved` is called in the loop when a route named another leader of a broker that has copies."""
        self._calls = calls
        self._on_moved = on_moved
        self._moved = asyncio.Event()
        """Set, and replaced, with each new leader."""
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._routes: dict[str, Route] = {}
        self._fetched_ms: dict[str, int] = {}
        self._missing: dict[str, tuple[TopicNotFound, int]] = {}
        """Retry topics that are not made yet, and when we heard so: members are notified when they are."""
        self._late: dict[str, None] = {}
        """Topics that did not exist when we wanted them first."""
        self._fetches: dict[str, asyncio.Task[Route]] = {}
        self._led_ms: dict[str, int] = {}
        """When a topic's route last named the newest leaders that we know."""
        self._followers: dict[str, tuple[str, ...]] = {}
        """By broker, as the last route that named it says: a route may lose a broker whose leader is gone."""
        self._leaders: dict[str, RouteLeader] = {}
        """By broker that has copies, in the same way."""
        self._met: dict[str, str] = {}  # address of every broker that any route named, also of those that left

    def peek(self, topic: str) -> Route | None:
        """The cached route; an old one is refreshed behind the caller's back."""
        route = self._routes.get(topic)
        if route is not None and self._clock.monotonic_ms() - self._fetched_ms[topic] > self._refresh_ms:
            self._fetch(topic)
        return route

    def fresh_one(self, topic: str) -> Route | None:
        """The cached route unless it is old; callable in any thread."""
        route, fetched_ms = self._routes.get(topic), self._fetched_ms.get(topic)
        if route is None or fetched_ms is None or self._clock.monotonic_ms() - fetched_ms > self._refresh_ms:
            return None
        return route

    def age_ms(self, topic: str) -> int:
        """How long ago the topic's route was asked for last, whatever came of it."""
        return self._clock.monotonic_ms() - self._fetched_ms.get(topic, 0)

    def known(self, topic: str) -> bool:
        """True if there is a route for it, however old."""
        return topic in self._routes

    def was_missing(self, topic: str) -> bool:
        """True if the topic was made after we wanted to read it."""
        return topic in self._late

    async def get(self, topic: str) -> Route:
        """The cached route, or the first answer. Raises TopicNotFound, ConnectionFailed ..."""
        route = self.peek(topic)
        missing = self._missing.get(topic)
        if route is None and missing is not None and self._clock.monotonic_ms() - missing[1] < MISSING_MS:
            # A retry topic is made with the group's first retry; without this memory each round of each member asked
            # for it.
            raise missing[0]
        # Shielded: one fetch serves all who wait, so a caller that is cancelled must not end it for the others.
        return route if route is not None else await asyncio.shield(self._fetch(topic))

    async def address(self, topic: str, broker_name: str) -> str:
        """Where the topic's broker is. One that left the route is where it was last: it may have left because the
        nameservers forgot it, and it must hear of progress and of queues that are let go. Raises ConnectionFailed.
        """
        address = (await self.get(topic)).addresses.get(broker_name) or self._met.get(broker_name)
        if address is None:
            raise ConnectionFailed(f"broker {broker_name} is not in the route of {topic} now")
        return address

    def names(self, topic: str, queues: Iterable[MessageQueue]) -> bool:
        """True if the cached route names the brokers of all these queues."""
        route = self._routes.get(topic)
        return route is not None and all(queue.broker_name in route.addresses for queue in queues)

    def met(self, broker_name: str) -> str:
        """Where a broker is or was last, by any route; empty if none ever named it."""
        return self._met.get(broker_name, "")

    def followers(self, broker_name: str) -> tuple[str, ...]:
        """Where the other copies of a broker's log answer, by the last route that named it; none: it has no copies."""
        return self._followers.get(broker_name, ())

    def leader(self, broker_name: str) -> RouteLeader:
        """Who leads a broker that has copies, by the last route that named it; epoch 0: it has none."""
        return self._leaders.get(broker_name, NO_LEADER)

    async def leader_moved(self, *, within_ms: int) -> None:
        """Wait until a route names another leader of any broker, or this time has passed."""
        moved = self._moved
        with suppress(TimeoutError):
            async with asyncio.timeout(within_ms / 1_000):
                await moved.wait()

    async def fresh(self, topic: str) -> Route:
        """Ask now. A failure gives the cached route, if there is one."""
        try:
            return await asyncio.shield(self._fetch(topic))
        except Error as error:
            known = self._routes.get(topic)
            if known is None:
                raise
            log.info("topic %s: keeping the known route: %s", topic, error)
            return known

    async def look(self, topic: str, *, elsewhere: bool) -> None:
        """Ask now, for callers that ask repeatedly; a failure changes nothing. `elsewhere`: at another access point, if
        there are several. A leader that is cut off from the other copies goes on saying that it leads.
        """
        # One turn for all waiters: of two access points, an even number of turns gives the same one.
        if elsewhere and self._under_way(topic) is None:
            self._calls.turn_away()
        with suppress(Error):
            await asyncio.shield(self._fetch(topic))

    def renew(self, topic: str, then: Callable[[], None] | None = None) -> None:
        """Ask in the background because a call failed, as `look` does `elsewhere`; `then` is called behind it."""
        if self._under_way(topic) is None:
            self._calls.turn_away()
        if then is None:
            self._fetch(topic)
        else:
            self.changed(topic, then)

    def changed(self, topic: str, then: Callable[[], None]) -> None:
        """Somebody says that the route is another one: ask again, also behind a question that is under way, whose
        answer may be from before; `then` is called after the answer.
        """

        def ask(before: asyncio.Task[Route] | None = None) -> None:
            if before is None or not before.cancelled():
                self._fetch(topic).add_done_callback(lambda _: then())

        running = self._under_way(topic)
        if running is None:
            ask()
        else:
            running.add_done_callback(ask)

    async def close(self) -> None:
        """End running fetches."""
        for task in list(self._fetches.values()):
            task.cancel()

    def _under_way(self, topic: str) -> asyncio.Task[Route] | None:
        """The fetch that runs now. The callbacks of a task run one turn of the loop after its end: a caller that
        fetches until the route is young enough (`LeaderWatch`) would get the ended task until then, never wait, and so
        keep the loop from that turn.
        """
        task = self._fetches.get(topic)
        return None if task is None or task.done() else task

    def _fetch(self, topic: str) -> asyncio.Task[Route]:
        task = self._under_way(topic)
        if task is None:
            task = self._fetches[topic] = spawn(self._ask(topic), name=f"evenq-route-{topic}")
            task.add_done_callback(lambda done: self._fetched(topic, done))
        return task

    async def _ask(self, topic: str) -> Route:
        return self._newer(await self._calls.query_route(topic))

    def _fetched(self, topic: str, task: asyncio.Task[Route]) -> None:
        if self._fetches.get(topic) is task:
            del self._fetches[topic]
        if topic in self._routes:
            self._fetched_ms[topic] = (
                self._clock.monotonic_ms()
            )  # a failed refresh is tried again after the period, not at once
        self._missing.pop(topic, None)
        if task.cancelled():
            return
        if (problem := task.exception()) is not None:
            if isinstance(problem, TopicNotFound) and topic not in self._routes and len(self._late) < LATE_MAX:
                self._late[topic] = None
            if isinstance(problem, TopicNotFound) and topic.startswith(RETRY_PREFIX):
                self._missing[topic] = (problem, self._clock.monotonic_ms())
            return
        route = self._routes[topic] = task.result()
        self._met.update(route.addresses)
        self._followers.update(route.followers)
        leaders = {name: route.leader_of(name) for name in route.epochs}
        moved = {name: new for name, new in leaders.items() if name in self._leaders and self._leaders[name] != new}
        self._leaders.update(leaders)
        self._fetched_ms[topic] = self._clock.monotonic_ms()
        if moved:
            self._follow(moved)

    def _follow(self, moved: Mapping[str, RouteLeader]) -> None:
        """A broker is led by the same copy for all its topics."""
        for topic, route in self._routes.items():
            newer = {name: to for name, to in moved.items() if 0 < route.epochs.get(name, 0) < to.epoch}
            if newer:
                self._led_ms[topic] = self._clock.monotonic_ms()
                self._routes[topic] = route.led_by(newer)
        self._moved.set()
        self._moved = asyncio.Event()
        self._on_moved()

    def _newer(self, route: Route) -> Route:
        """The answered route; with the known leaders where it names older ones, and with the known brokers that a
        partial one lacks.
        """
        known, now_ms = self._routes.get(route.topic), self._clock.monotonic_ms()
        if known is not None and route.partial:
            route = route.completed_by(known)
        # Two access points hear of an election at different times: an older answer must not send us back to the old
        # leader. A partial answer never does.
        if known is not None and (route.partial or now_ms - self._led_ms.get(route.topic, 0) < OLD_MS):
            kept = {name for name, epoch in route.epochs.items() if epoch < known.epochs.get(name, 0)}
            if kept:
                return route.led_by({name: known.leader_of(name) for name in kept})
        self._led_ms[route.topic] = now_ms
        return route
