"""The asyncio simple consumer, `evenq.aio.SimpleConsumer`, and what it shares with the sync one.

async with evenq.aio.SimpleConsumer(group="billing", subscriptions={"orders": "*"}) as consumer:
    for message in await consumer.receive():
        await consumer.ack(message)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from evenq.client.core.clients.lifetime import Lifetime
from evenq.client.faces import AsyncFace, SdkClient
from evenq.client.loops.consumers.receiving import Receiving
from evenq.client.options import SimpleOptions
from evenq.client.plans import simple_plan
from evenq.client.wiring import ClientContext, new_client_id, receiving_parts
from evenq.model import FilterExpression, ReceivedMessage, StartFrom
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

__all__ = ["SimpleClient", "SimpleConsumer"]


class SimpleClient(SdkClient):
    """A simple consumer, as both faces have it."""

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
        """`start_from` as in `evenq.PushConsumer`: where the group begins on a topic that it never
        read, at the first receive. Raises IllegalGroup, IllegalTopic, BadRequest.
        """
        plan = simple_plan(
            group=group, subscriptions=subscriptions, start_from=start_from, start_timestamp_ms=start_timestamp_ms,
            options=options,
        )  # fmt: skip
        self._context = ClientContext.of(context, credentials, endpoint=endpoint, tls=tls)
        self.client_id = client_id or new_client_id(self._context.clock)
        self._lifetime = Lifetime(group)
        self._calls, self._receiving = self._in_loop(receiving_parts, self._context, self.client_id, plan)
        self._lifetime.started = True
        self._begin()

    def _begin(self) -> None:
        """Last step of the making."""

    async def _shut(self) -> None:
        await self._receiving.close()
        await self._context.let_go(self._calls.net)

    def _running(self) -> Receiving:
        self._lifetime.check_open()
        return self._receiving


class SimpleConsumer(AsyncFace, SimpleClient):
    """Receive, work, acknowledge; see `evenq.SimpleConsumer`. Start it with `async with`, or `start()`."""

    async def start(self) -> Self:
        """Begin to send heartbeats; receiving works without, too."""
        self._receiving.start()
        return self

    async def receive(
        self, max_messages: int = 32, *, invisible_ms: int = 30_000, wait_ms: int = 15_000
    ) -> list[ReceivedMessage]:
        """Take up to `max_messages`; waits up to `wait_ms` for the first one, else an empty list."""
        return await self._running().receive(max_messages, invisible_ms, wait_ms)

    async def ack(self, *messages: ReceivedMessage) -> None:
        """Finish them for the group, those of one broker and topic in one call."""
        await self._running().ack(*messages)

    async def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        """Hide it for `invisible_ms` from now. Go on with the result."""
        return await self._running().change_invisible(message, invisible_ms)

    async def close(self) -> None:
        """Say goodbye. Closing twice is no error."""
        if self._lifetime.end():
            await self._shut()

    async def __aenter__(self) -> Self:
        return await self.start()
