"""One run of `evenq bench`: topic and group, senders, receivers, and their removal.

A body starts with the number of the run and the time of its message, so a receiver knows its own messages also on an
existing topic, and the time needs no second clock: senders and receivers are in one process.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from evenq import aio
from evenq.cli.bench.latencies import Latencies
from evenq.client.loops.sending.outgoing import SendResult
from evenq.client.options import ProducerOptions
from evenq.errors import ConnectionFailed, Error, PreconditionFailed, RequestTimeout
from evenq.model import Message, ReceivedMessage
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn, to_its_end

PREFIX = "evenq-bench"
HEAD = struct.Struct("!QQQ")
"""Run, number, and the time that counts for latencies, ns of `now_ns`."""
READY_MS = 60_000
"""Longest wait until the receivers have their queues."""
SHOW_MS = 200
YIELD_EVERY = 64
"""Messages after which a sender lets receivers and timers run."""
now_ns = time.perf_counter_ns
"""Not a `Clock`: latencies of a fast cluster are below its millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    endpoint: str
    topic: str
    """Empty: a name of its own."""
    use_existing: bool
    seconds: int
    count: int | None
    """Instead of `seconds`."""
    rate: int | None
    size: int
    senders: int
    receivers: int
    wait_each: bool
    queues: int
    drain_ms: int
    timeout_ms: int


@dataclass(slots=True, kw_only=True)
class BenchResult:
    topic: str
    existed: bool
    """True: the topic was there before, and still has the messages."""
    sent: int = 0
    failed: int = 0
    first_error: str = ""
    received: int = 0
    repeated: int = 0
    send_s: float = 0.0
    receive_s: float = 0.0
    send: Latencies = field(default_factory=Latencies)
    receive: Latencies = field(default_factory=Latencies)

    @property
    def missing(self) -> int:
        """Messages that were stored and not received, if any were to be received."""
        return self.sent - self.received


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchProgress:
    phase: str
    """`starting`, `sending`, `receiving the rest` or `deleting`."""
    done: float
    """Share of the sends, 0 to 1."""
    sent: int
    received: int


async def bench(
    plan: BenchPlan, *, clock: Clock, rng: random.Random, progress: Callable[[BenchProgress], None]
) -> BenchResult:
    """Runs once. Raises PreconditionFailed for a topic that exists, ConnectionFailed without a cluster."""
    run = _BenchRun(plan, clock, rng, progress)
    async with aio.Admin(endpoint=plan.endpoint, timeout_ms=plan.timeout_ms) as admin, run.place(admin):
        await run.measure()
    return run.result


