"""A connection to a broker that stays open: the client sends its state repeatedly, and the broker sends events.

It is the telemetry stream of the v2 protocol (wire contract 4). A broken connection is reopened with growing pauses.
`loops.transacting` gets the checks of brokers over such connections, `loops.subscribing` the end of lite subscriptions.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.clients.wakeup import Wakeup
from evenq.errors import Error
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    import asyncio

TELL_MS = 30_000  # wire contract 3.2: repeated settings are also heartbeats

Outgoing = TypeVar("Outgoing")
Incoming = TypeVar("Incoming")


class BrokerConnection(Generic[Outgoing, Incoming]):
    def __init__(
        self,
        stream: Callable[[AsyncIterator[Outgoing]], AsyncGenerator[Incoming, None]],
        *,
        tell: Callable[[], Outgoing],
        hear: Callable[[Incoming], Awaitable[None]],
        clock: Clock,
        rng: random.Random,
        name: str,
        what: str,
        troubles: Troubles,
    ) -> None:
        """`stream` opens the connection, sends the results of `tell`, and passes events to `hear`. `what`: for logs."""
        self._stream = stream
        self._tell = tell
        self._hear = hear
        self._clock = clock
        self._rng = rng
        self._news = Wakeup(clock)
        self._what = what
        self._troubles = troubles
        self._over = False
        self.task: asyncio.Task[None] = spawn(self._keep(), name=name)
        """Ends only if it is cancelled."""

    def news(self) -> None:
        """Sends the state soon, because it changed."""
        self._news.wake()

    async def _keep(self) -> None:
        backoff = Backoff(self._rng, first_ms=200, max_ms=1_000)  # a killed broker is back within seconds
        while True:
            self._over, self._news = False, Wakeup(self._clock)
            try:
                async with contextlib.aclosing(self._stream(self._tellings())) as stream:
                    async for heard in stream:
                        backoff.reset()
                        self._troubles.well(self._what)
                        await self._hear(heard)
            except Error as error:
                self._troubles.failed(self._what, error)
            finally:
                self._over = True
                self._news.wake()
            await self._clock.sleep_ms(backoff.next_ms())

    async def _tellings(self) -> AsyncIterator[Outgoing]:
        while not self._over:
            yield self._tell()
            await self._news.wait(TELL_MS)
