"""The lite topics to which a consumer is subscribed, sent to its brokers (wire contract 3.14).

The set here is authoritative. Each change is sent immediately, and fails if the server rejects it. The whole set is
sent again every `sync_interval_ms`, and as soon as a connection to a broker is open again, because brokers drop
subscriptions that were not sent for 90 s, or before they started. One request at a time, so that none overtakes
another. A broker may end a subscription: it leaves the set, and the user's callback is called. The notice may be missed
while no connection is open; so two "no such topic" answers in a row also end the set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from evenq.client.core.lite.events import LiteAction, LiteEnded, LiteEvent, LiteStart
from evenq.client.loops.clients.broker_connection import BrokerConnection
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.clients.user_code import raised_by_user
from evenq.client.loops.clients.wakeup import Wakeup
from evenq.client.options import LiteOptions
from evenq.errors import ConnectionFailed, Error, RequestTimeout, TopicNotFound
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq.client.rpc.lite import RpcLiteCalls

GONE_ANSWERS = 2
"""Answers "no such topic" in a row that end the subscriptions; a single one may come from a starting broker."""

log = logging.getLogger(__name__)

TellEnded = Callable[[str], Awaitable[object]]
"""Notifies the user that a broker ended the subscription to this lite topic."""


class LiteSubscriber:
    def __init__(
        self,
        calls: RpcLiteCalls,
        *,
        group: str,
        topic: str,
        clock: Clock,
        rng: random.Random,
        options: LiteOptions,
        addresses: Callable[[], Awaitable[list[str]]],
        tell: TellEnded | None,
        troubles: Troubles,
    ) -> None:
        """`addresses`: of the known brokers of the topic."""
        self._calls = calls
        self._group = group
        self._topic = topic
        self._clock = clock
        self._rng = rng
        self._options = options
        self._addresses = addresses
        self._tell = tell
        self._troubles = troubles
        self._names: dict[str, None] = {}
        self._some = asyncio.Event()
        self._sure = True
        """False: a broker may have names that are not in the set."""
        self._turn = rng.randrange(1 << 16)
        self._one_at_a_time = asyncio.Lock()
        self._due = Wakeup(clock)
        self._line: BrokerConnection[None, LiteEvent] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def names(self) -> list[str]:
        return sorted(self._names)

    async def has_some(self, wait_ms: int) -> bool:
        """True if the set is not empty; waits for that up to `wait_ms`."""
        if not self._names and wait_ms:
            waiter = spawn(self._some.wait(), name="evenq-lite-some")
            timer = spawn(self._clock.sleep_ms(wait_ms), name="evenq-lite-some-timer")
            try:
                await asyncio.wait({waiter, timer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiter.cancel()
                timer.cancel()
        return bool(self._names)

    async def start(self, names: Iterable[str]) -> None:
        """Sends the first set, even if empty: a topic that this creates has the type LITE. Raises as `subscribe`."""
        first = dict.fromkeys(names)
        await self._say(LiteAction.ALL, list(first))
        self._put(first)
        self._line = BrokerConnection(
            self._events,
            tell=lambda: None,
            hear=self._heard,
            clock=self._clock,
            rng=self._rng,
            name=f"evenq-lite-connection-{self._group}",
            what=f"the connection for lite topics of {self._topic}",
            troubles=self._troubles,
        )
        self._tasks.add(spawn(self._repeat(), name=f"evenq-lite-sync-{self._group}"))

    async def subscribe(self, names: Iterable[str], start: LiteStart | None) -> None:
        """Adds names: all of them or, if it fails, none. Raises LiteSubscriptionQuotaExceeded, IllegalLiteTopic,
        IllegalTopic, ConnectionFailed, RequestTimeout.
        """
        async with self._one_at_a_time:
            fresh = [name for name in dict.fromkeys(names) if name not in self._names]
            if len(fresh) == 1:
                await self._change(LiteAction.ADD, fresh, start)
            # Several names are sent as a whole set: the official Python SDK sends the letters of one name as the names
            # of a `PARTIAL_ADD`, so brokers join short names from a Python client.
            elif fresh:
                await self._change(LiteAction.ALL, [*self._names, *fresh], start)
            self._put({**self._names, **dict.fromkeys(fresh)})

    async def unsubscribe(self, names: Iterable[str]) -> None:
        """Removes names; messages received before may still be acknowledged. If no broker answers, it is sent later."""
        async with self._one_at_a_time:
            gone = {name: None for name in names if name in self._names}
            self._put({name: None for name in self._names if name not in gone})
            if gone:
                with contextlib.suppress(ConnectionFailed, RequestTimeout):
                    await self._change(LiteAction.REMOVE, list(gone), None)

    async def close(self) -> None:
        """Stops sending the set; the end of the consumer ends its subscriptions."""
        tasks = [*self._tasks, *([self._line.task] if self._line is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _put(self, names: dict[str, None]) -> None:
        self._names = names
        if names:
            self._some.set()
        else:
            self._some.clear()

    async def _change(self, action: LiteAction, names: Sequence[str], start: LiteStart | None) -> None:
        try:
            await self._say(action, names, start)
        except Error:
            self._sure = False  # some broker may have received it
            self._due.wake()
            raise

    async def _say(self, action: LiteAction, names: Sequence[str], start: LiteStart | None = None) -> None:
        """Sends a change to the access point, which forwards it to all; if it does not answer, to another broker."""
        try:
            await self._calls.sync_lite(action, self._topic, self._group, names, start=start)
        except (ConnectionFailed, RequestTimeout):
            for address in await self._addresses() if self._line is not None else ():
                with contextlib.suppress(ConnectionFailed, RequestTimeout):
                    await self._calls.sync_lite(action, self._topic, self._group, names, start=start, address=address)
                    return
            raise

    async def _repeat(self) -> None:
        backoff = Backoff(self._rng, first_ms=200, max_ms=5_000)
        wait_ms = self._options.sync_interval_ms
        gone = 0
        while True:
            await self._due.wait(wait_ms)
            wait_ms = self._options.sync_interval_ms
            try:
                async with self._one_at_a_time:
                    if self._names or not self._sure:
                        await self._say(LiteAction.ALL, list(self._names))
                        self._sure = True
            except Error as error:
                self._troubles.failed(f"the lite subscriptions of topic {self._topic}", error)
                gone = gone + 1 if isinstance(error, TopicNotFound) else 0
                if gone >= GONE_ANSWERS:
                    await self._all_ended()
                elif error.retryable or gone:
                    wait_ms = min(wait_ms, backoff.next_ms())
            else:
                gone = 0
                backoff.reset()
                self._troubles.well(f"the lite subscriptions of topic {self._topic}")

    async def _events(self, tellings: AsyncIterator[None]) -> AsyncGenerator[LiteEvent, None]:
        """Opens the event stream of one broker, another one each time."""
        addresses = await self._addresses()
        if not addresses:
            raise ConnectionFailed(f"no broker of topic {self._topic} is known now")
        self._turn += 1
        address = addresses[self._turn % len(addresses)]
        async with contextlib.aclosing(self._calls.lite_events(address, self._group, self._topic, tellings)) as events:
            async for event in events:
                yield event

    async def _heard(self, event: LiteEvent) -> None:
        if not isinstance(event, LiteEnded):
            self._due.wake()  # the connection was down: the broker may have dropped the set
            return
        if event.name not in self._names:
            return
        self._put({name: None for name in self._names if name != event.name})
        log.warning(
            "group %s: a broker ended the subscription to lite topic %s of %s", self._group, event.name, self._topic
        )
        if self._tell is not None:
            task = spawn(self._tell_of(event.name), name="evenq-lite-ended")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _all_ended(self) -> None:
        for name in self.names:
            await self._heard(LiteEnded(name))
        self._sure = True  # no broker has any of them

    async def _tell_of(self, name: str) -> None:
        assert self._tell is not None
        try:
            await self._tell(name)
        except (Exception, asyncio.CancelledError) as error:
            if not raised_by_user(error):
                raise
            log.exception("on_unsubscribed failed for lite topic %s", name)
