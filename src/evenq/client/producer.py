"""The sync producer. Its work runs in the process's loop thread (`loops.background`); any number of threads may share
one producer.

    with evenq.Producer(endpoint="127.0.0.1:8081") as producer:
        result = producer.send(evenq.Message(topic="orders", body=b"..."))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from evenq.client.async_producer import ProducerClient
from evenq.client.core.transactions.half_messages import HalfMessage
from evenq.client.faces import SyncFace
from evenq.client.loops.clients.user_code import in_thread
from evenq.client.loops.sending.blocks import results_of
from evenq.client.loops.sending.gates import ThreadGate
from evenq.client.loops.sending.outgoing import Entry, Item, Outcomes, Selector, SendBlock, SendResult, goes_anywhere
from evenq.client.transaction import Transaction, resolution_of
from evenq.client.wiring import direct_part
from evenq.errors import Error
from evenq.model import Message, ReceivedMessage, TransactionResolution

if TYPE_CHECKING:
    from evenq.client.rpc.direct import Direct

__all__ = ["Producer"]


class Producer(SyncFace, ProducerClient):
    """Sends messages. Thread-safe, and usable at once. Closing it, or leaving its `with` block, waits for pending
    messages.
    """

    def send(
        self, message: Message, *, sharding_key: str | None = None, selector: Selector | None = None
    ) -> SendResult:
        """Send one message and wait until it is stored. Retries automatically (`options.max_attempts`).

        Equal sharding keys go to one queue, in send order (PR-7); so do equal message groups, whose messages are also
        delivered in order. A selector chooses the queue.

        Raises the last error: TopicNotFound, BodyTooLarge, IllegalMessageTag ..., ConnectionFailed, RequestTimeout
        (it may or may not be stored; `options.send_timeout_ms`), TooManyRequests (no room within `options.block_ms`).
        """
        direct = self._direct
        if direct is None or sharding_key is not None or selector is not None or not goes_anywhere(message):
            return self._take(message, sharding_key=sharding_key, selector=selector, urgent=True).result()
        return self._send_directly(direct, message)

    def send_async(
        self, message: Message, *, sharding_key: str | None = None, selector: Selector | None = None
    ) -> Future[SendResult]:
        """Send one message in a batch with others, which waits for up to `options.linger_ms`. Blocks only if too much
        is pending.

        The future's callbacks run in the SDK's loop thread: keep them short, and do not make sync calls of the SDK in
        them.
        """
        return self._take(message, sharding_key=sharding_key, selector=selector, urgent=False)

    def send_oneway(self, message: Message) -> None:
        """Send one message with a single attempt and no result. Blocks only if too much is pending."""
        self._take(message, urgent=False, oneway=True)

    def send_batch(
        self, messages: Iterable[Message], *, sharding_key: str | None = None, selector: Selector | None = None
    ) -> list[SendResult]:
        """Send many messages, spread over the queues, and wait for all. Raises the first error after all were answered.

        The first ones are sent while the next are read from `messages` and encoded (`loops.blocks`).
        """
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

    def request(self, message: Message, *, timeout_ms: int = 3_000) -> ReceivedMessage:
        """Send a request and wait for its reply, which its consumer creates with `evenq.reply_to`.

        Raises RequestTimeout (it may have been handled), TooManyRequests (`options.pending_requests`), and as `send`.
        """
        super()._check_open()
        request = self._run(self._replies.ask(message, timeout_ms))
        try:
            sent = self._take(request.message, urgent=True)
            sent.add_done_callback(lambda done: self._background.call_soon(partial(request.sent, done)))
            return self._run(self._replies.wait(request))
        finally:
            self._background.call_soon(partial(self._replies.end, request))

    def begin_transaction(self, message: Message) -> Transaction:
        """Store a message that is invisible until the transaction is committed. Makes a single attempt.

        Use the result in a `with` block, or call its `commit` or `rollback`. Raises Unsupported without a checker, and
        as `send` does; after RequestTimeout the message may be stored, and then the checker decides.
        """
        return Transaction(self._run(self._half(message)), self._end_transaction)

    def recall(self, topic: str, recall_handle: str) -> str:
        """Cancel a delayed message before it is due; `recall_handle` is that of its `SendResult`. Returns its id, also
        when called twice. Raises BadRequest when it is too late, or for a handle of another topic.
        """
        super()._check_open()
        return self._run(self._calls.recall_message(topic, recall_handle))

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until all messages sent so far are answered. Raises RequestTimeout after `timeout_ms`."""
        self._background.check()
        self._background.call_soon(self._flush)
        if not self._gate.wait_empty(timeout_ms):
            raise self._late(self._gate.messages, timeout_ms)

    def close(self, timeout_ms: int = 30_000) -> None:
        """Flush, for at most `timeout_ms`, then close the connections; messages still pending then fail. Closing twice
        is no error.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.flush(timeout_ms)
        finally:
            self._run(self._shut())

    def end_with_process(self, timeout_ms: int) -> None:
        """The process ends, and nobody closed the producer: wait for what is pending, at most `timeout_ms`."""
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
        self._rung = False
        self._in_loop(self._connect)
        self._background.exits.add(self)

    def _connect(self) -> None:
        self._open(self._answered)
        self._direct = direct_part(self._context, self._calls, self._sending, self.options)
        self._watch()

    def _answered(self, messages: int, size: int) -> None:
        # A method of the producer: one that nobody holds any more lives for as long as messages of it are pending.
        self._gate.leave(messages, size)

    def _send_directly(self, direct: Direct, message: Message) -> SendResult:
        """In this thread; what does not work out goes on in the loop's."""
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
    ) -> Future[SendResult]:
        self._check_open()
        encoded = self._encoder.encode(message)
        self._gate.enter(len(encoded.content))
        future: Future[SendResult] = Future()
        self._put(
            self._item(
                message, encoded, future, urgent=urgent, sharding_key=sharding_key, selector=selector, oneway=oneway
            )
        )
        return future

    def _take_block(self, block: SendBlock) -> Future[Outcomes]:
        """A large one is on its way on return: a thread that encoded on at once would keep the interpreter from the
        loop's.
        """
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
        if not self._rung:  # one wake-up of the loop for many messages; the loop clears the flag before it looks
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
        self._empty_inbox()
        await super()._shut()
