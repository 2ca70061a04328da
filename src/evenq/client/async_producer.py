"""Producer for asyncio, `evenq.aio.Producer`, and the part that it shares with the sync one.

async with evenq.aio.Producer(endpoint="127.0.0.1:8081") as producer:
    result = await producer.send(evenq.Message(topic="orders", body=b"..."))
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from evenq.client.answering import async_listener
from evenq.client.codecs.codec import Codec
from evenq.client.core.clients.observer import OBSERVED, ClientIdentity, SendObservation, observed_send
from evenq.client.core.clients.user_functions import check_function
from evenq.client.core.sending.message_arguments import MessageFields, message_of
from evenq.client.core.transactions.half_messages import HalfMessage
from evenq.client.faces import AsyncFace, SdkClient
from evenq.client.loops.clients.background import Exits
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
from evenq.errors import BadRequest, ConnectionFailed, RequestTimeout, Unsupported
from evenq.model import Message, ReceivedMessage, TransactionResolution
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

if TYPE_CHECKING:
    from evenq.client.rpc.direct import Direct

log = logging.getLogger(__name__)

_EXITS = Exits.registered()


class ProducerClient(SdkClient):
    """The part that both producers share. The gate, where senders wait for capacity, is their own."""

    _direct: Direct | None = None
    """A sync producer's path to the brokers in the caller's thread, if it has one."""

    def __init__(
        self,
        *,
        endpoint: str = "",
        options: ProducerOptions | None = None,
        client_id: str = "",
        checker: Checker | None = None,
        transaction_topics: Iterable[str] = (),
        encoder: Codec[Any] | None = None,
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        context: ClientContext | None = None,
    ) -> None:
        """`endpoint` is the access point, `host:port`, or several joined with `;`. `credentials` sign the calls; None =
        those of the environment. `encoder` makes the bodies of values (`send("orders", value=...)`), for example
        `evenq.JsonCodec()`. `context` is for tests.

        `checker` makes transactions possible (`begin_transaction`). Brokers call it for the outcome of a half message
        that this or another producer left open; it returns a `TransactionResolution`. The sync producer calls it in a
        thread, the asyncio one in its loop. It serves the topics in `transaction_topics` from the start, and others
        from their first transaction on.
        """
        self.options = options_of(ProducerOptions, options)
        if checker is not None:
            check_function("checker", checker, "message")
        if encoder is not None and not callable(getattr(encoder, "encode", None)):
            raise BadRequest(
                f"encoder is {encoder!r:.80}; give an object with encode(value, topic), as evenq.JsonCodec()"
            )
        self._user_encoder = encoder
        self._context = ClientContext.of(context, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._context.clock)
        self._identity = ClientIdentity(client_id=self.client_id, endpoint=self._context.endpoint)
        options = self.options
        self._encoder = Encoder(
            self._context.clock, compression=options.compression, packed_from=options.compress_from_bytes
        )
        self._troubles = Troubles(self._context.clock, who="producer")
        self._checker = checker
        self._transaction_topics = tuple(transaction_topics)
        self._closed = False
        self._begin()

    @overload
    def message(self, topic: str, body: bytes, **given: Unpack[MessageFields]) -> Message: ...
    @overload
    def message(self, topic: str, *, value: object, **given: Unpack[MessageFields]) -> Message: ...
    def message(self, topic: str | None = None, body: bytes | None = None, **given: Any) -> Message:
        """Returns a message of these fields, for `send_batch` and `begin_transaction`. The producer's `encoder` makes
        the body of a `value`. Raises BadRequest, Unsupported if there is no encoder.
        """
        return self._made(topic, body, given)

    def _encoded(self, topic: str, value: object) -> bytes:
        return self._made(topic, None, {"value": value}).body

    def _made(self, first: object, body: bytes | None, given: dict[str, Any]) -> Message:
        return message_of(first, body, given, self._user_encoder)

    @abstractmethod
    def _begin(self) -> None:
        """Completes the construction: the gate, and `_open`."""

    def _open(self, left: Callable[[int, int], None]) -> None:
        """Called in the loop. `left` is called with the numbers of messages and bytes that were answered."""
        self._calls, self._sending, self._replies, self._transacting = producer_parts(
            self._context, self.client_id, self.options, left=left, run_checker=self._check
        )
        self._blocks = Blocks(
            self._encoder.encode, self._sending.spread, clock=self._context.clock, options=self.options
        )

    def _watch(self) -> None:
        """Begins to answer the brokers' checks of open transactions, if there is a checker."""
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
        observation: SendObservation | None = None,
    ) -> Item:
        settle = OnewayResult(encoded.message_id, message.topic, self._troubles, observation) if oneway else future
        return Item(
            message,
            encoded.message_id,
            encoded.content,
            settle,
            urgent=urgent,
            sharding_key=sharding_key,
            selector=selector,
            tries_max=1 if oneway else 0,
        )

    def _half(self, message: Message) -> Coroutine[Any, Any, HalfMessage]:
        self._check_open()
        if self._checker is None:
            raise Unsupported("this producer has no checker; give one, so that brokers can ask about open transactions")
        encoded = self._encoder.encode(message)
        return self._transacting.begin(message.topic, encoded.message_id, encoded.content)

    def _lost_at_exit(self, messages: int) -> None:
        if messages:
            log.warning(
                "the process ends and %d messages of a producer that was not closed are not acknowledged: they may be "
                "stored or not; close the producer, or use it in a `with` block",
                messages,
            )

    def _late(self, messages: int, timeout_ms: int | None) -> RequestTimeout:
        return RequestTimeout(f"{messages} messages are not acknowledged after {timeout_ms} ms")

    @abstractmethod
    async def _check(self, message: ReceivedMessage) -> TransactionResolution:
        """Calls the user's checker."""


