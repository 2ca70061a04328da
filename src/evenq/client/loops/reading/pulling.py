"""The pull loop of one queue (PQ-1 to PQ-8): one long poll after another while the queue is ours.

Started and cancelled by `loops.ownership`. Every pull carries the committed offset along (OF-2). After an error,
and after an empty answer that came suspiciously fast, it pauses, so a broken server is never hammered.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from evenq.client.core.calls import ConsumerCalls, Pulled
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.core.reading.read_places import ReadPlaces
from evenq.client.core.reading.thresholds import Thresholds
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.routes.leader_watch import LeaderMoved, LeaderWatch
from evenq.client.loops.routes.route_book import RouteBook
from evenq.client.options import PushOptions
from evenq.errors import ConnectionFailed, Error, IllegalOffset, PreconditionFailed, QueueReplaced
from evenq.model import FilterExpression, Generation, QueueOffset
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock

__all__ = ["Pulling"]

log = logging.getLogger(__name__)

FAST_MS = 20
PAUSE_MS = 100
ANY_WAIT_MS = 2_000
"""Longest long poll at a leader by a reader of any copy: one whose machine is gone is noticed so much later."""
FOLLOWER_WAIT_MS = 500
"""The same at a follower: its leader may be there again."""
RENEW_MS = 1_000
"""Between two questions for the route while a follower is read because the leader is away."""
LEADERLESS_MAX_MS = 500
"""Longest pause before a broker group that fails is asked again: another copy answers for it within seconds."""


class Pulling:
    """One queue's loop. `run` returns when the queue was dropped."""

    def __init__(
        self,
        process: ProcessQueue,
        *,
        calls: ConsumerCalls,
        routes: RouteBook,
        leaders: LeaderWatch,
        clock: Clock,
        rng: random.Random,
        group: str,
        options: PushOptions,
        expression: FilterExpression,
        generation: Callable[[], Generation],
        limits: Callable[[], Thresholds],
        committed: Callable[[], int],
        arrived: Callable[[ProcessQueue], None],
        fenced: Callable[[], None],
        replaced: Callable[[], None],
        owner: bool,
        troubles: Troubles,
        any_copy: bool = False,
    ) -> None:
        """`owner`: the queue is read by the holder of its lock, and by no other. `any_copy`: it is read from any
        copy of its broker's log.
        """
        self.process = process
        self._calls = calls
        self._routes = routes
        self._leaders = leaders
        self._clock = clock
        self._backoff = Backoff(rng)
        self._group = group
        self._options = options
        self._expression = expression
        self._generation = generation
        self._limits = limits
        self._committed = committed
        self._arrived = arrived
        self._fenced, self._replaced = fenced, replaced
        self._owner = owner
        self._troubles = troubles
        self._places = ReadPlaces() if any_copy else None
        self._renewed_ms = 0
        self._room = asyncio.Event()
        self.quiet = asyncio.Event()
        """Set whenever a chunk ended; `ownership` waits for it while it drains."""

    def settled(self) -> None:
        """A chunk of the queue ended: there may be room, or nothing in hand any more."""
        self._room.set()
        self.quiet.set()

    async def run(self) -> None:
        """Pull until dropped."""
        if self._options.first_pull_delay_ms:
            await self._clock.sleep_ms(self._options.first_pull_delay_ms)
        while not self.process.dropped:
            while self.process.full(self._limits()):
                # No await between the look and this: a chunk that ended in between would not be noticed.
                self._room.clear()
                await self._room.wait()
            pause_ms = await self._once()
            if pause_ms:
                await self._clock.sleep_ms(pause_ms)

    async def _once(self) -> int:
        """One pull; returns the pause after it, ms."""
        process, queue = self.process, self.process.queue
        started_ms = self._clock.monotonic_ms()
        try:
            pulled = await (self._pull_any(self._places) if self._places is not None else self._pull_leader())
        except IllegalOffset as error:
            return self._moved(error)
        except QueueReplaced:
            self._replaced()  # which ends this loop
            return PAUSE_MS
        except PreconditionFailed as error:
            log.info("group %s: broker %s refused a pull of %s: %s", self._group, queue.broker_name, queue, error)
            # The broker no longer counts us as the owner; whether that is so is asked there, and not decided from one
            # refusal.
            self._fenced()
            return self._backoff.next_ms()
        except LeaderMoved as moved:
            log.info("group %s: queue %s is read from the next leader: %s", self._group, queue, moved)
            self._backoff.reset()
            return 0
        except Error as error:
            if error.refresh_route:
                self._routes.renew(queue.topic)
            self._troubles.failed_at(queue.topic, queue.broker_name, error)
            return self._after_failure()
        self._backoff.reset()
        if self._places is None or not self._places.leader_is_away:
            self._troubles.well_at(queue.topic, queue.broker_name)
        if process.paused:  # while this pull was parked; it is asked again after the pause
            return 0
        before = process.next
        now_ms = self._clock.monotonic_ms()
        process.put(pulled.messages, pulled.next_offset, now_ms=now_ms)
        self._arrived(process)
        idle = not pulled.messages and process.next == before
        if idle:
            self._leaders.found_nothing(queue, self._routes.leader(queue.broker_name))
        # An empty long poll that returns at once is a server that does not wait: without a pause this would be a busy
        # loop.
        return PAUSE_MS if idle and now_ms - started_ms < FAST_MS else 0

    async def _pull_leader(self) -> Pulled:
        queue = self.process.queue
        route = await self._routes.get(queue.topic)
        calling = self._pull(route.address_of(queue.broker_name), wait_ms=self._options.pull_wait_ms)
        return await self._leaders.long_poll(queue, route.leader_of(queue.broker_name), calling)

    async def _pull(self, address: str, *, wait_ms: int) -> Pulled:
        return await self._calls.pull(
            address,
            self._group,
            self.process.queue,
            self.process.next,
            batch_max=self._options.pull_batch,
            bytes_max=self._options.pull_bytes,
            wait_ms=wait_ms,
            expression=self._expression,
            generation=self._generation(),
            committed=self._committed(),
            owner=self._owner,
            any_copy=self._places is not None,
            uid=self.process.uid,
        )

    async def _pull_any(self, places: ReadPlaces) -> Pulled:
        """From whom it is best to read now. Raises what the leader raises, or ConnectionFailed if no broker answers: a
        follower's error only sends us on, as it knows less than its leader.
        """
        queue = self.process.queue
        while True:
            route, now_ms = await self._routes.get(queue.topic), self._clock.monotonic_ms()
            leader, followers = route.addresses.get(queue.broker_name, ""), self._routes.followers(queue.broker_name)
            if places.leader_is_away and now_ms - self._renewed_ms >= RENEW_MS:
                self._renewed_ms = now_ms
                self._routes.renew(queue.topic)
            place = places.next(leader, followers, now_ms)
            if place is None:
                raise ConnectionFailed(f"neither the leader of broker {queue.broker_name} nor a follower answers now")
            longest_ms = ANY_WAIT_MS if place.leads else FOLLOWER_WAIT_MS
            try:
                pulled = await self._pull(place.address, wait_ms=min(self._options.pull_wait_ms, longest_ms))
            except Error as error:
                if place.leads and (not error.retryable or isinstance(error, IllegalOffset | PreconditionFailed)):
                    raise
                places.failed(place, self._clock.monotonic_ms())
                if not place.leads:
                    log.debug("queue %s is not read from follower %s now: %s", queue, place.address, error.message)
                    continue
                # No follower can be read: the leader's error is what the caller must see.
                if places.next(leader, followers, self._clock.monotonic_ms()) == place:
                    raise
                self._routes.renew(queue.topic)
                self._troubles.failed_at(queue.topic, queue.broker_name, error)
                continue
            places.answered(
                place, empty=not pulled.messages, far_behind=pulled.far_behind, now_ms=self._clock.monotonic_ms()
            )
            return pulled

    def _after_failure(self) -> int:
        pause_ms = self._backoff.next_ms()
        route = self._routes.peek(self.process.queue.topic)
        has_copies = route is not None and self.process.queue.broker_name in route.epochs
        return min(pause_ms, LEADERLESS_MAX_MS) if has_copies else pause_ms

    def _moved(self, error: IllegalOffset) -> int:
        """RB-48: the offset lies outside the log; go on at the nearest end."""
        process = self.process
        if process.next < error.min_offset:
            process.move(QueueOffset(error.min_offset), now_ms=self._clock.monotonic_ms())
        elif 0 <= error.max_offset < process.next:
            process.move(QueueOffset(error.max_offset), now_ms=self._clock.monotonic_ms())
        else:
            return self._backoff.next_ms()
        log.warning("group %s: queue %s: continuing at offset %d: %s", self._group, process.queue, process.next, error)
        return PAUSE_MS
