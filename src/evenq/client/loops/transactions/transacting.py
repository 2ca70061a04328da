"""The transactions of one producer: it sends half messages and decisions, and answers the checks of brokers.

A connection to each broker of the topics' routes stays open for checks; a broken one is reopened with growing pauses. A
half message is sent only once: after a failure the caller does not know whether it is stored, and if it is, the checker
decides. The failure refreshes the route, so the next half message and the connections use the new address. All of it
runs in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from evenq.client.core.routes.route import Route
from evenq.client.core.transactions.half_messages import Check, HalfMessage
from evenq.client.loops.clients.broker_connection import BrokerConnection
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.clients.user_code import NotCalled, raised_by_user
from evenq.client.options import ProducerOptions
from evenq.errors import Error, Forbidden
from evenq.model import ReceivedMessage, TransactionResolution
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq.client.rpc.transactions import RpcTransactionCalls

log = logging.getLogger(__name__)

CHECKS_AT_A_TIME = 16
CLOSE_MS = 2_000
END_PAUSE_MS = 250

RunChecker = Callable[[ReceivedMessage], Awaitable[TransactionResolution]]


class TransactionLoop:
    def __init__(
        self,
        calls: RpcTransactionCalls,
        *,
        clock: Clock,
        rng: random.Random,
        options: ProducerOptions,
        route: Callable[[str], Awaitable[Route]],
        route_changed: Callable[[str, Callable[[], None]], None],
        run_checker: RunChecker,
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._rng = rng
        self._options = options
        self._route = route
        self._route_changed = route_changed
        self._run_checker = run_checker
        self._troubles = Troubles(clock, who="producer")
        self._topics: set[str] = set()
        self._renewing: set[str] = set()
        self._closed = False
        self._connections: dict[str, BrokerConnection[Iterable[str], Check]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(CHECKS_AT_A_TIME)
        self._turn = rng.randrange(1 << 16)

    def watch(self, topics: Iterable[str]) -> None:
        """Answers checks of transactions of these topics from now on."""
        fresh = set(topics) - self._topics
        if not fresh:
            return
        self._topics |= fresh
        for connection in self._connections.values():
            connection.news()
        self._look_now()

    async def begin(self, topic: str, message_id: str, encoded: bytes) -> HalfMessage:
        """Stores a half message, in a single try. Raises errors as a send does."""
        self.watch([topic])
        route = await self._route(topic)
        if not route.writable:
            raise Forbidden(f"topic {topic} has no writable queue now; check its permissions")
        self._turn += 1
        queue = route.writable[self._turn % len(route.writable)]
        try:
            return await self._calls.send_half(route.address_of(queue.broker_name), queue, message_id, encoded)
        except Error as error:
            if error.refresh_route:
                self._renew(topic)
            raise

    async def end(self, half: HalfMessage, resolution: TransactionResolution) -> None:
        """Sends the decision to the broker, then to the access point, in up to `max_attempts` rounds. A repetition is
        harmless.
        """
        backoff = Backoff(self._rng, first_ms=END_PAUSE_MS, max_ms=self._options.retry_max_ms)
        for attempt in range(2 * self._options.max_attempts):
            if attempt and attempt % 2 == 0:
                await self._clock.sleep_ms(backoff.next_ms())  # time for the connection to a restarted broker
            try:
                if attempt % 2 == 0:
                    await self._calls.end_transaction(half, resolution, checked=False)
                else:
                    await self._calls.end_transaction_anywhere(half, resolution)
            except Error as error:
                if not error.retryable or attempt + 1 == 2 * self._options.max_attempts:
                    raise
            else:
                return

    async def close(self) -> None:
        """Closes the connections; running answers to checks get up to `CLOSE_MS`."""
        self._closed = True
        tasks = [connection.task for connection in self._connections.values()]
        tasks += [self._looking] if self._looking is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connections.clear()
        if self._answering:
            timer = spawn(self._clock.sleep_ms(CLOSE_MS), name="evenq-transactions-timer")
            answers = asyncio.gather(*self._answering, return_exceptions=True)
            await asyncio.wait({answers, timer}, return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            answers.cancel()
            await asyncio.gather(answers, timer, return_exceptions=True)

    # -- connections ---------------------------------------------------------------------------------------------------

    def _renew(self, topic: str) -> None:
        """Fetches the topic's route, once for all half messages that fail meanwhile, then updates the connections."""
        if topic not in self._renewing:
            self._renewing.add(topic)
            self._route_changed(topic, partial(self._renewed, topic))

    def _renewed(self, topic: str) -> None:
        self._renewing.discard(topic)
        self._look_now()

    def _look_now(self) -> None:
        # Now, not at the next refresh: a check may follow as soon as the first half message is stored.
        if self._looking is not None:
            self._looking.cancel()
        if not self._closed:
            self._looking = spawn(self._look(), name="evenq-transaction-routes")

    async def _look(self) -> None:
        while True:
            addresses: set[str] = set()
            whole = True
            for topic in sorted(self._topics):
                try:
                    addresses.update((await self._route(topic)).addresses.values())
                except Error as error:
                    whole = False
                    self._troubles.failed(f"topic {topic} for transactions", error)
                else:
                    self._troubles.well(f"topic {topic} for transactions")
            for address in sorted(addresses - self._connections.keys()):
                self._connections[address] = BrokerConnection(
                    partial(self._calls.checks, address),
                    tell=lambda: sorted(self._topics),
                    hear=self._on_check,
                    clock=self._clock,
                    rng=self._rng,
                    name=f"evenq-transactions-{address}",
                    what=f"the connection for transaction checks to {address}",
                    troubles=self._troubles,
                )
            # Only if every route is known: an outage elsewhere must not close the connection of a broker with open
            # checks.
            for address in sorted(self._connections.keys() - addresses) if whole else ():
                self._connections.pop(address).task.cancel()
            await self._clock.sleep_ms(self._options.route_refresh_ms if whole else self._options.retry_max_ms)

    async def _on_check(self, check: Check) -> None:
        await self._room.acquire()
        task = spawn(self._answer(check), name="evenq-transaction-check")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, check: Check) -> None:
        try:
            resolution = await self._run_checker(check.message)
            # UNKNOWN is not sent: the broker repeats its check after an interval.
            if resolution is not TransactionResolution.UNKNOWN:
                await self._calls.end_transaction(check.half, resolution, checked=True)
        except NotCalled:
            log.info("the checker of message %s was not called, as this process ends", check.half.message_id)
        except Error as error:
            log.warning(
                "the check of transaction message %s (topic %s) was not answered, the broker will repeat it: %s",
                check.half.message_id,
                check.message.topic,
                error,
            )
        except (Exception, asyncio.CancelledError) as error:
            if not raised_by_user(error):
                raise
            log.exception("the checker failed for message %s; the broker will repeat the check", check.half.message_id)
        finally:
            self._room.release()
