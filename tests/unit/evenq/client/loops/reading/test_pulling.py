"""How one queue is pulled while its broker does not answer, and from which copy."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from evenq.client.core.calls import Pulled
from evenq.client.core.reading.process_queue import ProcessQueue, Thresholds
from evenq.client.core.routes.route import Route
from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.reading.pulling import LEADERLESS_MAX_MS, PullLoop
from evenq.client.loops.reading.read_plan import ReadPlan
from evenq.client.loops.reading.table_reads import TablePull
from evenq.client.loops.routes.leader_watch import LeaderWatch
from evenq.client.loops.routes.route_book import RouteBook
from evenq.client.options import PushOptions
from evenq.errors import ConnectionFailed, Error, HaNotAvailable, IllegalOffset, StoreError, TopicNotFound
from evenq.model import NO_GENERATION, FilterExpression, MessageQueue, QueueOffset, StartFrom
from evenq.runtime.clock import FakeClock, SystemClock

QUEUE = MessageQueue("t", "b", 0)


def pulling_from(
    calls: Any,
    clock: FakeClock | SystemClock,
    *,
    at: int = 0,
    committed: int = 0,
    owner: bool = True,
    any_copy: bool = False,
    table: Any = None,
    report: Any = None,
    topic: str = "t",
) -> PullLoop:
    routes = RouteBook(calls, clock, refresh_ms=30_000)
    return PullLoop(
        ProcessQueue(MessageQueue(topic, "b", 0), QueueOffset(at), now_ms=0, uid="u1-b1"),
        ReadPlan(
            group="g",
            options=PushOptions(),
            subscriptions={topic: FilterExpression("*")},
            clustering=owner,
            start_policy=lambda: StartFrom.LAST,
            start_timestamp_ms=0,
            ordered=False,
            attempts_max=None,
            auto_commit=True,
            any_copy=any_copy,
            table=table,
        ),
        calls=calls,
        routes=routes,
        leaders=LeaderWatch(routes, clock, random.Random(1)),
        clock=clock,
        rng=random.Random(1),
        generation=lambda _: NO_GENERATION,
        limits=lambda _: Thresholds(),
        committed=lambda _: committed,
        arrived=lambda _: None,
        fenced=lambda _: None,
        replaced=lambda _: None,
        troubles=Troubles(clock, who="group g", report=report),
    )


class Calls:
    """A broker that is gone."""

    def __init__(self, epochs: dict[str, int]) -> None:
        self.route = Route(topic="t", writable=(), readable=(QUEUE,), addresses={"b": "b:1"}, epochs=epochs)

    def turn_away(self) -> None:
        pass

    async def query_route(self, _topic: str) -> Route:
        return self.route

    async def pull(self, *_: Any, **__: Any) -> None:
        raise ConnectionFailed("no server listens")


@pytest.mark.parametrize(("epochs", "patient"), [({"b": 7}, False), ({}, True)])
async def test_a_broker_group_is_asked_again_soon_and_a_broker_alone_more_and_more_seldom(
    epochs: dict[str, int], *, patient: bool
) -> None:
    """Another copy leads within seconds; a pause that has grown to seconds is a second outage for readers."""
    calls, clock = Calls(epochs), FakeClock()
    pulling = pulling_from(calls, clock)
    pauses = [await pulling._once() for _ in range(12)]
    assert (max(pauses) > LEADERLESS_MAX_MS) is patient
    assert pauses[0] < LEADERLESS_MAX_MS, "it begins small"


class Copies:
    """A leader and two followers, each of which answers as it should: an error, or an answer."""

    def __init__(self, **answers: Error | Pulled) -> None:
        self.answers, self.asked = answers, list[str]()
        self.leader = "leader"

    def turn_away(self) -> None:
        pass

    async def query_route(self, _topic: str) -> Route:
        return Route(
            topic="t", writable=(), readable=(QUEUE,), addresses={"b": self.leader} if self.leader else {},
            epochs={"b": 7}, followers={"b": ("one", "two")},
        )  # fmt: skip

    async def pull(self, address: str, _group: str, _queue: MessageQueue, offset: int, **options: Any) -> Pulled:
        assert options["any_copy"] is True
        assert options["owner"] is False
        self.asked.append(address)
        answer = self.answers[address]
        if isinstance(answer, Error):
            raise answer
        return Pulled(answer.messages, max(answer.next_offset, offset), far_behind=answer.far_behind)


def any_copy(copies: Copies, clock: FakeClock, *, at: int = 10) -> PullLoop:
    return pulling_from(copies, clock, at=at, committed=-1, owner=False, any_copy=True)


GONE = ConnectionFailed("no server listens")
BEFORE = IllegalOffset("it begins at 50", min_offset=50, max_offset=60)


@pytest.mark.spec("HA-9")
@pytest.mark.parametrize(
    "error",
    [GONE, HaNotAvailable("it leads"), TopicNotFound("it is behind"), BEFORE],
    ids=lambda one: type(one).__name__,
)
async def test_what_a_follower_says_sends_a_reader_on_and_moves_it_nowhere(error: Error) -> None:
    """A follower knows less than its leader: its errors are no reason to skip messages, or to give up."""
    copies, clock = Copies(leader=GONE, one=error, two=Pulled((), 12)), FakeClock()
    pulling = any_copy(copies, clock)
    await pulling._once()
    assert copies.asked == ["leader", "one", "two"]
    assert pulling.process.next == 12
    await pulling._once()
    assert copies.asked[3:] == ["two"], "who answered is asked again"
    copies.answers["two"] = error
    assert await pulling._once() > 0, "a pause, since no server answers"
    assert pulling.process.next == 12


@pytest.mark.spec("HA-9")
async def test_a_reader_is_moved_into_the_log_by_the_leader_alone() -> None:
    copies, clock = Copies(leader=BEFORE, one=BEFORE, two=BEFORE), FakeClock()
    pulling = any_copy(copies, clock)
    await pulling._once()
    assert copies.asked == ["leader"]
    assert pulling.process.next == 50


@pytest.mark.spec("HA-9")
async def test_a_new_leader_is_found_while_a_follower_is_read_also_when_routes_lose_the_broker() -> None:
    copies, clock = Copies(leader=GONE, one=Pulled((), 0), two=GONE, other=Pulled((), 20)), FakeClock()
    pulling = any_copy(copies, clock)
    await pulling._once()
    copies.leader = ""
    for _ in range(3):
        await clock.advance(1_000)
        await pulling._once()
    assert set(copies.asked[1:]) == {"one"}, "its address is remembered"
    copies.leader = "other"
    for _ in range(3):
        await clock.advance(1_000)
        await pulling._once()
    assert copies.asked[-1] == "other"
    assert pulling.process.next == 20


@pytest.mark.spec("HA-9", "LQ-69")
async def test_a_reader_that_is_far_behind_goes_to_a_follower_and_back() -> None:
    copies = Copies(leader=Pulled((), 11, far_behind=True), one=Pulled((), 30), two=GONE)
    pulling = any_copy(copies, FakeClock())
    await pulling._once()
    copies.answers["leader"] = Pulled((), 31)
    for _ in range(2):
        await pulling._once()
    assert copies.asked == ["leader", "one", "leader"], "an empty answer: the follower has no more"
    assert pulling.process.next == 31


class Moving:
    """A leader that is silent from the first pull on, and its successor."""

    def __init__(self) -> None:
        self.asked, self.epoch = list[str](), 7

    def turn_away(self) -> None:
        pass

    async def query_route(self, _topic: str) -> Route:
        return Route(
            topic="t", writable=(), readable=(QUEUE,), addresses={"b": f"led-in-{self.epoch}"}, epochs={"b": self.epoch}
        )

    async def pull(self, address: str, *_: Any, **__: Any) -> Pulled:
        self.asked.append(address)
        if address == "led-in-7":
            await asyncio.sleep(30)
        return Pulled((), 20)


async def test_a_pull_at_a_silent_leader_goes_on_at_the_next_one_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine that vanishes ends no connection; its clients would wait for their own TCP, ten seconds."""
    monkeypatch.setattr("evenq.client.loops.routes.leader_watch.PARKED_MS", 20)
    calls, clock = Moving(), SystemClock()
    pulling = pulling_from(calls, clock)
    asyncio.get_running_loop().call_later(0.05, lambda: setattr(calls, "epoch", 8))
    assert await asyncio.wait_for(pulling._once(), 5) == 0
    await asyncio.wait_for(pulling._once(), 5)
    assert calls.asked == ["led-in-7", "led-in-8"]
    assert pulling.process.next == 20
    await pulling._routes.close()


