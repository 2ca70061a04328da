"""Deliveries of one channel's durable queues: received, held while a worker processes them, settled.

**Problem.** AMQP pushes messages up to a prefetch limit and gives back what a lost connection had. A broker of evenq
hands messages out on request, hides them for a time, and delivers them again if they are not acknowledged within it.

**Idea.** Each queue has a receiver: a long poll that runs while the channel may hold more messages. Received messages
are held by `HeldMessages`, which renews them until the channel settles them. Worker processes that are killed renew
nothing, so their tasks are delivered to others after one duration.

**Invariants.**

- All methods run in the loop of the process; channels call them from other threads through `TransportSession`.
- A channel holds at most its limit. When it is reached, the polls of its other queues are cancelled. Messages of these
  polls are returned, so it does not wait behind a long task while other workers are idle.
- `close` acknowledges what was settled, then returns what is held.
- A permanent error is raised once in the thread that consumes. A grant that is removed from a queue which was received
  before is not: running tasks would be cancelled, so the receiver logs it and waits for the grant.

**Example.** Limit 2, one queue: the poll requests 2 and receives t1 and t2; no poll runs. t1 is acknowledged: the next
poll requests 1.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Protocol

from evenq.aio import SimpleConsumer
from evenq.celery.codec import decoded
from evenq.celery.inbox import Inbox, KombuDelivery
from evenq.celery.settings import TransportSettings
from evenq.client.loops.clients.troubles import Troubles, is_permanent
from evenq.client.loops.consumers.held_messages import HeldMessage, HeldMessages, MessageSource, SettlingConsumer
from evenq.client.options import SimpleOptions
from evenq.client.wiring import ClientContext
from evenq.errors import Error, Forbidden, InvalidReceiptHandle, MessageCorrupted, NotFound, Unauthorized
from evenq.model import ReceivedMessage, StartFrom
from evenq.runtime.backoff import Backoff
from evenq.runtime.tasks import spawn

log = logging.getLogger(__name__)

BATCH_MAX = 64
"""Most messages of one receive."""
HELD_MAX = 1_000
"""Most messages that a channel without a prefetch limit holds."""
SLICE_MS = 200
"""Wait at one broker of several before the next one is called."""
ACK_PATIENCE_MS = 43_200_000
"""Longest time for which an acknowledgement is repeated: that of the longest visibility."""
CLOSE_MS = 10_000
"""Longest wait of `close` for a broker that does not answer."""
REFUSED = (Forbidden, Unauthorized)
"""Errors that an operator ends, by a grant or a key, while workers run."""


class QueueConsumer(SettlingConsumer, Protocol):
    """The part of `evenq.aio.SimpleConsumer` that receivers use."""

    async def start(self) -> Any: ...

    async def receive(self, max_messages: int, *, invisible_ms: int, wait_ms: int) -> list[ReceivedMessage]: ...

    async def close(self) -> None: ...


class QueueDeliveries:
    """The receivers of one channel and what they hold."""

    def __init__(
        self,
        context: ClientContext,
        settings: TransportSettings,
        inbox: Inbox,
        *,
        consumer_of: Callable[[str], QueueConsumer] | None = None,
        on_missing: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`consumer_of`: makes the consumer of a topic, which is also its group; None: that of the SDK. `on_missing` is
        called with a queue whose topic or group was deleted.
        """
        self.on_missing = on_missing
        self.consumer_of = consumer_of or self._simple_consumer
        self.context = context
        self.settings = settings
        self.inbox = inbox
        self._receivers: dict[str, QueueReceiver] = {}
        self._messages = HeldMessages(
            clock=context.clock,
            rng=context.rng,
            invisible_ms=settings.visibility_ms,
            patience_ms=ACK_PATIENCE_MS,
            who=f"prefix {settings.names.prefix}",
        )
        self._held: dict[str, HeldMessage] = {}
        """Messages that the channel has not settled, by delivery tag."""
        self._limit = 0
        self._tags = count(1)
        self._closed = False

    # ------------------------------------------------------------------------------------------------ what is held

    @property
    def room(self) -> int:
        """Number of messages that may be received now."""
        return 0 if self._closed else (self._limit or HELD_MAX) - len(self._held)

    def limit(self, count: int) -> None:
        """Sets the prefetch limit; 0: `HELD_MAX`."""
        self._limit = max(0, count)
        self._room_changed()

    def add(self, queue: str, message: ReceivedMessage, receiver: QueueReceiver) -> KombuDelivery | None:
        """Holds a received message; None: the channel may hold no more, so it is returned."""
        if self.room <= 0:
            self.turn_away(message, receiver)
            return None
        held = self._messages.hold(message, receiver.source)
        tag = f"{queue}:{next(self._tags)}"
        try:
            payload = decoded(message)
        except MessageCorrupted as error:
            log.error("%s; it is dropped", error)  # noqa: TRY400 - a line is enough: the sender is at fault
            self._ack(held)
            return None
        properties = payload["properties"]
        properties["delivery_tag"] = tag
        if message.delivery_attempt > 1:
            properties["delivery_info"]["redelivered"] = True
        self._held[tag] = held
        self._room_changed()
        return KombuDelivery(queue, payload, tag, self)

    def turn_away(self, message: ReceivedMessage, receiver: QueueReceiver) -> None:
        """Returns a received message that the channel does not take."""
        self._messages.give_back([self._messages.hold(message, receiver.source)], unseen=True)

    def ack(self, tag: str) -> None:
        """Acknowledges a message; one that was settled before is ignored."""
        held = self._held.pop(tag, None)
        if held is not None:
            self._ack(held)
            self._room_changed()

    def give_back(self, tag: str, *, unseen: bool = False) -> None:
        """Makes a message visible to all workers again. `unseen`: no consumer had it, so it counts as no attempt."""
        held = self._held.pop(tag, None)
        if held is not None:
            self._messages.give_back([held], unseen=unseen)
            self._room_changed()

    # --------------------------------------------------------------------------------------------------- receivers

    def consume(self, queue: str) -> None:
        """Begins to receive a queue."""
        self.receiver(queue).start()

    def cancel(self, queue: str) -> None:
        """Ends receiving a queue; held messages stay."""
        receiver = self._receivers.get(queue)
        if receiver is not None:
            receiver.stop()

    async def get(self, queue: str, wait_ms: int) -> KombuDelivery | None:
        """Receives one message, waiting at most `wait_ms`; None: there is none. Raises as SimpleConsumer.receive."""
        receiver = self.receiver(queue)
        for message in await receiver.consumer.receive(1, invisible_ms=self.settings.visibility_ms, wait_ms=wait_ms):
            return self.add(queue, message, receiver)
        return None

    def receiver(self, queue: str) -> QueueReceiver:
        receiver = self._receivers.get(queue)
        if receiver is None:
            receiver = self._receivers[queue] = QueueReceiver(self, queue)
        return receiver

    async def leave(self, queue: str) -> None:
        """Ends receiving a queue, returns what is held of it, and leaves its group, which is going to be deleted."""
        receiver = self._receivers.pop(queue, None)
        if receiver is None:
            return
        receiver.stop()
        tags = [tag for tag, held in self._held.items() if held.source is receiver.source]
        await self._messages.give_back([self._held.pop(tag) for tag in tags])
        await receiver.close()
        self._room_changed()

    async def close(self) -> None:
        """Ends receiving, acknowledges what was settled, returns what is held, and leaves the groups."""
        if self._closed:
            return
        self._closed = True
        for receiver in self._receivers.values():
            receiver.stop()
        await self._messages.close(CLOSE_MS)
        self._held.clear()
        closing = (receiver.close() for receiver in self._receivers.values())
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_MS / 1_000):
                await asyncio.gather(*closing, return_exceptions=True)

    def _simple_consumer(self, topic: str) -> QueueConsumer:
        return SimpleConsumer(
            group=topic,
            subscriptions={topic: "*"},
            start_from=StartFrom.FIRST,
            endpoint=self.context.endpoint,
            options=SimpleOptions(slice_ms=SLICE_MS),
            context=self.context,
        )

    def _room_changed(self) -> None:
        for receiver in self._receivers.values():
            receiver.room_changed()

    def _ack(self, held: HeldMessage) -> None:
        self._messages.ack(held).add_done_callback(lambda done: _report_ack(done, held.source))


