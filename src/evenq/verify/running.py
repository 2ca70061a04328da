"""A whole verification: creates topics and groups, sends, receives, waits for the rest, checks, cleans up.

`verify` is the only entry point. All topics and groups have the same random suffix and are deleted at the end, also
after Ctrl-C; for that, it waits for a broker that is away.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from evenq import aio
from evenq.client.core.admin.views import BrokerView
from evenq.client.core.routes.access_points import access_points
from evenq.client.options import ProducerOptions
from evenq.client.wiring import ClientContext
from evenq.errors import BadRequest, ConnectionFailed, Error, NotFound
from evenq.model import ReceivedMessage
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.runtime.tasks import spawn, to_its_end
from evenq.verify.outages import Outages
from evenq.verify.plan import MESSAGE_TYPES, Kind, Plan
from evenq.verify.producing import PRIORITIES, Sender, number_of, streams_of
from evenq.verify.tally import Arrival, Result, Tally
from evenq.wire.addresses import BROKER_HEADER, TLS, address_for, meant_broker
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

log = logging.getLogger(__name__)
PREFIX: Final = "evenq-verify"
GRACE_MS: Final = 30_000  # for sends that are open when the time has ended
QUIET_MS: Final = 1_500  # after the last message: time for repeats to arrive
CLEANUP_MS: Final = 30_000
LOOK_MS: Final = 100
QUEUES: Final = 4
PERIOD_MS: Final = 200
TIMEOUT_MS: Final = 2_000
PATH: Final = "/apache.rocketmq.v2.MessagingService/Heartbeat"
Consumer = aio.SimpleConsumer | aio.LiteSimpleConsumer
BATCH: Final = 32
WAIT_MS: Final = 1_000
PAUSE_MS: Final = 200


class Receiver:
    """Members of one kind's group: they receive, record and acknowledge until they are stopped. An ack is retried until
    it is answered or the message was given to another member.
    """

    def __init__(self, plan: Plan, kind: Kind, tally: Tally, *, clock: Clock) -> None:
        self._plan = plan
        self._kind = kind
        self._tally = tally
        self._clock = clock
        self._stopping = False

    def stories(self, consumers: list[Consumer]) -> list[Callable[[], Awaitable[None]]]:
        """Returns a loop for each member, to run concurrently."""

        def story(consumer: Consumer) -> Callable[[], Awaitable[None]]:
            async def run() -> None:
                while not self._stopping:
                    await self._once(consumer)

            return run

        return [story(consumer) for consumer in consumers]

    def stop(self) -> None:
        """Makes the loops end after their current messages."""
        self._stopping = True

    async def _once(self, consumer: Consumer) -> None:
        try:
            messages = await consumer.receive(BATCH, invisible_ms=self._plan.invisible_ms, wait_ms=WAIT_MS)
        except Error:  # the broker is away; the watcher has seen it
            await self._clock.sleep_ms(PAUSE_MS)
            return
        now_ms = self._clock.now_ms()
        if self._kind is Kind.PRIORITY:
            self._judge_priorities(messages)
        arrivals = [self._arrival(message, now_ms) for message in messages]
        for arrival in arrivals:
            self._tally.arrived(arrival)
        await asyncio.gather(
            *(self._settle(consumer, message, arrival) for message, arrival in zip(messages, arrivals, strict=True))
        )
        if self._kind is Kind.PRIORITY:
            await self._clock.sleep_ms(PAUSE_MS)  # let messages gather, so that there is an order to check

    async def _settle(self, consumer: Consumer, message: ReceivedMessage, arrival: Arrival) -> None:
        while True:
            try:
                await consumer.ack(message)
            except BadRequest:  # another member has it
                return
            except Error:
                if self._clock.now_ms() >= arrival.until_ms:
                    return
                await self._clock.sleep_ms(PAUSE_MS)
            else:
                self._tally.acked(arrival)
                return

    def _arrival(self, message: ReceivedMessage, now_ms: int) -> Arrival:
        queue = message.queue
        # Any broker delivers a message of a lite topic, so the broker is not part of its place.
        at = queue.broker_name if message.lite_topic is None else message.lite_topic
        return Arrival(
            number=number_of(message.body),
            place=f"{at}/{queue.queue_id}:{message.queue_offset}",
            now_ms=now_ms,
            until_ms=now_ms + self._plan.invisible_ms,
        )

    def _judge_priorities(self, messages: list[ReceivedMessage]) -> None:
        """Checks that the first deliveries within one answer are in order of priority, the highest first."""
        fresh = [message for message in messages if message.delivery_attempt == 1]
        for before, after in itertools.pairwise(fresh):
            if (before.priority or 0) < (after.priority or 0):
                problem = f"{number_of(after.body)} of priority {after.priority} came after priority {before.priority}"
                self._tally.out_of_turn(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    phase: str
    """`sending`, `waiting` or `cleaning up`."""
    elapsed_ms: int
    total_ms: int
    sent: int
    received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    results: list[Result]
    run: str
    """The random suffix of topics and groups."""
    seconds: float
    outages: int
    """Number of outages of brokers."""
    outage_ms_max: int

    @property
    def ok(self) -> bool:
        """True if every promise was kept."""
        return not any(result.broken for result in self.results)


async def verify(
    plan: Plan, *, clock: Clock, rng: random.Random, progress: Callable[[Moment], None] = lambda _: None
) -> Verdict:
    """Runs one verification. Raises ConnectionFailed without a cluster, and errors that refuse its topics."""
    return await _Run(plan, clock, rng, progress).run()


class _Run:
    def __init__(self, plan: Plan, clock: Clock, rng: random.Random, progress: Callable[[Moment], None]) -> None:
        self._plan = plan
        self._clock = clock
        self._rng = rng
        self._progress = progress
        self._name = f"{rng.getrandbits(32):08x}"
        self._outages = Outages()
        self._tallies = {
            kind: Tally(kind, outages=self._outages, tolerance_ms=plan.tolerance_ms) for kind in plan.kinds
        }
        self._begun_ms = clock.monotonic_ms()

    async def run(self) -> Verdict:
        async with (
            aio.Admin(endpoint=self._plan.endpoint, timeout_ms=self._plan.timeout_ms) as admin,
            self._net() as net,
        ):
            brokers = {broker.name: self._reached(broker) for broker in await admin.list_brokers() if broker.addresses}
            if not brokers:
                raise ConnectionFailed(f"{self._plan.endpoint} has no brokers; start one, for example `evenq up`")
            try:
                for kind in self._plan.kinds:
                    await to_its_end(self._create(admin, kind), name="verify creates")
                find = partial(self._find, admin)
                watchers = [
                    spawn(
                        BrokerWatcher(
                            net, name, address, self._outages, clock=self._clock, client_id=self._name, find=find
                        ).run(),
                        name=f"watch-{name}",
                    )
                    for name, address in sorted(brokers.items())
                ]
                try:
                    await self._traffic()
                finally:
                    for watcher in watchers:
                        watcher.cancel()
                    await asyncio.gather(*watchers, return_exceptions=True)
            finally:
                self._tell("cleaning up")
                await self._clean(admin)
        return Verdict(
            results=[tally.result() for tally in self._tallies.values()],
            run=self._name,
            seconds=(self._clock.monotonic_ms() - self._begun_ms) / 1_000,
            outages=self._outages.count,
            outage_ms_max=self._outages.longest_ms(self._clock.now_ms()),
        )

    async def _create(self, admin: aio.Admin, kind: Kind) -> None:
        queues = PRIORITIES if kind is Kind.PRIORITY else QUEUES  # one queue for each priority
        await admin.create_topic(self._place(kind), queues=queues, message_type=MESSAGE_TYPES[kind])
        await admin.create_group(self._place(kind), ordered=kind is Kind.FIFO, start_from="FIRST", max_attempts=1_000)

    async def _traffic(self) -> None:
        receivers: list[Receiver] = []
        senders: list[asyncio.Task[None]] = []
        members: list[asyncio.Task[None]] = []
        stop_ms = self._clock.monotonic_ms() + self._plan.seconds * 1_000
        async with AsyncExitStack() as stack:
            try:
                for kind, tally in self._tallies.items():
                    receiver = Receiver(self._plan, kind, tally, clock=self._clock)
                    receivers.append(receiver)
                    consumers: list[Consumer] = [
                        await stack.enter_async_context(self._consumer(kind)) for _ in range(self._plan.consumers)
                    ]
                    members += [_started(story, f"receive-{kind}") for story in receiver.stories(consumers)]
                    sender = Sender(self._plan, kind, self._place(kind), tally, clock=self._clock, rng=self._rng)
                    producer = await stack.enter_async_context(self._producer(kind, sender))
                    stories = sender.stories(producer, stop_ms=stop_ms, give_up_ms=stop_ms + GRACE_MS)
                    senders += [_started(story, f"send-{kind}") for story in stories]
                await self._until_done(senders, "sending", watched=members)
                await self._drain(members)
                for receiver in receivers:
                    receiver.stop()
                await self._until_done(members, "waiting")
            finally:
                for task in [*senders, *members]:
                    task.cancel()
                await asyncio.gather(*senders, *members, return_exceptions=True)

    async def _until_done(
        self, tasks: list[asyncio.Task[None]], phase: str, *, watched: list[asyncio.Task[None]] | None = None
    ) -> None:
        while any(not task.done() for task in tasks):
            self._tell(phase)
            _raise_failures([*tasks, *(watched or ())])
            await self._clock.sleep_ms(LOOK_MS)
        _raise_failures(tasks)

    async def _drain(self, members: list[asyncio.Task[None]]) -> None:
        """Waits until all messages arrived and QUIET_MS passed, or `drain_seconds`."""
        begun_ms = self._clock.monotonic_ms()
        empty_ms = begun_ms
        while (now_ms := self._clock.monotonic_ms()) < begun_ms + self._plan.drain_seconds * 1_000:
            _raise_failures(members)
            if any(tally.pending for tally in self._tallies.values()):
                empty_ms = now_ms
            elif now_ms - empty_ms >= QUIET_MS:
                return
            self._tell("waiting")
            await self._clock.sleep_ms(LOOK_MS)

    async def _clean(self, admin: aio.Admin) -> None:
        give_up_ms = self._clock.monotonic_ms() + CLEANUP_MS
        for kind in self._plan.kinds:
            for delete in (admin.delete_group, admin.delete_topic):
                while True:
                    try:
                        await delete(self._place(kind))
                    except NotFound:
                        break
                    except Error as error:
                        if self._clock.monotonic_ms() > give_up_ms:
                            log.warning("%s is left behind", self._place(kind), extra={"error": str(error)})
                            break
                        await self._clock.sleep_ms(2 * LOOK_MS)
                    else:
                        break

    @asynccontextmanager
    async def _net(self) -> AsyncIterator[Net]:
        net = ClientContext.of(None, None, endpoint=self._plan.endpoint).open_net()
        try:
            yield net
        finally:
            await net.close()

    async def _find(self, admin: aio.Admin, name: str) -> str:
        brokers = await admin.list_brokers()
        return next((self._reached(broker) for broker in brokers if broker.name == name and broker.addresses), "")

    def _reached(self, broker: BrokerView) -> str:
        points = access_points(self._plan.endpoint)
        if points.one_address:
            return address_for(broker.name, points.addresses[0])
        # An address with TLS, or without, as the access point.
        tls = ClientContext.of(None, None, endpoint=self._plan.endpoint).tls is not None
        fitting = (address for address in broker.addresses if address.startswith(TLS) == tls)
        return next(fitting, broker.addresses[0])

    def _place(self, kind: Kind) -> str:
        """Returns the name of the kind's topic and group."""
        return f"{PREFIX}-{kind}-{self._name}"

    def _consumer(self, kind: Kind) -> Consumer:
        name = self._place(kind)
        if kind is Kind.LITE:  # every member subscribes to all of them
            return aio.LiteSimpleConsumer(
                group=name, topic=name, lite_topics=streams_of(self._plan), endpoint=self._plan.endpoint
            )
        return aio.SimpleConsumer(group=name, subscriptions={name: "*"}, endpoint=self._plan.endpoint)

    def _producer(self, kind: Kind, sender: Sender) -> aio.Producer:
        if kind is not Kind.TRANSACTION:
            return aio.Producer(endpoint=self._plan.endpoint, options=ProducerOptions())
        return aio.Producer(endpoint=self._plan.endpoint, checker=sender.check, transaction_topics=[self._place(kind)])

    def _tell(self, phase: str) -> None:
        tallies = self._tallies.values()
        self._progress(
            Moment(
                phase=phase,
                elapsed_ms=self._clock.monotonic_ms() - self._begun_ms,
                total_ms=self._plan.seconds * 1_000,
                sent=sum(tally.sent for tally in tallies),
                received=sum(tally.received for tally in tallies),
            )
        )


