"""`EvenqBroker`: sends tasks of taskiq as messages, and hands received messages to taskiq's worker.

A worker is a member of a consumer group that receives single messages, so any number of workers share the tasks of any
number of queues, and a slow task delays no other. taskiq requests the next task when it has a free slot. Only then are
messages received, `prefetch` at most, so that a busy worker keeps no tasks from idle ones.

Invariant: a task that was sent is run until its message is acknowledged; a worker that is killed, a broker that
restarts and a response that is lost lead to another delivery.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Any

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from evenq.aio import Admin, Producer, SimpleConsumer
from evenq.client.core.reading.chunks import TARGET_MS, ChunkSizer
from evenq.client.loops.clients.troubles import Troubles, is_permanent
from evenq.client.loops.consumers.held_messages import HeldMessage, HeldMessages, MessageSource
from evenq.client.options import ProducerOptions, SimpleOptions
from evenq.client.plans import options_of
from evenq.client.wiring import ClientContext
from evenq.errors import BadRequest, Error, IllegalGroup, IllegalTopic, Unsupported
from evenq.model import ReceivedMessage, StartFrom, group_problem, topic_problem
from evenq.runtime.backoff import Backoff
from evenq.runtime.tasks import spawn
from evenq.taskiq.task_messages import DELAYED, TaskTopics
from evenq.taskiq.topics import WAITED_FOR, TopicCreator
from evenq.wire.credentials import Credentials
from evenq.wire.tls import Tls

log = logging.getLogger(__name__)

INVISIBLE_MS = (1_000, 43_200_000)
PREFETCH = (1, 1_000)
PRIORITIES = (0, 4_096)
HELD_MS = (1_000, 31 * 86_400_000)
WAIT_MS = 20_000
"""Longest long poll of one receive."""
SLICE_MS = 200
"""With several brokers or topics: wait at one of them before the next one is called. The SDK's 1 s would delay a task
on an idle worker by as much."""
ATTEMPTS = 1_000
"""Attempts of a send, which ends after `send_timeout_ms` (30 s): a restart of a broker does not fail it."""
CLOSE_MS = 3_000
"""Longest wait of a shutdown for messages to give back, and for the last sends; taskiq ends a shutdown after 5 s."""
WAITING_MS = 200
"""Longest wait of a received message for a free slot of the worker."""
TAKEN_MS = 100
"""A receive requests what the worker takes within this time, by its pace so far."""


class EvenqBroker(AsyncBroker):
    """A broker object of taskiq, for clients and workers. Call `startup` (or `async with`) before the first task."""

    def __init__(
        self,
        topic: str = "taskiq",
        group: str = "taskiq",
        *,
        endpoint: str = "",
        more_topics: Iterable[str] = (),
        priorities: int = 0,
        invisible_ms: int = 60_000,
        held_ms_max: int = 86_400_000,
        prefetch: int = 32,
        create_topics: bool = True,
        start_from: StartFrom | str = StartFrom.FIRST,
        credentials: Credentials | None = None,
        tls: Tls | bool | None = None,
        producer_options: ProducerOptions | None = None,
        consumer_options: SimpleOptions | None = None,
        context: ClientContext | None = None,
    ) -> None:
        """`topic`: topic of tasks without a label `topic`. Workers read it and `more_topics`, as members of `group`.
        `endpoint`, `credentials` and `tls` as in `evenq.Producer`; `context` is for tests.

        `priorities`: number of priorities, 0 .. 4,096; 0: tasks have none. With priorities each topic is of type
        PRIORITY, and delayed tasks go to a second topic, NAME-delayed.

        `invisible_ms`: time after which the task of a killed worker runs again, 1,000 .. 43,200,000; renewed while the
        task runs, for at most `held_ms_max`. `prefetch`: most messages per receive, 1 .. 1,000; long tasks are received
        one at a time. `create_topics`: creates missing topics with the type that the tasks need.
        `start_from`: the start of a group that never read; FIRST runs tasks that were sent before the first worker.

        Raises IllegalTopic, IllegalGroup, BadRequest, IllegalAccessPoint, SettingsError.
        """
        super().__init__()
        self._group = group
        self._topics = TaskTopics(default=topic, priorities=priorities)
        self._read = self._topics.read(tuple(dict.fromkeys((topic, *more_topics))))
        self._check(more_topics)
        _within("priorities", priorities, PRIORITIES)
        _within("invisible_ms", invisible_ms, INVISIBLE_MS)
        _within("held_ms_max", held_ms_max, HELD_MS)
        _within("prefetch", prefetch, PREFETCH)
        self._invisible_ms = invisible_ms
        self._held_ms_max = held_ms_max
        self._prefetch = prefetch
        self._create_topics = create_topics
        self._start_from = StartFrom(start_from)
        self._producer_options = options_of(ProducerOptions, producer_options or ProducerOptions(max_attempts=ATTEMPTS))
        self._consumer_options = options_of(SimpleOptions, consumer_options or SimpleOptions(slice_ms=SLICE_MS))
        real = ClientContext.of(context, credentials, endpoint=endpoint, tls=tls)
        self._clock, self._rng = real.clock, real.rng
        self._access: dict[str, Any] = {
            "endpoint": endpoint,
            "credentials": credentials,
            "tls": tls,
            "context": context,
        }
        self._producer: Producer | None = None
        self._admin: Admin | None = None
        self._creator: TopicCreator | None = None
        self._consumer: SimpleConsumer | None = None
        self._deliveries: HeldMessages | None = None
        self._source: MessageSource | None = None

    async def startup(self) -> None:
        """Opens the connections and creates missing topics. A second call does nothing of that.

        Raises ConnectionFailed if no broker answers for 30 s, and Forbidden if topics are missing and the caller may
        not create them. A worker process of taskiq does that in `listen` instead, and waits: its manager starts a
        process that ends again and again.
        """
        if self._producer is None:
            self._producer = Producer(options=self._producer_options, **self._access)
            self._admin = Admin(**self._access)
            self._creator = TopicCreator(
                self._admin, self._topics, who=f"group {self._group}", clock=self._clock, rng=self._rng
            )
            try:
                if self._create_topics and not self.is_worker_process:
                    for topic in self._read:
                        await self._creator.ensure(topic)
            except BaseException:
                await self._close()
                raise
        await super().startup()

    async def shutdown(self) -> None:
        """Ends the broker after taskiq's handlers: gives unfinished messages back, sends what is pending, leaves the
        group.
        """
        try:
            await super().shutdown()
        finally:
            await self._close()

    async def __aenter__(self) -> None:
        await self.startup()  # here, because older versions of taskiq have no `async with`

    async def __aexit__(self, *_: object, **__: Any) -> None:
        await self.shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Sends a task and waits until it is stored. Raises the error of `evenq.aio.Producer.send` or of a wrong label;
        taskiq raises it as the cause of a SendTaskError.
        """
        producer, creator = self._producer, self._creator
        if producer is None or creator is None:
            raise Unsupported(
                f"the broker object for topic {self._topics.default} is not started: call `await broker.startup()` "
                "before the first task, or use `async with broker:`"
            )
        sent = self._topics.message(message)
        if self._create_topics:
            await creator.ensure(sent.topic)
        await producer.send(sent)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yields received tasks. taskiq's worker calls it; several calls share the tasks."""
        waiting: deque[HeldMessage] = deque()
        sizes = ChunkSizer(self._prefetch)
        returning: asyncio.Task[None] | None = None
        await self._prepare()
        try:
            while True:
                waiting.extend(map(self._hold, await self._receive(sizes.size)))
                count, began_ms = len(waiting), self._clock.monotonic_ms()
                returning = spawn(self._return_late(waiting), name="evenq-taskiq-waiting")
                while waiting:
                    held = waiting.popleft()
                    if not await self._moved(held):
                        yield AckableMessage(data=held.message.body, ack=partial(self._opened_deliveries().ack, held))
                if returning.done():
                    sizes.learn(1, WAITING_MS)
                returning.cancel()
                sizes.learn(count, (self._clock.monotonic_ms() - began_ms) * TARGET_MS / TAKEN_MS)
        finally:
            if returning is not None:
                returning.cancel()
            if waiting and self._deliveries is not None:  # a shutdown has returned all messages
                self._deliveries.give_back(waiting, unseen=True)

    async def _return_late(self, waiting: deque[HeldMessage]) -> None:
        """Gives back what still waits for a free slot, so that a busy worker keeps it from no idle one for long.

        It is not awaited: `listen` cancels this wait, and a cancelled call would lose its message until the invisible
        time ends. A shutdown waits for it.
        """
        await self._clock.sleep_ms(WAITING_MS)
        late = list(waiting)
        waiting.clear()
        self._opened_deliveries().give_back(late, unseen=True)

    async def _moved(self, held: HeldMessage) -> bool:
        """Sends a delayed task to the topic of priorities, where it is in line with others. False: it runs now."""
        message = self._topics.due(held.message)
        if message is None or self._producer is None:
            return False
        try:
            await self._producer.send(message)
        except Error as error:
            log.warning("group %s: a delayed task runs without its priority: %s", self._group, error)
            return False
        try:
            await self._opened_deliveries().ack(held)
        except Error as error:
            log.info("group %s: a delayed task may run twice: %s", self._group, error)
        return True

    async def _receive(self, count: int) -> list[ReceivedMessage]:
        """Returns the next messages, `count` at most; while no broker answers, tries again until one does."""
        consumer = await self._opened_consumer()
        troubles = Troubles(self._clock, who=f"group {self._group}")
        pauses = Backoff(self._rng, first_ms=100, max_ms=5_000)
        while True:
            try:
                messages = await self._receive_once(consumer, count)
            except Error as error:
                if is_permanent(error) and not isinstance(error, WAITED_FOR):
                    raise
                troubles.failed("receiving tasks", error)
                await self._clock.sleep_ms(pauses.next_ms())
                continue
            troubles.well("receiving tasks")
            pauses.reset()
            if messages:
                return messages

    async def _receive_once(self, consumer: SimpleConsumer, count: int) -> list[ReceivedMessage]:
        """Receives once. If the worker stops meanwhile, gives back what arrives in the same moment."""
        receiving = spawn(
            consumer.receive(count, invisible_ms=self._invisible_ms, wait_ms=WAIT_MS), name="evenq-taskiq"
        )
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            if not receiving.cancelled() and receiving.exception() is None:
                self._opened_deliveries().give_back(map(self._hold, receiving.result()), unseen=True)
            raise

    async def _prepare(self) -> None:
        """Creates missing topics, and waits until that is possible."""
        if self._producer is None:
            await self.startup()
        if self._create_topics and self._creator is not None:
            for topic in self._read:
                await self._creator.ensure_patiently(topic)

    async def _opened_consumer(self) -> SimpleConsumer:
        """Returns the consumer, made at the first call: clients that only send have none."""
        if self._consumer is None:
            self._consumer = consumer = SimpleConsumer(
                group=self._group,
                subscriptions=dict.fromkeys(self._read, "*"),
                start_from=self._start_from,
                options=self._consumer_options,
                **self._access,
            )
            await consumer.start()
        return self._consumer

    def _opened_deliveries(self) -> HeldMessages:
        if self._deliveries is None:
            self._deliveries = HeldMessages(
                clock=self._clock,
                rng=self._rng,
                invisible_ms=self._invisible_ms,
                patience_ms=self._invisible_ms,
                held_ms_max=self._held_ms_max,
                who=f"group {self._group}",
            )
        return self._deliveries

    def _hold(self, message: ReceivedMessage) -> HeldMessage:
        if self._source is None:
            assert self._consumer is not None, "messages come from the consumer"
            who = f"group {self._group}"
            self._source = MessageSource(self._consumer, who, Troubles(self._clock, who=who))
        return self._opened_deliveries().hold(message, self._source)

    async def _close(self) -> None:
        """Closes all clients, also after an error of one. A later `startup` opens new ones."""
        deliveries, self._deliveries = self._deliveries, None
        consumer, self._consumer = self._consumer, None
        producer, self._producer = self._producer, None
        admin, self._admin = self._admin, None
        self._creator = self._source = None
        try:
            if deliveries is not None:
                await deliveries.close(CLOSE_MS)
        finally:
            clients = [client.close() for client in (consumer, admin) if client is not None]
            if producer is not None:
                clients.append(producer.close(CLOSE_MS))
            errors = [one for one in await asyncio.gather(*clients, return_exceptions=True) if one is not None]
            if errors:
                raise errors[0]

    def _check(self, more_topics: object) -> None:
        if isinstance(more_topics, str):
            raise BadRequest(f"more_topics is the text {more_topics!r:.80}; give a list, as in [{more_topics!r:.80}]")
        problem = group_problem(self._group)
        if problem:
            raise IllegalGroup(problem)
        for topic in self._read:
            problem = topic_problem(topic)
            if problem:
                raise IllegalTopic(problem)
        if self._topics.priorities and any(topic.endswith(DELAYED * 2) for topic in self._read):
            raise IllegalTopic(
                f"a topic ends with {DELAYED}, which is the name of the second topic of a broker object with "
                "priorities; choose another name"
            )


def _within(name: str, value: int, bounds: tuple[int, int]) -> None:
    low, high = bounds
    if not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{name} is {value!r:.80}, the range is {low} to {high}")
