"""A connection to a broker: introduced at once and again, opened again when it breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from evenq.client.loops.clients.broker_connection import TELL_MS, BrokerConnection
from evenq.client.loops.clients.troubles import Troubles
from evenq.errors import ConnectionFailed, Error
from evenq.runtime.clock import FakeClock


class Broker:
    """What it received on each connection, and what it says."""

    def __init__(self) -> None:
        self.received: list[list[str]] = []
        self.says: asyncio.Queue[str | Error] = asyncio.Queue()

    async def stream(self, tellings: AsyncIterator[str]) -> AsyncGenerator[str, None]:
        events: list[str] = []
        self.received.append(events)

        async def listen() -> None:
            async for one in tellings:
                events.append(one)  # noqa: PERF401  one by one, as they come

        listening = asyncio.ensure_future(listen())
        try:
            while True:
                said = await self.says.get()
                if isinstance(said, Error):
                    raise said
                yield said
        finally:
            listening.cancel()


@asynccontextmanager
async def running() -> AsyncIterator[tuple[FakeClock, Broker, BrokerConnection[str, str], list[str], list[str]]]:
    clock, broker = FakeClock(), Broker()
    words, heard = ["hello"], []

    async def hear(said: str) -> None:
        heard.append(said)

    connection = BrokerConnection(
        broker.stream, tell=lambda: words[-1], hear=hear, clock=clock, rng=random.Random(1), name="connection",
        what="the connection", troubles=Troubles(clock, who="tests"),
    )  # fmt: skip
    await clock.advance(1)
    try:
        yield clock, broker, connection, words, heard
    finally:
        connection.task.cancel()
        await asyncio.gather(connection.task, return_exceptions=True)


async def test_it_tells_at_once_then_news_then_again_and_again() -> None:
    async with running() as (clock, broker, connection, words, heard):
        assert broker.received == [["hello"]]
        words.append("news")
        connection.news()
        await clock.advance(1)
        await clock.advance(TELL_MS)
        assert broker.received == [["hello", "news", "news"]]
        broker.says.put_nowait("yes")
        await clock.advance(1)
        assert heard == ["yes"]


async def test_a_broken_line_is_opened_again_after_growing_pauses_and_told_once() -> None:
    async with running() as (clock, broker, connection, words, _heard):
        for _ in range(3):
            broker.says.put_nowait(ConnectionFailed("gone"))
        await clock.advance(150)
        assert len(broker.received) == 1, "the first pause is 160 ms at least"
        for _ in range(50):
            await clock.advance(100)
        assert (len(broker.received), broker.received[-1]) == (4, ["hello"])
        words.append("news while nothing breaks")
        connection.news()
        await clock.advance(1)
        assert broker.received[-1] == ["hello", "news while nothing breaks"]
        assert not connection.task.done()
