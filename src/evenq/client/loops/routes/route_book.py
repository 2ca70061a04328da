"""The routes of one client: fetched at first use, and again when they are old or an error requires it (RT-5, RT-7).

**Problem.** Every call needs the address of a broker. Leaders of broker groups change, topics get queues, and access
points learn of that at different times: an answer may be older than what the client has. Thousands of calls may need
the same route at the same moment.

**Idea.** One route is cached for each topic, and one fetch per topic runs at a time, which all callers share. All
topics of a broker have one leader: when the route of one topic names a newer leader, all cached routes get it, and
waiting calls are notified. An answer with an older leader keeps the known leader for 10 s. A partial answer keeps the
known brokers that it lacks, and their leaders.

**Invariants.**
- A failed fetch never removes or changes a cached route (wire contract 3.4).
- The cancellation of a caller does not end the fetch for the others (`shield`).
- An older epoch replaces the cached one only if no answer for the topic named the cached leaders for 10 s. Then the
  broker group was made anew.
- The last known address of a broker is kept after it leaves the routes: progress and released locks must reach it.
- All methods run in the client's loop, except `fresh_one`, which only reads.

**Example.** Broker a leads at 10.0.0.1:8081 in epoch 4, in the routes of `orders` and `bills`. A fetch of `orders`
returns 10.0.0.2:8081 in epoch 5: both routes are changed, and `leader_moved` returns. 3 s later another access point
answers a fetch of `bills` with epoch 4: the route keeps epoch 5. If all answers for `bills` name epoch 4 for 10 s,
the next one is accepted.

References: decisions 66 (a send outlives its leader), 104 (isolated leaders) and 130 (partial routes).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from evenq.client.core.routes.route import Route, RouteLeader
from evenq.client.loops.clients.troubles import Troubles
from evenq.errors import ConnectionFailed, Error, TopicNotFound
from evenq.model import MessageQueue
from evenq.model.names import RETRY_PREFIX
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq.client.rpc.transport import Transport

MISSING_MS = 20_000
OLD_MS = 10_000
"""Time for which an older leader than the known one is ignored, after the last answer that named the known one."""
LATE_MAX = 10_000
NO_LEADER = RouteLeader("", 0)


class RouteBook:
    def __init__(
        self, calls: Transport, clock: Clock, *, refresh_ms: int, on_moved: Callable[[], None] = lambda: None
    ) -> None:
        """`on_moved` is called in the loop when a route named another leader of a broker with copies."""
        self._calls = calls
        self._on_moved = on_moved
        self._moved = asyncio.Event()
        """Set and replaced with each new leader, so a waiter sees only later ones."""
        self._clock = clock
        self._refresh_ms = refresh_ms
        self._routes: dict[str, Route] = {}
        """By topic; replaced by answers and by `_follow`, never removed."""
        self._fetched_ms: dict[str, int] = {}
        """End of the last fetch of each cached topic, also of a failed one."""
        self._missing: dict[str, tuple[TopicNotFound, int]] = {}
        """Retry topics that do not exist yet, and when they were queried; members are notified when they exist."""
        self._late: dict[str, None] = {}
        """Topics that did not exist at their first fetch, `LATE_MAX` at most."""
        self._fetches: dict[str, asyncio.Task[Route]] = {}
        """At most one running fetch of each topic."""
        self._led_ms: dict[str, int] = {}
        """By topic: when its route last named the newest known leaders."""
        self._followers: dict[str, tuple[str, ...]] = {}
        """By broker, from the last route that named it: a route may lack a broker without a leader."""
        self._leaders: dict[str, RouteLeader] = {}
        """The same for leaders of brokers with copies."""
        self._troubles = Troubles(clock, who="known routes are kept")
        self._met: dict[str, str] = {}  # last address of every broker that any route named

    def peek(self, topic: str) -> Route | None:
        """Returns the cached route; an old one is refreshed in the background."""
        route = self._routes.get(topic)
        if route is not None and self._clock.monotonic_ms() - self._fetched_ms[topic] > self._refresh_ms:
            self._fetch(topic)
        return route

    def fresh_one(self, topic: str) -> Route | None:
        """Returns the cached route unless it is old; callable in any thread."""
        route, fetched_ms = self._routes.get(topic), self._fetched_ms.get(topic)
        if route is None or fetched_ms is None or self._clock.monotonic_ms() - fetched_ms > self._refresh_ms:
            return None
        return route

    def age_ms(self, topic: str) -> int:
        """Returns the time since the last fetch of the topic's route ended, successful or not."""
        return self._clock.monotonic_ms() - self._fetched_ms.get(topic, 0)

    def known(self, topic: str) -> bool:
        """True if there is a route of the topic, however old."""
        return topic in self._routes

    def was_missing(self, topic: str) -> bool:
        """True if the topic did not exist at its first fetch."""
        return topic in self._late

    async def get(self, topic: str) -> Route:
        """Returns the cached route, or fetches it. Raises TopicNotFound, ConnectionFailed ..."""
        route = self.peek(topic)
        missing = self._missing.get(topic)
        if route is None and missing is not None and self._clock.monotonic_ms() - missing[1] < MISSING_MS:
            # Created with the group's first retry; without this, each round of each member would query it.
            raise missing[0]
        # Shielded: a cancelled caller must not end the fetch for the others.
        return route if route is not None else await asyncio.shield(self._fetch(topic))

    async def address(self, topic: str, broker_name: str) -> str:
        """Returns the address of the topic's broker, or its last one if it left the route. Raises ConnectionFailed.

        A broker may leave because the nameservers restarted, and it must still get progress and released locks.
        """
        address = (await self.get(topic)).addresses.get(broker_name) or self._met.get(broker_name)
        if address is None:
            raise ConnectionFailed(f"broker {broker_name} is not in the route of {topic} now")
        return address

    def names(self, topic: str, queues: Iterable[MessageQueue]) -> bool:
        """True if the cached route has the brokers of all these queues."""
        route = self._routes.get(topic)
        return route is not None and all(queue.broker_name in route.addresses for queue in queues)

    def met(self, broker_name: str) -> str:
        """Returns the last known address of a broker; empty if no route ever named it."""
        return self._met.get(broker_name, "")

    def followers(self, broker_name: str) -> tuple[str, ...]:
        """Returns the addresses of a broker's followers, by the last route that named it; empty: it has no copies."""
        return self._followers.get(broker_name, ())

    def leader(self, broker_name: str) -> RouteLeader:
        """Returns the leader of a broker, by the last route that named it; epoch 0: the broker has no copies."""
        return self._leaders.get(broker_name, NO_LEADER)

    async def leader_moved(self, *, within_ms: int) -> None:
        """Waits until a route names another leader of any broker, for at most `within_ms`."""
        moved = self._moved
        with suppress(TimeoutError):
            async with asyncio.timeout(within_ms / 1_000):
                await moved.wait()

    async def fresh(self, topic: str) -> Route:
        """Fetches the route now. After a failure, returns the cached route, if there is one."""
        try:
            return await asyncio.shield(self._fetch(topic))
        except Error as error:
            known = self._routes.get(topic)
            if known is None:
                raise
            self._troubles.noted(f"the refresh of topic {topic}", error)
            return known

    async def look(self, topic: str, *, elsewhere: bool) -> None:
        """Fetches the route now; a failure changes nothing. `elsewhere`: at another access point, if there are several.

        An isolated leader still names itself as the leader.
        """
        # One turn for all waiters: with two access points, an even number of turns would return to the same one.
        if elsewhere and self._under_way(topic) is None:
            self._calls.turn_away()
        with suppress(Error):
            await asyncio.shield(self._fetch(topic))

    def renew(self, topic: str, then: Callable[[], None] | None = None) -> None:
        """Fetches the route in the background after a failed call, at another access point; then calls `then`."""
        if self._under_way(topic) is None:
            self._calls.turn_away()
        if then is None:
            self._fetch(topic)
        else:
            self.changed(topic, then)

    def changed(self, topic: str, then: Callable[[], None]) -> None:
        """Fetches the route after a notice of a change, then calls `then`; a running fetch may be too old."""

        def ask(before: asyncio.Task[Route] | None = None) -> None:
            if before is None or not before.cancelled():
                self._fetch(topic).add_done_callback(lambda _: then())

        running = self._under_way(topic)
        if running is None:
            ask()
        else:
            running.add_done_callback(ask)

    async def close(self) -> None:
        for task in list(self._fetches.values()):
            task.cancel()

    def _under_way(self, topic: str) -> asyncio.Task[Route] | None:
        """Returns the running fetch. An ended task stays in `_fetches` until its callbacks run, one turn of the loop
        later. A caller that fetches in a loop (`LeaderWatch`) would await it without ever yielding, and so prevent that
        turn.
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
            # A failed refresh is repeated after the period, not immediately.
            self._fetched_ms[topic] = self._clock.monotonic_ms()
        self._missing.pop(topic, None)
        if task.cancelled():  # by `close`
            return
        if (problem := task.exception()) is not None:
            if isinstance(problem, TopicNotFound) and topic not in self._routes and len(self._late) < LATE_MAX:
                self._late[topic] = None
            if isinstance(problem, TopicNotFound) and topic.startswith(RETRY_PREFIX):
                self._missing[topic] = (problem, self._clock.monotonic_ms())
            return  # the cached route stays
        self._troubles.well(f"the refresh of topic {topic}")
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
        """Applies new leaders to all cached routes, because a broker has one leader for all topics."""
        for topic, route in self._routes.items():
            newer = {name: to for name, to in moved.items() if 0 < route.epochs.get(name, 0) < to.epoch}
            if newer:
                self._led_ms[topic] = self._clock.monotonic_ms()
                self._routes[topic] = route.led_by(newer)
        self._moved.set()
        self._moved = asyncio.Event()
        self._on_moved()

    def _newer(self, route: Route) -> Route:
        """Returns an answer, completed if it is partial, with the known leaders in place of older ones."""
        known, now_ms = self._routes.get(route.topic), self._clock.monotonic_ms()
        if known is not None and route.partial:
            route = route.completed_by(known)
        # Access points learn of an election at different times: an older answer must not restore the old leader. A
        # partial answer never does.
        if known is not None and (route.partial or now_ms - self._led_ms.get(route.topic, 0) < OLD_MS):
            kept = {name for name, epoch in route.epochs.items() if epoch < known.epochs.get(name, 0)}
            if kept:
                return route.led_by({name: known.leader_of(name) for name in kept})
        self._led_ms[route.topic] = now_ms
        return route
