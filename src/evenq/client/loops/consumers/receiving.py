"""The engine of a simple consumer: receives from the brokers of its topics in turn, and settles messages at the broker
that returned them.

With one broker a receive is one long poll. With several, each is first called without waiting, then in turn for a slice
of the time: a message is not delayed by a long poll at another broker. A broker of a LITE topic also returns messages
of the others: one is called until it does not answer, then another (`anywhere`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.reading.group_start import GroupStart
from evenq.client.loops.routes.leader_watch import LOOK_MAX_MS, LeaderMoved, LeaderWatch
from evenq.client.loops.routes.route_book import RouteBook
from evenq.client.loops.sending.outgoing import LOST, Encoded, SendResult
from evenq.client.options import SimpleOptions
from evenq.errors import BadRequest, ConnectionFailed, Error, HaNotAvailable, RequestTimeout
from evenq.model import FilterExpression, MessageQueue, ReceivedMessage, StartFrom
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

if TYPE_CHECKING:
    from evenq.client.rpc.receiving import RpcSimpleCalls

log = logging.getLogger(__name__)

ACKS_MAX = 1_000
"""Most messages of one call; brokers accept 4,096."""
AGAIN_FIRST_MS = 50
"""Pause before a settlement without a leader is repeated; it grows to `LOOK_MAX_MS`."""
PARKED_MS = 3_000
"""Pause between fetches of the route while a receive waits; the number of other consumers is not known here."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimplePlan:
    group: str
    subscriptions: Mapping[str, FilterExpression]
    start_from: StartFrom | None
    """Start on topics that the group never read; None: by the group's setting."""
    start_timestamp_ms: int
    """For TIMESTAMP, ms since the epoch; 0: half an hour ago."""
    options: SimpleOptions


