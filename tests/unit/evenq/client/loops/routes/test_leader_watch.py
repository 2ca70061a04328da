"""Calls to a leader that is gone without a word are given up once another one leads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from evenq.client.core.routes.route import Route, RouteLeader
from evenq.client.loops.routes import leader_watch
from evenq.client.loops.routes.leader_watch import LeaderMoved, LeaderWatch
from evenq.client.loops.routes.route_book import RouteBook
from evenq.model import MessageQueue
from evenq.runtime.clock import FakeClock, SystemClock

QUEUE, OTHER = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
PARKED_S = 0.04


class Calls:
    """A group whose leader changes when a test says so."""

    def __init__(self) -> None:
        self.epoch, self.questions = 1, 0

    def turn_away(self) -> None:
        pass

    async def query_route(self, topic: str) -> Route:
        self.questions += 1
        return Route(
            topic=topic, writable=(), readable=(QUEUE, OTHER), addresses={"b": f"copy-{self.epoch}:1"},
            epochs={"b": self.epoch} if self.epoch else {},
        )  # fmt: skip


async def silence() -> str:
    await asyncio.sleep(30)
    return "never"


@pytest.fixture
async def watching(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Calls, RouteBook, LeaderWatch]]:
    monkeypatch.setattr(leader_watch, "PARKED_MS", int(PARKED_S * 1_000))
    calls, clock = Calls(), SystemClock()
    book = RouteBook(calls, clock, refresh_ms=30_000)
    watch = LeaderWatch(book, clock, random.Random(1))
    async with asyncio.timeout(20):
        yield calls, book, watch
    await watch.close()
    await book.close()


async def test_who_waits_for_messages_at_a_lost_leader_goes_to_the_next_one(
    watching: tuple[Calls, RouteBook, LeaderWatch],
) -> None:
    calls, book, watch = watching
    route = await book.get("t")
    polls = [asyncio.ensure_future(watch.long_poll(queue, route.leader_of("b"), silence())) for queue in (QUEUE, OTHER)]
    await asyncio.sleep(5 * PARKED_S)
    assert not any(poll.done() for poll in polls)
    assert 2 <= calls.questions <= 7, "one question serves both queues"
    calls.epoch = 2
    for poll in polls:
        with pytest.raises(LeaderMoved, match="copy-1:1"):
            await poll


async def test_a_watch_that_wakes_as_a_question_ends_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question's own callbacks run one turn of the loop later; until then its task is done, but not forgotten."""
    monkeypatch.setattr(leader_watch, "PARKED_MS", 0)

    class Once(Calls):
        turned = 0

        def turn_away(self) -> None:
            self.turned += 1
            if self.turned > 100:  # it would turn for ever
                raise AssertionError("the watch keeps the loop to itself")

        async def query_route(self, topic: str) -> Route:
            await answer.wait()
            return await super().query_route(topic)

    class Woken(RouteBook):
        async def leader_moved(self, *, within_ms: int) -> None:
            await woken.wait()
            woken.clear()

    async def settled() -> None:
        for _ in range(20):
            await asyncio.sleep(0.001)

    answer, woken = asyncio.Event(), asyncio.Event()
    answer.set()
    async with asyncio.timeout(60):
        calls, clock = Once(), FakeClock()
        book = Woken(calls, clock, refresh_ms=30_000)
        watch = LeaderWatch(book, clock, random.Random(1), parked_ms=lambda: 1_000)
        route = await book.get("t")
        poll = asyncio.ensure_future(watch.long_poll(QUEUE, route.leader_of("b"), silence()))
        await settled()
        answer.clear()
        book.renew("t")
        await settled()
        await clock.advance(1_000)
        answer.set()
        woken.set()
        await settled()
        assert calls.turned <= 3, "the watch keeps the loop to itself"
        calls.epoch = 2
        await clock.advance(1_000)
        woken.set()
        await settled()
        await clock.advance(leader_watch.PARTING_MS)
        with pytest.raises(LeaderMoved):
            await asyncio.wait_for(poll, 20)
        await watch.close()
        await book.close()


