"""Receiving, holding and settling, with a consumer that plays the broker."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from evenq_proofs.waiting import until_async

from evenq.celery.codec import encoded
from evenq.celery.deliveries import BATCH_MAX, HELD_MAX, QueueDeliveries
from evenq.celery.inbox import Inbox, KombuDelivery
from evenq.celery.names import QueueNames
from evenq.celery.settings import TransportSettings
from evenq.client.wiring import ClientContext
from evenq.errors import ConnectionFailed, Error, Forbidden, InvalidReceiptHandle, Unauthorized
from evenq.model import MessageQueue, QueueOffset, ReceivedMessage
from evenq.runtime.clock import SystemClock


def message(number: int, queue: str = "q", *, attempt: int = 1, body: bytes = b"") -> ReceivedMessage:
    payload = {"body": str(number), "headers": {}, "properties": {"delivery_info": {}}}
    return ReceivedMessage(
        topic=queue, body=body or encoded(payload), message_id=f"{queue}{number}", tag=None, keys=(), properties={},
        message_group=None, queue=MessageQueue(queue, "broker-a", 0), queue_offset=QueueOffset(number), born_ms=0,
        store_ms=0, delivery_attempt=attempt, receipt_handle="0",
    )  # fmt: skip


class Broker:
    """The messages of one queue, and what was done with them."""

    def __init__(self) -> None:
        self.waiting: deque[ReceivedMessage | Error] = deque()
        self.came = asyncio.Event()
        self.asked: list[int] = []
        self.polls = 0
        self.deaf = False
        """True: a cancelled poll takes its messages nevertheless."""
        self.acked: list[tuple[str, str]] = []
        self.hidden: list[tuple[str, int]] = []
        self.uncounted: list[str] = []
        """Messages whose delivery counts as no attempt."""
        self.refusals: deque[Error] = deque()
        self.closed = False

    def offer(self, *messages: ReceivedMessage | Error) -> None:
        self.waiting += messages
        self.came.set()

    async def start(self) -> None:
        """Nothing begins."""

    async def receive(self, max_messages: int, *, invisible_ms: int, wait_ms: int) -> list[ReceivedMessage]:
        self.asked.append(max_messages)
        self.polls += 1
        try:
            while not self.waiting:
                self.came.clear()
                await self.came.wait()
        finally:
            self.polls -= 1
        first = self.waiting.popleft()
        if isinstance(first, Error):
            raise first
        taken = [first]
        while self.waiting and len(taken) < max_messages and not isinstance(self.waiting[0], Error):
            one = self.waiting.popleft()
            assert not isinstance(one, Error)
            taken.append(one)
        return taken

    async def ack(self, *messages: ReceivedMessage) -> None:
        if self.refusals:
            raise self.refusals.popleft()
        self.acked += [(one.message_id, one.receipt_handle) for one in messages]

    async def change_invisible(
        self, one: ReceivedMessage, invisible_ms: int, *, suspend: bool = False
    ) -> ReceivedMessage:
        self.uncounted += [one.message_id] * suspend
        self.hidden.append((one.message_id, invisible_ms))
        if self.refusals:
            raise self.refusals.popleft()
        return replace(one, receipt_handle=str(int(one.receipt_handle) + 1))

    async def close(self) -> None:
        self.closed = True


class Stage:
    def __init__(self, visibility_ms: int = 30_000) -> None:
        self.brokers = {"q": Broker(), "r": Broker()}
        self.inbox = Inbox()
        settings = TransportSettings(endpoint="h:1", names=QueueNames(""), visibility_ms=visibility_ms)
        context = ClientContext(clock=SystemClock(), rng=random.Random(1))
        self.deliveries = QueueDeliveries(context, settings, self.inbox, consumer_of=lambda topic: self.brokers[topic])

    async def idle(self) -> None:
        """Lets everything run that waits for nothing."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def next(self) -> KombuDelivery:
        taken: list[KombuDelivery] = []

        def look() -> bool:
            delivery = self.inbox.take()
            if delivery is not None:
                taken.append(delivery)
            return delivery is not None

        await until_async(look)
        return taken[0]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    await stage.deliveries.close()
    stage.inbox.close()


