"""The asyncio pull consumer; `evenq.aio.PullConsumer` is this one. See `evenq.PullConsumer`.

async with evenq.aio.PullConsumer(group="billing", subscriptions={"orders": "*"}) as consumer:
    for message in await consumer.poll():
        print(message.body)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from evenq.allocation import Strategy
from evenq.client.loops.polling import Polling
from evenq.client.options import PullOptions
from evenq.client.plans import check_callbacks, filters, pull_plan
from evenq.client.wiring import Ground, new_client_id, polling_parts
from evenq.errors import Unsupported
from evenq.model import FilterExpression, MessageModel, MessageQueue, ReceivedMessage, StartFrom
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

__all__ = ["PullConsumer"]

OnRebalance = Callable[[Sequence[MessageQueue], Sequence[MessageQueue]], object]


class PullConsumer:
    """Shares a group's queues, or reads queues of its user's choice (`assign`); see `evenq.PullConsumer`."""

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
        ground: Ground | None = None,
    ) -> None:
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
        check_callbacks(on_rebalance)
        self._ground = Ground.of(ground, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._ground.clock)
        self._on_rebalance = on_rebalance
        self._polling: Polling | None = None
        self._closed = False

    async def start(self) -> Self:
        """Join the group and begin to fetch ahead; returns at once."""
        if self._polling is not None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} was started before; make a new one")
        tell = None if self._on_rebalance is None else self._tell
        self._calls, self._polling = polling_parts(self._ground, self.client_id, self._plan, tell=tell)
        self._polling.start()
        return self

    async def close(self, *, consumed: bool = True) -> None:
        """Leave the group in bounded time; `consumed` False: what the last poll returned comes again."""
        if self._closed:
            return
        self._closed = True
        if self._polling is not None:
            await self._polling.close(consumed=consumed)
            await self._ground.let_go(self._calls.net)

    async def poll(self, max_messages: int = 32, *, wait_ms: int = 15_000) -> list[ReceivedMessage]:
        """Up to `max_messages` of one queue in offset order; waits up to `wait_ms`, then an empty list."""
        return await self._running().poll(max_messages, wait_ms)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store progress now: behind everything polled, or these offsets."""
        await self._running().commit(offsets)

    async def committed(self, queue: MessageQueue) -> int:
        """The group's stored offset, asked of the store; -1 if there is none."""
        return await self._running().committed(queue)

    def position(self, queue: MessageQueue) -> int:
        """The offset that the next poll of the queue begins at."""
        return self._running().position(queue)

    async def assign(
        self, queues: Sequence[MessageQueue], wanted: str | FilterExpression = "*", *, timeout_ms: int = 10_000
    ) -> None:
        """Read exactly these queues, without sharing; returns when they are ready."""
        told = filters({queue.topic: wanted for queue in queues})
        await self._running().assign(queues, next(iter(told.values()), FilterExpression()), timeout_ms=timeout_ms)

    def subscribe(self, topic: str, wanted: str | FilterExpression = "*") -> None:
        """One topic more."""
        self._running().subscribe(topic, filters({topic: wanted})[topic])

    def unsubscribe(self, topic: str) -> None:
        """One topic less."""
        self._running().unsubscribe(topic)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read the queue from `offset` on, forward or back."""
        self._running().seek(queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Read from the oldest message that is kept."""
        await self._running().seek_to_begin(queue)

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Read only what comes from now on."""
        await self._running().seek_to_end(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after a time, ms since the epoch."""
        return await self._running().offset_at(queue, timestamp_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Polls leave these queues out until `resume`."""
        self._running().pause(list(queues), paused=True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Poll these queues again."""
        self._running().pause(list(queues), paused=False)

    async def queues_of(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic, sorted; to choose from."""
        return await self._running().queues_of(topic)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues this consumer reads now, sorted."""
        return [] if self._polling is None or self._closed else self._polling.owned()

    async def __aenter__(self) -> Self:
        return self if self._polling is not None else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(consumed=kind is None)

    def _running(self) -> Polling:
        if self._polling is None or self._closed:
            raise Unsupported(f"this consumer of {self._plan.group} is not running; call start()")
        return self._polling

    async def _tell(self, gained: Sequence[MessageQueue], lost: Sequence[MessageQueue]) -> None:
        assert self._on_rebalance is not None
        told = self._on_rebalance(gained, lost)
        if inspect.isawaitable(told):
            await told
