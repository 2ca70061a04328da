"""The asyncio face of the SDK: the same names and arguments as `evenq`, with `await`. Each client belongs to the
loop that made it.

    async with evenq.aio.Producer(endpoint="127.0.0.1:8081") as producer:
        result = await producer.send(evenq.Message(topic="orders", body=b"..."))
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from evenq.allocation import Strategy
from evenq.client.async_admin import Admin
from evenq.client.async_lite_consumer import LitePushConsumer, LiteSimpleConsumer
from evenq.client.async_pull_consumer import PullConsumer
from evenq.client.core.user_functions import check_function
from evenq.client.loops.blocks import Blocks, results_of
from evenq.client.loops.gates import TaskGate
from evenq.client.loops.outgoing import Block, Item, Nobody, Outcomes, Selector, SendResult
from evenq.client.loops.pushing import Pushing
from evenq.client.loops.receiving import Receiving
from evenq.client.loops.troubles import Troubles
from evenq.client.loops.user_code import reporter
from evenq.client.options import ProducerOptions, PushOptions, SimpleOptions
from evenq.client.plans import check_callbacks, filters, options_of, push_plan, simple_plan
from evenq.client.transaction import AsyncTransaction, Checker, resolution_of
from evenq.client.wiring import (
    Encoder,
    Ground,
    new_client_id,
    producer_parts,
    pushing_parts,
    receiving_parts,
)
from evenq.errors import ConnectionFailed, Error, Unsupported
from evenq.model import (
    FilterExpression,
    Message,
    MessageModel,
    MessageQueue,
    ReceivedMessage,
    StartFrom,
    TransactionResolution,
)
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

__all__ = [
    "Admin",
    "LitePushConsumer",
    "LiteSimpleConsumer",
    "Message",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
]

Listener = Callable[[Sequence[ReceivedMessage]], object]
"""A coroutine function (or a plain, fast function); an exception or False: none of the messages is done."""
OnRebalance = Callable[[Sequence[MessageQueue], Sequence[MessageQueue]], object]
OnError = Callable[[Error], object]


class Producer:
    """Sends messages; see `evenq.Producer`."""

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
        self.options = options_of(ProducerOptions, options)
        if checker is not None:
            check_function("checker", checker, "message")
        self._ground = Ground.of(ground, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._ground.clock)
        told = self.options
        self._encoder = Encoder(self._ground.clock, compression=told.compression, packed_from=told.compress_from_bytes)
        self._gate = TaskGate(messages_max=told.pending_messages, bytes_max=told.pending_bytes, block_ms=told.block_ms)
        self._checker = checker
        self._troubles = Troubles(self._ground.clock, who="producer")
        self._calls, self._sending, self._replies, self._transacting = producer_parts(
            self._ground, self.client_id, told, left=self._gate.leave, run_checker=self._check
        )
        self._blocks = Blocks(self._encoder.encode, self._sending.spread, clock=self._ground.clock, options=told)
        self._transaction_topics = tuple(transaction_topics)
        self._closed = False

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
        """Send one, tried once; nobody is told what became of it. Waits only if too much is pending."""
        await self._take(message, urgent=False, oneway=True)

    async def send_batch(
        self, messages: Iterable[Message], *, sharding_key: str | None = None, selector: Selector | None = None
    ) -> list[SendResult]:
        """Send many and wait for all. Raises the first error after all were answered; see `evenq.Producer`."""
        futures: list[asyncio.Future[SendResult] | asyncio.Future[Outcomes]] = []
        plain = sharding_key is None and selector is None
        for part in self._blocks.of(messages) if plain else messages:
            if isinstance(part, Block):
                futures.append(await self._take_block(part))
            else:
                futures.append(await self._take(part, sharding_key=sharding_key, selector=selector, urgent=False))
        self._sending.flush()
        return results_of(await asyncio.gather(*futures, return_exceptions=True))

    async def request(self, message: Message, *, timeout_ms: int = 3_000) -> ReceivedMessage:
        """Send a request and wait for its reply; see `evenq.Producer.request`."""
        asked = await self._replies.ask(message, timeout_ms)
        try:
            sent = await self._take(asked.message, urgent=True)
            sent.add_done_callback(asked.sent)
            return await self._replies.wait(asked)
        finally:
            self._replies.end(asked)

    async def begin_transaction(self, message: Message) -> AsyncTransaction:
        """Store a message that nobody sees until the transaction is committed; see `evenq.Producer`."""
        if self._closed:
            raise ConnectionFailed("this producer is closed; make a new one")
        if self._checker is None:
            raise Unsupported("this producer has no checker; give one, so that brokers can ask about open transactions")
        encoded = self._encoder.encode(message)
        half = await self._transacting.begin(message.topic, encoded.message_id, encoded.content)
        return AsyncTransaction(half, self._transacting.end)

    async def flush(self) -> None:
        """Wait until everything given so far is answered."""
        self._sending.flush()
        await self._gate.wait_empty()

    async def close(self, timeout_ms: int = 30_000) -> None:
        """Flush, at most `timeout_ms`, then end the connections; what is pending then fails."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.flush()
        finally:
            await self._transacting.close()
            await self._replies.close()
            await self._sending.close()
            await self._ground.let_go(self._calls.net)

    async def __aenter__(self) -> Self:
        if self._checker is not None:
            self._transacting.watch(self._transaction_topics)
        return self

    async def _check(self, message: ReceivedMessage) -> TransactionResolution:
        assert self._checker is not None
        return await resolution_of(self._checker(message))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _take(
        self,
        message: Message,
        *,
        urgent: bool,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        oneway: bool = False,
    ) -> asyncio.Future[SendResult]:
        if self._closed:
            raise ConnectionFailed("this producer is closed; make a new one")
        encoded = self._encoder.encode(message)
        await self._gate.enter(len(encoded.content))
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        settle = Nobody(encoded.message_id, message.topic, self._troubles) if oneway else future
        item = Item(
            message, encoded.message_id, encoded.content, settle,
            urgent=urgent, sharding_key=sharding_key, selector=selector, tries_max=1 if oneway else 0,
        )  # fmt: skip
        self._sending.submit([item])
        return future

    async def _take_block(self, block: Block) -> asyncio.Future[Outcomes]:
        """A large one is on its way on return."""
        if self._closed:
            raise ConnectionFailed("this producer is closed; make a new one")
        await self._gate.enter(block.size, block.count)
        future: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
        block.future = future
        self._sending.submit([block])
        if block.urgent:
            await self._sending.begun()
        return future