class _BenchRun:
    def __init__(
        self, plan: BenchPlan, clock: Clock, rng: random.Random, progress: Callable[[BenchProgress], None]
    ) -> None:
        self._plan, self._clock, self._progress = plan, clock, progress
        self._id = rng.getrandbits(63)
        self._group = f"{PREFIX}-{self._id & 0xFFFFFFFF:08x}"
        self.result = BenchResult(topic=plan.topic or self._group, existed=False)
        self._topic_made = False
        self._phase = "starting"
        self._numbers = 0
        self._began_ns = self._ended_ns = self._last_ns = 0
        self._seen = bytearray()
        """One byte for each message of the run: whether it was received."""
        self._rest = asyncio.Event()

    # ------------------------------------------------------------------------------------------- topic and group

    @asynccontextmanager
    async def place(self, admin: aio.Admin) -> AsyncIterator[None]:
        """Creates topic and group, and deletes what it created, also after Ctrl-C."""
        topic = self.result.topic
        self.result.existed = topic in {one.topic for one in await admin.list_topics()}
        if self.result.existed and not self._plan.use_existing:
            raise PreconditionFailed(
                f"topic {topic} exists, and its groups would get the messages of the benchmark; leave out --topic for "
                "a topic of its own, or add --use-existing"
            )
        try:
            await to_its_end(self._create(admin), name="bench creates")
            yield
        finally:
            self._phase = "deleting"
            self._show()
            await self._clean(admin)

    async def _create(self, admin: aio.Admin) -> None:
        topic = self.result.topic
        if not self.result.existed:
            placements = await admin.create_topic(topic, queues=self._plan.queues, message_type="NORMAL")
            self._topic_made = True
            failed = [one for one in placements if one.error]
            if failed:
                raise ConnectionFailed(f"topic {topic} was not created on {failed[0].broker_name}: {failed[0].error}")
        if self._plan.receivers:
            await admin.create_group(self._group, start_from="LAST" if self.result.existed else "FIRST")

    async def _clean(self, admin: aio.Admin) -> None:
        with suppress(Error):  # the group is gone, or was never created
            if self._plan.receivers:
                await admin.delete_group(self._group)
        if self._topic_made:
            await admin.delete_topic(self.result.topic)

    # -------------------------------------------------------------------------------------------------- the run

    async def measure(self) -> None:
        async with AsyncExitStack() as stack:
            shower = spawn(self._show_always(), name="bench progress")
            stack.callback(shower.cancel)
            await self._start_receivers(stack)
            options = ProducerOptions(timeout_ms=min(self._plan.timeout_ms, 60_000))
            producers = [
                await stack.enter_async_context(aio.Producer(endpoint=self._plan.endpoint, options=options))
                for _ in range(self._plan.senders)
            ]
            self._phase = "sending"
            self._began_ns = now_ns()
            async with asyncio.TaskGroup() as tasks:
                for at, producer in enumerate(producers):
                    tasks.create_task(self._send(at, producer))
            for producer in producers:
                await producer.flush()
            while self.result.sent + self.result.failed < self._numbers:  # callbacks of the last answers
                await self._clock.sleep_ms(1)
            self._ended_ns = now_ns()
            self._phase = "receiving the rest"
            await self._await_rest()
        self._finish()

    async def _start_receivers(self, stack: AsyncExitStack) -> None:
        begun_ms = self._clock.now_ms()
        consumers = [
            await stack.enter_async_context(
                aio.PushConsumer(
                    group=self._group,
                    endpoint=self._plan.endpoint,
                    subscriptions={self.result.topic: "*"},
                    listener=self._receive,
                    # Of an existing topic only what follows; a second earlier, in case its clock is late.
                    start_from="TIMESTAMP" if self.result.existed else "FIRST",
                    start_timestamp_ms=begun_ms - 1_000,
                )
            )
            for _ in range(self._plan.receivers)
        ]
        deadline_ms = self._clock.monotonic_ms() + READY_MS
        while not all(one.balanced for one in consumers):
            if self._clock.monotonic_ms() >= deadline_ms:
                raise RequestTimeout(
                    f"the receivers have no queues after {READY_MS // 1000} s; see `evenq group doctor {self._group}`"
                )
            await self._clock.sleep_ms(50)

    async def _send(self, at: int, producer: aio.Producer) -> None:
        plan = self._plan
        step_ns = 1e9 * plan.senders / plan.rate if plan.rate else 0.0
        share = None if plan.count is None else plan.count // plan.senders + (at < plan.count % plan.senders)
        end_ns = self._began_ns + plan.seconds * 1_000_000_000
        filling = b"x" * (plan.size - HEAD.size)
        sent = 0
        while share is None or sent < share:
            due_ns = self._began_ns + int((sent + at / plan.senders) * step_ns) if plan.rate else now_ns()
            if share is None and due_ns >= end_ns:
                return
            if due_ns > now_ns():
                await self._clock.sleep_ms((due_ns - now_ns()) / 1e6)
            elif sent % YIELD_EVERY == 0:
                await self._clock.sleep_ms(0)
            number, self._numbers = self._numbers, self._numbers + 1
            self._seen.append(0)
            body = HEAD.pack(self._id, number, due_ns) + filling
            await self._send_one(producer, Message(topic=self.result.topic, body=body), due_ns)
            sent += 1

    async def _send_one(self, producer: aio.Producer, message: Message, due_ns: int) -> None:
        def answered(future: asyncio.Future[SendResult]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                self._failed(error)
            elif not future.cancelled():
                self.result.sent += 1
                self.result.send.add((now_ns() - due_ns) / 1000)

        if not self._plan.wait_each:
            (await producer.send_async(message)).add_done_callback(answered)
            return
        try:
            await producer.send(message)
        except Error as error:
            self._failed(error)
        else:
            self.result.sent += 1
            self.result.send.add((now_ns() - due_ns) / 1000)

    def _failed(self, error: BaseException) -> None:
        self.result.failed += 1
        self.result.first_error = self.result.first_error or str(error)

    async def _receive(self, messages: Sequence[ReceivedMessage]) -> None:
        arrived_ns = now_ns()
        for message in messages:
            if len(message.body) < HEAD.size:
                continue
            run, number, due_ns = HEAD.unpack_from(message.body)
            if run != self._id or number >= len(self._seen):
                continue  # of another sender to the existing topic
            if self._seen[number]:
                self.result.repeated += 1
                continue
            self._seen[number] = 1
            self._last_ns = arrived_ns
            self.result.received += 1
            self.result.receive.add((arrived_ns - due_ns) / 1000)
        self._rest.set()

    async def _await_rest(self) -> None:
        deadline_ms = self._clock.monotonic_ms() + self._plan.drain_ms
        while self._plan.receivers and self.result.received < self.result.sent:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                return
            self._rest.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._rest.wait(), left_ms / 1000)

    def _finish(self) -> None:
        self.result.send_s = (self._ended_ns - self._began_ns) / 1e9
        self.result.receive_s = max(0, self._last_ns - self._began_ns) / 1e9

    # ------------------------------------------------------------------------------------------------- progress

    async def _show_always(self) -> None:
        while True:
            self._show()
            await self._clock.sleep_ms(SHOW_MS)

    def _show(self) -> None:
        plan, done = self._plan, 0.0
        if self._began_ns:
            gone_s = (now_ns() - self._began_ns) / 1e9
            done = min(1.0, self._numbers / plan.count if plan.count else gone_s / plan.seconds)
        self._progress(
            BenchProgress(phase=self._phase, done=done, sent=self.result.sent, received=self.result.received)
        )