class Log:
    """A log that begins at `low` and ends at 60; its pulls return four offsets, without messages."""

    def __init__(self, low: int) -> None:
        self.low = low
        self.pulled: list[int] = []

    def turn_away(self) -> None:
        pass

    async def query_route(self, _topic: str) -> Route:
        return Route(topic="t", writable=(), readable=(QUEUE,), addresses={"b": "b:1"}, epochs={})

    async def pull(self, _address: str, _group: str, _queue: MessageQueue, offset: int, **_: Any) -> Pulled:
        self.pulled.append(offset)
        if offset < self.low:
            raise IllegalOffset(f"it begins at {self.low}", min_offset=self.low, max_offset=60)
        return Pulled((), min(offset + 4, 60))


class Table:
    """Files up to an offset; a read returns ten offsets, without messages."""

    def __init__(self, log: Log, end: int) -> None:
        self.log, self.end = log, end
        self.reads: list[tuple[int, int]] = []
        self.fails: Error | None = None
        self.moves: dict[int, int] = {}
        """By offset of a read: the start of the log after it."""

    async def pull(self, queue: MessageQueue, uid: str, start: int, end: int, **options: Any) -> TablePull:
        assert (queue, uid, options["expression"]) == (QUEUE, "u1-b1", FilterExpression("*"))
        if self.fails is not None:
            raise self.fails
        self.log.low = self.moves.get(start, self.log.low)
        if start >= self.end:
            return TablePull((), end, missing=True)
        self.reads.append((start, end))
        return TablePull((), min(start + 10, self.end, end))