class PushConsumer:
    """One member of a consumer group; see `evenq.PushConsumer`. `consume_threads` is the number of listener calls
    at a time.
    """

    def __init__(
        self,
        *,
        group: str,
        listener: Listener,
        subscriptions: Mapping[str, str | FilterExpression],
        endpoint: str = "",
        model: MessageModel | str = MessageModel.CLUSTERING,
        assignment: str = "auto",
        strategy: str | Strategy = "AVG",
        consume_threads: int = 20,
        start_from: StartFrom | str | None = None,
        start_timestamp_ms: int | str = 0,
        ordered: bool = False,
        on_rebalance: OnRebalance | None = None,
        on_error: OnError | None = None,
        options: PushOptions | None = None,
        client_id: str = "",
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        ground: Ground | None = None,
    ) -> None:
        self._plan = push_plan(
            group=group,
            subscriptions=subscriptions,
            model=model,
            assignment=assignment,
            strategy=strategy,
            consume_threads=consume_threads,
            start_from=start_from,
            start_timestamp_ms=start_timestamp_ms,
            options=options,
            ordered=ordered,
        )
        check_function("listener", listener, "messages")
        check_callbacks(on_rebalance, on_error)
        self._ground = Ground.of(ground, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._ground.clock)
        self._listener = listener
        self._on_rebalance = on_rebalance
        self._on_error = on_error
        self._pushing: Pushing | None = None
        self._closed = False

    async def start(self) -> Self:
        """Join the group and begin to read; returns at once, queues come as they are granted."""
        if self._pushing is not None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} was started before; make a new one")
        tell = None if self._on_rebalance is None else self._tell
        report = None if self._on_error is None else reporter(self._on_error)
        self._calls, self._pushing = pushing_parts(
            self._ground,
            self.client_id,
            self._plan,
            run_listener=self._listen,
            tell=tell,
            report=report,
        )
        self._pushing.start()
        return self

    async def close(self) -> None:
        """Leave the group: finish what listeners hold, commit, let the queues go."""
        if self._closed:
            return
        self._closed = True
        if self._pushing is not None:
            await self._pushing.close()
            await self._ground.let_go(self._calls.net)

    def subscribe(self, topic: str, wanted: str | FilterExpression = "*") -> None:
        """One topic more. All members of a group should subscribe alike (RG-8)."""
        self._running().subscribe(topic, filters({topic: wanted})[topic])

    def unsubscribe(self, topic: str) -> None:
        """One topic less: its queues are handed over (RB-5)."""
        self._running().unsubscribe(topic)

    def pause(self) -> None:
        """Fetch nothing until `resume`; what is in hand is consumed. Queues stay ours, unread, until others are to
        have them: a member that joins gets its share (CS-9).
        """
        self._running().pause(paused=True)

    def resume(self) -> None:
        """Go on."""
        self._running().pause(paused=False)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues this member reads now, sorted."""
        return [] if self._pushing is None or self._closed else self._pushing.owned()

    @property
    def balanced(self) -> bool:
        """True if this member knows its share of every topic and reads exactly that."""
        return self._pushing is not None and not self._closed and self._pushing.balanced

    async def __aenter__(self) -> Self:
        return self if self._pushing is not None else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _running(self) -> Pushing:
        if self._pushing is None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} is not running; call start()")
        return self._pushing

    async def _listen(self, messages: Sequence[ReceivedMessage]) -> object:
        told: object = self._listener(messages)
        if inspect.isawaitable(told):
            told = await told
        return told

    async def _tell(self, gained: Sequence[MessageQueue], lost: Sequence[MessageQueue]) -> None:
        assert self._on_rebalance is not None
        told = self._on_rebalance(gained, lost)
        if inspect.isawaitable(told):
            await told


class SimpleConsumer:
    """Receive, work, acknowledge; see `evenq.SimpleConsumer`. Start it with `async with`, or `start()`."""

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
        ground: Ground | None = None,
    ) -> None:
        plan = simple_plan(
            group=group, subscriptions=subscriptions, start_from=start_from, start_timestamp_ms=start_timestamp_ms,
            options=options,
        )  # fmt: skip
        self._group = plan.group
        self._ground = Ground.of(ground, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._ground.clock)
        self._calls, self._receiving = receiving_parts(self._ground, self.client_id, plan)
        self._closed = False

    async def start(self) -> Self:
        """Begin to send heartbeats; receiving works without, too."""
        self._receiving.start()
        return self

    async def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, wait_ms: int = 15_000
    ) -> list[ReceivedMessage]:
        """Take up to `max_messages`; waits up to `wait_ms` for the first one, else an empty list."""
        return await self._running().receive(max_messages, invisible_ms, wait_ms)

    async def ack(self, message: ReceivedMessage) -> None:
        """Finish it for the group."""
        await self._running().ack(message)

    async def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        """Hide it for `invisible_ms` from now. Go on with the result."""
        return await self._running().change_invisible(message, invisible_ms)

    def _running(self) -> Receiving:
        if self._closed:
            raise Unsupported(f"this consumer of {self._group} is closed; make a new one")
        return self._receiving

    async def close(self) -> None:
        """Say goodbye."""
        if self._closed:
            return
        self._closed = True
        await self._receiving.close()
        await self._ground.let_go(self._calls.net)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
