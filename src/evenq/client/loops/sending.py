"""The producer's loop: chooses queues, gathers batches, sends, retries.

All of it runs in one event loop; the sync face hands items over with `call_soon`. Always true: every submitted item
is settled exactly once, by its result or an error, and then leaves the gate. Retries carry the same encoded
message, so the same message id.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evenq.client.core.batch import QueueBatch
from evenq.client.core.calls import ProducerCalls, Stored
from evenq.client.core.queue_choice import QueueCounter, queue_of_group, queues_of_priority
from evenq.client.core.route import Route
from evenq.client.loops.routes import RouteBook
from evenq.client.options import ProducerOptions
from evenq.errors import ConnectionFailed, Error, Forbidden, InternalError
from evenq.model import MessageQueue, QueueOffset
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

__all__ = ["Item", "SendResult", "Sending", "Settle"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where an acknowledged message is."""

    message_id: str
    queue: MessageQueue
    """Queue id -1: the server chose the queue and did not say (a server without evenq.v1)."""
    offset: QueueOffset


class Settle(Protocol):
    """A future of either kind."""

    def set_result(self, result: SendResult, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class Item:
    """One message on its way."""

    __slots__ = (
        "attempts",
        "encoded",
        "failed_broker",
        "future",
        "message_group",
        "message_id",
        "priority",
        "queue",
        "topic",
        "urgent",
    )

    def __init__(
        self,
        topic: str,
        message_group: str | None,
        message_id: str,
        encoded: bytes,
        future: Settle,
        *,
        urgent: bool,
        priority: int | None = None,
    ) -> None:
        self.topic = topic
        self.message_group = message_group
        self.priority = priority
        self.message_id = message_id
        self.encoded = encoded
        self.future = future
        self.urgent = urgent
        self.attempts = 0
        self.failed_broker = ""
        self.queue: MessageQueue | None = None


class _Lane:
    """One queue's batch and whether one is on its way."""

    __slots__ = ("backoff", "batch", "lingers", "queue", "running")

    def __init__(self, queue: MessageQueue, options: ProducerOptions, rng: random.Random) -> None:
        self.queue = queue
        self.batch: QueueBatch[Item] = QueueBatch(bytes_max=options.batch_bytes, messages_max=options.batch_messages)
        self.backoff = Backoff(rng, first_ms=options.retry_first_ms, max_ms=options.retry_max_ms)
        self.running = False
        self.lingers = False


class Sending:
    """The engine of one producer. `left(messages, bytes)` is told whenever items were settled."""

    def __init__(
        self,
        calls: ProducerCalls,
        *,
        clock: Clock,
        rng: random.Random,
        options: ProducerOptions,
        left: Callable[[int, int], None],
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._rng = rng
        self._options = options
        self._left = left
        self._routes = RouteBook(calls, clock, refresh_ms=options.route_refresh_ms)
        self._counters: dict[str, QueueCounter] = {}
        self._lanes: dict[MessageQueue, _Lane] = {}
        self._homeless: dict[str, list[Item]] = {}
        self._tasks: set[asyncio.Task[object]] = set()

    def submit(self, items: Iterable[Item]) -> None:
        """Take messages; their room in the gate is already theirs."""
        touched: dict[MessageQueue, _Lane] = {}
        for item in items:
            route = self._routes.peek(item.topic)
            if route is None or item.topic in self._homeless:
                self._wait_for_route(item)
                continue
            lane = self._place(item, route)
            if lane is not None:
                touched[lane.queue] = lane
        for lane in touched.values():
            self._consider(lane)

    def flush(self) -> None:
        """Let nothing linger."""
        for lane in self._lanes.values():
            lane.batch.due = True
            self._consider(lane)

    async def route(self, topic: str) -> Route:
        """The topic's route, for callers that want to know."""
        return await self._routes.get(topic)

    async def close(self) -> None:
        """End what runs; unsettled messages fail."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._routes.close()
        rest = [item for items in self._homeless.values() for item in items]
        for lane in self._lanes.values():
            while len(lane.batch):
                rest += lane.batch.take()
        self._homeless.clear()
        self._reject(rest, ConnectionFailed("the producer was closed before the message was acknowledged"))

    def _wait_for_route(self, item: Item) -> None:
        waiting = self._homeless.setdefault(item.topic, [])
        waiting.append(item)
        if len(waiting) == 1:
            self._spawn(self._find_route(item.topic), f"evenq-find-route-{item.topic}")

    async def _find_route(self, topic: str) -> None:
        backoff = Backoff(self._rng, first_ms=self._options.retry_first_ms, max_ms=self._options.retry_max_ms)
        failure: Error | None = None
        for attempt in range(self._options.max_attempts):
            if attempt:
                await self._clock.sleep_ms(backoff.next_ms())
            try:
                await self._routes.get(topic)
                failure = None
                break
            except Error as error:
                failure = error
                if not error.retryable:
                    break
        waiting = self._homeless.pop(topic, [])
        if failure is None:
            self.submit(waiting)
        else:
            self._reject(waiting, failure)

    def _place(self, item: Item, route: Route) -> _Lane | None:
        queues: Sequence[MessageQueue] = route.writable
        if not queues:
            self._reject([item], Forbidden(f"topic {item.topic} has no writable queue now; look at its permissions"))
            return None
        if item.message_group is not None:
            queue = item.queue or queue_of_group(item.message_group, queues)  # an ordered message never moves (PR-10)
        else:
            if item.priority is not None:
                queues = queues_of_priority(item.priority, queues)
            counter = self._counters.get(item.topic)
            if counter is None:
                counter = self._counters[item.topic] = QueueCounter(self._rng.randrange(1 << 16))
            queue = counter.choose(queues, failed_broker=item.failed_broker)
        item.queue = queue
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = _Lane(queue, self._options, self._rng)
        lane.batch.add(item)
        return lane

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

    async def _attempt(self, lane: _Lane, items: list[Item]) -> None:
        try:
            stored = await self._publish(lane, items)
        except Error as error:
            if not error.retryable and len(items) > 1:  # one bad message must not take the others with it
                for item in items:
                    await self._attempt(lane, [item])
                return
            await self._failed(lane, items, error)
        except asyncio.CancelledError:
            self._reject(items, ConnectionFailed("the producer was closed while the message was on its way"))
            raise
        except Exception as error:  # an encoder or a wire that fails in an unforeseen way must not leave futures open
            log.exception("a batch failed in an unforeseen way", extra={"queue": str(lane.queue)})
            self._reject(items, InternalError(f"sending failed in an unforeseen way: {error!r}"))
        else:
            lane.backoff.reset()
            self._resolve(items, stored)

    async def _publish(self, lane: _Lane, items: list[Item]) -> Stored:
        route = await self._routes.get(lane.queue.topic)
        address = route.addresses.get(lane.queue.broker_name)
        if address is None:
            raise ConnectionFailed(f"broker {lane.queue.broker_name} is not in the route of {lane.queue.topic} now")
        return await self._calls.publish(
            address, lane.queue, [item.encoded for item in items], timeout_ms=self._options.timeout_ms
        )

    async def _failed(self, lane: _Lane, items: list[Item], error: Error) -> None:
        if error.refresh_route:
            self._routes.renew(lane.queue.topic)
        for item in items:
            item.attempts += 1
            item.failed_broker = lane.queue.broker_name
        tries = self._options.max_attempts if error.retryable else 0
        again = [item for item in items if item.attempts < tries]
        self._reject([item for item in items if item.attempts >= tries], error)
        if not again:
            return
        route = self._routes.peek(lane.queue.topic)
        elsewhere = route is not None and any(q.broker_name != lane.queue.broker_name for q in route.writable)
        moving = [item for item in again if item.message_group is None] if elsewhere else []
        staying = [item for item in again if item.message_group is not None] if elsewhere else again
        self.submit(moving)
        lane.batch.put_back(staying)
        if staying:
            await self._clock.sleep_ms(lane.backoff.next_ms())
            if not elsewhere:  # another broker may serve the topic by now
                self._move_if_possible(lane)

    def _move_if_possible(self, lane: _Lane) -> None:
        """After a pause: ordered messages stay, others go where the newest route says."""
        route = self._routes.peek(lane.queue.topic)
        if route is None or all(q.broker_name == lane.queue.broker_name for q in route.writable):
            return
        rest: list[Item] = []
        while len(lane.batch):
            rest += lane.batch.take()
        lane.batch.put_back(item for item in rest if item.message_group is not None)
        self.submit([item for item in rest if item.message_group is None])

    def _resolve(self, items: Sequence[Item], stored: Stored) -> None:
        size = 0
        for item, offset in zip(items, stored.offsets, strict=True):
            size += len(item.encoded)
            try:
                item.future.set_result(SendResult(item.message_id, stored.queue, QueueOffset(offset)))
            except (asyncio.InvalidStateError, concurrent.futures.InvalidStateError):
                log.debug("nobody waits for the result of a message any more")
        self._left(len(items), size)

    def _reject(self, items: Sequence[Item], error: Error) -> None:
        if not items:
            return
        for item in items:
            try:
                item.future.set_exception(error)
            except (asyncio.InvalidStateError, concurrent.futures.InvalidStateError):
                log.debug("nobody waits for the failure of a message any more")
        self._left(len(items), sum(len(item.encoded) for item in items))

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = spawn(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
