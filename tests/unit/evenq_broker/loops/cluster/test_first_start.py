"""When a broker that starts says that it is ready: its cluster may be starting, too, or be away."""

from typing import Any

from evenq_broker.loops.cluster.link import ROUTE_WAIT_MS, WELCOME_WAIT_MS
from evenq_proofs.fake_registry import FakeRegistry

from evenq.model import BrokerAddress
from evenq.runtime.tasks import spawn


async def began(stage: Any, **settings: Any) -> Any:
    """A broker, open, and the task that ends when it is ready."""
    broker = stage.made("a", **settings)
    await broker.open()
    stage.brokers.append(broker)
    return broker, spawn(broker.start([BrokerAddress("default", "a", 8081)]), name="start")


async def test_a_broker_without_topics_waits_for_a_nameserver_that_comes_later(stage: Any) -> None:
    registry = FakeRegistry()
    broker, ready = await began(stage, nameservers="late:1, never:1")
    await stage.clock.advance(12_000)
    assert not ready.done(), "a topic that is created now would be at this broker only"
    stage.net.serve("late:1", registry.rpcs())
    await stage.until(ready.done)
    assert stage.clock.monotonic_ms() < WELCOME_WAIT_MS, "one of the two is enough"
    assert "a" in registry.brokers
    assert broker.cluster.nameservers_answering == 1


async def test_a_registration_alone_does_not_make_it_ready(stage: Any) -> None:
    """What the nameserver knows of other brokers must be here, too."""
    registry = FakeRegistry()
    calls = {rpc.method.rpartition("/")[2]: rpc for rpc in registry.rpcs()}
    watch = calls.pop("WatchRoutes")
    stage.net.serve("ns:1", list(calls.values()))
    broker, ready = await began(stage, nameservers="ns:1")
    await stage.clock.advance(5_000)
    assert "a" in registry.brokers
    assert not ready.done()
    stage.net.serve("ns:1", [*calls.values(), watch])
    await stage.until(ready.done)
    assert broker.cluster.nameservers_answering == 1


async def test_without_any_nameserver_it_is_ready_in_the_end(stage: Any) -> None:
    began_ms = stage.clock.monotonic_ms()
    _, ready = await began(stage, nameservers="never:1")
    await stage.until(ready.done)
    assert WELCOME_WAIT_MS <= stage.clock.monotonic_ms() - began_ms <= WELCOME_WAIT_MS + 2 * ROUTE_WAIT_MS


async def test_a_broker_that_has_topics_serves_them_whether_nameservers_are_there_or_not(stage: Any) -> None:
    broker = stage.made("a", nameservers="never:1")
    await broker.open()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    stage.brokers.append(broker)
    began_ms = stage.clock.monotonic_ms()
    ready = spawn(broker.start([BrokerAddress("default", "a", 8081)]), name="start")
    await stage.until(ready.done)
    assert stage.clock.monotonic_ms() - began_ms <= 2 * ROUTE_WAIT_MS


async def test_a_broker_that_is_its_whole_cluster_waits_for_nobody(stage: Any) -> None:
    began_ms = stage.clock.monotonic_ms()
    _, ready = await began(stage)
    await stage.until(ready.done)
    assert stage.clock.monotonic_ms() - began_ms < ROUTE_WAIT_MS