def _started(story: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
    async def run() -> None:
        await story()

    return spawn(run(), name=name)


def _raise_failures(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


class BrokerWatcher:
    """Checks every broker five times a second, notes when one is away, and then queries its current address."""

    def __init__(
        self,
        net: Net,
        broker: str,
        address: str,
        outages: Outages,
        *,
        clock: Clock,
        client_id: str,
        find: Callable[[str], Awaitable[str]],
    ) -> None:
        """`find` returns the current address of a broker by its name; empty if no broker knows it."""
        self._net = net
        self._broker = broker
        self._outages = outages
        self._clock = clock
        self._find = find
        self._headers = {"x-mq-client-id": client_id, "x-mq-language": "PYTHON"}
        self._go_to(address)

    def _go_to(self, address: str) -> None:
        self._address, meant = meant_broker(address)
        self._headers.pop(BROKER_HEADER, None)
        if meant:
            self._headers[BROKER_HEADER] = meant

    async def run(self) -> None:
        request = service_pb2.HeartbeatRequest(client_type=definition_pb2.PRODUCER).SerializeToString()
        seen_ms = self._clock.now_ms()
        while True:
            try:
                await self._net.unary(self._address, PATH, request, timeout_ms=TIMEOUT_MS, metadata=self._headers)
            except Error:
                self._outages.away(self._broker, since_ms=seen_ms)
                with suppress(Error):
                    if address := await self._find(self._broker):
                        self._go_to(address)
            else:
                seen_ms = self._clock.now_ms()
                self._outages.back(self._broker, seen_ms)
            await self._clock.sleep_ms(PERIOD_MS)
