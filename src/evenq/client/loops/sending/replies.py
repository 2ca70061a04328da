"""Requests that wait for replies, and the readers of the reply topic.

Each producer has a reply tag of its own. From its first request on it reads all queues of the reply topic by that tag,
from their ends, without a group. So a reply arrives through any broker and from any SDK. The number of waiting requests
is bounded; a reply without a waiting request is dropped. All of it runs in one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from evenq.client.core.routes.route import Route
from evenq.client.core.sending.requests import CORRELATION, stamped
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.options import ProducerOptions
from evenq.errors import ConnectionFailed, Error, IllegalOffset, RequestTimeout, TooManyRequests
from evenq.model import NO_GENERATION, FilterExpression, Message, MessageQueue, QueueOffset, ReceivedMessage
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq.client.rpc.calls import Calls

log = logging.getLogger(__name__)

BATCH = 256
BATCH_BYTES = 4 << 20
WAIT_MS = 15_000
LOOK_BACK_MS = 60_000
"""A queue whose end could not be queried is read from this time before now."""


class DoneFuture(Protocol):
    """A completed future of asyncio or of threads."""

    def cancelled(self) -> bool: ...

    def exception(self) -> BaseException | None: ...


class PendingRequest:
    """One request: the message to send, and the future of its reply."""

    def __init__(self, message: Message, correlation: str, timeout_ms: int, future: asyncio.Future[ReceivedMessage]):
        self.message = message
        self.correlation = correlation
        self.timeout_ms = timeout_ms
        self.future = future
        self.until = asyncio.get_running_loop().time() + timeout_ms / 1_000

    def sent(self, done: DoneFuture) -> None:
        """Handles the end of the request's send; called in the loop."""
        error = None if done.cancelled() else done.exception()
        if error is not None and not self.future.done():
            self.future.set_exception(error)


class Replies:
    def __init__(
        self,
        calls: Calls,
        *,
        clock: Clock,
        rng: random.Random,
        options: ProducerOptions,
        route: Callable[[str], Awaitable[Route]],
        route_changed: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._rng = rng
        self._options = options
        self._route = route
        self._route_changed = route_changed
        self._troubles = Troubles(clock, who="replies")
        self._tag = f"reply-{rng.getrandbits(96):024x}"
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self._readers: dict[MessageQueue, asyncio.Task[None]] = {}
        self._starting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    async def ask(self, message: Message, timeout_ms: int) -> PendingRequest:
        """Prepares a request, to be sent by the caller; then `wait`, `end`. Raises TooManyRequests, RequestTimeout."""
        if len(self._waiting) >= self._options.pending_requests:
            raise TooManyRequests(
                f"{len(self._waiting)} requests wait for replies, the limit is pending_requests: send them more slowly"
            )
        correlation = f"{self._tag}-{next(self._numbers)}"
        future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        stamped_message = stamped(message, topic=self._options.reply_topic, tag=self._tag, correlation=correlation)
        pending = PendingRequest(stamped_message, correlation, timeout_ms, future)
        self._waiting[correlation] = future
        try:
            async with asyncio.timeout_at(pending.until):
                await self._started()
        except BaseException as error:
            self.end(pending)
            if isinstance(error, TimeoutError):
                raise _no_reply(pending) from None
            raise
        return pending

    async def wait(self, pending: PendingRequest) -> ReceivedMessage:
        """Returns the reply. Raises RequestTimeout, or the error of the request's send."""
        try:
            async with asyncio.timeout_at(pending.until):
                return await pending.future
        except TimeoutError:
            raise _no_reply(pending) from None

    def end(self, pending: PendingRequest) -> None:
        """Removes a request whose caller does not wait any more."""
        self._waiting.pop(pending.correlation, None)
        pending.future.cancel()

    async def close(self) -> None:
        """Stops the readers; waiting requests fail."""
        tasks = [task for task in (self._starting, self._looking, *self._readers.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionFailed("the producer was closed before the reply arrived"))

    async def _started(self) -> None:
        starting = self._starting
        if starting is None or (starting.done() and (starting.cancelled() or starting.exception() is not None)):
            starting = self._starting = spawn(self._start(), name="evenq-replies-start")
        # All waiting requests share it: the cancellation of one must not end it for the others.
        await asyncio.shield(starting)

    async def _start(self) -> None:
        route = await self._route(self._options.reply_topic)
        # The ends are queried before the request is sent, so its reply is stored after them.
        ends = await asyncio.gather(*(self._end_of(route, queue) for queue in route.readable))
        for queue, end in zip(route.readable, ends, strict=True):
            self._read(queue, end)
        self._looking = spawn(self._look(), name="evenq-replies-queues")

    async def _end_of(self, route: Route, queue: MessageQueue) -> int:
        try:
            offsets = await self._calls.query_offsets(route.address_of(queue.broker_name), "", queue)
        except Error as error:
            log.info("queue %s of replies cannot be read yet: %s", queue, error)
            return -1
        return offsets.maximum

    async def _look(self) -> None:
        """Starts readers of queues that are added later."""
        while True:
            await self._clock.sleep_ms(self._options.route_refresh_ms)
            try:
                route = await self._route(self._options.reply_topic)
            except Error as error:
                self._troubles.noted(f"the route of topic {self._options.reply_topic}", error)
                continue
            self._troubles.well(f"the route of topic {self._options.reply_topic}")
            for queue in route.readable:
                if queue not in self._readers:
                    self._read(queue, -1)

    def _read(self, queue: MessageQueue, start: int) -> None:
        self._readers[queue] = spawn(self._follow(queue, start), name=f"evenq-replies-{queue}")

    async def _follow(self, queue: MessageQueue, offset: int) -> None:
        options = self._options
        backoff = Backoff(self._rng, first_ms=options.retry_first_ms, max_ms=options.retry_max_ms)
        while True:
            try:
                address = (await self._route(queue.topic)).address_of(queue.broker_name)
                if offset < 0:
                    since_ms = self._clock.now_ms() - LOOK_BACK_MS
                    offset = (await self._calls.query_offsets(address, "", queue, timestamp_ms=since_ms)).at_timestamp
                offset = await self._pull(address, queue, QueueOffset(offset))
                backoff.reset()
            except IllegalOffset as error:
                offset = min(max(offset, error.min_offset), error.max_offset)
            except Error as error:
                log.debug("reading replies failed", extra={"queue": str(queue), "error": str(error)})
                if error.refresh_route:  # another copy may lead by now, at another address
                    self._route_changed(queue.topic, lambda: None)
                await self._clock.sleep_ms(backoff.next_ms())

    async def _pull(self, address: str, queue: MessageQueue, offset: QueueOffset) -> int:
        pulled = await self._calls.pull(
            address,
            "",
            queue,
            offset,
            batch_max=BATCH,
            bytes_max=BATCH_BYTES,
            wait_ms=WAIT_MS,
            expression=FilterExpression(self._tag),
            generation=NO_GENERATION,
            committed=-1,
        )
        for message in pulled.messages:
            waiting = self._waiting.get(message.properties.get(CORRELATION, ""))
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
            else:
                log.debug("a reply arrived for which no request waits", extra={"id": message.message_id})
        return pulled.next_offset


def _no_reply(pending: PendingRequest) -> RequestTimeout:
    return RequestTimeout(
        f"no reply to request {pending.correlation} on topic {pending.message.topic} within {pending.timeout_ms} ms; "
        "it may have been handled"
    )