async def until_offset(pulling: PullLoop, end: int) -> None:
    """One step after the other, as `run` makes them."""
    pulling._clock = clock = FakeClock()
    running = asyncio.create_task(pulling.run())
    for _ in range(1_000):
        if pulling.process.next >= end or running.done():
            break
        await clock.advance(100)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert pulling.process.next >= end


async def test_offsets_below_the_log_are_read_from_the_table_up_to_a_start_that_moves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log(low=20)
    table = Table(log, end=50)
    table.moves = {13: 35}
    pulling = pulling_from(log, FakeClock(), at=3, table=table)
    await until_offset(pulling, 43)
    assert table.reads == [(3, 20), (13, 20), (20, 35), (30, 35)]
    assert log.pulled[:4] == [3, 20, 35, 39], "the broker is called again wherever the log began"
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def test_what_neither_table_nor_log_has_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = Log(low=40)
    table = Table(log, end=30)
    pulling = pulling_from(log, FakeClock(), at=25, table=table)
    await until_offset(pulling, 44)
    assert table.reads == [(25, 40)]
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "continuing at offset 40: offsets 30 to 39 are neither in the table nor in the log" in warning


async def test_a_table_that_cannot_be_read_stops_the_queue_and_is_reported_until_it_can() -> None:
    log, reported = Log(low=20), list[Error]()
    table = Table(log, end=50)
    table.fails = StoreError("a file is damaged")
    clock = FakeClock()
    pulling = pulling_from(log, clock, at=3, table=table, report=reported.append)
    assert await pulling._once() == 0
    pauses = []
    for _ in range(8):
        assert pulling.process.next == 3
        pauses.append(await pulling._rows_of(table))  # type: ignore[arg-type]
        await clock.advance(pauses[-1])
    assert reported == [table.fails], "once, when it lasts"
    assert pauses[0] < 200 < 2_000 < pauses[-1]
    table.fails = None
    await until_offset(pulling, 24)


@pytest.mark.parametrize("topic", ["t", "%RETRY%g"])
async def test_without_a_table_and_in_a_retry_topic_reading_continues_at_the_start_of_the_log(topic: str) -> None:
    log = Log(low=20)
    table = None if topic == "t" else Table(log, end=50)
    pulling = pulling_from(log, FakeClock(), at=3, table=table, topic=topic)
    await pulling._once()
    assert pulling.process.next == 20
