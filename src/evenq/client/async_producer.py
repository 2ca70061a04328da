"""The asyncio producer, `evenq.aio.Producer`, and what it shares with the sync one.

async with evenq.aio.Producer(endpoint="127.0.0.1:8081") as producer:
    result = await producer.send(evenq.Message(topic="orders", body=b"..."))
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Self

from evenq.client.core.clients.user_functions import check_function
from evenq.client.core.transactions.half_messages import HalfMessage
from evenq.client.faces import AsyncFace, SdkClient
from evenq.client.loops.clients.exits import Exits
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.sending.blocks import Blocks, results_of
from evenq.client.loops.sending.gates import TaskGate
from evenq.client.loops.sending.outgoing import (
    Encoded,
    Item,
    OnewayResult,
    Outcomes,
    Selector,
    SendBlock,
    SendResult,
    Settle,
)
from evenq.client.options import ProducerOptions
from evenq.client.plans import options_of
from evenq.client.transaction import AsyncTransaction, Checker, resolution_of
from evenq.client.wiring import ClientContext, Encoder, new_client_id, producer_parts
from evenq.errors import ConnectionFailed, RequestTimeout, Unsupported
from evenq.model import Message, ReceivedMessage, TransactionResolution
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

if TYPE_CHECKING:
    from evenq.client.rpc.direct import Direct

__all__ = ["Producer", "ProducerClient"]

log = logging.getLogger(__name__)

_EXITS = Exits.registered()


class ProducerClient(SdkClient):
    """A producer, as both faces have it; the gate, where senders wait for room, is their own."""

    _direct: Direct | None = None
    """A sync producer's short way to the brokers, if it has one."""

    def __init__(
        self,
        *,
        endpoint: str = "",
        options: ProducerOptions | None = None,
        client_id: str = "",
        checker: Checker | None = None,
        transaction_topics: Iterable[str] = (),
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        context: ClientContext | None = None,
    ) -> None:
        """`endpoint` is the access point, `host:port`, or several joined with `;`. `credentials` sign the calls; None =
        those of the environment. `context` is for tests.

        `checker` makes transactions possible (`begin_transaction`): brokers ask it for the outcome of a half message
        that this or another producer left open; it returns a `TransactionResolution` and runs in a thread of its own.
        It is called for the topics in `transaction_topics` from the start, for others from their first transaction on.
        """
        self.options = options_of(ProducerOptions, options)
        if checker is not None:
            check_function("checker", checker, "message")
        self._context = ClientContext.of(context, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._context.clock)
        options = self.options
        self._encoder = Encoder(
            self._context.clock, compression=options.compression, packed_from=options.compress_from_bytes
        )
        self._troubles = Troubles(self._context.clock, who="producer")
        self._checker = checker
        self._transaction_topics = tuple(transaction_topics)
        self._closed = False
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Last step of the making: the gate, and `_open`."""

    def _open(self, left: Callable[[int, int], None]) -> None:
        """In the loop. `left` hears how many messages and bytes were answered."""
        self._calls, self._sending, self._replies, self._transacting = producer_parts(
            self._context, self.client_id, self.options, left=left, run_checker=self._check
        )
        self._blocks = Blocks(
            self._encoder.encode, self._sending.spread, clock=self._context.clock, options=self.options
        )

    def _watch(self) -> None:
        """Answer brokers that ask about open transactions, if there is a checker."""
        if self._checker is not None:
            self._transacting.watch(self._transaction_topics)

    async def _shut(self) -> None:
        await self._transacting.close()
        await self._replies.close()
        await self._sending.close()
        if self._direct is not None:
            self._direct.close()
        await self._context.let_go(self._calls.net)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionFailed("this producer is closed; make a new one")

    def _item(
        self,
        message: Message,
        encoded: Encoded,
        future: Settle,
        *,
        urgent: bool,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        oneway: bool = False,
    ) -> Item:
        settle = OnewayResult(encoded.message_id, message.topic, self._troubles) if oneway else future
        return Item(
            message, encoded.message_id, encoded.content, settle, urgent=urgent, sharding_key=sharding_key,
            selector=selector, tries_max=1 if oneway else 0,
        )  # fmt: skip

    def _half(self, message: Message) -> Coroutine[Any, Any, HalfMessage]:
        """Stores a half message."""
        self._check_open()
        if self._checker is None:
            raise Unsupported("this producer has no checker; give one, so that brokers can ask about open transactions")
        encoded = self._encoder.encode(message)
        return self._transacting.begin(message.topic, encoded.message_id, encoded.content)

    def _lost_at_exit(self, messages: int) -> None:
        if messages:
            log.warning(
                "the process ends and %d messages of a producer that was not closed are not acknowledged: they may be "
                "stored or not; close the producer, or use it in a `with` block", messages,
            )  # fmt: skip

    def _late(self, messages: int, timeout_ms: int | None) -> RequestTimeout:
        return RequestTimeout(f"{messages} messages are not acknowledged after {timeout_ms} ms")

    @abstractmethod
    async def _check(self, message: ReceivedMessage) -> TransactionResolution:
        """Ask the user's checker."""