@pytest.mark.usefixtures("watching")
async def test_many_polls_watch_one_leader_for_long() -> None:
    """With 64 of them, one woke in the very turn of the loop in which a question ended: after 8 to 26 s, at this pace
    after 0.2 s.
    """

    class Slow(Calls):
        turned = 0

        def turn_away(self) -> None:
            self.turned += 1
            if self.turned > 10_000:  # it would turn for ever
                raise AssertionError("the watch keeps the loop to itself")

        async def query_route(self, topic: str) -> Route:
            await asyncio.sleep(0.003)
            return await super().query_route(topic)

    calls, clock = Slow(), SystemClock()
    book = RouteBook(calls, clock, refresh_ms=30_000)
    watch = LeaderWatch(book, clock, random.Random(1))
    leader = (await book.get("t")).leader_of("b")
    polls = [asyncio.ensure_future(watch.long_poll(QUEUE, leader, silence())) for _ in range(64)]
    await asyncio.sleep(50 * PARKED_S)
    assert 2 < calls.turned <= calls.questions, "each question goes to the next access point"
    assert not any(poll.done() for poll in polls)
    calls.epoch = 2
    for poll in polls:
        with pytest.raises(LeaderMoved):
            await poll
    await watch.close()
    await book.close()


async def test_what_another_call_hears_of_a_new_leader_ends_a_long_poll_at_once(
    watching: tuple[Calls, RouteBook, LeaderWatch],
) -> None:
    calls, book, watch = watching
    watch._parked_ms = lambda: 60_000  # it asks no question itself
    route = await book.get("t")
    poll = asyncio.ensure_future(watch.long_poll(QUEUE, route.leader_of("b"), silence()))
    await asyncio.sleep(3 * PARKED_S)
    assert calls.questions == 1
    calls.epoch = 2
    await book.get("another topic")
    with pytest.raises(LeaderMoved):
        await asyncio.wait_for(poll, 2)
    assert (await book.get("t")).addresses == {"b": "copy-2:1"}
    assert calls.questions == 2


async def test_a_leader_that_hands_over_may_end_a_long_poll_with_what_it_gave(
    watching: tuple[Calls, RouteBook, LeaderWatch],
) -> None:
    calls, book, watch = watching
    given = asyncio.Event()

    async def answer() -> str:
        await given.wait()
        return "messages"

    route = await book.get("t")
    poll = asyncio.ensure_future(watch.long_poll(QUEUE, route.leader_of("b"), answer()))
    await asyncio.sleep(2 * PARKED_S)
    calls.epoch = 2
    await book.fresh("t")
    await asyncio.sleep(0.02)
    given.set()
    assert await poll == "messages"


async def test_a_broker_alone_is_waited_for_without_questions(watching: tuple[Calls, RouteBook, LeaderWatch]) -> None:
    calls, book, watch = watching
    calls.epoch = 0
    route = await book.get("t")
    poll = asyncio.ensure_future(watch.long_poll(QUEUE, route.leader_of("b"), silence()))
    await asyncio.sleep(4 * PARKED_S)
    assert not poll.done()
    assert calls.questions == 1
    poll.cancel()
    with suppress(asyncio.CancelledError):
        await poll


async def test_an_answer_is_an_answer_and_a_caller_that_leaves_leaves_nothing_behind(
    watching: tuple[Calls, RouteBook, LeaderWatch],
) -> None:
    calls, book, watch = watching

    async def late() -> str:
        await asyncio.sleep(3 * PARKED_S)
        return "messages"

    route = await book.get("t")
    assert await watch.long_poll(QUEUE, route.leader_of("b"), late()) == "messages"
    poll = asyncio.ensure_future(watch.long_poll(QUEUE, route.leader_of("b"), silence()))
    await asyncio.sleep(3 * PARKED_S)
    poll.cancel()
    with pytest.raises(asyncio.CancelledError):
        await poll
    asked = calls.questions
    await asyncio.sleep(4 * PARKED_S)
    assert calls.questions == asked


async def test_short_polls_that_find_nothing_ask_for_the_route_now_and_then(
    watching: tuple[Calls, RouteBook, LeaderWatch],
) -> None:
    calls, book, watch = watching
    leader = (await book.get("t")).leader_of("b")
    for _ in range(50):
        watch.found_nothing(QUEUE, leader)
        watch.found_nothing(OTHER, leader)
    assert calls.questions == 1
    await asyncio.sleep(1.5 * PARKED_S)
    calls.epoch = 2
    watch.found_nothing(QUEUE, leader)
    watch.found_nothing(OTHER, leader)
    await asyncio.sleep(0.01)
    assert calls.questions == 2
    assert book.leader("b").epoch == 2
    await asyncio.sleep(1.5 * PARKED_S)
    watch.found_nothing(QUEUE, RouteLeader("b:1", 0))
    await asyncio.sleep(0.01)
    assert calls.questions == 2, "a broker alone has no next leader"
