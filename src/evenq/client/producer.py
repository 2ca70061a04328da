"""Producer with sync calls. Its work runs in the process's loop thread (`loops.background`); threads may share it.

with evenq.Producer(endpoint="127.0.0.1:8081") as producer:
    result = producer.send(evenq.Message(topic="orders", body=b"..."))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, overload

from evenq.client.answering import sync_listener
from evenq.client.async_producer import ProducerClient
from evenq.client.core.clients.observer import OBSERVED, SendObservation, observed_send
from evenq.client.core.sending.message_arguments import MessageFields
from evenq.client.core.transactions.half_messages import HalfMessage
from evenq.client.faces import SyncFace
from evenq.client.loops.clients.user_code import in_thread
from evenq.client.loops.sending.blocks import results_of
from evenq.client.loops.sending.gates import ThreadGate
from evenq.client.loops.sending.outgoing import Entry, Item, Outcomes, Selector, SendBlock, SendResult, goes_anywhere
from evenq.client.transaction import Transaction, resolution_of
from evenq.client.wiring import direct_part
from evenq.errors import Error, Unsupported
from evenq.model import Message, ReceivedMessage, TransactionResolution

if TYPE_CHECKING:
    from evenq.client.rpc.direct import Direct


class Producer(SyncFace, ProducerClient):
    """Sender of messages. Thread-safe; no start is needed. `close` and the end of `with` wait for pending messages."""

    @overload
    def send(
        self, message: Message, *, sharding_key: str | None = ..., selector: Selector | None = ...
    ) -> SendResult: ...
    @overload
    def send(
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
    def send(
        self,
        topic: str,
        /,
        *,
        value: object,
        sharding_key: str | None = ...,
        selector: Selector | None = ...,
        **given: Unpack[MessageFields],
    ) -> SendResult: ...
    def send(
        self,
        message: Message | str | None = None,
        body: bytes | None = None,
        *,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        **given: Any,
    ) -> SendResult:
        """Sends one message and waits until it is stored. Retries automatically (`options.max_attempts`).

        Give an `evenq.Message`, or a topic, a body and further fields of the message: `send("orders", b"first",
        tag="new")`. With `value` instead of the body, the producer's `encoder` makes it. `send_async`, `send_oneway`
        and `request` accept the same.

        Equal sharding keys go to one queue, in send order (PR-7). So do equal message groups, whose messages are also
        delivered in order. A selector chooses the queue.

        Raises the last error: TopicNotFound, BodyTooLarge, IllegalMessageTag ..., ConnectionFailed, RequestTimeout (the
        message may be stored or not; `options.send_timeout_ms`), TooManyRequests (too much is pending for
        `options.block_ms`).
        """
        if given or body is not None or not isinstance(message, Message):
            message = self._made(message, body, given)
        observer = OBSERVED.observer
        if observer is None:
            return self._send(message, sharding_key, selector)
        with observer.send(self._identity, message) as sending:
            result = self._send(sending.message, sharding_key, selector)
            sending.stored(result.message_id, result.queue)
        return result

    def _send(self, message: Message, sharding_key: str | None, selector: Selector | None) -> SendResult:
        direct = self._direct
        if direct is None or sharding_key is not None or selector is not None or not goes_anywhere(message):
            return self._take(message, sharding_key=sharding_key, selector=selector, urgent=True).result()
        return self._send_directly(direct, message)

    @overload
    def send_async(
        self, message: Message, *, sharding_key: str | None = ..., selector: Selector | None = ...
    ) -> Future[SendResult]: ...
    @overload
    def send_async(
        self,
        topic: str,
        /,
        body: bytes,
        *,
        sharding_key: str | None = ...,
        selector: Selector | None = ...,
        **given: Unpack[MessageFields],
    ) -> Future[SendResult]: ...
    @overload
    def send_async(
        self,
        topic: str,
        /,
        *,
        value: object,
        sharding_key: str | None = ...,
        selector: Selector | None = ...,
        **given: Unpack[MessageFields],
    ) -> Future[SendResult]: ...
    def send_async(
        self,
        message: Message | str | None = None,
        body: bytes | None = None,
        *,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        **given: Any,
    ) -> Future[SendResult]:
        """Sends one message in a batch with others, which waits for up to `options.linger_ms`. Blocks only if too much
        is pending.

        The future's callbacks run in the SDK's loop thread: keep them short, and make no sync calls of the SDK in them.
        """
        if given or body is not None or not isinstance(message, Message):
            message = self._made(message, body, given)
        observer = OBSERVED.observer
        if observer is None:
            return self._take(message, sharding_key=sharding_key, selector=selector, urgent=False)
        with observer.send(self._identity, message) as sending:
            future = self._take(sending.message, sharding_key=sharding_key, selector=selector, urgent=False)
            sending.follow(future)
        return future

    @overload
    def send_oneway(self, message: Message) -> None: ...
    @overload
    def send_oneway(self, topic: str, /, body: bytes, **given: Unpack[MessageFields]) -> None: ...
    @overload
    def send_oneway(self, topic: str, /, *, value: object, **given: Unpack[MessageFields]) -> None: ...
    def send_oneway(self, message: Message | str | None = None, body: bytes | None = None, **given: Any) -> None:
        """Sends one message with a single attempt and no result. Blocks only if too much is pending."""
        if given or body is not None or not isinstance(message, Message):
            message = self._made(message, body, given)
        observer = OBSERVED.observer
        if observer is None:
            self._take(message, urgent=False, oneway=True)
            return
        with observer.send(self._identity, message) as sending:
            self._take(sending.message, urgent=False, oneway=True, observation=sending)

    def send_batch(
        self, messages: Iterable[Message], *, sharding_key: str | None = None, selector: Selector | None = None
    ) -> list[SendResult]:
        """Sends many messages, spread over the queues, and waits for all. Raises the first error after all were
        answered.

        The first ones are sent while the next ones are read from `messages` and encoded (`loops.blocks`).
        """
        observer = OBSERVED.observer
        if observer is None:
            return self._send_all(messages, sharding_key, selector)
        with observer.send_batch(self._identity) as sending:
            return self._send_all(sending.each(messages), sharding_key, selector)

    def _send_all(
        self, messages: Iterable[Message], sharding_key: str | None, selector: Selector | None
    ) -> list[SendResult]:
        self._check_open()
        self._background.check_thread()
        futures: list[Future[SendResult] | Future[Outcomes]] = []
        plain = sharding_key is None and selector is None
        for part in self._blocks.of(messages) if plain else messages:
            if isinstance(part, SendBlock):
                futures.append(self._take_block(part))
            else:
                futures.append(self._take(part, sharding_key=sharding_key, selector=selector, urgent=False))
        self._background.call_soon(self._flush)
        return results_of(future.exception() or future.result() for future in futures)

    @overload
    def request(self, message: Message, *, timeout_ms: int = ...) -> ReceivedMessage: ...
    @overload
    def request(
        self, topic: str, /, body: bytes, *, timeout_ms: int = ..., **given: Unpack[MessageFields]
    ) -> ReceivedMessage: ...
    @overload
    def request(
        self, topic: str, /, *, value: object, timeout_ms: int = ..., **given: Unpack[MessageFields]
    ) -> ReceivedMessage: ...
    def request(
        self, message: Message | str | None = None, body: bytes | None = None, *, timeout_ms: int = 3_000, **given: Any
    ) -> ReceivedMessage:
        """Sends a request and waits for its reply, which the consumer creates with `evenq.reply_to`.

        Raises RequestTimeout (it may have been handled), TooManyRequests (`options.pending_requests`), and as `send`.
        """
        if given or body is not None or not isinstance(message, Message):
            message = self._made(message, body, given)
        super()._check_open()
        request = self._run(self._replies.ask(message, timeout_ms))
        try:
            with observed_send(self._identity, request.message) as sending:
                sent = self._take(sending.message, urgent=True)
                sending.follow(sent)
            sent.add_done_callback(lambda done: self._background.call_soon(partial(request.sent, done)))
            return self._run(self._replies.wait(request))
        finally:
            self._background.call_soon(partial(self._replies.end, request))

    def answer_with(self, function: Callable[[ReceivedMessage], object]) -> Callable[[list[ReceivedMessage]], object]:
        """Returns a listener for a push consumer that answers requests: it calls `function` with each request and sends
        what that returns, the body of the reply, or a value for the producer's `encoder`.

        If `function` raises or the reply is not stored, this request is redelivered. Messages that are not requests are
        skipped with a WARNING. Raises BadRequest for a function that cannot be called so.
        """
        return sync_listener(function, self._encoded, self._take_reply)

    def begin_transaction(self, message: Message) -> Transaction:
        """Stores a message that is invisible until the transaction is committed. Makes a single attempt.

        Use the result in a `with` block, or call its `commit` or `rollback`. Raises Unsupported without a checker, and
        as `send`; after RequestTimeout the message may be stored, and then the checker decides.
        """
        with observed_send(self._identity, message, transaction=True) as sending:
            half = self._run(self._half(sending.message))
            sending.stored(half.message_id)
        return Transaction(half, self._end_transaction)

    def recall(self, topic: str, recall_handle: str) -> str:
        """Cancels a delayed message before it is due; `recall_handle` is that of its `SendResult`. Returns the message
        id, also when called twice. Raises BadRequest if it is too late, or for a handle of another topic.
        """
        super()._check_open()
        return self._run(self._calls.recall_message(topic, recall_handle))

    def flush(self, timeout_ms: int | None = None) -> None:
        """Waits until all messages sent so far are answered. Raises RequestTimeout after `timeout_ms`."""
        self._background.check()
        self._background.call_soon(self._flush)
        if not self._gate.wait_empty(timeout_ms):
            raise self._late(self._gate.messages, timeout_ms)

    def close(self, timeout_ms: int = 30_000) -> None:
        """Flushes, for at most `timeout_ms`, then closes the connections; messages still pending then fail.

        Raises RequestTimeout if there are any.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.flush(timeout_ms)
        finally:
            self._run(self._shut())

    def end_with_process(self, timeout_ms: int) -> None:
        """Waits for pending messages, at most `timeout_ms`, when the process ends and the producer was not closed."""
        if self._closed:
            return
        self._closed = True
        pending, rejected = self._gate.messages, self._sending.rejected
        try:
            self.flush(timeout_ms)
        except Error:
            self._lost_at_exit(min(pending, self._gate.messages + self._sending.rejected - rejected))
        else:
            self._lost_at_exit(min(pending, self._sending.rejected - rejected))

    def _begin(self) -> None:
        options = self.options
        self._gate = ThreadGate(
            messages_max=options.pending_messages, bytes_max=options.pending_bytes, block_ms=options.block_ms
        )
        self._inbox: deque[Entry] = deque()
        self._rung = self._held = False
        self._in_loop(self._connect)
        self._background.exits.add(self)

    def _connect(self) -> None:
        self._open(self._answered)
        self._direct = direct_part(self._context, self._calls, self._sending, self.options)
        self._watch()

    def _answered(self, messages: int, size: int) -> None:
        # A bound method: it keeps an unreferenced producer alive while it has pending messages.
        self._gate.leave(messages, size)

    def _send_directly(self, direct: Direct, message: Message) -> SendResult:
        """Sends in this thread. A failed attempt continues in the loop's thread."""
        self._check_open()
        encoded = self._encoder.encode(message)
        size = len(encoded.content)
        self._gate.enter(size)
        until_ms = self._context.clock.monotonic_ms() + self.options.send_timeout_ms
        try:
            outcome = direct.publish(message.topic, encoded.message_id, encoded.content)
        except BaseException:
            self._gate.leave(1, size)
            raise
        if isinstance(outcome, SendResult):
            self._gate.leave(1, size)
            return outcome
        future: Future[SendResult] = Future()
        item = Item(message, encoded.message_id, encoded.content, future, urgent=True)
        item.until_ms = until_ms
        if outcome is None:
            self._put(item)
        else:
            self._background.call_soon(partial(self._sending.resume, item, outcome.queue, outcome.error))
        return future.result()

    def _check_open(self) -> None:
        super()._check_open()
        self._background.check()

    def _take(
        self,
        message: Message,
        *,
        urgent: bool,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        oneway: bool = False,
        observation: SendObservation | None = None,
    ) -> Future[SendResult]:
        self._check_open()
        if not (urgent or self._held):
            self._start_thread()
        encoded = self._encoder.encode(message)
        self._gate.enter(len(encoded.content))
        future: Future[SendResult] = Future()
        self._put(
            self._item(
                message,
                encoded,
                future,
                urgent=urgent,
                sharding_key=sharding_key,
                selector=selector,
                oneway=oneway,
                observation=observation,
            )
        )
        return future

    def _start_thread(self) -> None:
        """Starts gRPC's thread, which the first connection needs. Since Python 3.12 a process that ends starts none, so
        the messages of a program that ends after its first sends would be lost. Not earlier, and not after the close: a
        child that is forked then needs a thread of its own.
        """

        async def start() -> None:
            from evenq.wire.net import hold_grpc

            if not (self._held or self._closed):  # another thread may have been faster
                hold_grpc()
                self._held = True

        with suppress(Unsupported):  # in the loop's own thread: a callback of a message, so it runs
            self._run(start())

    def _take_reply(self, reply: Message) -> Future[SendResult]:
        with observed_send(self._identity, reply) as sending:
            sent = self._take(sending.message, urgent=True)
            sending.follow(sent)
        return sent

    def _take_block(self, block: SendBlock) -> Future[Outcomes]:
        """Returns after the sending of a large block has begun, so that encoding does not delay the loop's thread."""
        self._check_open()
        self._gate.enter(block.size, block.count)
        future: Future[Outcomes] = Future()
        block.future = future
        self._put(block)
        if block.urgent:
            self._run(self._begun())
        return future

    def _put(self, item: Entry) -> None:
        self._inbox.append(item)
        if (
            not self._rung
        ):  # one wake-up of the loop for many messages; the loop clears the flag before it empties the inbox
            self._rung = True
            self._background.call_soon(self._empty_inbox)

    def _end_transaction(self, half: HalfMessage, resolution: TransactionResolution) -> None:
        self._run(self._transacting.end(half, resolution))

    async def _check(self, message: ReceivedMessage) -> TransactionResolution:
        assert self._checker is not None
        return await resolution_of(await in_thread(None, self._checker, message))

    def _empty_inbox(self) -> None:
        self._rung = False
        items: list[Entry] = []
        while self._inbox:
            items.append(self._inbox.popleft())
        self._sending.submit(items)

    async def _begun(self) -> None:
        self._empty_inbox()
        await self._sending.begun()

    def _flush(self) -> None:
        self._empty_inbox()
        self._sending.flush()

    async def _shut(self) -> None:
        try:
            self._empty_inbox()
            await super()._shut()
        finally:
            if self._held:
                from evenq.wire.net import let_grpc_go

                self._held = False
                let_grpc_go()
