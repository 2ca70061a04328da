"""Queues that end with their process, and fanout: positions in one topic of broadcasts.

**Problem.** Remote control, events and replies go to queues that one process makes for itself and that nobody deletes
when it is killed: the mailbox of a worker, the reply queue of `celery inspect`. A topic and a group for each would stay
behind. A publisher cannot know them either, because bindings of a virtual transport are in the memory of their process.

**Idea.** All of these messages are sent to one topic per prefix, once, with exchange and routing key. A queue is a
position in this topic: declared at its end, and read from there without a group, so a broker keeps nothing about it.
Brokers filter by tag (`names.broadcast_tag`); the reader compares exchange and routing key with its bindings. The
retention of the topic bounds what is stored.

**Invariants.**

- A message that is sent after `declare` returned is delivered: positions are taken before.
- A queue delivers each message once to its process. Acknowledgements mean nothing; a rejected message is put back here.
- While `BACKLOG_MAX` deliveries of a queue were not taken, it is not read: the topic keeps the rest.
- A queue without a consumer costs no calls. Of those, the `QUEUES_MAX` newest are kept.

**Example.** `celery inspect ping` declares its reply queue at offset 17, then sends the request, which is stored as 17.
A worker, which reads at 17, answers with exchange `reply.celery.pidbox` and the routing key of the queue.

All methods run in the loop of the process.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kombu.transport.virtual.exchange import TopicExchange

from evenq.celery.codec import decoded
from evenq.celery.inbox import Inbox, KombuDelivery
from evenq.celery.names import broadcast_tag
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.routes.route_book import RouteBook
from evenq.client.rpc.calls import Calls
from evenq.client.wiring import ClientContext, new_client_id
from evenq.errors import Error, Forbidden, IllegalOffset, MessageCorrupted, Unauthorized
from evenq.model import NO_GENERATION, FilterExpression, MessageQueue, QueueOffset
from evenq.runtime.backoff import Backoff
from evenq.runtime.tasks import spawn

log = logging.getLogger(__name__)

BACKLOG_MAX = 1_000
QUEUES_MAX = 1_000
TAGS_MAX = 32
"""Most tags of one filter; a queue with more bindings reads everything."""
BATCH_MAX = 256
BYTES_MAX = 1 << 20
ROUTE_MS = 10_000
"""Period of looking for brokers that the topic was added to."""
PAUSE_MS = 20
"""Pause before a full queue is looked at again."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A rule for the messages of a queue. `kind` is the type of the exchange; the default exchange is direct."""

    exchange: str
    kind: str
    routing_key: str

    @property
    def tag(self) -> str:
        return broadcast_tag(self.exchange, self.routing_key if self.kind == "direct" else None)

    def matches(self, exchange: str, routing_key: str) -> bool:
        if exchange != self.exchange:
            return False
        if self.kind == "direct":
            return routing_key == self.routing_key
        if self.kind == "topic":
            pattern: str = TopicExchange(None).key_to_pattern(self.routing_key)
            return re.match(pattern, routing_key) is not None
        return True


class TransientQueue:
    """One queue: its bindings and its position at each broker."""

    def __init__(self, name: str, declared_ms: int) -> None:
        self.name = name
        self.declared_ms = declared_ms
        self.bindings = {Binding("", "direct", name)}
        self.positions: dict[MessageQueue, QueueOffset] = {}
        self.returned: deque[dict[str, Any]] = deque()
        """Messages that were rejected, or fetched and not taken."""
        self.inbox: Inbox | None = None
        self.task: asyncio.Task[None] | None = None

    def filter(self) -> FilterExpression:
        tags = sorted({binding.tag for binding in self.bindings})
        return FilterExpression(" || ".join(tags) if len(tags) <= TAGS_MAX else "*")

    def wants(self, payload: dict[str, Any]) -> bool:
        info = payload["properties"]["delivery_info"]
        exchange, routing_key = info.get("exchange") or "", info.get("routing_key") or ""
        return any(binding.matches(exchange, routing_key) for binding in self.bindings)


