"""The broker object against a server on a net without sockets: the cases that the tests of taskiq's own brokers have
(send, listen, acknowledge, foreign messages, delays, two listeners, start), and those of this one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import warnings
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.settings import BrokerSettings
from evenq_proofs.loop_net import LoopNet
from evenq_proofs.waiting import until_async
from taskiq import AckableMessage, BrokerMessage, InMemoryBroker, SimpleRetryMiddleware, TaskiqEvents
from taskiq.acks import AcknowledgeType
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

import evenq.aio
from evenq.client.wiring import ClientContext
from evenq.errors import (
    BadRequest,
    Error,
    Forbidden,
    IllegalAccessPoint,
    IllegalGroup,
    IllegalTopic,
    TopicNotFound,
    Unsupported,
)
from evenq.model import BrokerAddress
from evenq.runtime.clock import SystemClock
from evenq.taskiq import EvenqBroker

LIMIT_S = 120


def task(body: bytes = b"my_msg", **labels: Any) -> BrokerMessage:
    return BrokerMessage(task_id="id-1", task_name="app:run", message=body, labels=labels)


class World:
    """One server at `a:8081`; broker objects and clients are closed when the test ends."""

    def __init__(self, **settings: Any) -> None:
        self.net = LoopNet(SystemClock())
        settings = {"broker_name": "a", "duplicates_window_ms": 0, **settings}
        self.server = Broker(BrokerSettings(**settings), clock=SystemClock(), rng=random.Random(1), net=self.net)
        self._opened: list[Any] = []

    async def start(self) -> None:
        await self.server.open()
        self.serve()
        await self.server.start([BrokerAddress("default", "a", 8081)])

    def serve(self) -> None:
        self.net.serve("a:8081", self.server.rpcs())

    def context(self) -> ClientContext:
        return ClientContext(clock=SystemClock(), rng=random.Random(len(self._opened)), net=self.net)

    def broker(self, **arguments: Any) -> EvenqBroker:
        made = EvenqBroker("tasks", "workers", endpoint="a:8081", context=self.context(), **arguments)
        self._opened.append(made.shutdown)
        return made

    async def started(self, **arguments: Any) -> EvenqBroker:
        made = self.broker(**arguments)
        await made.startup()
        return made

    def client(self, kind: Any, **arguments: Any) -> Any:
        made = kind(endpoint="a:8081", context=self.context(), **arguments)
        if hasattr(made, "close"):
            self._opened.append(made.close)
        return made

    async def close(self) -> None:
        for close in self._opened:
            await close()
        await self.server.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.start()
    yield made
    await made.close()


async def first(listening: AsyncGenerator[AckableMessage, None]) -> AckableMessage:
    return await asyncio.wait_for(anext(listening), LIMIT_S)


async def acked(message: AckableMessage) -> bytes:
    result = message.ack()
    assert result is not None
    await result
    return message.data


async def test_a_task_that_was_sent_is_received_and_acknowledged(world: World) -> None:
    broker = await world.started(invisible_ms=1_000)
    await broker.kick(task(label1="val1"))
    listening = broker.listen()
    assert await acked(await first(listening)) == b"my_msg"
    await listening.aclose()
    admin = world.client(evenq.aio.Admin)
    assert (await admin.describe_group("workers")).summary.lag == 0


async def test_a_message_of_another_program_is_received_as_it_is(world: World) -> None:
    broker = await world.started()
    producer = world.client(evenq.aio.Producer)
    await producer.send(evenq.Message(topic="tasks", body=b"wrong"))
    listening = broker.listen()
    assert await acked(await first(listening)) == b"wrong"
    await listening.aclose()


async def test_a_start_creates_the_topics_and_leaves_them_afterwards(world: World) -> None:
    broker = await world.started(more_topics=["slow", "tasks"], priorities=4)
    admin = world.client(evenq.aio.Admin)
    types = {view.topic: str(view.message_type) for view in await admin.list_topics()}
    wanted = {"tasks": "PRIORITY", "tasks-delayed": "MIXED", "slow": "PRIORITY", "slow-delayed": "MIXED"}
    assert types == wanted
    assert len((await admin.describe_topic("tasks")).queues) == 4
    await broker.startup()
    await broker.shutdown()
    await broker.startup()
    assert {view.topic for view in await admin.list_topics()} == set(wanted)


async def test_without_leave_to_create_topics_none_is_created() -> None:
    world = World(auto_create_topics=False)
    await world.start()
    try:
        broker = await world.started(create_topics=False)
        with pytest.raises(TopicNotFound):
            await broker.kick(task())
    finally:
        await world.close()


async def test_a_delayed_task_is_received_after_its_delay(world: World) -> None:
    broker = await world.started()
    clock = SystemClock()
    sent_ms = clock.monotonic_ms()
    await broker.kick(task(b"late", delay="0.3"))
    await broker.kick(task(b"soon", delay="0"))
    listening = broker.listen()
    assert await acked(await first(listening)) == b"soon"
    assert await acked(await first(listening)) == b"late"
    assert clock.monotonic_ms() - sent_ms >= 300
    await listening.aclose()


async def test_of_two_listeners_one_gets_the_task(world: World) -> None:
    broker = await world.started()
    listeners = [broker.listen() for _ in range(2)]
    waiting = [asyncio.ensure_future(anext(one)) for one in listeners]
    await broker.kick(task())
    done, rest = await asyncio.wait(waiting, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    assert await acked(done.pop().result()) == b"my_msg"
    for other in rest:
        other.cancel()
    assert await asyncio.gather(*rest, return_exceptions=True)
    for listening in listeners:
        await listening.aclose()


async def test_the_highest_priority_comes_first(world: World) -> None:
    broker = await world.started(priorities=10)
    for priority in (2, 9, None, 5):
        labels = {} if priority is None else {"priority": str(priority)}
        await broker.kick(task(str(priority).encode(), **labels))
    listening = broker.listen()
    assert [await acked(await first(listening)) for _ in range(4)] == [b"9", b"5", b"2", b"None"]
    await listening.aclose()


async def test_a_delayed_task_of_a_broker_object_with_priorities_arrives(world: World) -> None:
    broker = await world.started(priorities=10)
    await broker.kick(task(b"late", priority="9", delay="0.05"))
    listening = broker.listen()
    assert await acked(await first(listening)) == b"late"
    await listening.aclose()


async def test_a_delayed_task_that_is_due_is_in_line_by_its_priority(world: World) -> None:
    broker = await world.started(priorities=10)
    for _ in range(4):
        await broker.kick(task(b"middle", priority="5"))
    await broker.kick(task(b"late", priority="1", delay="0.05"))
    client = world.client(
        evenq.aio.SimpleConsumer, group="watcher", subscriptions={"tasks-delayed": "*"}, start_from="FIRST"
    )
    (seen,) = await client.receive(1, wait_ms=60_000)  # so the delayed task is due
    assert seen.properties["due_priority"] == "1"
    listening = broker.listen()
    assert [await acked(await first(listening)) for _ in range(5)] == [b"middle"] * 4 + [b"late"]
    await listening.aclose()
    admin = world.client(evenq.aio.Admin)
    assert (await admin.describe_group("workers")).summary.lag == 0


async def test_a_delayed_task_runs_without_its_priority_if_it_cannot_be_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await world.started(priorities=10)
    await broker.kick(task(b"late", priority="9", delay="0.05"))
    assert broker._producer is not None

    async def refuse(_: evenq.Message) -> None:
        raise Forbidden("no grant")

    monkeypatch.setattr(broker._producer, "send", refuse)
    listening = broker.listen()
    assert await acked(await first(listening)) == b"late"
    await listening.aclose()


async def test_quick_tasks_are_received_in_batches_and_a_busy_worker_gives_its_batch_to_others(world: World) -> None:
    broker, other = await world.started(invisible_ms=600_000), await world.started(invisible_ms=600_000)
    consumer = await broker._opened_consumer()
    receive, sizes = consumer.receive, []

    async def noted(count: int, **options: Any) -> list[evenq.ReceivedMessage]:
        messages = await receive(count, **options)
        sizes.append(len(messages))
        return messages

    consumer.receive = noted  # type: ignore[method-assign]
    await asyncio.gather(*(broker.kick(task(str(number).encode())) for number in range(300)))
    listening = broker.listen()
    taken = []
    while len(broker._deliveries or ()) < 6:  # of a batch, this many wait for a slot now
        taken.append(await acked(await first(listening)))
    assert len(sizes) < len(taken), "fewer receives than tasks"
    again = other.listen()
    taken += [await acked(await first(again)) for _ in range(300 - len(taken))]
    assert sorted(map(int, taken)) == list(range(300))
    for one in (listening, again):
        await one.aclose()
    admin = world.client(evenq.aio.Admin)
    assert (await admin.describe_group("workers")).summary.lag == 0


async def test_a_label_chooses_the_topic_and_workers_read_the_topics_that_they_name(world: World) -> None:
    quick, slow = await world.started(), await world.started(more_topics=["slow"])
    await quick.kick(task(b"for slow workers", queue_name="slow"))
    listening = slow.listen()
    assert await acked(await first(listening)) == b"for slow workers"
    await listening.aclose()
    admin = world.client(evenq.aio.Admin)
    assert str((await admin.describe_topic("slow")).message_type) == "MIXED"


async def test_what_is_not_acknowledged_comes_again_after_a_killed_worker(world: World) -> None:
    """The first listener is abandoned together with its renewals, as by SIGKILL."""
    killed = await world.started(invisible_ms=1_000)
    await killed.kick(task())
    listening = killed.listen()
    await first(listening)
    assert killed._deliveries is not None
    killed._deliveries._renewer.cancel()
    other = await world.started(invisible_ms=1_000)
    again = other.listen()
    assert await acked(await first(again)) == b"my_msg"
    for one in (again, listening):
        await one.aclose()


async def test_messages_that_wait_for_a_slot_are_given_back_when_the_worker_stops(world: World) -> None:
    stops, other = await world.started(prefetch=8, invisible_ms=600_000), await world.started(invisible_ms=600_000)
    await asyncio.gather(*(stops.kick(task(str(number).encode())) for number in range(100)))
    listening = stops.listen()
    taken = [await acked(await first(listening))]
    while not len(stops._deliveries or ()):  # until a receive returned more than one
        taken.append(await acked(await first(listening)))
    await listening.aclose()
    again = other.listen()
    taken += [await acked(await first(again)) for _ in range(100 - len(taken))]
    assert sorted(map(int, taken)) == list(range(100))
    await again.aclose()


@pytest.mark.parametrize("then", ["a slot becomes free", "the worker stops"])
async def test_messages_on_their_way_back_arrive_whatever_the_worker_does_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    broker = await world.started(prefetch=8, invisible_ms=600_000)
    consumer = await broker._opened_consumer()
    change, allowed = consumer.change_invisible, asyncio.Event()
    begun, returned = [], []

    async def slow(message: evenq.ReceivedMessage, invisible_ms: int, **options: Any) -> evenq.ReceivedMessage:
        begun.append(message.message_id)
        await allowed.wait()
        changed = await change(message, invisible_ms, **options)
        returned.append(message.message_id)
        return changed

    monkeypatch.setattr(consumer, "change_invisible", slow)
    await asyncio.gather(*(broker.kick(task(str(number).encode())) for number in range(100)))
    listening = broker.listen()
    await acked(await first(listening))
    while not len(broker._deliveries or ()):  # until a receive returned more than one
        await acked(await first(listening))
    late = len(broker._deliveries or ())
    await until_async(lambda: len(begun) == late)
    await (listening.aclose() if then == "the worker stops" else first(listening))
    assert returned == []
    allowed.set()
    await broker.shutdown()
    assert set(begun[:late]) <= set(returned)
    await listening.aclose()


async def test_a_message_that_arrives_while_the_worker_stops_is_given_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops, other = await world.started(invisible_ms=600_000), await world.started(invisible_ms=600_000)
    await stops.kick(task())
    consumer = await stops._opened_consumer()
    receive, arrived = consumer.receive, asyncio.Event()

    async def late(*arguments: Any, **options: Any) -> list[evenq.ReceivedMessage]:
        messages = await receive(*arguments, **options)
        arrived.set()
        try:
            await asyncio.sleep(LIMIT_S)
        except asyncio.CancelledError:
            return messages  # the answer was there before the cancellation
        raise AssertionError("the receive was not cancelled")

    monkeypatch.setattr(consumer, "receive", late)
    listening = stops.listen()
    waiting = asyncio.ensure_future(anext(listening))
    await asyncio.wait_for(arrived.wait(), LIMIT_S)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await listening.aclose()
    again = other.listen()
    assert await acked(await first(again)) == b"my_msg"
    await again.aclose()


async def test_a_shutdown_gives_unfinished_messages_to_others_at_once(world: World) -> None:
    stops, other = await world.started(invisible_ms=600_000), await world.started()
    await stops.kick(task())
    listening = stops.listen()
    message = await first(listening)
    await listening.aclose()
    await stops.shutdown()
    again = other.listen()
    assert await acked(await first(again)) == b"my_msg"
    await again.aclose()
    with pytest.raises(Error):
        await acked(message)


async def test_receiving_goes_on_after_an_outage(world: World, caplog: pytest.LogCaptureFixture) -> None:
    broker = await world.started()
    listening = broker.listen()
    waiting = asyncio.ensure_future(anext(listening))
    await until_async(lambda: broker._consumer is not None)
    world.net.stop("a:8081")
    await until_async(lambda: "receiving tasks fails, trying again" in caplog.text, seconds=LIMIT_S)
    world.serve()
    await broker.kick(task())
    assert await acked(await asyncio.wait_for(waiting, LIMIT_S)) == b"my_msg"
    await until_async(lambda: "receiving tasks works after" in caplog.text)
    await listening.aclose()


async def test_before_its_start_a_broker_object_refuses_tasks(world: World) -> None:
    broker = world.broker()

    @broker.task
    async def run() -> None:
        """Does nothing."""

    with pytest.raises(SendTaskError) as raised:
        await run.kiq()
    assert isinstance(raised.value.__cause__, Unsupported)
    assert "call `await broker.startup()`" in str(raised.value.__cause__)


async def test_a_wrong_label_is_the_cause_of_the_error(world: World) -> None:
    broker = await world.started()

    @broker.task(priority=1)
    async def run() -> None:
        """Does nothing."""

    with pytest.raises(SendTaskError) as raised:
        await run.kiq()
    assert isinstance(raised.value.__cause__, BadRequest)


async def test_a_failed_start_leaves_nothing_open(world: World) -> None:
    broker = world.broker()
    world.net.stop("a:8081")
    starting = asyncio.ensure_future(broker.startup())
    await asyncio.sleep(0.2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert (broker._producer, broker._admin, broker._consumer) == (None, None, None)
    world.serve()
    await broker.startup()
    await broker.kick(task())


async def test_a_block_starts_the_broker_object_and_ends_it(world: World) -> None:
    broker = world.broker()
    async with broker:
        await broker.kick(task())
    assert broker._producer is None


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"topic": "a/b"}, IllegalTopic, "a/b"),
        ({"more_topics": ["a b"]}, IllegalTopic, "a b"),
        ({"more_topics": "slow"}, BadRequest, r"give a list, as in \['slow'\]"),
        ({"group": "a/b"}, IllegalGroup, "a/b"),
        ({"topic": "x-delayed", "priorities": 3}, IllegalTopic, "ends with -delayed"),
        ({"topic": "x" * 125, "priorities": 3}, IllegalTopic, "127"),
        ({"endpoint": "no:port:here"}, IllegalAccessPoint, "no:port"),
        ({"invisible_ms": 999}, BadRequest, "invisible_ms is 999, the range is 1000 to 43200000"),
        ({"invisible_ms": 1.5}, BadRequest, "invisible_ms is 1.5"),
        ({"prefetch": 0}, BadRequest, "prefetch is 0, the range is 1 to 1000"),
        ({"priorities": -1}, BadRequest, "priorities is -1, the range is 0 to 4096"),
        ({"held_ms_max": 1}, BadRequest, "held_ms_max is 1, the range is"),
        ({"consumer_options": evenq.ProducerOptions()}, BadRequest, "give SimpleOptions"),
        ({"credentials": "secret"}, BadRequest, "credentials is a str"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: Any, error: type[Error], text: str) -> None:
    with pytest.raises(error, match=text):
        EvenqBroker(**arguments)


async def run_worker(broker: EvenqBroker, ends: asyncio.Event, **arguments: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        broker.is_worker_process = True
        await Receiver(broker, run_startup=False, max_async_tasks=2, **arguments).listen(ends)


async def test_a_worker_of_taskiq_runs_tasks_with_results_retries_and_every_kind_of_acknowledgement(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "taskiq")
    broker = await world.started()
    broker.with_result_backend(InMemoryBroker().result_backend)
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=5))
    runs: list[str] = []

    @broker.task(retry_on_error=True)
    async def fails_twice(name: str) -> str:
        runs.append(name)
        if runs.count(name) < 3:
            raise ValueError(name)
        return name.upper()

    @broker.task
    def plain(number: int) -> int:
        return number + 1

    events: list[str] = []
    broker.add_event_handler(TaskiqEvents.WORKER_SHUTDOWN, lambda _: events.append("ended"))
    ends = asyncio.Event()
    working = asyncio.ensure_future(run_worker(broker, ends))
    results = [
        await plain.kicker().with_labels(ack_type=str(kind.value)).kiq(number)
        for number, kind in enumerate(AcknowledgeType)
        if kind is not AcknowledgeType.MANUAL
    ]
    retried = await fails_twice.kiq("once more")
    for number, sent in enumerate(results):
        assert (await sent.wait_result(timeout=LIMIT_S)).return_value == number + 1
    assert (await retried.wait_result(timeout=LIMIT_S)).return_value == "ONCE MORE"
    assert runs == ["once more"] * 3
    ends.set()
    await asyncio.wait_for(working, LIMIT_S)
    assert broker._deliveries is not None
    assert len(broker._deliveries) == 0, "each message was acknowledged"
    await broker.shutdown()
    assert events == ["ended"]


async def test_a_worker_starts_without_a_broker_and_creates_its_topic_when_one_answers() -> None:
    """A process that fails to start is started by taskiq's manager again and again."""
    world = World()
    await world.server.open()
    broker = world.broker()
    broker.is_worker_process = True
    await broker.startup()
    listening = broker.listen()
    waiting = asyncio.ensure_future(first(listening))
    await asyncio.sleep(0)
    assert not waiting.done()
    world.serve()
    await world.server.start([BrokerAddress("default", "a", 8081)])
    client = await world.started()
    await client.kick(task())
    assert await acked(await waiting) == b"my_msg"
    await listening.aclose()
    await world.close()
