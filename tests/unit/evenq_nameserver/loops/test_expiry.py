"""The loop that drops silent brokers, on a clock that the test moves."""

import asyncio

from evenq_nameserver.core.registry import BrokerEntry, Registry, RouteChange
from evenq_nameserver.loops.expiry import expire_forever
from evenq_nameserver.stats import NameserverStats

from evenq.model.route import BrokerAddress
from evenq.runtime.clock import FakeClock
from tests.unit.evenq_nameserver.stopped_clock import Stopped


def broker(name: str) -> BrokerEntry:
    return BrokerEntry(
        name=name, broker_id=0, cluster="", epoch=1, incarnation="i", start_ms=1, version="",
        addresses=(BrokerAddress("default", "h", 1),), data_version=1, topics={},
    )  # fmt: skip


async def test_a_silent_broker_is_dropped_and_announced_at_most_a_tenth_late() -> None:
    clock, registry, stats = FakeClock(), Registry(expiry_ms=1_000, brokers_max=10), NameserverStats()
    announced: list[RouteChange] = []
    registry.register(
        broker("a"),
        clock.monotonic_ms(),
    )
    loop = asyncio.ensure_future(
        expire_forever(registry, announced.append, lambda: None, expiry_ms=1_000, clock=clock, stats=stats)
    )
    await clock.advance(999)
    assert announced == []
    await clock.advance(101)
    assert [change.removed for change in announced] == ["a"]
    assert stats.expired == 1
    loop.cancel()


async def test_the_end_of_settling_is_told_once_when_silence_means_an_end() -> None:
    clock, registry, result = FakeClock(), Registry(expiry_ms=1_000, brokers_max=10), list[int]()
    loop = asyncio.ensure_future(
        expire_forever(
            registry,
            lambda _: None,
            lambda: result.append(clock.monotonic_ms()),
            expiry_ms=1_000,
            clock=clock,
            stats=NameserverStats(),
        )
    )
    began_ms = clock.monotonic_ms()
    await clock.advance(999)
    assert result == []
    await clock.advance(10_000)
    assert len(result) == 1
    assert 1_000 <= result[0] - began_ms <= 1_100
    loop.cancel()


async def test_a_nameserver_that_was_stopped_drops_nobody_who_could_not_be_heard() -> None:
    clock, registry, stats = Stopped(), Registry(expiry_ms=1_000, brokers_max=10), NameserverStats()
    settled = list[int]()
    registry.register(broker("a"), clock.monotonic_ms())
    loop = asyncio.ensure_future(
        expire_forever(
            registry,
            lambda _: None,
            lambda: settled.append(clock.monotonic_ms()),
            expiry_ms=1_000,
            clock=clock,
            stats=stats,
        )
    )
    await clock.advance(350)
    clock.pause_ms = 60_000
    await clock.advance(300)
    assert registry.knows("a")
    assert settled == []
    assert not registry.heartbeat("a", "i", 1, clock.monotonic_ms())
    await clock.advance(900)
    assert registry.knows("a")
    assert len(settled) == 1, "its start is over that much later"
    await clock.advance(300)
    assert not registry.knows("a")
    assert stats.expired == 1
    loop.cancel()
