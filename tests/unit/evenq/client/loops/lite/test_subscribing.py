"""The set of lite topics over calls that answer as the test sets; with whole brokers: tests/spec/test_lite.py."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from evenq.client.core.lite.events import LiteAction, LiteConnected, LiteEnded, LiteEvent, LiteStart
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.lite.subscribing import LiteSubscriber
from evenq.client.options import LiteOptions
from evenq.errors import ConnectionFailed, Error, LiteSubscriptionQuotaExceeded
from evenq.runtime.clock import FakeClock

ADD, REMOVE, ALL = LiteAction


class Calls:
    """One access point and a broker beside it, without a wire."""

    def __init__(self) -> None:
        self.said: list[tuple[str, LiteAction, list[str]]] = []
        self.failures: list[Error] = []
        self.running = 0
        self.slow = asyncio.Event()
        self.slow.set()
        self.lines: list[str] = []
        self.events: asyncio.Queue[LiteEvent | Error] = asyncio.Queue()

    async def sync_lite(
        self,
        action: LiteAction,
        topic: str,
        group: str,
        names: Sequence[str],
        *,
        start: LiteStart | None = None,
        address: str = "",
    ) -> None:
        assert (topic, group) == ("p", "g")
        self.said.append((address, action, list(names)))
        self.running += 1
        assert self.running == 1, "one at a time"
        try:
            await self.slow.wait()
            if self.failures:
                raise self.failures.pop(0)
        finally:
            self.running -= 1

    async def lite_events(
        self, address: str, group: str, topic: str, tellings: AsyncIterator[None]
    ) -> AsyncGenerator[LiteEvent, None]:
        self.lines.append(address)
        while True:
            event = await self.events.get()
            if isinstance(event, Error):
                raise event
            yield event


@asynccontextmanager
async def subscribed(
    *first: str, failure: BaseException | None = None
) -> AsyncIterator[tuple[FakeClock, Calls, LiteSubscriber, list[str]]]:
    clock, calls, ended = FakeClock(), Calls(), list[str]()

    async def tell(name: str) -> None:
        ended.append(name)
        if failure is not None:
            raise failure

    async def addresses() -> list[str]:
        return ["a:1", "b:1"]

    subscribing = LiteSubscriber(
        calls,  # type: ignore[arg-type]  # the part of RpcLiteCalls that it uses
        group="g", topic="p", clock=clock, rng=random.Random(1), options=LiteOptions(), addresses=addresses,
        tell=tell, troubles=Troubles(clock, who="group g"),
    )  # fmt: skip
    await subscribing.start(first)
    await clock.advance(1)
    calls.said.clear()
    try:
        yield clock, calls, subscribing, ended
    finally:
        await subscribing.close()


async def test_a_change_waits_for_the_one_before_and_the_set_is_the_truth() -> None:
    async with subscribed("x") as (clock, calls, subscribing, _):
        calls.slow.clear()
        changes = [
            asyncio.ensure_future(change)
            for change in (
                subscribing.subscribe(["y"], None),
                subscribing.subscribe(["y", "z", "w"], None),
                subscribing.unsubscribe(["x", "never"]),
                subscribing.unsubscribe(["never"]),
            )
        ]
        await clock.advance(10)
        calls.slow.set()
        await asyncio.gather(*changes)
        assert calls.said == [("", ADD, ["y"]), ("", ALL, ["x", "y", "z", "w"]), ("", REMOVE, ["x"])]
        assert subscribing.names == ["w", "y", "z"]


async def test_what_is_refused_is_not_in_the_set_and_taken_back_at_brokers_that_may_have_heard_it() -> None:
    async with subscribed("x") as (clock, calls, subscribing, _):
        calls.failures = [LiteSubscriptionQuotaExceeded("the limit is 1")]
        with pytest.raises(LiteSubscriptionQuotaExceeded):
            await subscribing.subscribe(["y"], None)
        assert subscribing.names == ["x"]
        await clock.advance(10)
        assert calls.said == [("", ADD, ["y"]), ("", ALL, ["x"])]


async def test_when_the_access_point_is_away_another_broker_hears_it() -> None:
    async with subscribed("x") as (_, calls, subscribing, _):
        calls.failures = [ConnectionFailed("away"), ConnectionFailed("away, too")]
        await subscribing.subscribe(["y"], None)
        assert calls.said == [("", ADD, ["y"]), ("a:1", ADD, ["y"]), ("b:1", ADD, ["y"])]
        assert subscribing.names == ["x", "y"]


async def test_a_telling_that_fails_is_tried_again_soon_and_then_the_rhythm_goes_on() -> None:
    async with subscribed("x") as (clock, calls, _, _):
        calls.failures = [ConnectionFailed("away")] * 6  # the access point and both brokers, twice
        await clock.advance(30_000)
        await clock.advance(1_000)
        assert [said for said in calls.said if not said[0]] == [("", ALL, ["x"])] * 3
        calls.said.clear()
        await clock.advance(30_000)
        assert calls.said == [("", ALL, ["x"])]


async def test_a_line_that_breaks_is_opened_at_the_next_broker_and_the_set_is_told_there_and_then() -> None:
    async with subscribed("x") as (clock, calls, _, _):
        calls.events.put_nowait(LiteConnected())
        await clock.advance(1)
        assert calls.said == [("", ALL, ["x"])]
        calls.events.put_nowait(ConnectionFailed("gone"))
        calls.events.put_nowait(LiteConnected())
        await clock.advance(1_000)
        assert calls.said == [("", ALL, ["x"])] * 2
        assert sorted(calls.lines) == ["a:1", "b:1"]


@pytest.mark.parametrize("failure", [ValueError("a user's mistake"), asyncio.CancelledError()])
async def test_what_a_broker_ended_leaves_the_set_and_a_callback_that_fails_harms_nothing(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async with subscribed("x", "y", failure=failure) as (clock, calls, subscribing, ended):
        for name in ("x", "x", "never"):
            calls.events.put_nowait(LiteEnded(name))
        await clock.advance(1)
        assert (ended, subscribing.names) == (["x"], ["y"])
        calls.events.put_nowait(LiteEnded("y"))
        await clock.advance(1)
        assert (ended, subscribing.names) == (["x", "y"], [])
        await clock.advance(100_000)
        assert calls.said == [], "there is nothing to tell, and telling would make the topic again"
    assert caplog.text.count("on_unsubscribed failed for lite topic") == 2


async def test_one_who_waits_for_something_to_be_wanted_is_woken() -> None:
    async with subscribed() as (clock, _, subscribing, _):
        assert not await subscribing.has_some(0)
        waiting = asyncio.ensure_future(subscribing.has_some(1_000))
        await clock.advance(1_000)
        assert await waiting is False
        waiting = asyncio.ensure_future(subscribing.has_some(1_000))
        await clock.advance(1)
        await subscribing.subscribe(["x"], None)
        assert await waiting is True
        assert await subscribing.has_some(0)