async def test_a_channel_requests_no_more_than_it_may_hold(stage: Stage) -> None:
    broker = stage.brokers["q"]
    broker.offer(*map(message, range(5)))
    stage.deliveries.limit(2)
    stage.deliveries.consume("q")
    first, second = await stage.next(), await stage.next()
    assert (first.payload["body"], second.payload["body"]) == ("0", "1")
    assert (broker.asked, broker.polls, len(broker.waiting)) == ([2], 0, 3)
    stage.deliveries.ack(first.tag)
    assert (await stage.next()).payload["body"] == "2"
    assert broker.asked == [2, 1]
    await until_async(lambda: broker.acked == [("q0", "0")])
    stage.deliveries.ack(first.tag)  # once more: ignored
    assert broker.polls == 0


async def test_without_a_limit_the_held_messages_are_bounded(stage: Stage) -> None:
    stage.deliveries.consume("q")
    await until_async(lambda: stage.brokers["q"].asked == [BATCH_MAX])
    assert stage.deliveries.room == HELD_MAX
    stage.deliveries.limit(1)
    assert stage.deliveries.room == 1


async def test_a_full_channel_cancels_the_polls_of_its_other_queues_and_returns_what_came_too_late(
    stage: Stage,
) -> None:
    q, r = stage.brokers["q"], stage.brokers["r"]
    stage.deliveries.limit(1)
    stage.deliveries.consume("q")
    stage.deliveries.consume("r")
    await until_async(lambda: q.polls == r.polls == 1)
    q.offer(message(1))
    held = await stage.next()
    await until_async(lambda: r.polls == 0)
    receiver = stage.deliveries.receiver("r")
    assert stage.deliveries.add("r", message(2, "r"), receiver) is None
    await until_async(lambda: r.hidden == [("r2", 0)])
    assert r.uncounted == ["r2"], "no task has seen it"
    stage.deliveries.ack(held.tag)
    await until_async(lambda: q.polls == r.polls == 1)