class Producer(AsyncFace, ProducerClient):
    """Sends messages; see `evenq.Producer`."""

    @overload
    async def send(
        self, message: Message, *, sharding_key: str | None = ..., selector: Selector | None = ...
    ) -> SendResult: ...
    @overload
    async def send(
        self,
        topic: str,
        /,
        body: bytes,
        *,
        sharding_key: str | None = ...,
        selector: Selector | None = ...,
        **given: Unpack[MessageFields],
    ) -> SendResult: ...
    @overload
    async def send(
        self,
        topic: str,
        /,
        *,
        value: object,
        sharding_key: str | None = ...,
        selector: Selector | None = ...,
        **given: Unpack[MessageFields],
    ) -> SendResult: ...
    async def send(
        self,
        message: Message | str | None = None,
        body: bytes | None = None,
        *,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        **given: Any,
    ) -> SendResult:
        """Sends one message and waits until it is stored; see `evenq.Producer.send`."""
        if given or body is not None or not isinstance(message, Message):
            message = self._made(message, body, given)
        observer = OBSERVED.observer
        if observer is None:
            return await (await self._take(message, sharding_key=sharding_key, selector=selector, urgent=True))
        with observer.send(self._identity, message) as sending:
            taken = await self._take(sending.message, sharding_key=sharding_key, selector=selector, urgent=True)
            result = await taken
            sending.stored(result.message_id, result.queue)
        return result

    @overload
    async def send_async(
        self, message: Message, *, sharding_key: str | None = ..., selector: Selector | None = ...
    ) -> asyncio.Future[SendResult]: ...
    @overload
    async def send_async(
        self,
        topic: str,
        /,
        body: bytes,
        *,
        sharding_key: str | None = ...,
        selector: Selector | None = ...,
        **given: Unpack[MessageFields],
    ) -> asyncio.Future[SendResult]: ...
    @overload
    async def send_async(
        self,
        topic: str,
        /,
        *,
        value: object,
        sharding_key: str | None = ...,
        selector: Selector | None = ...,
        **given: Unpack[MessageFields],
    ) -> asyncio.Future[SendResult]: ...
    async def send_async(
        self,
        message: Message | str | None = None,
        body: bytes | None = None,
        *,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        **given: Any,
    ) -> asyncio.Future[SendResult]:
        """Sends one message in a batch. Awaiting the call waits for capacity, awaiting the future for the result."""
        if given or body is not None or not isinstance(message, Message):
            message = self._made(message, body, given)
        observer = OBSERVED.observer
        if observer is None:
            return await self._take(message, sharding_key=sharding_key, selector=selector, urgent=False)
        with observer.send(self._identity, message) as sending:
            future = await self._take(sending.message, sharding_key=sharding_key, selector=selector, urgent=False)
            sending.follow(future)
        return future

    @overload
    async def send_oneway(self, message: Message) -> None: ...
    @overload
    async def send_oneway(self, topic: str, /, body: bytes, **given: Unpack[MessageFields]) -> None: ...
    @overload
    async def send_oneway(self, topic: str, /, *, value: object, **given: Unpack[MessageFields]) -> None: ...
    async def send_oneway(self, message: Message | str | None = None, body: bytes | None = None, **given: Any) -> None:
        """Sends one message with a single attempt and no result. Waits only if too much is pending."""
        if given or body is not None or not isinstance(message, Message):
            message = self._made(message, body, given)
        observer = OBSERVED.observer
        if observer is None:
            await self._take(message, urgent=False, oneway=True)
            return
        with observer.send(self._identity, message) as sending:
            await self._take(sending.message, urgent=False, oneway=True, observation=sending)

    async def send_batch(
        self, messages: Iterable[Message], *, sharding_key: str | None = None, selector: Selector | None = None
    ) -> list[SendResult]:
        """Sends many messages and waits for all; see `evenq.Producer.send_batch`."""
        observer = OBSERVED.observer
        if observer is None:
            return await self._send_all(messages, sharding_key, selector)
        with observer.send_batch(self._identity) as sending:
            return await self._send_all(sending.each(messages), sharding_key, selector)

    async def _send_all(
        self, messages: Iterable[Message], sharding_key: str | None, selector: Selector | None
    ) -> list[SendResult]:
        futures: list[asyncio.Future[SendResult] | asyncio.Future[Outcomes]] = []
        plain = sharding_key is None and selector is None
        for part in self._blocks.of(messages) if plain else messages:
            if isinstance(part, SendBlock):
                futures.append(await self._take_block(part))
            else:
                futures.append(await self._take(part, sharding_key=sharding_key, selector=selector, urgent=False))
        self._sending.flush()
        return results_of(await asyncio.gather(*futures, return_exceptions=True))

    @overload
    async def request(self, message: Message, *, timeout_ms: int = ...) -> ReceivedMessage: ...
    @overload
    async def request(
        self, topic: str, /, body: bytes, *, timeout_ms: int = ..., **given: Unpack[MessageFields]
    ) -> ReceivedMessage: ...
    @overload
    async def request(
        self, topic: str, /, *, value: object, timeout_ms: int = ..., **given: Unpack[MessageFields]
    ) -> ReceivedMessage: ...
    async def request(
        self, message: Message | str | None = None, body: bytes | None = None, *, timeout_ms: int = 3_000, **given: Any
    ) -> ReceivedMessage:
        """Sends a request and waits for its reply; see `evenq.Producer.request`."""
        if given or body is not None or not isinstance(message, Message):
            message = self._made(message, body, given)
        request = await self._replies.ask(message, timeout_ms)
        try:
            with observed_send(self._identity, request.message) as sending:
                sent = await self._take(sending.message, urgent=True)
                sending.follow(sent)
            sent.add_done_callback(request.sent)
            return await self._replies.wait(request)
        finally:
            self._replies.end(request)

    def answer_with(
        self, function: Callable[[ReceivedMessage], object]
    ) -> Callable[[list[ReceivedMessage]], Coroutine[Any, Any, object]]:
        """Returns a listener that answers requests; see `evenq.Producer.answer_with`. `function` may be a coroutine
        function.
        """
        return async_listener(function, self._encoded, self.send)

    async def begin_transaction(self, message: Message) -> AsyncTransaction:
        """Stores a message that is invisible until the transaction is committed; see `evenq.Producer`."""
        with observed_send(self._identity, message, transaction=True) as sending:
            half = await self._half(sending.message)
            sending.stored(half.message_id)
        return AsyncTransaction(half, self._transacting.end)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Cancels a delayed message before it is due; see `evenq.Producer.recall`."""
        self._check_open()
        return await self._calls.recall_message(topic, recall_handle)

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Waits until all messages sent so far are answered. Raises RequestTimeout after `timeout_ms`."""
        self._sending.flush()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._gate.wait_empty()
        except TimeoutError:
            raise self._late(self._gate.messages, timeout_ms) from None

    async def close(self, timeout_ms: int = 30_000) -> None:
        """Flushes, for at most `timeout_ms`, then closes the connections; messages still pending then fail.

        Raises RequestTimeout if there are any. A cancellation ends the waiting, and the connections are closed.
        """
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush(timeout_ms)
        finally:
            await self._to_its_end(self._shut())

    async def __aenter__(self) -> Self:
        self._watch()
        return self

    def end_with_process(self, timeout_ms: int) -> None:  # noqa: ARG002 - its loop has ended, so nothing is waited for
        """Logs what is lost: the process ends, and the loop of the producer has ended before."""
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
        # A bound method, for the reason given in the sync producer.
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
        observation: SendObservation | None = None,
    ) -> asyncio.Future[SendResult]:
        self._check_open()
        encoded = self._encoder.encode(message)
        await self._gate.enter(len(encoded.content))
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        item = self._item(
            message,
            encoded,
            future,
            urgent=urgent,
            sharding_key=sharding_key,
            selector=selector,
            oneway=oneway,
            observation=observation,
        )
        self._sending.submit([item])
        return future

    async def _take_block(self, block: SendBlock) -> asyncio.Future[Outcomes]:
        """Returns after the sending of a large block has begun."""
        self._check_open()
        await self._gate.enter(block.size, block.count)
        future: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
        block.future = future
        self._sending.submit([block])
        if block.urgent:
            await self._sending.begun()
        return future
