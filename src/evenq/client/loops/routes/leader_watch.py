"""Finds out where a broker group is led from, while a client waits for that.

A group that changes its leader answers at another address once a route says so, and no client is notified. So
while a message waits for its group, or a call to a group takes unusually long, the route is asked for again and again:
once for all who wait, and more and more seldom. A call to a leader that was deposed is given up: its machine may be
gone without a word, and the next leader knows by the message id whether the message was stored.

A call that waits for messages is long without any fault. It asks for the route a few times a minute only, and is given
up when that, or anything else that the client asked for, names another leader.
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

__all__ = ["LOOK_MAX_MS", "PARKED_MS", "LeaderMoved", "LeaderWatch"]

SLOW_MS = 250
"""A call to a leader that takes longer may have no leader at its end any more."""
LOOK_FIRST_MS = 40
LOOK_MAX_MS = 400
"""Pause between two questions for a topic's route: from the first to this, and anew after `QUIET_MS` without any.
Between them lies the time by which a producer is later than its route.
"""
LOOK_GROWTH = 1.3
QUIET_MS = 2_000
PARKED_MS = 2_000
"""A call that waits for messages asks for the route this often at most."""
PARTING_MS = 300
"""A leader that hands over ends such a call itself, maybe with messages: it gets this time before the call is given up.
"""
ResultT = TypeVar("ResultT")


class LeaderMoved(ConnectionFailed):
    """The broker is led by another copy than the one that was called."""


class LeaderWatch:
    """Belongs to one client and its loop."""

    def __init__(
        self, routes: RouteBook, clock: Clock, rng: random.Random, *, parked_ms: Callable[[], int] = lambda: PARKED_MS
    ) -> None:
        """`parked_ms`: as `PARKED_MS`, where it is more."""
        self._routes, self._clock, self._rng = routes, clock, rng
        self._parked_ms = parked_ms
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, Backoff] = {}
        """By topic: the producer's own, so there are as many as routes."""
        self._looked_ms: dict[str, int] = {}

    async def moved(self, queue: MessageQueue, leader: RouteLeader, *, within_ms: int) -> bool:
        """Wait until a route names another leader of the queue's broker than this one. False: none did in time."""
        until_ms = self._clock.monotonic_ms() + within_ms
        while not self._is_over(queue, leader):
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return False
            await asyncio.wait({self._look(queue.topic)}, timeout=left_ms / 1_000)
        return True

    async def call(self, queue: MessageQueue, leader: RouteLeader, calling: Coroutine[None, None, ResultT]) -> ResultT:
        """The answer of a call to this leader. Raises LeaderMoved once another one leads: what became of the call is
        not known then.
        """
        return await self._watched(queue, leader, calling, self._soon, after_ms=SLOW_MS)

    async def long_poll(
        self, queue: MessageQueue, leader: RouteLeader, calling: Coroutine[None, None, ResultT]
    ) -> ResultT:
        """The same for a call that waits for messages."""
        return await self._watched(queue, leader, calling, self._seldom, after_ms=PARKED_MS)

    def found_nothing(self, queue: MessageQueue, leader: RouteLeader) -> None:
        """A call for messages came back without any. Calls shorter than `PARKED_MS` ask for the route here."""
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
            # This ends the call: what waits inside of `scope` is cancelled, and we see a TimeoutError.
            scope.reschedule(asyncio.get_running_loop().time())

        def watch() -> None:
            nonlocal watching
            watching = spawn(end(), name=f"evenq-slow-call-{queue}")

        # A timer and not yet a task: nearly every call is answered before it is slow.
        timer = asyncio.get_running_loop().call_later(after_ms / 1_000, watch)
        try:
            async with asyncio.timeout(None) as scope:
                return await calling
        except TimeoutError as error:
            raise LeaderMoved(
                f"broker {queue.broker_name} is led by another copy, {leader.address} did not answer any more"
            ) from error
        finally:
            timer.cancel()
            if watching is not None:
                watching.cancel()

    async def close(self) -> None:
        """End what runs."""
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
            if left_ms <= 0:  # all queues of a topic wait at the same time, and one question serves them all
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