async def test_a_message_that_arrives_in_the_moment_of_a_cancel_is_returned(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = stage.brokers["q"]
    receive = broker.receive

    async def cancelled(*arguments: Any, **options: Any) -> list[ReceivedMessage]:
        messages = await receive(*arguments, **options)
        asyncio.get_running_loop().call_soon(stage.deliveries.cancel, "q")  # before the receiver gets the result
        return messages

    monkeypatch.setattr(broker, "receive", cancelled)
    broker.offer(message(1))
    stage.deliveries.consume("q")
    await stage.idle()
    assert (broker.hidden, broker.uncounted) == ([("q1", 0)], ["q1"])
    assert stage.inbox.take() is None


async def test_a_rejected_message_is_visible_again_and_a_redelivery_is_marked(stage: Stage) -> None:
    broker = stage.brokers["q"]
    broker.offer(message(1))
    stage.deliveries.consume("q")
    first = await stage.next()
    assert "redelivered" not in first.payload["properties"]["delivery_info"]
    stage.deliveries.give_back(first.tag)
    await until_async(lambda: broker.hidden == [("q1", 0)])
    broker.offer(message(1, attempt=2))
    assert (await stage.next()).payload["properties"]["delivery_info"]["redelivered"] is True
    assert broker.acked == []


async def test_an_acknowledgement_is_repeated_until_its_broker_answers(stage: Stage) -> None:
    broker = stage.brokers["q"]
    broker.offer(message(1))
    stage.deliveries.consume("q")
    tag = (await stage.next()).tag
    broker.refusals += [ConnectionFailed("away"), ConnectionFailed("away")]
    stage.deliveries.ack(tag)
    await until_async(lambda: broker.acked == [("q1", "0")])
    assert not broker.refusals


async def test_an_acknowledgement_that_is_too_late_is_not_repeated(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    broker = stage.brokers["q"]
    broker.offer(message(1), message(2))
    stage.deliveries.consume("q")
    late, other = (await stage.next()).tag, (await stage.next()).tag
    broker.refusals.append(InvalidReceiptHandle("it was delivered again"))
    stage.deliveries.ack(late)
    await until_async(lambda: not broker.refusals)
    stage.deliveries.ack(other)
    await until_async(lambda: broker.acked == [("q2", "0")])
    assert "a finished task may run again" in caplog.text


async def test_a_held_message_is_renewed_and_settled_with_its_newest_handle() -> None:
    stage = Stage(visibility_ms=200)
    broker = stage.brokers["q"]
    broker.offer(message(1))
    stage.deliveries.consume("q")
    tag = (await stage.next()).tag
    await until_async(lambda: len(broker.hidden) >= 3)
    stage.deliveries.ack(tag)
    await until_async(lambda: broker.acked)
    assert broker.acked == [("q1", str(len(broker.hidden)))]
    assert set(broker.hidden) == {("q1", 200)}
    await stage.deliveries.close()
    assert len(broker.acked) == 1
    stage.inbox.close()


async def test_a_message_of_another_program_is_dropped(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    broker = stage.brokers["q"]
    broker.offer(message(1, body=b"hello"), message(2))
    stage.deliveries.consume("q")
    assert (await stage.next()).payload["body"] == "2"
    await until_async(lambda: broker.acked == [("q1", "0")])
    assert "is not a message of kombu; only programs" in caplog.text


async def test_an_error_that_passes_is_repeated_and_another_is_raised(stage: Stage) -> None:
    broker = stage.brokers["q"]
    broker.offer(ConnectionFailed("away"), Forbidden("not yours"), message(1))
    stage.deliveries.consume("q")
    raised: list[Error] = []

    def look() -> Any:
        try:
            return stage.inbox.take()
        except Error as error:
            raised.append(error)
        return None

    await until_async(look)
    assert [type(error) for error in raised] == [Forbidden]


@pytest.mark.parametrize("refusal", [Forbidden("no grant"), Unauthorized("unknown access key")])
async def test_a_worker_whose_grant_is_removed_reports_it_once_and_continues_when_it_returns(
    stage: Stage, caplog: pytest.LogCaptureFixture, refusal: Error
) -> None:
    broker = stage.brokers["q"]
    broker.offer(message(1), refusal, type(refusal)(str(refusal)), message(2))
    stage.deliveries.consume("q")
    assert (await stage.next()).payload["body"] == "1"
    assert (await stage.next()).payload["body"] == "2"
    assert caplog.text.count(f"queue q: receiving is refused, trying again until it is allowed: {refusal}") == 1
    assert "queue q: receiving works after" in caplog.text


async def test_a_task_that_ends_without_a_grant_is_acknowledged_when_it_returns(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    broker = stage.brokers["q"]
    broker.offer(message(1))
    stage.deliveries.consume("q")
    broker.refusals.append(Forbidden("no grant"))
    stage.deliveries.ack((await stage.next()).tag)
    await until_async(lambda: broker.acked == [("q1", "0")])
    assert "queue q: an acknowledgement is refused, trying again until it is allowed: no grant" in caplog.text


async def test_closing_sends_acknowledgements_and_returns_the_rest() -> None:
    stage = Stage()
    broker = stage.brokers["q"]
    broker.offer(message(1), message(2), message(3))
    stage.deliveries.consume("q")
    tags = [(await stage.next()).tag for _ in range(3)]
    stage.deliveries.give_back(tags[2])
    stage.deliveries.ack(tags[0])
    await stage.deliveries.close()
    await stage.deliveries.close()
    assert broker.acked == [("q1", "0")]
    assert sorted(broker.hidden) == [("q2", 0), ("q3", 0)]
    assert broker.closed
    assert broker.polls == 0
    assert stage.deliveries.room == 0
    stage.inbox.close()


async def test_leaving_a_queue_returns_its_messages_and_no_others(stage: Stage) -> None:
    q, r = stage.brokers["q"], stage.brokers["r"]
    q.offer(message(1))
    r.offer(message(2, "r"))
    stage.deliveries.consume("q")
    stage.deliveries.consume("r")
    await stage.next()
    await stage.next()
    await stage.deliveries.leave("q")
    await stage.deliveries.leave("unknown")
    assert (q.hidden, q.closed, q.polls) == ([("q1", 0)], True, 0)
    assert (r.hidden, r.closed) == ([], False)
    assert stage.deliveries.room == HELD_MAX - 1


async def test_one_message_is_fetched_and_a_cancelled_queue_is_not_received(stage: Stage) -> None:
    broker = stage.brokers["q"]
    broker.offer(message(1))
    found = await stage.deliveries.get("q", 10)
    assert found is not None
    assert found.payload["body"] == "1"
    stage.deliveries.consume("q")
    await until_async(lambda: broker.polls == 1)
    stage.deliveries.cancel("q")
    await until_async(lambda: broker.polls == 0)
    stage.deliveries.ack(found.tag)
    await until_async(lambda: broker.acked == [("q1", "0")])
