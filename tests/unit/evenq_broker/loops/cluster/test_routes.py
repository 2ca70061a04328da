"""Watching the routes of every nameserver."""

from collections.abc import Awaitable, Callable
from typing import Any

from evenq_proofs.fake_registry import FakeRegistry

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


def names(broker: Any) -> list[str]:
    return [view.name for view in broker.catalog.routes.brokers()]


def count_watches(stage: Any) -> int:
    return len([method for _, method in stage.net.calls if method.endswith("WatchRoutes")])


async def test_brokers_learn_of_each_other_and_of_those_that_are_dropped(stage: Any) -> None:
    registry = FakeRegistry()
    stage.net.serve("ns:1", registry.rpcs())
    a = await stage.broker("a", nameservers="ns:1")
    b = await stage.broker("b", nameservers="ns:1")
    await stage.until(lambda: names(a) == names(b) == ["a", "b"])
    registry.drop("b")
    await stage.until(lambda: names(a) == ["a"])


async def test_a_broken_watch_is_opened_again_and_removes_nobody_meanwhile(stage: Any) -> None:
    registry = FakeRegistry()
    stage.net.serve("ns:1", registry.rpcs())
    a = await stage.broker("a", nameservers="ns:1")
    await stage.broker("b", nameservers="ns:1")
    await stage.until(lambda: names(a) == ["a", "b"])
    stage.net.stop("ns:1")
    await stage.clock.advance(100_000)
    assert names(a) == ["a", "b"]
    registry.forget("after restart")
    stage.net.serve("ns:1", registry.rpcs())
    watches = count_watches(stage)
    await stage.until(lambda: len(registry.brokers) == 2 and count_watches(stage) >= watches + 2)
    assert names(a) == ["a", "b"]


async def test_without_a_nameserver_the_broker_is_the_whole_cluster(stage: Any) -> None:
    a = await stage.broker("a")
    await stage.during(a.catalog.create_topic("t", queues=2))
    assert [queue.queue_id for queue in a.catalog.routes.readable("t")] == [0, 1]
    assert stage.net.calls == []


async def test_a_nameserver_that_does_not_know_the_broker_hears_of_it_at_once(stage: Any) -> None:
    registry = FakeRegistry()
    stage.net.serve("ns:1", registry.rpcs())
    a = await stage.broker("a", nameservers="ns:1", register_interval_ms=600_000)
    await stage.until(lambda: names(a) == ["a"])
    beats = len(registry.heartbeats)
    registry.forget("after restart")
    stage.net.serve("ns:1", registry.rpcs())
    await stage.until(lambda: registry.brokers.keys() == {"a"})
    assert len(registry.heartbeats) <= beats + 2
