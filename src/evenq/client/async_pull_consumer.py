"""Pull consumer for asyncio, `evenq.aio.PullConsumer`, and the part that it shares with the sync one.

async with evenq.aio.PullConsumer(group="billing", subscriptions={"orders": "*"}) as consumer:
    for message in await consumer.poll():
        print(message.body)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

from evenq.allocation import Strategy
from evenq.client.async_push_consumer import OnRebalance
from evenq.client.core.clients.lifetime import Lifetime
from evenq.client.core.clients.observer import ClientIdentity, observed_receive, observed_settle
from evenq.client.faces import AsyncFace, SdkClient, awaited
from evenq.client.loops.consumers.polling import PollLoop
from evenq.client.options import PullOptions
from evenq.client.plans import check_callbacks, filters, pull_plan
from evenq.client.wiring import ClientContext, new_client_id, polling_parts
from evenq.errors import Unsupported
from evenq.model import FilterExpression, MessageModel, MessageQueue, ReceivedMessage, StartFrom
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

LOOP_WAIT_MS = 500
"""Wait of one poll of a loop, which ends that long after the consumer was closed. Messages are fetched meanwhile."""


class PullClient(SdkClient):
    """The part that both pull consumers share."""

    _awaited_by: ClassVar[str] = ""
    """The class that accepts a coroutine function, if this one does not."""

    def __init__(
        self,
        *,
        group: str,
        subscriptions: Mapping[str, str | FilterExpression] | None = None,
        endpoint: str = "",
        model: MessageModel | str = MessageModel.CLUSTERING,
        assignment: str = "auto",
        strategy: str | Strategy = "AVG",
        start_from: StartFrom | str | None = None,
        start_timestamp_ms: int | str = 0,
        on_rebalance: OnRebalance | None = None,
        options: PullOptions | None = None,
        client_id: str = "",
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        context: ClientContext | None = None,
    ) -> None:
        """With `subscriptions` the consumer joins the group and gets its share of the queues. Without them, `assign`
        chooses the queues, and other members of the group do not share them. Other arguments as in
        `evenq.PushConsumer`.
        """
        self._plan = pull_plan(
            group=group,
            subscriptions=subscriptions or {},
            model=model,
            assignment=assignment,
            strategy=strategy,
            start_from=start_from,
            start_timestamp_ms=start_timestamp_ms,
            options=options,
        )
        check_callbacks(on_rebalance, awaited_by=self._awaited_by)
        self._context = ClientContext.of(context, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._context.clock)
        self._identity = ClientIdentity(
            client_id=self.client_id, endpoint=self._context.endpoint, group=group, model=self._plan.model
        )
        self._on_rebalance = on_rebalance
        self._lifetime = Lifetime(group)

    def position(self, queue: MessageQueue) -> int:
        """Returns the offset at which the next poll of the queue begins."""
        return self._in_loop(self._running().position, queue)

    def subscribe(self, topic: str, expression: str | FilterExpression = "*") -> None:
        """Adds a topic."""
        parsed = filters({topic: expression})[topic]
        self._in_loop(self._running().subscribe, topic, parsed)

    def unsubscribe(self, topic: str) -> None:
        """Removes a topic: its queues are released."""
        self._in_loop(self._running().unsubscribe, topic)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continues at `offset`, forward or backward. Raises PreconditionFailed for a queue that is not its own."""
        self._in_loop(self._running().seek, queue, offset)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Leaves these queues out of polls, and fetches nothing for them, until `resume`."""
        self._in_loop(self._running().pause, list(queues), paused=True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Polls these queues again."""
        self._in_loop(self._running().pause, list(queues), paused=False)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, sorted."""
        return self._in_loop(self._polling.owned) if self._lifetime.running else []

    def _open(self) -> None:
        tell = None if self._on_rebalance is None else partial(self._notify, self._on_rebalance)
        self._calls, self._polling = polling_parts(self._context, self.client_id, self._plan, tell=tell)
        self._polling.start()
        self._lifetime.started = True

    async def _shut(self, *, consumed: bool) -> None:
        await self._polling.close(consumed=consumed)
        await self._context.let_go(self._calls.net)

    def _assign(
        self, queues: Sequence[MessageQueue], expression: str | FilterExpression, timeout_ms: int
    ) -> Coroutine[Any, Any, None]:
        topics = filters({queue.topic: expression for queue in queues})
        return self._running().assign(queues, next(iter(topics.values()), FilterExpression()), timeout_ms=timeout_ms)

    def _running(self) -> PollLoop:
        self._lifetime.check_running()
        return self._polling

    @abstractmethod
    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        """Calls the user's callback."""


class PullConsumer(AsyncFace, PullClient):
    """Shares a group's queues, or reads queues that the program chooses (`assign`); see `evenq.PullConsumer`."""

    async def start(self) -> Self:
        """Joins the group and begins to fetch ahead; returns immediately. Starting twice is an error."""
        self._lifetime.check_new()
        self._open()
        return self

    async def close(self, *, consumed: bool = True) -> None:
        """Leaves the group in bounded time, also if it is cancelled; see `evenq.PullConsumer.close`. A second call does
        nothing.
        """
        if self._lifetime.end():
            await self._to_its_end(self._shut(consumed=consumed))

    async def poll(self, max_messages: int = 32, *, wait_ms: int = 15_000) -> list[ReceivedMessage]:
        """Returns up to `max_messages` of one queue in offset order; an empty list if none arrives within `wait_ms`."""
        with observed_receive(self._identity) as receiving:
            return receiving.received(await self._running().poll(max_messages, wait_ms))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Stores progress now: after everything polled, or at these offsets."""
        with observed_settle(self._identity, "commit"):
            await self._running().commit(offsets)

    async def committed(self, queue: MessageQueue) -> int:
        """Returns the group's offset, read from where it is stored; -1 if there is none (OF-8)."""
        return await self._running().committed(queue)

    async def assign(
        self, queues: Sequence[MessageQueue], expression: str | FilterExpression = "*", *, timeout_ms: int = 10_000
    ) -> None:
        """Reads exactly these queues, without sharing them; returns when they are ready."""
        await self._assign(queues, expression, timeout_ms)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continues at the oldest message that is kept, with `tables` also in the table."""
        await self._running().seek_to_begin(queue)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continues at the end: reads only messages that are stored from now on."""
        await self._running().seek_to_end(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Returns the first offset stored at or after a time, ms since the epoch."""
        return await self._running().offset_at(queue, timestamp_ms)

    async def queues_of(self, topic: str) -> list[MessageQueue]:
        """Returns all readable queues of a topic, sorted, for `assign`."""
        return await self._running().queues_of(topic)

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yields messages one by one, as `poll(1)` returns them, until the consumer is closed."""
        self._lifetime.check_running()
        while self._lifetime.running:
            try:
                messages = await self.poll(1, wait_ms=LOOP_WAIT_MS)
            except Unsupported:
                if self._lifetime.running:
                    raise
                return
            for message in messages:
                yield message

    async def __aenter__(self) -> Self:
        return self if self._lifetime.started else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(consumed=kind is None)

    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        return await awaited(callback, *arguments)
