"""Routes are shared, refreshed, and survive failures."""

from __future__ import annotations

import asyncio
import logging

import pytest

from evenq.client.core.routes.route import Route, RouteLeader
from evenq.client.loops.routes.route_book import OLD_MS, RouteBook
from evenq.errors import ConnectionFailed, Forbidden, TopicNotFound
from evenq.runtime.clock import FakeClock


class Calls:
    def __init__(self) -> None:
        self.count = self.turned = 0
        self.failure: Exception | None = None
        self.epoch = 0

    def turn_away(self) -> None:
        self.turned += 1

    async def query_route(self, topic: str) -> Route:
        self.count += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        epochs = {"b": self.epoch} if self.epoch else {}
        return Route(topic=topic, writable=(), readable=(), addresses={"b": f"b:{self.count}"}, epochs=epochs)


async def test_all_who_wait_share_one_fetch_and_an_old_route_is_refreshed_behind_their_backs() -> None:
    calls, clock = Calls(), FakeClock()
    book = RouteBook(calls, clock, refresh_ms=30_000)
    routes = await asyncio.gather(*(book.get("t") for _ in range(5)))
    assert calls.count == 1
    assert {route.addresses["b"] for route in routes} == {"b:1"}
    await clock.advance(30_001)
    assert (await book.get("t")).addresses["b"] == "b:1"
    await clock.advance(0)
    assert (await book.get("t")).addresses["b"] == "b:2"


async def test_a_cached_route_survives_a_failed_refresh_and_an_unknown_topic_raises() -> None:
    calls, clock = Calls(), FakeClock()
    book = RouteBook(calls, clock, refresh_ms=30_000)
    await book.get("t")
    calls.failure = ConnectionFailed("down")
    assert (await book.fresh("t")).addresses["b"] == "b:1"
    calls.failure = TopicNotFound("u")
    with pytest.raises(TopicNotFound):
        await book.get("u")


async def test_refreshes_that_fail_are_one_line_at_the_begin_and_one_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "evenq.client")
    calls = Calls()
    book = RouteBook(calls, FakeClock(), refresh_ms=30_000)
    await book.get("t")
    calls.failure = Forbidden("user u may not describe topic t")
    for _ in range(3):
        await book.fresh("t")
    [begin] = caplog.messages
    assert begin == (
        "known routes are kept: the refresh of topic t fails, trying again until it works: "
        "user u may not describe topic t"
    )
    calls.failure = None
    await book.fresh("t")
    assert caplog.messages[1:] == ["known routes are kept: the refresh of topic t works after 0.0 s, 3 calls failed"]
    assert {record.levelname for record in caplog.records} == {"INFO"}


async def test_a_told_change_is_asked_for_behind_a_question_that_was_under_way() -> None:
    calls, result = Calls(), asyncio.Event()
    book = RouteBook(calls, FakeClock(), refresh_ms=30_000)
    book.renew("t")
    for _ in range(3):
        book.changed("t", result.set)
    await asyncio.wait_for(result.wait(), 60)
    assert (await book.get("t")).addresses["b"] == "b:2"
    result.clear()
    book.changed("t", result.set)
    await asyncio.wait_for(result.wait(), 60)
    assert calls.count == 3
    book.renew("t")
    book.changed("t", result.set)
    await book.close()
    await asyncio.sleep(0)
    assert calls.count == 3, "nothing is asked after the end"


async def test_a_broker_that_left_the_route_is_found_where_it_was_last() -> None:
    calls, clock = Calls(), FakeClock()
    book = RouteBook(calls, clock, refresh_ms=30_000)
    assert await book.address("t", "b") == "b:1"
    assert await book.address("other", "b") == "b:2"
    book._routes["t"] = Route(topic="t", writable=(), readable=(), addresses={})
    assert await book.address("t", "b") == "b:2"
    with pytest.raises(ConnectionFailed, match="broker c is not in the route"):
        await book.address("t", "c")


async def test_an_older_leader_is_not_believed_until_nobody_names_the_newer_one_any_more() -> None:
    """Access points hear of a new leader at different times; a group that was made anew begins with a low epoch."""
    calls, clock = Calls(), FakeClock()
    book = RouteBook(calls, clock, refresh_ms=30_000)

    async def leader(epoch: int) -> RouteLeader:
        calls.epoch = epoch
        return (await book.fresh("t")).leader_of("b")

    assert await leader(7) == RouteLeader("b:1", 7)
    assert await leader(8) == RouteLeader("b:2", 8)
    assert await leader(7) == RouteLeader("b:2", 8)
    assert await leader(9) == RouteLeader("b:4", 9)
    await clock.advance(OLD_MS)
    assert await leader(1) == RouteLeader("b:5", 1)


async def test_the_last_leader_of_a_broker_with_copies_is_known_while_no_route_names_it() -> None:
    calls, clock = Calls(), FakeClock()
    book = RouteBook(calls, clock, refresh_ms=30_000)
    await book.get("t")
    assert book.leader("b").epoch == 0, "it has no copies"
    calls.epoch = 7
    assert await book.fresh("t") is not None
    assert book.leader("b") == RouteLeader("b:2", 7)
    book._routes["t"] = Route(topic="t", writable=(), readable=(), addresses={})
    assert book.leader("b") == RouteLeader("b:2", 7)
    assert book.leader("c").epoch == 0


async def test_a_new_leader_is_followed_in_the_routes_of_all_topics_and_said_once() -> None:
    """A retry topic is asked for every 30 s only: its route must not send its readers back to the old leader."""
    calls, clock, moves = Calls(), FakeClock(), list[str]()
    book = RouteBook(calls, clock, refresh_ms=30_000, on_moved=lambda: moves.append("moved"))
    calls.epoch = 3
    await book.get("t")
    await book.fresh("retry")
    calls.epoch = 4
    led = await book.fresh("t")
    assert (await book.get("retry")).leader_of("b") == led.leader_of("b") == book.leader("b")
    assert moves == ["moved", "moved"], "the fake broker has another address in each answer"
    calls.epoch = 3
    assert (await book.fresh("retry")).leader_of("b") == led.leader_of("b"), "an older answer that came late"


async def test_who_asks_because_a_call_failed_asks_elsewhere_and_an_old_route_is_asked_for_where_it_came_from() -> None:
    """A leader that is cut off from the other copies goes on saying that it leads."""
    calls, clock, heard = Calls(), FakeClock(), list[str]()
    book = RouteBook(calls, clock, refresh_ms=30_000)
    await book.get("t")
    await clock.advance(30_001)
    book.peek("t")
    await clock.advance(0)
    assert (calls.count, calls.turned) == (2, 0)
    book.renew("t")
    book.renew("t")
    await clock.advance(0)
    assert (calls.count, calls.turned) == (3, 1), "one question for both"
    book.renew("t", lambda: heard.append("answered"))
    await clock.advance(0)
    assert (calls.turned, heard) == (2, ["answered"])
    await book.look("t", elsewhere=False)
    assert calls.turned == 2
