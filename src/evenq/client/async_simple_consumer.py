"""Simple consumer for asyncio, `evenq.aio.SimpleConsumer`, and the part that it shares with the sync one.

async with evenq.aio.SimpleConsumer(group="billing", subscriptions={"orders": "*"}) as consumer:
    async for message in consumer:
        print(message.body)
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Self

from evenq.client.core.clients.lifetime import Lifetime
from evenq.client.core.clients.observer import ClientIdentity, observed_receive, observed_settle
from evenq.client.faces import AsyncFace, SdkClient
from evenq.client.loops.clients.background import Background
from evenq.client.loops.consumers.iterating import MessageLoop, MessageLoops
from evenq.client.loops.consumers.receiving import ReceiveLoop
from evenq.client.loops.sending.outgoing import Encoded, SendResult
from evenq.client.options import SimpleOptions
from evenq.client.plans import simple_plan
from evenq.client.transaction import AsyncConsumerTransaction
from evenq.client.wiring import ClientContext, Encoder, new_client_id, receiving_parts
from evenq.model import FilterExpression, ReceivedMessage, StartFrom
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls


class MessageIterator(Iterator[ReceivedMessage]):
    """Messages for one `for` statement at a time, from `loops.consumers.iterating` in the client's loop.

    Invariant: when an iterator is released, which a `for` statement does at its end, also by `break` or an exception,
    its loop gives back what no body has seen. Its methods may be called in any thread, `next` in one at a time.
    """

    def __init__(self, background: Background, loop: MessageLoop) -> None:
        self._background = background
        self._loop = loop
        weakref.finalize(self, _abandon, background.call_soon, loop).atexit = False

    def stop(self) -> None:
        """Lets the loop end after the body that runs now; its message is acknowledged. Also for signal handlers."""
        self._background.call_soon(self._loop.stop)

    def __iter__(self) -> Self:
        """Begins a new `for` statement: the message of the previous one, if it did not end, is left for redelivery."""
        self._background.call_soon(self._loop.skip)
        return self

    def __next__(self) -> ReceivedMessage:
        message = self._background.run_or_cancel(self._loop.next())
        if message is None:
            raise StopIteration
        return message


class AsyncMessageIterator(AsyncIterator[ReceivedMessage]):
    """Messages for one `async for` statement at a time."""

    def __init__(self, loop: MessageLoop) -> None:
        self._loop = loop
        weakref.finalize(self, _abandon, asyncio.get_running_loop().call_soon_threadsafe, loop).atexit = False

    def stop(self) -> None:
        """Lets the loop end after the body that runs now; its message is acknowledged."""
        self._loop.stop()

    def __aiter__(self) -> Self:
        """Begins a new `async for` statement: the message of the previous one is left for redelivery."""
        self._loop.skip()
        return self

    async def __anext__(self) -> ReceivedMessage:
        message = await self._loop.next()
        if message is None:
            raise StopAsyncIteration
        return message


def _abandon(call_soon: Callable[[Callable[[], None]], object], loop: MessageLoop) -> None:
    with suppress(RuntimeError):  # the event loop has ended
        call_soon(loop.abandon)


class SimpleClient(SdkClient):
    """The part that both simple consumers share."""

    def __init__(
        self,
        *,
        group: str,
        subscriptions: Mapping[str, str | FilterExpression],
        endpoint: str = "",
        start_from: StartFrom | str | None = None,
        start_timestamp_ms: int | str = 0,
        options: SimpleOptions | None = None,
        client_id: str = "",
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        context: ClientContext | None = None,
    ) -> None:
        """`start_from` as in `evenq.PushConsumer`, at the group's first receive. Raises IllegalGroup, IllegalTopic."""
        plan = simple_plan(
            group=group,
            subscriptions=subscriptions,
            start_from=start_from,
            start_timestamp_ms=start_timestamp_ms,
            options=options,
        )
        self._context = ClientContext.of(context, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._context.clock)
        self._identity = ClientIdentity(client_id=self.client_id, endpoint=self._context.endpoint, group=group)
        self._lifetime = Lifetime(group)
        self._calls, self._receiving = self._in_loop(receiving_parts, self._context, self.client_id, plan)
        self._loops = MessageLoops(
            self._receiving,
            identity=self._identity,
            clock=self._context.clock,
            rng=self._context.rng,
            options=plan.options,
        )
        self._encoder = Encoder(self._context.clock)
        self._lifetime.started = True
        self._begin()

    def _begin(self) -> None:
        """Completes the construction."""

    async def _shut(self) -> None:
        await self._loops.close()
        await self._receiving.close()
        await self._context.let_go(self._calls.net)

    def _leave(self, messages: Iterable[ReceivedMessage]) -> None:
        held = list(messages)
        self._soon(lambda: self._loops.leave(held))

    def _running(self) -> ReceiveLoop:
        self._lifetime.check_open()
        return self._receiving

    def _settling(self) -> MessageLoops:
        self._lifetime.check_open()
        return self._loops


class SimpleConsumer(AsyncFace, SimpleClient):
    """Receives and acknowledges; see `evenq.SimpleConsumer`. Start it with `async with`, or `start()`."""

    async def start(self) -> Self:
        """Begins to send heartbeats; receiving works without them, too."""
        self._receiving.start()
        return self

    async def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, wait_ms: int = 15_000
    ) -> list[ReceivedMessage]:
        """Receives up to `max_messages`. Waits up to `wait_ms` for the first one, then returns an empty list."""
        with observed_receive(self._identity) as receiving:
            return receiving.received(await self._running().receive(max_messages, invisible_ms, wait_ms))

    async def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledges messages for the group, those of one broker and topic in one call."""
        with observed_settle(self._identity, "ack", messages):
            await self._settling().ack(*messages)

    def transaction(self) -> AsyncConsumerTransaction:
        """Returns a transaction for `async with`; see `evenq.SimpleConsumer.transaction`. Its `send` and `ack` are not
        awaited.
        """
        self._lifetime.check_open()

        async def commit(acked: list[ReceivedMessage], sent: list[Encoded]) -> list[SendResult]:
            with observed_settle(self._identity, "ack", acked):
                return await self._settling().transact(acked, sent)

        return AsyncConsumerTransaction(self._encoder, self._leave, commit)

    async def change_invisible(
        self, message: ReceivedMessage, invisible_ms: int, *, suspend: bool = False
    ) -> ReceivedMessage:
        """Hides a message for `invisible_ms` from now. Use the returned message from then on. `suspend`: this delivery
        counts as no attempt.
        """
        with observed_settle(self._identity, "change_invisible", [message]):
            return await self._settling().change_invisible(message, invisible_ms, suspend=suspend)

    def messages(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, idle_ms: int | None = None
    ) -> AsyncMessageIterator:
        """Returns an iterator over the messages for `async for`; see `evenq.SimpleConsumer.messages`."""
        self._lifetime.check_open()
        return AsyncMessageIterator(
            MessageLoop(self._loops, max_messages=max_messages, invisible_ms=invisible_ms, idle_ms=idle_ms)
        )

    def __aiter__(self) -> AsyncMessageIterator:
        return self.messages()

    async def close(self) -> None:
        """Ends the loops over the messages and leaves the group, also if it is cancelled. A second call does
        nothing.
        """
        if self._lifetime.end():
            await self._to_its_end(self._shut())

    async def __aenter__(self) -> Self:
        return await self.start()
