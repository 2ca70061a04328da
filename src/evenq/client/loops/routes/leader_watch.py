"""Detects a new leader of a broker group while a client waits for one.

A new leader has another address, which only routes name; clients are not notified. So while a message waits for its
group, or a call to a group is slow, the route is fetched repeatedly: once for all waiters, and with growing pauses. A
call to a deposed leader is given up. Its machine may be lost, and the next leader recognizes a stored message by its
id.

A long poll is slow without any fault. It fetches the route only a few times a minute, and is given up when a route
names another leader.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TypeVar

from evenq.client.core.routes.route import RouteLeader
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import ConnectionFailed
from evenq.model import MessageQueue
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

SLOW_MS = 250
"""A call to a leader is slow after this time: the leader may have changed."""
LOOK_FIRST_MS = 40
LOOK_MAX_MS = 400
"""First and longest pause between two fetches of a topic's route; the first again after `QUIET_MS` without any."""
LOOK_GROWTH = 1.3
QUIET_MS = 2_000
PARKED_MS = 2_000
"""Shortest pause between two fetches of a topic's route for long polls."""
PARTING_MS = 300
"""Time for an old leader to end a long poll itself, maybe with messages, before the call is given up."""
ResultT = TypeVar("ResultT")


class LeaderMoved(ConnectionFailed):
    """Another copy leads the broker than the one that was called."""


class LeaderWatch:
    def __init__(
        self, routes: RouteBook, clock: Clock, rng: random.Random, *, parked_ms: Callable[[], int] = lambda: PARKED_MS
    ) -> None:
        """`parked_ms`: a longer pause than `PARKED_MS`."""
        self._routes, self._clock, self._rng = routes, clock, rng
        self._parked_ms = parked_ms
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, Backoff] = {}
        """By topic, so there are at most as many as routes."""
        self._looked_ms: dict[str, int] = {}

    async def moved(self, queue: MessageQueue, leader: RouteLeader, *, within_ms: int) -> bool:
        """Waits until a route names another leader of the queue's broker. False: none did in time."""
        until_ms = self._clock.monotonic_ms() + within_ms
        while not self._is_over(queue, leader):
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return False
            await asyncio.wait({self._look(queue.topic)}, timeout=left_ms / 1_000)
        return True

    async def call(self, queue: MessageQueue, leader: RouteLeader, calling: Coroutine[None, None, ResultT]) -> ResultT:
        """Returns the answer of this leader. Raises LeaderMoved once another one leads: the effect is unknown."""
        return await self._watched(queue, leader, calling, self._soon, after_ms=SLOW_MS)

    async def long_poll(
        self, queue: MessageQueue, leader: RouteLeader, calling: Coroutine[None, None, ResultT]
    ) -> ResultT:
        """Returns the answer of a long poll to this leader; otherwise as `call`."""
        return await self._watched(queue, leader, calling, self._seldom, after_ms=PARKED_MS)

    def found_nothing(self, queue: MessageQueue, leader: RouteLeader) -> None:
        """Fetches the route if it is due after an empty poll; polls shorter than `PARKED_MS` do not fetch it."""
        if leader.epoch and self._routes.age_ms(queue.topic) >= self._pause_ms():
            self._routes.renew(queue.topic)

    def _pause_ms(self) -> int:
        return max(PARKED_MS, self._parked_ms())

    async def _watched(
        self,
        queue: MessageQueue,
        leader: RouteLeader,
        calling: Coroutine[None, None, ResultT],
        moved: Callable[[MessageQueue, RouteLeader], Coroutine[None, None, None]],
        *,
        after_ms: int,
    ) -> ResultT:
        if not leader.epoch:
            return await calling
        watching: asyncio.Task[None] | None = None

        async def end() -> None:
            await moved(queue, leader)
            # Cancels the call inside of `scope`, which raises TimeoutError.
            scope.reschedule(asyncio.get_running_loop().time())

        def watch() -> None:
            nonlocal watching
            watching = spawn(end(), name=f"evenq-slow-call-{queue}")

        # A timer and not a task: nearly every call is answered before it is slow.
        timer = asyncio.get_running_loop().call_later(after_ms / 1_000, watch)
        try:
            async with asyncio.timeout(None) as scope:
                return await calling
        except TimeoutError as error:
            raise LeaderMoved(
                f"broker {queue.broker_name} has another leader, and {leader.address} did not answer any more"
            ) from error
        finally:
            timer.cancel()
            if watching is not None:
                watching.cancel()

    async def close(self) -> None:
        looks = list(self._looks.values())
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    async def _soon(self, queue: MessageQueue, leader: RouteLeader) -> None:
        while not await self.moved(queue, leader, within_ms=LOOK_MAX_MS):
            pass

    async def _seldom(self, queue: MessageQueue, leader: RouteLeader) -> None:
        while not self._is_over(queue, leader):
            pause_ms = self._pause_ms()
            left_ms = pause_ms - self._routes.age_ms(queue.topic)
            if left_ms <= 0:  # one fetch serves all queues of the topic
                await self._routes.look(queue.topic, elsewhere=True)
            else:
                await self._routes.leader_moved(within_ms=left_ms + self._rng.randrange(1 + pause_ms // 8))
        await self._clock.sleep_ms(PARTING_MS)

    def _is_over(self, queue: MessageQueue, leader: RouteLeader) -> bool:
        route = self._routes.peek(queue.topic)
        if route is None or queue.broker_name not in route.addresses:
            return False
        now = route.leader_of(queue.broker_name)
        return now.epoch > leader.epoch or (now.epoch == leader.epoch and now.address != leader.address)

    def _look(self, topic: str) -> asyncio.Task[None]:
        look = self._looks.get(topic)
        if look is None:
            look = self._looks[topic] = spawn(self._look_at(topic), name=f"evenq-leader-{topic}")
            look.add_done_callback(lambda _: self._looks.pop(topic, None))
        return look

    async def _look_at(self, topic: str) -> None:
        now_ms = self._clock.monotonic_ms()
        pauses = self._pauses.get(topic)
        anew = pauses is None or now_ms - self._looked_ms.get(topic, 0) > QUIET_MS
        if pauses is None or anew:
            pauses = Backoff(self._rng, first_ms=LOOK_FIRST_MS, max_ms=LOOK_MAX_MS, factor=LOOK_GROWTH)
            self._pauses[topic] = pauses
        await self._clock.sleep_ms(pauses.next_ms())
        await self._routes.look(topic, elsewhere=not anew)
        self._looked_ms[topic] = self._clock.monotonic_ms()