class Producer(AsyncFace, ProducerClient):
    """Sends messages; see `evenq.Producer`."""

    async def send(
        self, message: Message, *, sharding_key: str | None = None, selector: Selector | None = None
    ) -> SendResult:
        """Send one and wait until it is stored. Raises as `evenq.Producer.send`."""
        return await (await self._take(message, sharding_key=sharding_key, selector=selector, urgent=True))

    async def send_async(
        self, message: Message, *, sharding_key: str | None = None, selector: Selector | None = None
    ) -> asyncio.Future[SendResult]:
        """Send one, gathered with others for up to `options.linger_ms`; awaiting the call waits for room, awaiting the
        future it returns waits for the result.
        """
        return await self._take(message, sharding_key=sharding_key, selector=selector, urgent=False)

    async def send_oneway(self, message: Message) -> None:
        """Send one, tried once; its outcome is not reported. Waits only if too much is pending."""
        await self._take(message, urgent=False, oneway=True)

    async def send_batch(
        self, messages: Iterable[Message], *, sharding_key: str | None = None, selector: Selector | None = None
    ) -> list[SendResult]:
        """Send many and wait for all. Raises the first error after all were answered; see `evenq.Producer`."""
        futures: list[asyncio.Future[SendResult] | asyncio.Future[Outcomes]] = []
        plain = sharding_key is None and selector is None
        for part in self._blocks.of(messages) if plain else messages:
            if isinstance(part, SendBlock):
                futures.append(await self._take_block(part))
            else:
                futures.append(await self._take(part, sharding_key=sharding_key, selector=selector, urgent=False))
        self._sending.flush()
        return results_of(await asyncio.gather(*futures, return_exceptions=True))

    async def request(self, message: Message, *, timeout_ms: int = 3_000) -> ReceivedMessage:
        """Send a request and wait for its reply; see `evenq.Producer.request`."""
        request = await self._replies.ask(message, timeout_ms)
        try:
            sent = await self._take(request.message, urgent=True)
            sent.add_done_callback(request.sent)
            return await self._replies.wait(request)
        finally:
            self._replies.end(request)

    async def begin_transaction(self, message: Message) -> AsyncTransaction:
        """Store a message that no consumer sees until the transaction is committed; see `evenq.Producer`."""
        return AsyncTransaction(await self._half(message), self._transacting.end)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Cancel a delayed message before it is due; see `evenq.Producer.recall`."""
        self._check_open()
        return await self._calls.recall_message(topic, recall_handle)

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until everything given so far is answered. Raises RequestTimeout after `timeout_ms`."""
        self._sending.flush()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._gate.wait_empty()
        except TimeoutError:
            raise self._late(self._gate.messages, timeout_ms) from None

    async def close(self, timeout_ms: int = 30_000) -> None:
        """Flush, at most `timeout_ms`, then end the connections; what is pending then fails."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                self._sending.flush()
                await self._gate.wait_empty()
        finally:
            await self._shut()

    async def __aenter__(self) -> Self:
        self._watch()
        return self

    def end_with_process(self, timeout_ms: int) -> None:  # noqa: ARG002 - its loop has ended, so nothing is waited for
        """The process ends, and so has the producer's loop: what is pending is lost."""
        if not self._closed:
            self._lost_at_exit(self._gate.messages)

    def _begin(self) -> None:
        options = self.options
        self._gate = TaskGate(
            messages_max=options.pending_messages, bytes_max=options.pending_bytes, block_ms=options.block_ms
        )
        self._open(self._answered)
        _EXITS.add(self)

    def _answered(self, messages: int, size: int) -> None:
        # As in the sync producer.
        self._gate.leave(messages, size)

    async def _check(self, message: ReceivedMessage) -> TransactionResolution:
        assert self._checker is not None
        return await resolution_of(self._checker(message))

    async def _take(
        self,
        message: Message,
        *,
        urgent: bool,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        oneway: bool = False,
    ) -> asyncio.Future[SendResult]:
        self._check_open()
        encoded = self._encoder.encode(message)
        await self._gate.enter(len(encoded.content))
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        item = self._item(
            message, encoded, future, urgent=urgent, sharding_key=sharding_key, selector=selector, oneway=oneway
        )
        self._sending.submit([item])
        return future

    async def _take_block(self, block: SendBlock) -> asyncio.Future[Outcomes]:
        """A large one is on its way on return."""
        self._check_open()
        await self._gate.enter(block.size, block.count)
        future: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
        block.future = future
        self._sending.submit([block])
        if block.urgent:
            await self._sending.begun()
        return future
