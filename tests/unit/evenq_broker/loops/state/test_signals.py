"""Waiting for a change with a limit."""

from __future__ import annotations

import asyncio

from evenq_broker.loops.state.signals import Changes, Signal

from evenq.runtime.clock import FakeClock


async def test_a_change_before_the_wait_is_seen_at_once() -> None:
    signal = Signal()
    seen = signal.count
    signal.notify()
    assert await signal.wait(seen, clock=FakeClock(), timeout_ms=1_000)


async def test_a_change_during_the_wait_wakes_all_who_wait() -> None:
    clock, signal = FakeClock(), Signal()
    waits = [asyncio.ensure_future(signal.wait(0, clock=clock, timeout_ms=limit)) for limit in (1_000, None)]
    await clock.advance(10)
    signal.notify()
    assert await asyncio.gather(*waits) == [True, True]


async def test_without_a_change_the_limit_ends_the_wait() -> None:
    clock, signal = FakeClock(), Signal()
    waiting = asyncio.ensure_future(signal.wait(0, clock=clock, timeout_ms=100))
    await clock.advance(99)
    assert not waiting.done()
    await clock.advance(1)
    assert await waiting is False


def test_listeners_hear_of_facts_in_the_order_they_came_in() -> None:
    changes, heard = Changes(), []
    changes.on_facts(lambda group, topic: heard.append(("first", group, topic)))
    changes.on_facts(lambda group, topic: heard.append(("second", group, topic)))
    changes.facts_changed(topic="t")
    changes.facts_changed(group="g")
    assert heard == [("first", "", "t"), ("second", "", "t"), ("first", "g", ""), ("second", "g", "")]


def test_routes_are_counted_always_and_told_only_of_topics_that_changed() -> None:
    changes, heard = Changes(), []
    changes.on_routes(lambda topics: heard.append(sorted(topics)))
    changes.routes_changed(())
    changes.routes_changed({"t", "a"})
    assert (changes.routes.count, heard) == (2, [["a", "t"]])