class Broadcasts:
    """The transient queues of one process."""

    def __init__(self, context: ClientContext, topic: str, *, poll_ms: int, tag: Callable[[str], str]) -> None:
        """`tag`: makes the delivery tag of a message for a queue."""
        self._context = context
        self._topic = topic
        self._poll_ms = poll_ms
        self._tag = tag
        self._calls = Calls(
            context.open_net(), endpoint=context.endpoint, client_id=new_client_id(context.clock), reads=True
        )
        self._routes = RouteBook(self._calls, context.clock, refresh_ms=ROUTE_MS)
        self._troubles = Troubles(context.clock, who=f"broadcasts of {topic}")
        self._queues: dict[str, TransientQueue] = {}

    async def declare(self, name: str) -> None:
        """Makes a queue, at the present end of the topic. Raises TopicNotFound, ConnectionFailed."""
        if name in self._queues:
            return
        made = TransientQueue(name, self._context.clock.now_ms())
        route = await self._routes.get(self._topic)
        ranges = await asyncio.gather(*(self._range(queue) for queue in route.readable))
        for queue, offset in zip(route.readable, ranges, strict=True):
            if offset is not None:
                made.positions[queue] = offset
        self._queues.setdefault(name, made)
        if len(self._queues) > QUEUES_MAX:
            idle = next((one for one in self._queues.values() if one.task is None and one is not made), None)
            if idle is not None:
                self.delete(idle.name)

    def bind(self, name: str, binding: Binding) -> None:
        """Adds a binding; a queue that is read continues with it."""
        queue = self._queues.get(name)
        if queue is not None and binding not in queue.bindings:
            queue.bindings.add(binding)
            self._restart(queue)

    def unbind(self, name: str, binding: Binding) -> None:
        queue = self._queues.get(name)
        if queue is not None:
            queue.bindings.discard(binding)

    def consume(self, name: str, inbox: Inbox) -> None:
        """Begins to deliver into `inbox`."""
        queue = self._queues.get(name)
        if queue is None:  # dropped as one of too many without a consumer
            queue = self._queues[name] = TransientQueue(name, self._context.clock.now_ms())
        queue.inbox = inbox
        while queue.returned:
            inbox.put(KombuDelivery(name, queue.returned.popleft(), ""))
        self._restart(queue)

    def delete(self, name: str) -> None:
        """Ends a queue. One that does not exist is ignored."""
        queue = self._queues.pop(name, None)
        if queue is not None and queue.task is not None:
            queue.task.cancel()
            queue.task = None

    def put_back(self, name: str, payload: dict[str, Any]) -> None:
        """Makes a message the next one of its queue in this process."""
        queue = self._queues.get(name)
        if queue is None:
            return
        if queue.inbox is not None:
            queue.inbox.put(KombuDelivery(name, payload, ""))
        elif len(queue.returned) < BACKLOG_MAX:
            queue.returned.append(payload)

    async def get(self, name: str) -> dict[str, Any] | None:
        """Returns the next message of a queue without a consumer; None: there is none now."""
        queue = self._queues.get(name)
        if queue is None or queue.inbox is not None:
            return None
        if not queue.returned:
            route = await self._routes.get(self._topic)
            for place in route.readable:
                await self._pull(queue, place, 0, queue.returned.append)
        return queue.returned.popleft() if queue.returned else None

    async def close(self) -> None:
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        for name in list(self._queues):
            self.delete(name)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._routes.close()

    # ------------------------------------------------------------------------------------------------------ reading

    def _restart(self, queue: TransientQueue) -> None:
        """Reads with the present bindings, from the same position: a running pull may have skipped their messages."""
        if queue.task is not None:
            queue.task.cancel()
            queue.task = None
        if queue.inbox is not None:
            queue.task = spawn(self._read(queue), name=f"evenq-celery-broadcasts-{queue.name}")

    async def _read(self, queue: TransientQueue) -> None:
        """Reads the topic at all its brokers, also at those that get it later."""
        readers: dict[MessageQueue, asyncio.Task[None]] = {}
        try:
            while True:
                with suppress(Error):  # the readers report what fails
                    for place in (await self._routes.get(self._topic)).readable:
                        if place not in readers:
                            readers[place] = spawn(self._follow(queue, place), name=f"evenq-celery-{place}")
                await self._context.clock.sleep_ms(ROUTE_MS if readers else 500)
        finally:
            for reader in readers.values():
                reader.cancel()

    async def _follow(self, queue: TransientQueue, place: MessageQueue) -> None:
        backoff = Backoff(self._context.rng, first_ms=100, max_ms=3_000)
        inbox = queue.inbox
        assert inbox is not None
        while True:
            if inbox.count(queue.name) >= BACKLOG_MAX:
                await self._context.clock.sleep_ms(PAUSE_MS)
                continue
            try:
                await self._pull(queue, place, self._poll_ms, lambda payload: self._deliver(queue, payload))
            except Error as error:
                self._troubles.failed(f"broker {place.broker_name}", error)
                if not isinstance(error, Forbidden | Unauthorized):  # another route would not help
                    self._routes.renew(self._topic)
                await self._context.clock.sleep_ms(backoff.next_ms())
            else:
                self._troubles.well(f"broker {place.broker_name}")
                backoff.reset()

    async def _pull(
        self, queue: TransientQueue, place: MessageQueue, wait_ms: int, take: Callable[[dict[str, Any]], object]
    ) -> None:
        offset = queue.positions.get(place)
        if offset is None:  # a broker that was away, or had not got the topic, when the queue was declared
            offset = await self._since(place, queue.declared_ms)
        address = await self._routes.address(self._topic, place.broker_name)
        try:
            pulled = await self._calls.pull(
                address,
                "",
                place,
                offset,
                batch_max=BATCH_MAX,
                bytes_max=BYTES_MAX,
                wait_ms=wait_ms,
                expression=queue.filter(),
                generation=NO_GENERATION,
                committed=-1,
            )
        except IllegalOffset as error:  # the retention was shorter than a pause, or the topic was created again
            lost = error.min_offset > offset
            queue.positions[place] = QueueOffset(max(0, error.min_offset if lost else error.max_offset))
            log.warning("queue %s: broadcasts of %s were not read in time: %s", queue.name, place.broker_name, error)
            return
        queue.positions[place] = QueueOffset(pulled.next_offset)
        for message in pulled.messages:
            try:
                payload = decoded(message)
            except MessageCorrupted as error:
                log.error("%s; it is dropped", error)  # noqa: TRY400 - a line is enough: the sender is at fault
                continue
            if queue.wants(payload):
                payload["properties"]["delivery_tag"] = self._tag(queue.name)
                take(payload)

    def _deliver(self, queue: TransientQueue, payload: dict[str, Any]) -> None:
        if queue.inbox is not None:
            queue.inbox.put(KombuDelivery(queue.name, payload, ""))

    async def _range(self, place: MessageQueue) -> QueueOffset | None:
        """Returns the end of a queue; None: its broker does not answer."""
        try:
            address = await self._routes.address(self._topic, place.broker_name)
            found = await self._calls.query_offsets(address, "", place)
        except Error as error:
            self._troubles.failed(f"broker {place.broker_name}", error)
            return None
        return QueueOffset(max(0, found.maximum))

    async def _since(self, place: MessageQueue, since_ms: int) -> QueueOffset:
        address = await self._routes.address(self._topic, place.broker_name)
        found = await self._calls.query_offsets(address, "", place, timestamp_ms=since_ms)
        return QueueOffset(found.at_timestamp if found.at_timestamp >= 0 else max(0, found.maximum))
