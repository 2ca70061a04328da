"""The send loop of one producer: it chooses queues, forms batches, sends them and retries.

**Problem.** Brokers restart, broker groups change their leaders, queues are closed, and answers are lost. Messages
must be stored nevertheless, those of one queue in the order in which they were given. Each sender needs one result.

**Idea.** Each queue has a lane: a batch of waiting entries, and at most one call. A message whose call failed either
fails for good, or moves to another broker immediately, or returns to the front of its lane, which then pauses.
Retries send the same bytes, so the same message id. A block of `send_batch` is one entry until a call fails; then it
is split into single messages. The messages of a batch that is refused for good return to the front of their lane, and
each gets a call of its own: one invalid message does not fail its neighbours.

**Invariants.**
- No entry is settled twice. With its result or error it releases its capacity in the gate (`left`).
- A lane has one call at a time, and failed messages return to its front in their old order (PR-7).
- A message with a key or a selector keeps its queue until that queue is closed (PR-10). A message of a lite topic goes
  to a broker that owns the lite topic by the route.
- A waiting entry fails at the first sweep after its `send_timeout_ms`; sweeps are at most 1 s apart. No call begins for
  it in between.

**Example.** A topic has one queue at broker a and one at broker b, without copies; `max_attempts` is 3.

     0 ms  the call to a fails: 1 attempt. b had no try yet: the message moves there immediately (PR-2).
     2 ms  the call to b fails: 2 attempts. Both brokers had a try: the message stays, and its lane pauses for 20 ms.
    22 ms  After the pause the message moves to a, because b failed last.
    24 ms  The call to a fails: 3 attempts, so the sender gets the error.

If only a serves the topic, and it has copies, a lost connection counts no attempt (decision 66). The lane pauses
until a route names another leader, about 1 s at most.

References: PR-2 to PR-10, RT-8, TQ-14, wire contract 3.7; decisions 29, 63, 66, 74 and 104.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evenq.client.core.calls import StoredBatch
from evenq.client.core.routes.route import Route, RouteLeader
from evenq.client.core.sending.batch import QueueBatch
from evenq.client.core.sending.faults import FaultTable
from evenq.client.core.sending.queue_choice import (
    FixedQueues,
    QueueCounter,
    is_closed,
    no_queue_takes,
    queue_of_lite_topic,
    queues_of_priority,
)
from evenq.client.loops.routes.leader_watch import LeaderWatch
from evenq.client.loops.routes.route_book import RouteBook
from evenq.client.loops.sending.first_route import FirstRoute
from evenq.client.loops.sending.outgoing import Entry, Item, SendBlock, result_of, singles_of
from evenq.client.options import ProducerOptions
from evenq.errors import ConnectionFailed, Error, InternalError, RequestTimeout, TooManyRequests
from evenq.model import MessageQueue
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq.client.rpc.calls import Calls

log = logging.getLogger(__name__)

STEPS = 2
"""Turns of the loop from a submitted block to its call: the lane's task, then the task of the call."""
NO_LEADER = RouteLeader("", 0)
REFUSED_MS = 100
"""Shortest pause at a group without a leader: copies that name each other must not be called in a loop."""
SWEEP_SHARE = 20
"""Sweeps for late entries within one `send_timeout_ms`."""
SWEEP_MAX_MS = 1_000


class _Lane:
    """The batch of one queue, and the entries of its running call."""

    __slots__ = ("apart", "backoff", "batch", "flying", "leader", "lingers", "queue", "running")

    def __init__(self, queue: MessageQueue, options: ProducerOptions, rng: random.Random, *, apart: bool) -> None:
        self.queue = queue
        self.apart = apart
        """True: for messages whose queue the server chooses (delivery time, lite topic), by a call of their own."""
        self.flying: list[Entry] = []
        """Entries of the running attempt, with its pause; those that stay are then in the batch, too."""
        self.leader = NO_LEADER
        """Leader that the last call was sent to. A newer one ends a pause."""
        self.batch: QueueBatch[Entry] = QueueBatch(bytes_max=options.batch_bytes, messages_max=options.batch_messages)
        self.backoff = Backoff(rng, first_ms=options.retry_first_ms, max_ms=options.retry_max_ms)
        self.running = False
        """True while a `_drive` task owns the lane, so there is never a second call."""
        self.lingers = False
        """True while a `_linger` task will make the batch due."""


