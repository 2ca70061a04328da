"""The loop of a push consumer of lite topics: it receives messages, calls the listener, and settles them.

Brokers return the next message of a lite topic once the previous one is settled. So a listener call has one message,
and calls of different lite topics run in parallel. While a listener runs, its message stays hidden (`_prolong`). A
failed message is redelivered after a growing pause, to any member, and its lite topic waits. The broker counts the
attempts and moves it to the dead letters (RD-3).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from evenq.client.core.clients.observer import ClientIdentity, observed_settle
from evenq.client.core.lite.events import Suspend
from evenq.client.core.reading.outcome import failures
from evenq.client.loops.clients.troubles import DENIED, Troubles
from evenq.client.loops.clients.user_code import NotCalled, raised_by_user
from evenq.client.loops.consumers.receiving import ReceiveLoop
from evenq.client.loops.reading.listening import RunListener
from evenq.client.options import LiteOptions
from evenq.errors import Error
from evenq.model import ReceivedMessage
from evenq.model.delay_levels import CLASSIC
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq.client.rpc.lite import RpcLiteCalls

log = logging.getLogger(__name__)

BATCH = 32
WAIT_MS = 15_000
SETTLE_MS = 1_000
DEAD = -1


class _Held:
    def __init__(self, message: ReceivedMessage) -> None:
        self.given = message
        """As passed to the listener."""
        self.message = message
        """With the newest handle."""
        self.changing = asyncio.Lock()


class LitePushLoop:
    def __init__(
        self,
        calls: RpcLiteCalls,
        receiving: ReceiveLoop,
        *,
        receive: Callable[[int, int, int], Awaitable[list[ReceivedMessage]]],
        group: str,
        slots: int,
        clock: Clock,
        rng: random.Random,
        options: LiteOptions,
        run_listener: RunListener,
        topic: str,
        troubles: Troubles,
        identity: ClientIdentity | None = None,
    ) -> None:
        """`identity` is for observers."""
        self._identity = identity or ClientIdentity(group=group)
        self._calls = calls
        self._receiving = receiving
        self._receive = receive
        self._group = group
        self._clock = clock
        self._rng = rng
        self._options = options
        self._run_listener = run_listener
        self._topic = topic
        self._troubles = troubles
        self._slots = slots
        self._free = asyncio.Condition()
        self._serving: set[asyncio.Task[None]] = set()
        self._fetching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._fetching = spawn(self._fetch(), name=f"evenq-lite-fetch-{self._group}")

    async def close(self) -> None:
        """Stops receiving; running listeners have `drain_ms`. Unfinished messages are redelivered."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
        if self._serving:
            timer = spawn(self._clock.sleep_ms(self._options.drain_ms), name="evenq-lite-drain")
            rest = asyncio.gather(*self._serving, return_exceptions=True)
            await asyncio.wait({rest, timer}, return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            rest.cancel()
            await asyncio.gather(rest, timer, return_exceptions=True)

    async def _fetch(self) -> None:
        backoff = Backoff(self._rng, first_ms=100, max_ms=2_000)
        while True:
            async with self._free:
                await self._free.wait_for(lambda: len(self._serving) < self._slots)
            room = min(BATCH, self._slots - len(self._serving))
            try:
                messages = await self._receive(room, self._options.invisible_ms, WAIT_MS)
            except Error as error:
                self._troubles.failed(f"topic {self._topic}", error)
                await self._clock.sleep_ms(backoff.next_ms())
                continue
            backoff.reset()
            self._troubles.well(f"topic {self._topic}")
            for message in messages:
                self._serving.add(spawn(self._serve(message), name="evenq-lite-listener"))

    async def _serve(self, message: ReceivedMessage) -> None:
        held = _Held(message)
        prolonging = spawn(self._prolong(held), name="evenq-lite-prolong")
        try:
            try:
                result = await self._listen(held)
            except NotCalled:  # redelivered when it is no longer hidden
                return
            # Not during a call: its answer contains the handle that settling needs.
            async with held.changing:
                prolonging.cancel()
            await self._settle(held, result)
        finally:
            prolonging.cancel()
            self._serving.discard(asyncio.current_task())
            async with self._free:
                self._free.notify_all()

    async def _listen(self, held: _Held) -> object:
        try:
            return await self._run_listener([held.given])
        except NotCalled:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if not raised_by_user(error):
                raise
            log.exception(
                "the listener failed for message %s of lite topic %s", held.given.message_id, held.given.lite_topic
            )
            return False

    async def _prolong(self, held: _Held) -> None:
        """Keeps the message hidden for at most `consume_timeout_ms`."""
        until_ms = self._clock.monotonic_ms() + self._options.consume_timeout_ms
        while True:
            # A third: after one or two failed calls there is time for another before the message is visible.
            await self._clock.sleep_ms(self._options.invisible_ms // 3)
            if self._clock.monotonic_ms() >= until_ms:
                log.warning(
                    "a listener has worked on message %s of lite topic %s for too long, it will be delivered again",
                    held.given.message_id,
                    held.given.lite_topic,
                )
                return
            async with held.changing:
                try:
                    held.message = await self._receiving.change_invisible(held.message, self._options.invisible_ms)
                except Error as error:
                    if not error.retryable and not isinstance(error, DENIED):
                        return
                    log.info("the invisible duration of message %s was not extended: %s", held.given.message_id, error)

    async def _settle(self, held: _Held, result: object) -> None:
        failed, level = failures(result, [held.given])
        message, receiving = held.message, self._receiving
        if isinstance(result, Suspend):
            pause_ms = result.pause_ms
            await self._surely("suspend", message, lambda: receiving.change_invisible(message, pause_ms, suspend=True))
        elif not failed:
            await self._surely("ack", message, lambda: receiving.ack(message))
        elif level == DEAD:
            await self._surely(
                "dead_letter",
                message,
                lambda: receiving.settle(message, lambda address: self._calls.bury(address, self._group, message)),
            )
        else:
            pause_ms = CLASSIC.delay_ms(level) if level else self._pause_ms(message.delivery_attempt)
            await self._surely("retry", message, lambda: receiving.change_invisible(message, pause_ms))

    def _pause_ms(self, attempt: int) -> int:
        return min(self._options.retry_max_ms, self._options.retry_first_ms << min(max(attempt, 1) - 1, 30))

    async def _surely(self, operation: str, message: ReceivedMessage, call: Callable[[], Awaitable[object]]) -> None:
        """Repeats a call until it succeeds, while this member surely holds the message."""
        try:
            with observed_settle(self._identity, operation, [message]):
                await self._repeated(call)
        except Error as error:
            log.warning(
                "group %s: a message could not be acknowledged and will be delivered again: %s", self._group, error
            )

    async def _repeated(self, call: Callable[[], Awaitable[object]]) -> None:
        """Repeats a call for half of the invisible duration. Raises its last error."""
        # It was prolonged at most a third of the time ago, so half of it is left.
        until_ms = self._clock.monotonic_ms() + self._options.invisible_ms // 2
        backoff = Backoff(self._rng, first_ms=50, max_ms=SETTLE_MS)
        while True:
            try:
                await call()
            except Error as error:
                pause_ms = backoff.next_ms()
                waits = error.retryable or isinstance(error, DENIED)
                if not waits or self._clock.monotonic_ms() + pause_ms >= until_ms:
                    raise
                await self._clock.sleep_ms(pause_ms)
            else:
                return
