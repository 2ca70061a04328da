"""The pull loop of one owned queue (PQ-1 to PQ-8): one long poll after another.

Started and cancelled by `loops.member_queues`. Every pull carries the committed offset (OF-2). The loop pauses after an
error, and after an empty answer that came too fast, so that a broken server is not called in a busy loop.

A pull below the start of the log is refused. Without a table, reading continues at that start. With one, rows of the
table are read up to there, then the broker is pulled again: retention may have moved the start meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from evenq.client.core.calls import Pulled
from evenq.client.core.reading.process_queue import ProcessQueue, Thresholds
from evenq.client.core.reading.read_places import ReadPlaces
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.reading.read_plan import ReadPlan
from evenq.client.loops.reading.table_reads import TableReads
from evenq.client.loops.routes.leader_watch import LeaderMoved, LeaderWatch
from evenq.client.loops.routes.route_book import RouteBook
from evenq.errors import ConnectionFailed, Error, IllegalOffset, PreconditionFailed, QueueReplaced
from evenq.model import Generation, MessageQueue, QueueOffset
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock

if TYPE_CHECKING:
    from evenq.client.rpc.sessions import RpcConsumerCalls

log = logging.getLogger(__name__)

FAST_MS = 20
PAUSE_MS = 100
ANY_WAIT_MS = 2_000
"""Longest long poll at a leader by a reader of any copy: it delays the detection of a lost machine."""
FOLLOWER_WAIT_MS = 500
"""Longest long poll at a follower: the leader may be back."""
RENEW_MS = 1_000
"""Pause between two fetches of the route while a follower is read because the leader is unreachable."""
LEADERLESS_MAX_MS = 500
"""Longest pause before a failed broker group is called again: another copy leads it within seconds."""
TABLE_PATIENCE_MS = 2_000
"""Time for which reads of a table may fail before the user gets the error: an object store may be slow for a moment."""


class PullLoop:
    """The pull loop of one queue. `run` returns when the queue was dropped."""

    def __init__(
        self,
        process: ProcessQueue,
        read_plan: ReadPlan,
        *,
        calls: RpcConsumerCalls,
        routes: RouteBook,
        leaders: LeaderWatch,
        clock: Clock,
        rng: random.Random,
        generation: Callable[[str], Generation],
        limits: Callable[[str], Thresholds],
        committed: Callable[[MessageQueue], int],
        arrived: Callable[[ProcessQueue], None],
        fenced: Callable[[str], None],
        replaced: Callable[[MessageQueue], None],
        troubles: Troubles,
    ) -> None:
        """`fenced` is called with the broker of a rejected pull, `replaced` with a queue whose topic was recreated."""
        self.process = process
        self._group, self._options, self._owner = read_plan.group, read_plan.options, read_plan.clustering
        self._expression = read_plan.subscriptions[process.queue.topic]
        self._calls = calls
        self._routes = routes
        self._leaders = leaders
        self._clock = clock
        self._backoff = Backoff(rng)
        self._generation = generation
        self._limits = limits
        self._committed = committed
        self._arrived = arrived
        self._fenced, self._replaced = fenced, replaced
        self._troubles = troubles
        self._places = ReadPlaces() if read_plan.any_copy else None
        self._table = read_plan.table_of(process.queue.topic)
        self._log_start = 0
        """With a table: the start of the log when it was last known. The broker never has an offset below it again."""
        self._renewed_ms = 0
        self._room = asyncio.Event()
        self.quiet = asyncio.Event()
        """Set whenever a chunk ended; `loops.hand_over` waits for it."""

    def settled(self) -> None:
        """Notes that a chunk of the queue ended, so that pulls may continue and a drain may be complete."""
        self._room.set()
        self.quiet.set()

    async def run(self) -> None:
        if self._options.first_pull_delay_ms:
            await self._clock.sleep_ms(self._options.first_pull_delay_ms)
        while not self.process.dropped:
            while self.process.full(self._limits(self.process.queue.topic)):
                # No await between the check and `clear`: the end of a chunk in between would be missed.
                self._room.clear()
                await self._room.wait()
            table = self._table if self.process.next < self._log_start else None
            pause_ms = await (self._once() if table is None else self._rows_of(table))
            if pause_ms:
                await self._clock.sleep_ms(pause_ms)

    async def _once(self) -> int:
        """Pulls once; returns the pause after it, ms."""
        process, queue = self.process, self.process.queue
        started_ms = self._clock.monotonic_ms()
        try:
            pulled = await (self._pull_any(self._places) if self._places is not None else self._pull_leader())
        except IllegalOffset as error:
            return self._moved(error)
        except QueueReplaced:
            self._replaced(queue)  # which ends this loop
            return PAUSE_MS
        except PreconditionFailed as error:
            log.info("group %s: broker %s refused a pull of %s: %s", self._group, queue.broker_name, queue, error)
            # One rejection does not decide about the ownership: the locks are requested again.
            self._fenced(queue.broker_name)
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
        if process.paused:  # paused meanwhile: the same offset is pulled again later
            return 0
        before = process.next
        now_ms = self._clock.monotonic_ms()
        process.put(pulled.messages, pulled.next_offset, now_ms=now_ms)
        self._arrived(process)
        idle = not pulled.messages and process.next == before
        if idle:
            self._leaders.found_nothing(queue, self._routes.leader(queue.broker_name))
        # The server did not wait: without a pause this would be a busy loop.
        return PAUSE_MS if idle and now_ms - started_ms < FAST_MS else 0

    async def _rows_of(self, table: TableReads) -> int:
        """Reads rows of the table once; returns the pause after it, ms."""
        process, queue, subject = self.process, self.process.queue, f"the table of topic {self.process.queue.topic}"
        try:
            rows = await table.pull(
                queue,
                process.uid,
                process.next,
                self._log_start,
                expression=self._expression,
                batch_max=self._options.pull_batch,
                bytes_max=self._options.pull_bytes,
            )
        except Error as error:  # never skipped: the user gave a table so that nothing is lost
            self._troubles.failed(subject, error, patience_ms=TABLE_PATIENCE_MS)
            return self._backoff.next_ms()
        self._backoff.reset()
        self._troubles.well(subject)
        if process.paused:  # paused meanwhile: the same offset is read again later
            return 0
        if rows.missing:
            log.warning(
                "group %s: queue %s: continuing at offset %d: offsets %d to %d are neither in the table nor in the log",
                self._group,
                queue,
                rows.next_offset,
                process.next,
                rows.next_offset - 1,
            )
        process.put(rows.messages, rows.next_offset, now_ms=self._clock.monotonic_ms())
        self._arrived(process)
        if process.next >= self._log_start:
            log.info("group %s: queue %s is read from its broker from offset %d on", self._group, queue, process.next)
        return 0

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
            generation=self._generation(self.process.queue.topic),
            committed=self._committed(self.process.queue),
            owner=self._owner,
            any_copy=self._places is not None,
            uid=self.process.uid,
        )

    async def _pull_any(self, places: ReadPlaces) -> Pulled:
        """Pulls from the best copy. Raises the leader's error, or ConnectionFailed if no copy answers. A follower's
        error only leads to the next copy, because its state is older than the leader's.
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
                # No follower can be read: the caller must get the leader's error.
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
        """Continues at the nearest end of the log if the offset lies outside (RB-48), or in the table."""
        process = self.process
        if process.next < error.min_offset and self._table is not None:
            self._log_start = error.min_offset
            log.info(
                "group %s: queue %s is read from its table from offset %d to %d, where the log begins",
                self._group,
                process.queue,
                process.next,
                error.min_offset,
            )
            return 0
        if process.next < error.min_offset:
            process.move(QueueOffset(error.min_offset), now_ms=self._clock.monotonic_ms())
        elif 0 <= error.max_offset < process.next:
            process.move(QueueOffset(error.max_offset), now_ms=self._clock.monotonic_ms())
        else:
            return self._backoff.next_ms()
        log.warning("group %s: queue %s: continuing at offset %d: %s", self._group, process.queue, process.next, error)
        return PAUSE_MS
