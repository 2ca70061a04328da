"""Telling every nameserver, each on its own."""

from collections.abc import Awaitable, Callable
from typing import Any

from evenq_proofs.fake_registry import FakeRegistry

Run = Callable[[Callable[[Any], Awaitable[None]]], None]


async def test_every_nameserver_is_told_and_one_that_is_away_holds_up_nobody(stage: Any) -> None:
    here, away = FakeRegistry(), FakeRegistry("late")
    stage.net.serve("ns:1", here.rpcs())
    await stage.broker(nameservers="gone:1, ns:1")
    assert here.registered == ["a"]
    stage.net.serve("gone:1", away.rpcs())
    await stage.until(lambda: away.registered == ["a"])


async def test_a_change_is_told_at_once_and_in_between_there_are_light_beats(stage: Any) -> None:
    registry = FakeRegistry(heartbeat_interval_ms=1_000)
    stage.net.serve("ns:1", registry.rpcs())
    broker = await stage.broker(nameservers="ns:1")
    await stage.clock.advance(3_500)
    assert registry.registered == ["a"]
    assert len(registry.heartbeats) == 3
    await stage.during(broker.catalog.create_topic("t", queues=2))
    await stage.clock.advance(10)
    assert registry.registered == ["a", "a"]
    assert [entry.name for entry in registry.brokers["a"].topics] == ["t"]


async def test_a_nameserver_that_restarted_is_told_everything_again(stage: Any) -> None:
    registry = FakeRegistry(heartbeat_interval_ms=1_000)
    stage.net.serve("ns:1", registry.rpcs())
    await stage.broker(nameservers="ns:1")
    registry.forget("after restart")
    await stage.until(lambda: "a" in registry.brokers)
    assert registry.registered == ["a", "a"]


async def test_a_closing_broker_says_goodbye_and_does_not_register_again(stage: Any) -> None:
    registry = FakeRegistry(heartbeat_interval_ms=100)
    stage.net.serve("ns:1", registry.rpcs())
    broker = await stage.broker(nameservers="ns:1")
    await stage.during(broker.leave())
    assert registry.brokers == {}
    await stage.clock.advance(2_000)
    assert registry.brokers == {}
