"""A group's start is stored once, however many receives begin at once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from evenq.client.core.calls import QueueRange
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.reading.group_start import GroupStart
from evenq.errors import ConnectionFailed, IllegalOffset
from evenq.model import MessageQueue, QueueOffset, StartFrom, StartPolicy
from evenq.runtime.clock import FakeClock

QUEUE = MessageQueue("orders", "broker-a", 0)


class Broker:
    """Calls and routes of one broker; each answer takes a turn of the loop, `slow` more at the first question."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked, self.stored, self.error = 0, [], error
        self.readable = (QUEUE,)
        self.decides, self.begun = False, []

    def was_missing(self, topic: str) -> bool:
        return False

    async def get(self, topic: str) -> Any:
        return self

    def address_of(self, broker_name: str) -> str:
        return "host:1"

    async def address(self, topic: str, broker_name: str) -> str:
        return "host:1"

    async def query_offsets(self, *_: Any, **__: Any) -> QueueRange:
        self.asked += 1
        for _step in range(self.asked):
            await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return QueueRange(
            minimum=QueueOffset(0), maximum=QueueOffset(7), committed=QueueOffset(-1), at_timestamp=QueueOffset(0)
        )

    async def begin(self, _address: str, _group: str, queue: MessageQueue, start: StartPolicy, **_: Any) -> None:
        if not self.decides:
            raise IllegalOffset("offset -1 is outside")
        if self.error is not None:
            raise self.error
        self.begun.append((queue, start))

    async def commit(self, address: str, group: str, offsets: Any, **_: Any) -> None:
        self.stored.append(dict(offsets))
        await asyncio.sleep(0)


def start(broker: Broker) -> GroupStart:
    calls: Any = broker
    troubles = Troubles(FakeClock(), who="group billing")
    return GroupStart(calls, calls, group="billing", start_from=StartFrom.LAST, timestamp_ms=0, troubles=troubles)


async def test_a_start_that_cannot_be_settled_is_one_line_until_it_is_settled(caplog: Any) -> None:
    caplog.set_level(logging.INFO, "evenq.client")
    broker = Broker(ConnectionFailed("away"))
    starts = start(broker)
    for _ in range(3):
        await starts.settle(["orders"])
    assert [record.getMessage() for record in caplog.records] == [
        "group billing: the start on topic orders fails, trying again until it works: away"
    ]
    broker.error = None
    await starts.settle(["orders"])
    assert caplog.messages[1:] == ["group billing: the start on topic orders works after 0.0 s, 3 calls failed"]


async def test_receives_that_begin_at_once_store_the_start_once() -> None:
    broker = Broker()
    starts = start(broker)
    await asyncio.gather(*(starts.settle(["orders"]) for _ in range(5)))
    assert broker.stored == [{QUEUE: 7}]


async def test_brokers_decide_where_the_group_begins_each_asked_once() -> None:
    """They know what the group has read, also of a topic that was deleted since."""
    broker = Broker(ConnectionFailed("away"))
    broker.decides = True
    other = MessageQueue("orders", "broker-b", 0)
    broker.readable = (QUEUE, MessageQueue("orders", "broker-a", 1), other)
    starts = start(broker)
    await starts.settle(["orders"])
    assert not broker.begun
    broker.error = None
    for _ in range(2):
        await starts.settle(["orders"])
    assert [queue.broker_name for queue, _ in broker.begun] == ["broker-a", "broker-b"]
    assert {policy for _, policy in broker.begun} == {StartPolicy(StartFrom.LAST)}
    assert not broker.stored
    assert broker.asked == 0


async def test_while_a_broker_is_away_receives_that_wait_do_not_each_try_again() -> None:
    broker = Broker(ConnectionFailed("away"))
    starts = start(broker)
    await asyncio.gather(*(starts.settle(["orders"]) for _ in range(5)))
    assert broker.asked == 1
    broker.error = None
    await starts.settle(["orders"])
    assert broker.stored == [{QUEUE: 7}]