class SendLoop:
    """The send loop of one producer. `left(messages, bytes)` is called whenever entries were settled."""

    def __init__(
        self,
        calls: Calls,
        *,
        clock: Clock,
        rng: random.Random,
        options: ProducerOptions,
        left: Callable[[int, int], None],
        several_access_points: bool = False,
    ) -> None:
        """`several_access_points`: as in `FirstRoute`."""
        self._calls, self._clock, self._rng = calls, clock, rng
        self._options, self._left = options, left
        self.rejected = 0
        """Number of messages that failed for good."""
        self._routes = RouteBook(calls, clock, refresh_ms=options.route_refresh_ms)
        self._leaders = LeaderWatch(self._routes, clock, rng)
        self._first_route = FirstRoute(self._routes, clock, rng, options, several=several_access_points)
        self._counters: dict[str, QueueCounter] = {}
        """By topic; also used by callers of `spread` in other threads."""
        self._fixed: dict[str, FixedQueues] = {}
        """By topic: the queues among which keys are divided. Unused with `ordered_moves`."""
        self._faults = FaultTable() if options.latency_faults else None
        self._lanes: dict[tuple[MessageQueue, bool], _Lane] = {}
        """By queue and `apart`. Never removed, so a lane keeps its backoff."""
        self._pending = 0
        """Counted messages that are not settled."""
        self._sweeping = False
        """True while a `_sweep` task runs, which it does while messages are pending."""
        self._homeless: dict[str, list[Entry]] = {}
        """Waiting entries of topics without a route, in order. Each topic has a `_find_route` task, until `close`."""
        self._held: set[Entry] = set()
        """Failed entries that are in no batch while their next queue is chosen; those that `close` leaves here fail."""
        self._tasks: set[asyncio.Task[object]] = set()

    def submit(self, items: Iterable[Entry]) -> None:
        """Takes messages and blocks that have entered the gate."""
        touched: dict[_Lane, None] = {}
        until_ms = self._clock.monotonic_ms() + self._options.send_timeout_ms
        for item in items:
            self._count(item, until_ms)
            route = self._routes.peek(item.topic)
            # Entries that wait for the route come first, or this one would overtake them.
            if route is None or item.topic in self._homeless:  # no route yet
                self._wait_for_route(item)
                continue
            lane = self._place(item, route)
            if lane is not None:
                touched[lane] = None
        for lane in touched:
            self._consider(lane)
        self._watch_late()

    def resume(self, item: Item, queue: MessageQueue, error: Error) -> None:
        """Takes a message whose first try failed in its sender's thread (decision 29); `item.until_ms` is set."""
        self._count(item, item.until_ms)
        self._held.add(item)
        lane = self._lane(queue, apart=item.apart)
        self._spawn(self._go_on(lane, item, error), f"evenq-resume-{queue}")
        self._watch_late()

    async def _go_on(self, lane: _Lane, item: Item, error: Error) -> None:
        route = self._routes.peek(item.topic)
        if not lane.running:
            lane.leader = route.leader_of(lane.queue.broker_name) if route is not None else NO_LEADER
        await self._failed(lane, [item], error)
        self._consider(lane)

    def fresh_route(self, topic: str) -> Route | None:
        """Returns the topic's route unless it is unknown or old; callable in any thread."""
        return self._routes.fresh_one(topic)

    def spread(self, topic: str, count: int) -> tuple[Sequence[MessageQueue], int] | None:
        """Returns the topic's queues and the first of `count` turns over them, which the caller reserves. None unless
        the route is known and fresh. Callable in any thread.
        """
        route = self._routes.fresh_one(topic)
        if route is None or not route.writable or self._faults is not None:
            return None
        return route.writable, self._counter(topic).take(count)

    def _count(self, item: Entry, until_ms: int) -> None:
        if not item.counted:
            item.counted = True
            # Kept when the entry moves to another queue: the time runs from its `send`.
            item.until_ms = item.until_ms or until_ms
            self._pending += item.count

    def _watch_late(self) -> None:
        if self._pending and not self._sweeping:
            self._sweeping = True
            self._spawn(self._sweep(), "evenq-late-messages")

    async def begun(self) -> None:
        """Returns once calls for the last submitted entries have started, in lanes without a running call."""
        for _ in range(STEPS):
            await self._clock.sleep_ms(0)

    def flush(self) -> None:
        """Makes all batches due."""
        for lane in self._lanes.values():
            lane.batch.due = True
            self._consider(lane)

    async def route(self, topic: str) -> Route:
        """Returns the topic's route, within `send_timeout_ms`."""
        until_ms = self._clock.monotonic_ms() + self._options.send_timeout_ms
        return await self._first_route.get(topic, is_wanted=lambda: self._clock.monotonic_ms() < until_ms)

    def route_changed(self, topic: str, then: Callable[[], None]) -> None:
        """Fetches the topic's route after a failed call; `then` is called after the answer."""
        self._routes.renew(topic, then)

    async def close(self) -> None:
        """Stops all tasks; entries that wait fail."""
        # Tasks first: afterwards no call runs, and the remaining entries are in batches or without a route.
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._leaders.close()
        await self._routes.close()
        rest = dict.fromkeys(item for items in self._homeless.values() for item in items)
        for lane in self._lanes.values():
            while len(lane.batch):
                rest.update(dict.fromkeys(lane.batch.take()))
        rest.update(dict.fromkeys(self._held))  # some of them are in a batch, too
        self._homeless.clear()
        self._held.clear()
        self._reject(list(rest), ConnectionFailed("the producer was closed before the message was acknowledged"))

    def _wait_for_route(self, item: Entry) -> None:
        waiting = self._homeless.get(item.topic)
        if waiting is not None:
            waiting.append(item)
        else:
            self._homeless[item.topic] = [item]
            self._spawn(self._find_route(item.topic), f"evenq-find-route-{item.topic}")

    async def _find_route(self, topic: str) -> None:
        failure: Error | None = None
        try:
            await self._first_route.get(topic, is_wanted=lambda: any(not item.done for item in self._homeless[topic]))
        except Error as error:
            failure = error
        waiting = [item for item in self._homeless.pop(topic, []) if not item.done]
        if failure is None:
            self.submit(waiting)
        else:
            self._reject(waiting, failure)

    def _place(self, item: Entry, route: Route) -> _Lane | None:
        if isinstance(item, Item):
            try:
                item.queue = self._choose(item, route)
            except Error as error:
                self._reject([item], error)
                return None
            lane = self._lane(item.queue, apart=item.apart)
        else:
            lane = self._lane(item.queue)
        lane.batch.add(item)
        return lane

    def _lane(self, queue: MessageQueue, *, apart: bool = False) -> _Lane:
        lane = self._lanes.get((queue, apart))
        if lane is None:
            lane = _Lane(queue, self._options, self._rng, apart=apart)
            self._lanes[queue, apart] = lane
        return lane

    def _choose(self, item: Item, route: Route) -> MessageQueue:
        if item.pinned:
            return item.queue or item.pinned_to(self._fixed_queues(item.topic, route))
        queues: Sequence[MessageQueue] = route.writable
        if not queues:
            raise no_queue_takes(item.topic)
        if item.lite_topic is not None:
            return queue_of_lite_topic(item.lite_topic, queues)
        if item.priority is not None:
            queues = queues_of_priority(item.priority, queues)
        counter = self._counter(item.topic)
        failed = item.failed
        if self._faults is None:
            return counter.choose(queues, failed_broker=failed.broker_name if failed is not None else "")
        near = item.attempts == 1  # PR-5: only one more try at the same broker
        return counter.choose_by_faults(
            queues, self._faults, now_ms=self._clock.monotonic_ms(), failed=failed, near=near
        )

    def _counter(self, topic: str) -> QueueCounter:
        counter = self._counters.get(topic)
        if counter is None:
            counter = self._counters[topic] = QueueCounter(self._rng.randrange(1 << 16))
        return counter

    def _fixed_queues(self, topic: str, route: Route) -> Sequence[MessageQueue]:
        queues: Sequence[MessageQueue] = route.writable
        if not self._options.ordered_moves:
            fixed = self._fixed.setdefault(topic, FixedQueues())
            if fixed.changed(queues, route.addresses):
                log.warning(
                    "the queues of topic %s changed: ordered messages of some keys now go to another queue",
                    topic,
                )
            queues = fixed.queues
        if not queues:
            raise no_queue_takes(topic)
        return queues

    async def _sweep(self) -> None:
        """Fails late entries, while any are pending."""
        step_ms = min(SWEEP_MAX_MS, max(1, self._options.send_timeout_ms // SWEEP_SHARE))
        try:
            while self._pending:
                await self._clock.sleep_ms(step_ms)
                now_ms = self._clock.monotonic_ms()

                def gone(item: Entry, now_ms: int = now_ms) -> bool:
                    return item.until_ms <= now_ms

                for topic, items in list(self._homeless.items()):
                    self._reject(list(filter(gone, items)), self._first_route.late(topic))
                    items[:] = [item for item in items if not item.done]
                late: list[Entry] = []
                for lane in self._lanes.values():
                    late += lane.batch.drop(gone)
                    late += filter(gone, lane.flying)
                self._reject_late([*late, *filter(gone, self._held)])
        finally:
            self._sweeping = False

    def _reject_late(self, items: Iterable[Entry]) -> None:
        for item in items:
            late = f"no acknowledgement within {self._options.send_timeout_ms} ms (send_timeout_ms)"
            tries, error = (item.tries, item.error) if isinstance(item, Item) else (0, None)
            why = f"{tries} tries failed" if error is None else f"{tries} tries failed, the last one with: {error}"
            self._reject([item], RequestTimeout(f"{late}, {why}; the message may be stored or not"))

    def _consider(self, lane: _Lane) -> None:
        if lane.running or not len(lane.batch):
            return
        if lane.batch.ready or self._options.linger_ms == 0:
            lane.running = True
            self._spawn(self._drive(lane), f"evenq-send-{lane.queue}")
        elif not lane.lingers:
            lane.lingers = True
            self._spawn(self._linger(lane), f"evenq-linger-{lane.queue}")

    async def _linger(self, lane: _Lane) -> None:
        await self._clock.sleep_ms(self._options.linger_ms)
        lane.lingers = False
        lane.batch.due = True
        self._consider(lane)

    async def _drive(self, lane: _Lane) -> None:
        try:
            while lane.batch.ready or (len(lane.batch) and self._options.linger_ms == 0):
                await self._attempt(lane, lane.batch.take())
        finally:
            lane.running = False
        self._consider(lane)

    async def _attempt(self, lane: _Lane, given: Sequence[Entry]) -> None:
        began_ms = self._clock.monotonic_ms()
        self._reject_late([item for item in given if item.until_ms <= began_ms])  # no sweep saw them
        items = [item for item in given if not item.done]
        if not items:
            return
        lane.flying = items
        try:
            stored = await self._publish(lane, items, began_ms)
        except Error as error:
            hopeless = not error.retryable and not is_closed(error, lane.queue)
            singles = singles_of(items)
            if hopeless and len(singles) > 1:  # permanent: one invalid message must not fail the others
                for item in singles:
                    item.alone = True
                # Through the lane: if one fails for now, those behind it must not overtake it (PR-7).
                lane.batch.put_back(singles)
                return
            await self._failed(lane, singles, error)
        except asyncio.CancelledError:
            self._held.update(items)
            raise
        except Exception as error:  # an unexpected error must not leave futures open
            log.exception("a batch of %d messages for %s failed with an unexpected error", len(items), lane.queue)
            self._reject(items, InternalError(f"sending failed with an unexpected error: {error!r}"))
        else:
            lane.backoff.reset()
            if self._faults is not None:
                now_ms = self._clock.monotonic_ms()
                self._faults.answered(lane.queue.broker_name, now_ms - began_ms, now_ms)
            self._resolve(items, stored)
        finally:
            lane.flying = []

    async def _publish(self, lane: _Lane, items: list[Entry], now_ms: int) -> StoredBatch:
        route = await self._routes.get(lane.queue.topic)
        address = route.address_of(lane.queue.broker_name)
        leader = lane.leader = route.leader_of(lane.queue.broker_name)
        left_ms = min(item.until_ms for item in items) - now_ms
        contents = [
            content for item in items for content in (item.contents if isinstance(item, SendBlock) else (item.encoded,))
        ]
        timeout_ms = max(1, min(self._options.timeout_ms, left_ms))
        publishing = self._calls.publish(address, lane.queue, contents, timeout_ms=timeout_ms, apart=lane.apart)
        stored = await self._leaders.call(lane.queue, leader, publishing)
        if len(stored.offsets) != len(contents):
            raise InternalError(f"{address} answered {len(contents)} messages with {len(stored.offsets)} offsets")
        return stored

    @contextmanager
    def _holding(self, items: Iterable[Entry]) -> Iterator[None]:
        """Entries that a task works on outside of a batch. A cancelled task leaves them to `close`."""
        self._held.update(items)
        yield
        self._held.difference_update(items)

    async def _failed(self, lane: _Lane, items: list[Item], error: Error) -> None:
        with self._holding(items):
            await self._try_again(lane, items, error)

    async def _try_again(self, lane: _Lane, items: list[Item], error: Error) -> None:
        closed, leader = is_closed(error, lane.queue), lane.leader
        if closed:  # the broker rejects the queue: the route must be fresh before a new queue is chosen
            await self._left_out(lane)
        elif error.refresh_route:
            self._routes.renew(lane.queue.topic)
        now_ms = self._clock.monotonic_ms()
        if error.retryable and self._faults is not None:
            self._faults.failed(lane.queue.broker_name, now_ms)
        group = leader.epoch > 0
        moved = {
            item for item in items if item.count_failure(error, lane.queue, closed=closed, group=group, now_ms=now_ms)
        }
        again: list[Item] = []
        for item in items:
            if item.done:
                continue
            if not (error.retryable or closed) or item.attempts >= (item.tries_max or self._options.max_attempts):
                self._reject([item], error)  # permanent, or the attempts are used up
            elif item.until_ms <= now_ms:  # retryable, but too late
                self._reject_late([item])
            else:
                again.append(item)
        if not again:
            return
        route = self._routes.peek(lane.queue.topic)
        if closed and route is not None and lane.queue not in route.writable:  # the route confirms that it is closed
            self._move_all(lane, again)
            return
        brokers = len({queue.broker_name for queue in route.writable}) if route is not None else 1
        moving: list[Item] = []
        staying: list[Item] = []
        full = isinstance(error, TooManyRequests)  # wire contract 3.7: the next try needs a pause
        for item in again:  # all others move to another broker immediately, until each broker had a try
            uncounted = closed or item.finds_no_leader(error)
            tired = item not in moved if uncounted else item.attempts % brokers == 0
            stays = full or item.pinned or item.lite_topic is not None or brokers < 2 or tired
            (staying if stays else moving).append(item)
        self.submit(moving)
        lane.batch.put_back(staying)  # before the pause, so that `close` and sweeps find them
        if staying:
            await self._pause(lane, staying, leader, now_ms)
            self._move_if_possible(lane)  # another broker may have a queue of the topic by now

    async def _pause(self, lane: _Lane, staying: Sequence[Item], leader: RouteLeader, now_ms: int) -> None:
        """Waits before the next try at the same broker; a route that names a new leader ends the wait of a group."""
        pause_ms = lane.backoff.next_ms()
        without_ms = max(item.leaderless_for(now_ms) for item in staying)
        if not without_ms and not any(item.leaderless_ms for item in staying):  # an ordinary failure
            await self._clock.sleep_ms(pause_ms)
            return
        least_ms = min(pause_ms, REFUSED_MS)
        await self._clock.sleep_ms(least_ms)
        pause_ms = max(pause_ms, min(self._options.retry_max_ms, without_ms // 2))  # half the time without a leader
        await self._leaders.moved(lane.queue, leader, within_ms=pause_ms - least_ms)

    async def _left_out(self, lane: _Lane) -> None:
        """Fetches the route after a broker rejected the queue (RT-8, TQ-14)."""
        try:
            await self._routes.fresh(lane.queue.topic)
        except Error as error:
            log.info("topic %s: no fresh route: %s", lane.queue.topic, error)

    def _move_all(self, lane: _Lane, items: list[Item]) -> None:
        """Moves all messages of a closed queue to other queues, in order; also the pinned ones."""
        while len(lane.batch):
            items += singles_of(lane.batch.take())
        for item in items:
            item.queue = None
        self.submit(item for item in items if not item.done)

    def _move_if_possible(self, lane: _Lane) -> None:
        """Chooses queues again after a pause, if other brokers serve the topic; pinned messages stay."""
        route = self._routes.peek(lane.queue.topic)
        if route is None or all(q.broker_name == lane.queue.broker_name for q in route.writable):
            return
        rest: list[Item] = []
        while len(lane.batch):
            rest += singles_of(lane.batch.take())
        lane.batch.put_back(item for item in rest if item.pinned)
        self.submit([item for item in rest if not item.pinned])

    def _resolve(self, items: Sequence[Entry], stored: StoredBatch) -> None:
        count = size = at = 0
        for item in items:
            first, at = at, at + item.count
            if item.done:
                continue
            item.done = True
            count += item.count
            size += item.size
            try:
                if isinstance(item, Item):
                    item.future.set_result(result_of(item.message_id, stored, first))
                else:
                    numbered = enumerate(item.message_ids, first)
                    item.future.set_result([result_of(message_id, stored, number) for number, message_id in numbered])
            except (asyncio.InvalidStateError, concurrent.futures.InvalidStateError):
                log.debug("the result of a message arrived after its caller stopped waiting")
        self._pending -= count
        self._left(count, size)

    def _reject(self, given: Sequence[Entry], error: Error) -> None:
        items = [item for item in given if not item.done]
        if not items:
            return
        count = sum(item.count for item in items)
        self._pending -= count
        self.rejected += count
        for item in items:
            item.done = True
            try:
                if isinstance(item, Item):
                    item.future.set_exception(error)
                else:
                    item.future.set_result([error] * item.count)
            except (asyncio.InvalidStateError, concurrent.futures.InvalidStateError):
                log.debug("the failure of a message arrived after its caller stopped waiting")
        self._left(count, sum(item.size for item in items))

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = spawn(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
