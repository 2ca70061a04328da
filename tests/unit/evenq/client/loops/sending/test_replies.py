"""Waiting for replies: in time, bounded, and past queues that fail."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_proofs.received import received_message
from evenq_proofs.waiting import until_async

from evenq.client.core.calls import Pulled, QueueRange
from evenq.client.core.routes.route import Route
from evenq.client.core.sending.requests import CORRELATION
from evenq.client.loops.sending.replies import PendingRequest, Replies
from evenq.client.options import ProducerOptions
from evenq.errors import ConnectionFailed, Forbidden, IllegalOffset, RequestTimeout, TooManyRequests
from evenq.model import Message, MessageQueue, QueueOffset, ReceivedMessage
from evenq.runtime.clock import SystemClock

QUEUES = tuple(MessageQueue("evenq-replies", broker, 0) for broker in "ab")


class Topic:
    """The reply topic: what is in its queues, and what goes wrong."""

    def __init__(self) -> None:
        self.kept: dict[MessageQueue, list[ReceivedMessage]] = {queue: [] for queue in QUEUES}
        self.grown = asyncio.Event()
        self.down: set[str] = set()
        self.from_offset: dict[MessageQueue, int] = {}
        self.queues = QUEUES
        self.addresses = {"a": "a", "b": "b"}
        self.next_addresses: dict[str, str] = {}
        self.problem: Forbidden | None = None
        self.problems = 0

    async def route(self, topic: str) -> Route:
        if self.problem is not None:
            self.problems += 1
            raise self.problem
        return Route(topic=topic, writable=self.queues, readable=self.queues, addresses=self.addresses)

    def route_changed(self, topic: str, then: Callable[[], None]) -> None:
        assert topic == "evenq-replies"
        self.addresses = {**self.addresses, **self.next_addresses}
        then()

    async def query_offsets(
        self, address: str, group: str, queue: MessageQueue, *, timestamp_ms: int = 0
    ) -> QueueRange:
        if address in self.down:
            raise ConnectionFailed("down")
        return QueueRange(0, len(self.kept[queue]), -1, 0 if timestamp_ms else -1)

    async def pull(self, address: str, group: str, queue: MessageQueue, offset: QueueOffset, **result: Any) -> Pulled:
        if address in self.down:
            raise ConnectionFailed("down")
        if offset > len(self.kept[queue]):
            raise IllegalOffset("gone", min_offset=0, max_offset=len(self.kept[queue]))
        self.from_offset.setdefault(queue, offset)
        while len(self.kept[queue]) <= offset:
            self.grown.clear()
            await self.grown.wait()
        wanted = result["expression"].expression
        return Pulled([m for m in self.kept[queue][offset:] if m.tag == wanted], len(self.kept[queue]))

    def reply(self, asked: PendingRequest, body: bytes, queue: MessageQueue = QUEUES[0]) -> None:
        result = asked.message.properties
        self.kept[queue].append(
            received_message(topic=queue.topic, body=body, message_id="m", tag=result["evenq-reply-tag"], properties={CORRELATION: result[CORRELATION]}, queue=queue)
        )  # fmt: skip
        self.grown.set()


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[Topic, Replies]]:
    topic = Topic()
    replies = Replies(
        topic, clock=SystemClock(), rng=random.Random(1), route=topic.route, route_changed=topic.route_changed,
        options=ProducerOptions(retry_first_ms=1, retry_max_ms=2, **options),
    )  # fmt: skip
    try:
        yield topic, replies
    finally:
        await replies.close()


QUESTION = Message(topic="t", body=b"?")


async def test_each_request_gets_its_own_reply_whatever_queue_it_comes_by() -> None:
    async with running() as (topic, replies):
        first, second = await replies.ask(QUESTION, 5_000), await replies.ask(QUESTION, 5_000)
        topic.reply(second, b"2", QUEUES[1])
        topic.reply(first, b"1")
        assert [(await replies.wait(asked)).body for asked in (first, second)] == [b"1", b"2"]


async def test_replies_are_read_where_a_broker_is_led_from_by_then() -> None:
    """Not only once the route is old, after `route_refresh_ms`."""
    async with running() as (topic, replies):
        asked = await replies.ask(QUESTION, 5_000)
        topic.down, topic.next_addresses = {"a"}, {"a": "a2"}
        topic.grown.set()  # the readers' calls end
        topic.reply(asked, b"!")
        assert (await replies.wait(asked)).body == b"!"
        second = await replies.ask(QUESTION, 5_000)
        topic.reply(second, b"2")
        assert (await replies.wait(second)).body == b"2"
        assert topic.addresses["a"] == "a2"


async def test_a_request_works_after_one_that_met_no_route() -> None:
    async with running() as (topic, replies):
        route = topic.route

        async def none(_: str) -> Route:
            raise ConnectionFailed("down")

        replies._route = none
        with pytest.raises(ConnectionFailed):
            await replies.ask(QUESTION, 5_000)
        replies._route = route
        asked = await replies.ask(QUESTION, 5_000)
        topic.reply(asked, b"!")
        assert (await replies.wait(asked)).body == b"!"


async def test_old_replies_are_not_read() -> None:
    async with running() as (topic, replies):
        old = PendingRequest(
            Message(topic="t", body=b"?", properties={"evenq-reply-tag": "x", CORRELATION: "x"}), "x", 1, _future()
        )
        topic.reply(old, b"old")
        asked = await replies.ask(QUESTION, 5_000)
        topic.reply(asked, b"new")
        assert (await replies.wait(asked)).body == b"new"
        assert topic.from_offset[QUEUES[0]] == 1


async def test_without_a_reply_in_time_and_too_many_at_once_are_told() -> None:
    async with running(pending_requests=1) as (topic, replies):
        asked = await replies.ask(QUESTION, 20)
        with pytest.raises(TooManyRequests, match="pending_requests"):
            await replies.ask(QUESTION, 20)
        with pytest.raises(RequestTimeout, match="20 ms"):
            await replies.wait(asked)
        replies.end(asked)
        topic.reply(asked, b"late: nobody waits")
        again = await replies.ask(QUESTION, 5_000)
        topic.reply(again, b"!")
        assert (await replies.wait(again)).body == b"!"


async def test_a_broker_that_is_away_is_read_when_it_is_back() -> None:
    async with running() as (topic, replies):
        topic.down.add("b")
        asked = await replies.ask(QUESTION, 5_000)
        topic.reply(asked, b"!", QUEUES[1])
        topic.down.clear()
        assert (await replies.wait(asked)).body == b"!"


async def test_a_queue_that_comes_later_is_read_too() -> None:
    async with running(route_refresh_ms=100) as (topic, replies):
        topic.queues = QUEUES[:1]
        asked = await replies.ask(QUESTION, 5_000)
        topic.queues = QUEUES
        topic.reply(asked, b"!", QUEUES[1])
        assert (await replies.wait(asked)).body == b"!"


async def test_a_request_that_could_not_be_sent_and_a_closed_producer_end_the_wait() -> None:
    async with running() as (_, replies):
        asked = await replies.ask(QUESTION, 5_000)
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sent.set_exception(ConnectionFailed("no server there"))
        asked.sent(sent)
        with pytest.raises(ConnectionFailed, match="no server there"):
            await replies.wait(asked)
        replies.end(asked)
        other = await replies.ask(QUESTION, 5_000)
        await replies.close()
        with pytest.raises(ConnectionFailed, match="closed"):
            await replies.wait(other)
        replies.end(other)


def _future() -> asyncio.Future[ReceivedMessage]:
    return asyncio.get_running_loop().create_future()


async def test_a_route_of_replies_that_is_missing_is_one_line_until_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "evenq.client")
    async with running(route_refresh_ms=100) as (topic, replies):
        asked = await replies.ask(QUESTION, 5_000)
        topic.problem = Forbidden("user u may not describe topic evenq-replies")
        await until_async(lambda: topic.problems >= 3)
        topic.problem = None
        await until_async(lambda: len(caplog.records) >= 2)
        replies.end(asked)
    begin, end = caplog.messages
    assert begin == (
        "replies: the route of topic evenq-replies fails, trying again until it works: "
        "user u may not describe topic evenq-replies"
    )
    assert end.startswith("replies: the route of topic evenq-replies works after")