def _report_ack(done: asyncio.Future[None], source: MessageSource) -> None:
    error = None if done.cancelled() else done.exception()
    if isinstance(error, InvalidReceiptHandle | Forbidden | Unauthorized):
        log.warning("%s: a finished task may run again: %s", source.who, error)
    elif isinstance(error, Error):
        source.troubles.failed("an acknowledgement", error)


class QueueReceiver:
    """The long poll of one queue."""

    def __init__(self, deliveries: QueueDeliveries, queue: str) -> None:
        self.queue = queue
        self._deliveries = deliveries
        context, settings = deliveries.context, deliveries.settings
        topic = settings.names.topic_of(queue)
        self.consumer = deliveries.consumer_of(topic)
        who = f"queue {queue}"
        self.troubles = Troubles(context.clock, who=who)
        self._failures = Troubles(context.clock, who=who, report=self._raise)
        self.source = MessageSource(self.consumer, who, self.troubles)
        self._has_room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._poll: asyncio.Task[list[ReceivedMessage]] | None = None
        self._started = False
        self._received = False
        """A receive succeeded, so the group could be read at that time."""

    def start(self) -> None:
        if self._task is None:
            self.room_changed()
            self._task = spawn(self._poll_forever(), name=f"evenq-celery-receive-{self.queue}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def room_changed(self) -> None:
        """Begins or cancels the poll."""
        if self._deliveries.room > 0:
            self._has_room.set()
        else:
            self._has_room.clear()
            if self._poll is not None:
                self._poll.cancel()

    async def close(self) -> None:
        """Leaves the group."""
        await self.consumer.close()

    async def _poll_forever(self) -> None:
        deliveries = self._deliveries
        settings, clock = deliveries.settings, deliveries.context.clock
        backoff = Backoff(deliveries.context.rng, first_ms=100, max_ms=3_000)
        if not self._started:
            self._started = True
            await self.consumer.start()
        while True:
            await self._has_room.wait()
            size = min(deliveries.room, BATCH_MAX)
            poll = self._poll = spawn(
                self.consumer.receive(size, invisible_ms=settings.visibility_ms, wait_ms=settings.poll_ms),
                name=f"evenq-celery-poll-{self.queue}",
            )
            try:
                messages = await poll
            except asyncio.CancelledError:
                if not poll.cancelled() or self._task is None or self._task.cancelling():
                    if poll.done() and not poll.cancelled() and poll.exception() is None:  # in the same moment
                        for message in poll.result():
                            deliveries.turn_away(message, self)
                    poll.cancel()
                    raise
                continue  # the channel became full
            except Error as error:
                waits = not is_permanent(error) or (self._received and isinstance(error, REFUSED))
                (self.troubles if waits else self._failures).failed("receiving", error)
                await clock.sleep_ms(backoff.next_ms())
                continue
            finally:
                self._poll = None
            self._received = True
            backoff.reset()
            self.troubles.well("receiving")
            self._failures.well("receiving")
            for message in messages:
                delivery = deliveries.add(self.queue, message, self)
                if delivery is not None:
                    deliveries.inbox.put(delivery)

    def _raise(self, error: Error) -> None:
        """Lets the consuming thread raise an error that no repetition cures."""
        log.error("queue %s: %s", self.queue, error)
        if isinstance(error, NotFound):
            self._deliveries.on_missing(self.queue)
        self._deliveries.inbox.fail(error)
