"""The engine of a simple consumer: asks the brokers of its topics in turn, settles messages at the broker they came
from.

With one broker a receive is one long poll. With several, all are first asked without waiting, then each in turn for
a slice of the time, so a message is not found late because the poll stood at another broker.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import replace

from evenq.client.core.calls import SimpleCalls
from evenq.client.loops.routes import RouteBook
from evenq.client.options import SimpleOptions
from evenq.errors import BadRequest, ConnectionFailed, Error
from evenq.model import FilterExpression, MessageQueue, ReceivedMessage
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

__all__ = ["Receiving"]

log = logging.getLogger(__name__)


class Receiving:
    """One simple consumer, in one event loop."""

    def __init__(
        self,
        calls: SimpleCalls,
        *,
        group: str,
        subscriptions: Mapping[str, FilterExpression],
        clock: Clock,
        rng: random.Random,
        options: SimpleOptions,
    ) -> None:
        self._calls = calls
        self._group = group
        self._subscriptions = dict(subscriptions)
        self._clock = clock
        self._options = options
        self._routes = RouteBook(calls, clock, refresh_ms=options.route_refresh_ms)
        self._turn = rng.randrange(1 << 16)
        self._beats: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._beats = spawn(self._beat(), name=f"evenq-heartbeat-{self._group}")

    async def receive(self, max_messages: int, invisible_ms: int, wait_ms: int) -> list[ReceivedMessage]:
        """Up to `max_messages` from one queue, hidden from others for `invisible_ms`; empty after `wait_ms`."""
        if not 1 <= max_messages <= 1_000:
            raise BadRequest(f"max_messages is {max_messages}, the range is 1 to 1000")
        if not 0 <= wait_ms <= 60_000:
            raise BadRequest(f"wait_ms is {wait_ms}, the range is 0 to 60000")
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        places = await self._places()
        if len(places) > 1:
            for _ in places:
                messages = await self._ask(places, max_messages, invisible_ms, 0)
                if messages:
                    return messages
        while True:
            left_ms = max(0, deadline_ms - self._clock.monotonic_ms())
            slice_ms = left_ms if len(places) == 1 else min(left_ms, self._options.slice_ms)
            asked_ms = self._clock.monotonic_ms()
            messages = await self._ask(places, max_messages, invisible_ms, slice_ms)
            if messages or left_ms <= slice_ms:
                return messages
            if self._clock.monotonic_ms() - asked_ms < slice_ms // 2:  # answered early: never ask in a busy loop
                await self._clock.sleep_ms(min(50, slice_ms))

    async def ack(self, message: ReceivedMessage) -> None:
        """Finish a message for the group."""
        await self._calls.ack(await self._address(message), self._group, message)

    async def change_invisible(self, message: ReceivedMessage, invisible_ms: int) -> ReceivedMessage:
        """Hide a message for `invisible_ms` from now; returns it with the handle to go on with."""
        handle = await self._calls.change_invisible(await self._address(message), self._group, message, invisible_ms)
        return replace(message, receipt_handle=handle)

    async def close(self) -> None:
        """Say goodbye to the brokers."""
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        for address in await self._addresses():
            try:
                await self._calls.terminate(address, self._group)
            except Error as error:
                log.info("no goodbye", extra={"address": address, "error": str(error)})
        await self._routes.close()

    async def _ask(
        self, places: list[MessageQueue], max_messages: int, invisible_ms: int, wait_ms: int
    ) -> list[ReceivedMessage]:
        self._turn += 1
        place = places[self._turn % len(places)]
        route = await self._routes.get(place.topic)
        try:
            return await self._calls.receive(
                route.address_of(place.broker_name),
                self._group,
                place,
                wanted=self._subscriptions[place.topic],
                batch_max=max_messages,
                invisible_ms=invisible_ms,
                wait_ms=wait_ms,
            )
        except ConnectionFailed as error:
            self._routes.renew(place.topic)
            if len(places) == 1:
                raise
            log.warning("a broker does not answer", extra={"broker": place.broker_name, "error": str(error)})
            return []

    async def _places(self) -> list[MessageQueue]:
        """One queue for each topic and broker: the server receives from all queues of the broker (wire contract
        3.9).
        """
        places: dict[tuple[str, str], MessageQueue] = {}
        for topic in self._subscriptions:
            for queue in (await self._routes.get(topic)).readable:
                places.setdefault((topic, queue.broker_name), queue)
        if not places:
            raise ConnectionFailed(f"no broker serves a readable queue of {', '.join(self._subscriptions)} now")
        return list(places.values())

    async def _address(self, message: ReceivedMessage) -> str:
        return (await self._routes.get(message.topic)).address_of(message.queue.broker_name)

    async def _addresses(self) -> list[str]:
        found: set[str] = set()
        for topic in self._subscriptions:
            try:
                found.update((await self._routes.get(topic)).addresses.values())
            except Error as error:
                log.info("no route", extra={"topic": topic, "error": str(error)})
        return sorted(found)

    async def _beat(self) -> None:
        while True:
            for address in await self._addresses():
                try:
                    await self._calls.heartbeat(address, self._group)
                except Error as error:
                    log.info("no heartbeat", extra={"address": address, "error": str(error)})
            await self._clock.sleep_ms(self._options.heartbeat_interval_ms)
