"""The sync producer. Its work is done in the process's loop thread (`loops.background`); any number of threads may
share one.

    with evenq.Producer(endpoint="127.0.0.1:8081") as producer:
        result = producer.send(evenq.Message(topic="orders", body=b"..."))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from evenq.client.core.halves import HalfMessage
from evenq.client.core.user_functions import check_function
from evenq.client.loops.background import Background
from evenq.client.loops.blocks import Blocks, results_of
from evenq.client.loops.gates import ThreadGate
from evenq.client.loops.outgoing import Block, Entry, Item, Nobody, Outcomes, Selector, SendResult, goes_anywhere
from evenq.client.loops.troubles import Troubles
from evenq.client.loops.user_code import in_thread
from evenq.client.options import ProducerOptions
from evenq.client.plans import options_of
from evenq.client.transaction import Checker, Transaction, resolution_of
from evenq.client.wiring import Encoder, Ground, direct_part, new_client_id, producer_parts
from evenq.errors import ConnectionFailed, RequestTimeout, Unsupported
from evenq.model import Message, ReceivedMessage, TransactionResolution
from evenq.runtime.closing import Closing
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

if TYPE_CHECKING:
    from evenq.client.rpc.direct import Direct

__all__ = ["Producer"]


class Producer(Closing):
    """Sends messages. Thread-safe; usable at once; close it, or leave its `with` block, to wait for what is pending."""

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
        ground: Ground | None = None,
    ) -> None:
        """`endpoint` is the access point, `host:port`, or several joined with `;`. `credentials`: what to
        sign calls with; None = the environment's. `ground` is for tests.

        `checker` makes transactions possible (`begin_transaction`): brokers ask it what became of a half message that
        this or another producer left open; it returns a `TransactionResolution` and runs in a thread of its own. It is
        asked about the topics in `transaction_topics` from the start, about others from their first transaction on.
        """
        self.options = options_of(ProducerOptions, options)
        if checker is not None:
            check_function("checker", checker, "message")
        self._ground = Ground.of(ground, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._ground.clock)
        options = self.options
        self._encoder = Encoder(
            self._ground.clock, compression=options.compression, packed_from=options.compress_from_bytes
        )
        self._gate = ThreadGate(
            messages_max=options.pending_messages, bytes_max=options.pending_bytes, block_ms=options.block_ms
        )
        self._inbox: deque[Entry] = deque()
        self._rung = False
        self._closed = False
        self._troubles = Troubles(self._ground.clock, who="producer")
        self._background = Background.shared()
        self._checker = checker
        self._background.run(self._open(transaction_topics))

    def send(
        self, message: Message, *, sharding_key: str | None = None, selector: Selector | None = None
    ) -> SendResult:
        """Send one and wait until it is stored. Retries by itself (`options.max_attempts`).

        Equal sharding keys go to one queue, in send order (PR-7); a message group does that by itself, and its
        messages are delivered in order, too. A selector chooses the queue.

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
        """Send one, gathered with others for up to `options.linger_ms`. Waits only if too much is pending.

        The future's callbacks run in the SDK's loop thread: keep them short, and make no sync call of the SDK there.
        """
        return self._take(message, sharding_key=sharding_key, selector=selector, urgent=False)

    def send_oneway(self, message: Message) -> None:
        """Send one, tried once; nobody is told what became of it. Waits only if too much is pending."""
        self._take(message, urgent=False, oneway=True)

    def send_batch(
        self, messages: Iterable[Message], *, sharding_key: str | None = None, selector: Selector | None = None
    ) -> list[SendResult]:
        """Send many, spread over the queues, and wait for all. Raises the first error after all were answered.

        Brokers get the first of them while the next are drawn from `messages` and encoded (`loops.blocks`).
        """
        self._must_be_open()
        self._background.check_thread()
        futures: list[Future[SendResult] | Future[Outcomes]] = []
        plain = sharding_key is None and selector is None
        for part in self._blocks.of(messages) if plain else messages:
            if isinstance(part, Block):
                futures.append(self._take_block(part))
            else:
                futures.append(self._take(part, sharding_key=sharding_key, selector=selector, urgent=False))
        self._background.call_soon(self._flush)
        return results_of(future.exception() or future.result() for future in futures)

    def request(self, message: Message, *, timeout_ms: int = 3_000) -> ReceivedMessage:
        """Send a request and wait for its reply, which its consumer makes with `evenq.reply_to`.

        Raises RequestTimeout (it may have been handled), TooManyRequests (`options.pending_requests`), and as `send`.
        """
        if self._closed:
            raise ConnectionFailed("this producer is closed; make a new one")
        asked = self._background.run(self._replies.ask(message, timeout_ms))
        try:
            sent = self._take(asked.message, urgent=True)
            sent.add_done_callback(lambda done: self._background.call_soon(partial(asked.sent, done)))
            return self._background.run(self._replies.wait(asked))
        finally:
            self._background.call_soon(partial(self._replies.end, asked))

    def begin_transaction(self, message: Message) -> Transaction:
        """Store a message that nobody sees until the transaction is committed. Not tried twice.

        Use the result in a `with` block, or call its `commit` or `rollback`. Raises Unsupported without a checker, and
        as `send` does; after RequestTimeout the message may be stored, and then the checker decides.
        """
        if self._closed:
            raise ConnectionFailed("this producer is closed; make a new one")
        if self._checker is None:
            raise Unsupported("this producer has no checker; give one, so that brokers can ask about open transactions")
        encoded = self._encoder.encode(message)
        work = self._transacting.begin(message.topic, encoded.message_id, encoded.content)
        return Transaction(self._background.run(work), self._end_transaction)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until everything given so far is answered. Raises RequestTimeout after `timeout_ms`."""
        self._background.check()
        self._background.call_soon(self._flush)
        if not self._gate.wait_empty(timeout_ms):
            raise RequestTimeout(f"{self._gate.messages} messages are not acknowledged after {timeout_ms} ms")

    def close(self, timeout_ms: int = 30_000) -> None:
        """Flush, at most `timeout_ms`, then end the connections; what is pending then fails. Closing twice is no
        error.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.flush(timeout_ms)
        finally:
            self._background.run(self._shut())

    def _send_directly(self, direct: Direct, message: Message) -> SendResult:
        """In this thread; what does not work out goes on in the loop's."""
        self._must_be_open()
        encoded = self._encoder.encode(message)
        size = len(encoded.content)
        self._gate.enter(size)
        until_ms = self._ground.clock.monotonic_ms() + self.options.send_timeout_ms
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

    def _must_be_open(self) -> None:
        if self._closed:
            raise ConnectionFailed("this producer is closed; make a new one")
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
        self._must_be_open()
        encoded = self._encoder.encode(message)
        self._gate.enter(len(encoded.content))
        future: Future[SendResult] = Future()
        settle = Nobody(encoded.message_id, message.topic, self._troubles) if oneway else future
        self._put(
            Item(
                message,
                encoded.message_id,
                encoded.content,
                settle,
                urgent=urgent,
                sharding_key=sharding_key,
                selector=selector,
                tries_max=1 if oneway else 0,
            )
        )
        return future

    def _take_block(self, block: Block) -> Future[Outcomes]:
        """A large one is on its way on return: a thread that encoded on at once would keep the interpreter from the
        loop's.
        """
        self._must_be_open()
        self._gate.enter(block.size, block.count)
        future: Future[Outcomes] = Future()
        block.future = future
        self._put(block)
        if block.urgent:
            self._background.run(self._begin())
        return future

    def _put(self, item: Entry) -> None:
        self._inbox.append(item)
        if not self._rung:  # one wake-up of the loop for many messages; the loop clears the flag before it looks
            self._rung = True
            self._background.call_soon(self._empty_inbox)

    def _end_transaction(self, half: HalfMessage, resolution: TransactionResolution) -> None:
        self._background.run(self._transacting.end(half, resolution))

    async def _check(self, message: ReceivedMessage) -> TransactionResolution:
        assert self._checker is not None
        told = await in_thread(None, self._checker, message)
        return await resolution_of(told)

    async def _open(self, transaction_topics: Iterable[str]) -> None:
        self._calls, self._sending, self._replies, self._transacting = producer_parts(
            self._ground, self.client_id, self.options, left=self._gate.leave, run_checker=self._check
        )
        self._blocks = Blocks(
            self._encoder.encode, self._sending.spread, clock=self._ground.clock, options=self.options
        )
        self._direct = direct_part(self._ground, self._calls, self._sending, self.options)
        if self._checker is not None:
            self._transacting.watch(transaction_topics)

    def _empty_inbox(self) -> None:
        self._rung = False
        items: list[Entry] = []
        while self._inbox:
            items.append(self._inbox.popleft())
        self._sending.submit(items)

    async def _begin(self) -> None:
        self._empty_inbox()
        await self._sending.begun()

    def _flush(self) -> None:
        self._empty_inbox()
        self._sending.flush()

    async def _shut(self) -> None:
        self._empty_inbox()
        await self._transacting.close()
        await self._replies.close()
        await self._sending.close()
        if self._direct is not None:
            self._direct.close()
        await self._ground.let_go(self._calls.net)