class ReceiveLoop:
    def __init__(
        self,
        calls: RpcSimpleCalls,
        *,
        group: str,
        subscriptions: Mapping[str, FilterExpression],
        clock: Clock,
        rng: random.Random,
        options: SimpleOptions,
        anywhere: bool = False,
    ) -> None:
        """`anywhere`: each broker returns and settles the messages of all."""
        self._calls = calls
        self._group = group
        self._subscriptions = dict(subscriptions)
        self._clock = clock
        self._options = options
        self._anywhere = anywhere
        self.routes = RouteBook(calls, clock, refresh_ms=options.route_refresh_ms)
        self.starts: GroupStart | None = None
        """Start on topics that the group never read; None: the brokers decide."""
        self._rng = rng
        self._leaders = LeaderWatch(self.routes, clock, rng, parked_ms=lambda: PARKED_MS)
        self._turn = rng.randrange(1 << 16)
        self._beats: asyncio.Task[None] | None = None
        self.troubles = Troubles(clock, who=f"group {group}")

    def start(self) -> None:
        self._beats = spawn(self._beat(), name=f"evenq-heartbeat-{self._group}")

    async def receive(self, max_messages: int, invisible_ms: int, wait_ms: int) -> list[ReceivedMessage]:
        """Returns up to `max_messages` of one broker, hidden from others for `invisible_ms`; empty after `wait_ms`."""
        if not 1 <= max_messages <= 1_000:
            raise BadRequest(f"max_messages is {max_messages}, the range is 1 to 1000")
        if not 0 <= wait_ms <= 60_000:
            raise BadRequest(f"wait_ms is {wait_ms}, the range is 0 to 60000")
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        places = await self._places()
        if self.starts is not None:
            await self.starts.settle(self._subscriptions)
        apart = len(places) > 1 and not self._anywhere
        # Each broker once without waiting: a long poll at one must not delay messages of another.
        for _ in places if apart else ():
            messages = await self._ask(places, max_messages, invisible_ms, 0)
            if messages:
                return messages
        while True:
            left_ms = max(0, deadline_ms - self._clock.monotonic_ms())
            slice_ms = min(left_ms, self._options.slice_ms) if apart else left_ms
            began_ms = self._clock.monotonic_ms()
            messages = await self._ask(places, max_messages, invisible_ms, slice_ms)
            if messages or (left_ms <= slice_ms and messages is not None) or not left_ms:
                return messages or []
            if self._clock.monotonic_ms() - began_ms < slice_ms // 2:  # answered early: no busy loop
                await self._clock.sleep_ms(min(50, slice_ms))

    async def ack(self, *messages: ReceivedMessage) -> None:
        """Acknowledges messages, those of one broker and topic in one call. After all calls, raises the first error."""
        by_place: dict[tuple[str, str], list[ReceivedMessage]] = {}
        for message in messages:
            by_place.setdefault((message.topic, message.queue.broker_name), []).append(message)
        failure: Error | None = None
        for same in by_place.values():
            for first in range(0, len(same), ACKS_MAX):
                try:
                    await self._ack_together(same[first : first + ACKS_MAX])
                except Error as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    async def _ack_together(self, messages: Sequence[ReceivedMessage]) -> None:
        await self.settle(messages[0], lambda address: self._calls.ack(address, self._group, *messages))

    async def transact(self, messages: Sequence[ReceivedMessage], sent: Sequence[Encoded]) -> list[SendResult]:
        """Sends messages and acknowledges others at their broker, all or none. Raises BadRequest if nothing is
        acknowledged, or messages of several brokers are.
        """
        brokers = sorted({message.queue.broker_name for message in messages})
        if len(brokers) != 1:
            raise BadRequest(
                "the transaction acknowledges no message; call `ack` in its block"
                if not brokers
                else f"the transaction acknowledges messages of {len(brokers)} brokers, {', '.join(brokers)}; a "
                "transaction is for messages of one broker, as one `receive` returns them"
            )
        contents = [one.content for one in sent]
        places = await self.settle(
            messages[0], lambda address: self._calls.transact(address, self._group, messages, contents)
        )
        return [SendResult(one.message_id, *place) for one, place in zip(sent, places, strict=True)]

    async def change_invisible(
        self, message: ReceivedMessage, invisible_ms: int, *, suspend: bool = False
    ) -> ReceivedMessage:
        """Hides a message for `invisible_ms` from now; returns it with its new handle. `suspend`: counts no attempt."""
        handle = await self.settle(
            message,
            lambda address: self._calls.change_invisible(address, self._group, message, invisible_ms, suspend=suspend),
        )
        return replace(message, receipt_handle=handle)

    async def close(self) -> None:
        """Leaves the group at all brokers."""
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        # Concurrently: a broker that does not answer must not delay the others.
        await asyncio.gather(*map(self._terminate, await self.addresses()))
        await self._leaders.close()
        await self.routes.close()

    async def _terminate(self, address: str) -> None:
        try:
            await self._calls.terminate(address, self._group)
        except Error as error:
            log.info(
                "group %s: broker %s could not be notified that this consumer stops: %s", self._group, address, error
            )

    async def _ask(
        self, places: list[MessageQueue], max_messages: int, invisible_ms: int, wait_ms: int
    ) -> list[ReceivedMessage] | None:
        """Receives from the next place; None: its broker did not answer."""
        self._turn += not self._anywhere
        queue = places[self._turn % len(places)]
        route = await self.routes.get(queue.topic)
        try:
            calling = self._calls.receive(
                route.address_of(queue.broker_name),
                self._group,
                queue,
                expression=self._subscriptions[queue.topic],
                batch_max=max_messages,
                invisible_ms=invisible_ms,
                wait_ms=wait_ms,
            )
            leader = route.leader_of(queue.broker_name)
            messages = await self._leaders.long_poll(queue, leader, calling)
        except LeaderMoved as moved:
            log.info("group %s: receiving from the next leader: %s", self._group, moved)
            return None
        except (ConnectionFailed, HaNotAvailable, RequestTimeout) as error:
            self.routes.renew(queue.topic)
            if len(places) == 1 or (isinstance(error, RequestTimeout) and not self._anywhere):
                raise
            self.troubles.failed(f"broker {queue.broker_name}", error)
            self._turn += self._anywhere
            return None
        self.troubles.well(f"broker {queue.broker_name}")
        if not messages:
            self._leaders.found_nothing(queue, leader)
        return messages

    async def _places(self) -> list[MessageQueue]:
        """Returns one queue for each topic and broker; a receive covers all queues of a broker (wire contract 3.9)."""
        places: dict[tuple[str, str], MessageQueue] = {}
        for topic in self._subscriptions:
            for queue in (await self.routes.get(topic)).readable:
                places.setdefault((topic, queue.broker_name), queue)
        if not places:
            raise ConnectionFailed(f"no broker serves a readable queue of {', '.join(self._subscriptions)} now")
        return list(places.values())

    async def settle(self, message: ReceivedMessage, call: Callable[[str], Coroutine[None, None, Result]]) -> Result:
        """Settles a message at the broker that returned it; with `anywhere`, at another one if that does not answer.

        A broker may be starting again, be slow, or have another leader among its copies, which knows the handle, and no
        access point may have the route. So the calls are repeated until one succeeds, or `timeout_ms` has passed since
        the first try. This is safe: a message may be finished twice, and one that an earlier try gave back is not given
        back again (InvalidReceiptHandle).
        """
        queue = message.queue
        until_ms = self._clock.monotonic_ms() + self._options.timeout_ms
        pauses = Backoff(self._rng, first_ms=AGAIN_FIRST_MS, max_ms=LOOK_MAX_MS)
        turn = 0
        while True:
            leader, others = self.routes.leader(queue.broker_name), list[str]()
            try:
                route = await self.routes.get(message.topic)
                leader = self.routes.leader(queue.broker_name)
                if not leader.epoch:  # a broker without copies: it moved if its address is another one
                    leader = route.leader_of(queue.broker_name)
                others = [address for name, address in sorted(route.addresses.items()) if name != queue.broker_name]
                return await self._leaders.call(queue, leader, call(route.address_of(queue.broker_name)))
            except (HaNotAvailable, *LOST) as error:
                failure: Error = error
            self.routes.renew(message.topic)
            if self._anywhere and others and isinstance(failure, ConnectionFailed):
                try:
                    return await call(others[turn % len(others)])
                except (HaNotAvailable, *LOST) as error:
                    failure = error
                turn += 1
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise failure
            log.debug("group %s: settling at broker %s is repeated: %s", self._group, queue.broker_name, failure)
            await self._leaders.moved(queue, leader, within_ms=min(pauses.next_ms(), left_ms))

    async def addresses(self) -> list[str]:
        """Returns the addresses of the known brokers of all topics."""
        addresses: set[str] = set()
        for topic in self._subscriptions:
            try:
                addresses.update((await self.routes.get(topic)).addresses.values())
            except Error as error:
                self.troubles.noted(f"the route of topic {topic}", error)
            else:
                self.troubles.well(f"the route of topic {topic}")
        return sorted(addresses)

    async def _beat(self) -> None:
        while True:
            await asyncio.gather(*map(self._beat_at, await self.addresses()))
            await self._clock.sleep_ms(self._options.heartbeat_interval_ms)

    async def _beat_at(self, address: str) -> None:
        try:
            await self._calls.heartbeat(address, self._group)
        except Error as error:
            self.troubles.failed(f"the heartbeat to {address}", error)
        else:
            self.troubles.well(f"the heartbeat to {address}")
