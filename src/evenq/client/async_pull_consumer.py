"""The asyncio pull consumer, `evenq.aio.PullConsumer`, and what it shares with the sync one.

async with evenq.aio.PullConsumer(group="billing", subscriptions={"orders": "*"}) as consumer:
    for message in await consumer.poll():
        print(message.body)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

from evenq.allocation import Strategy
from evenq.client.async_push_consumer import OnRebalance
from evenq.client.core.clients.lifetime import Lifetime
from evenq.client.faces import AsyncFace, SdkClient, awaited
from evenq.client.loops.consumers.polling import Polling
from evenq.client.options import PullOptions
from evenq.client.plans import check_callbacks, filters, pull_plan
from evenq.client.wiring import ClientContext, new_client_id, polling_parts
from evenq.model import FilterExpression, MessageModel, MessageQueue, ReceivedMessage, StartFrom
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

__all__ = ["PullClient", "PullConsumer"]


class PullClient(SdkClient):
    """A pull consumer, as both faces have it."""

    _awaited_by: ClassVar[str] = ""
    """The class that takes a coroutine function, if this one takes none."""

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
        """With `subscriptions` it joins the group and gets its share; without, `assign` says what to read, and other
        members of the group do not know of it. Other arguments as in `evenq.PushConsumer`.
        """
        self._plan = pull_plan(
            group=group, subscriptions=subscriptions or {}, model=model, assignment=assignment, strategy=strategy,
            start_from=start_from, start_timestamp_ms=start_timestamp_ms, options=options,
        )  # fmt: skip
        check_callbacks(on_rebalance, awaited_by=self._awaited_by)
        self._context = ClientContext.of(context, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._context.clock)
        self._on_rebalance = on_rebalance
        self._lifetime = Lifetime(group)

    def position(self, queue: MessageQueue) -> int:
        """The offset that the next poll of the queue begins at."""
        return self._in_loop(self._running().position, queue)

    def subscribe(self, topic: str, expression: str | FilterExpression = "*") -> None:
        """Add a topic."""
        parsed = filters({topic: expression})[topic]
        self._in_loop(self._running().subscribe, topic, parsed)

    def unsubscribe(self, topic: str) -> None:
        """Remove a topic: its queues are released."""
        self._in_loop(self._running().unsubscribe, topic)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read the queue from `offset` on, forward or back. Raises PreconditionFailed if this consumer does not own it
        now.
        """
        self._in_loop(self._running().seek, queue, offset)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Leave these queues out of polls, and fetch nothing for them, until `resume`."""
        self._in_loop(self._running().pause, list(queues), paused=True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Poll these queues again."""
        self._in_loop(self._running().pause, list(queues), paused=False)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues this consumer reads now, sorted."""
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

    def _running(self) -> Polling:
        self._lifetime.check_running()
        return self._polling

    @abstractmethod
    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        """Call the user's callback."""


class PullConsumer(AsyncFace, PullClient):
    """Shares a group's queues, or reads queues that the program chooses (`assign`); see `evenq.PullConsumer`."""

    async def start(self) -> Self:
        """Join the group and begin to fetch ahead; returns at once. Starting twice is an error."""
        self._lifetime.check_new()
        self._open()
        return self

    async def close(self, *, consumed: bool = True) -> None:
        """Leave the group in bounded time; `consumed` False: the messages of the last poll are delivered again. Closing
        twice is no error.
        """
        if self._lifetime.end():
            await self._shut(consumed=consumed)

    async def poll(self, max_messages: int = 32, *, wait_ms: int = 15_000) -> list[ReceivedMessage]:
        """Up to `max_messages` of one queue in offset order; waits up to `wait_ms`, then an empty list."""
        return await self._running().poll(max_messages, wait_ms)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store progress now: behind everything polled, or these offsets."""
        await self._running().commit(offsets)

    async def committed(self, queue: MessageQueue) -> int:
        """The group's stored offset, asked of the store; -1 if there is none."""
        return await self._running().committed(queue)

    async def assign(
        self, queues: Sequence[MessageQueue], expression: str | FilterExpression = "*", *, timeout_ms: int = 10_000
    ) -> None:
        """Read exactly these queues, without sharing; returns when they are ready."""
        await self._assign(queues, expression, timeout_ms)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Read from the oldest message that is kept."""
        await self._running().seek_to_begin(queue)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Read only what comes from now on."""
        await self._running().seek_to_end(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after a time, ms since the epoch."""
        return await self._running().offset_at(queue, timestamp_ms)

    async def queues_of(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, sorted; to choose from."""
        return await self._running().queues_of(topic)

    async def __aenter__(self) -> Self:
        return self if self._lifetime.started else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(consumed=kind is None)

    async def _notify(self, callback: Callable[..., object], *arguments: object) -> object:
        return await awaited(callback, *arguments)
