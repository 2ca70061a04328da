"""A broker and its nameservers: what it waits for at a start, and whom it tells what changes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.loops.cluster.link import ROUTE_WAIT_MS
from evenq_proofs.fake_registry import FakeRegistry

from evenq.errors import Forbidden
from evenq.model import BrokerAddress, Listener
from evenq.serving.rpc import RpcContext
from evenq.wire.addresses import BROKER_HEADER


def through(listener: str, **headers: str) -> RpcContext:
    """A call that came through this listener."""
    return RpcContext("/x", list(headers.items()), "127.0.0.1:1", None, Listener(listener))


async def begun_with_a_topic(stage: Any, **settings: Any) -> Any:
    """A broker that has a topic at its start, as after a restart: it is not sure of its peers before it has routes."""
    broker = stage.made("a", nameservers="ns:1", **settings)
    await broker.open()
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.begin(broker)
    return broker


async def test_the_first_word_of_the_nameservers_is_waited_for_but_not_for_long(stage: Any) -> None:
    registry = FakeRegistry()
    stage.net.serve("ns:1", registry.rpcs())
    broker = await stage.broker(nameservers="ns:1")
    await stage.during(broker.cluster.first_word())
    assert broker.cluster.nameservers_answering == 1
    assert [view.name for view in broker.catalog.routes.brokers()] == ["a"]

    silent = await stage.broker("b", nameservers="ns:1")
    for watch in silent.cluster._watches:
        watch.tried = asyncio.Event()  # it has not answered yet
    started_ms = stage.clock.monotonic_ms()
    await stage.during(silent.cluster.first_word())
    assert ROUTE_WAIT_MS <= stage.clock.monotonic_ms() - started_ms <= ROUTE_WAIT_MS + 50


async def test_a_new_topic_is_registered_and_told_to_whoever_reads_it(stage: Any) -> None:
    registry = FakeRegistry()
    stage.net.serve("ns:1", registry.rpcs())
    broker = await stage.broker(nameservers="ns:1")
    seen = broker.catalog.changes.routes.count
    await stage.during(broker.catalog.create_topic("t", queues=2))
    await stage.until(lambda: [topic.name for topic in registry.brokers["a"].topics] == ["t"])
    assert broker.catalog.changes.routes.count > seen


async def test_a_broker_without_nameservers_knows_the_routes_of_its_own_topics(stage: Any) -> None:
    broker = await stage.broker()
    await stage.during(broker.catalog.create_topic("t", queues=2))
    assert [(at.broker.name, at.counts.read_queues) for at in broker.catalog.routes.route("t")] == [("a", 2)]


async def test_a_stopped_link_tells_nobody_of_changes(stage: Any) -> None:
    registry = FakeRegistry()
    stage.net.serve("ns:1", registry.rpcs())
    broker = await stage.broker(nameservers="ns:1")
    broker.cluster.stop()
    registered = len(registry.registered)
    await stage.during(broker.catalog.create_topic("t", queues=2))
    await stage.clock.advance(100)
    assert len(registry.registered) == registered
    assert broker.catalog.routes.route("t") == []


async def test_a_goodbye_takes_the_broker_out_of_every_nameserver_and_may_be_said_twice(stage: Any) -> None:
    registries = [FakeRegistry(str(number)) for number in range(2)]
    for number, registry in enumerate(registries):
        stage.net.serve(f"ns{number}:1", registry.rpcs())
    broker = await stage.broker(nameservers="ns0:1,ns1:1")
    assert all("a" in registry.brokers for registry in registries)
    for _ in range(2):
        await stage.during(broker.cluster.goodbye())
    assert not any(registry.brokers for registry in registries)


async def test_a_restarted_broker_is_not_sure_of_routes_until_a_settled_nameserver_told_them(stage: Any) -> None:
    registry = FakeRegistry()
    registry.settling = True
    stage.net.serve("ns:1", registry.rpcs())
    broker = await begun_with_a_topic(stage, route_settle_ms=60_000)
    broker.cluster.known.brokers.look({"b": "1"}, 1)  # it was there before the restart
    knows = asyncio.ensure_future(broker.cluster.routes_known())
    await stage.clock.advance(5_000)
    assert not knows.done()
    now_ms = broker.runtime.clock.monotonic_ms()
    broker.catalog.routes.snapshot("ns:1", "fake-1", [broker.cluster.own.now()], now_ms)
    broker.cluster.routes_changed()
    broker.catalog.changes.routes.notify()
    await stage.clock.advance(10)
    assert knows.done()
    await stage.during(broker.cluster.routes_known())


async def test_a_restarted_broker_waits_for_sure_routes_no_longer_than_its_setting(stage: Any) -> None:
    registry = FakeRegistry()
    registry.settling = True
    stage.net.serve("ns:1", registry.rpcs())
    started_ms = stage.clock.monotonic_ms()
    broker = await begun_with_a_topic(stage, route_settle_ms=20_000)
    broker.cluster.known.brokers.look({"b": "1"}, 1)  # it was there before the restart
    await stage.during(broker.cluster.routes_known())
    assert 20_000 <= stage.clock.monotonic_ms() - started_ms <= 22_000


@pytest.mark.parametrize("peers", [(), ("b",), ("b", "c")])
async def test_a_broker_that_sees_all_whom_it_remembers_waits_for_no_settled_nameserver(
    stage: Any, peers: tuple[str, ...]
) -> None:
    """As a copy that leads while a rollout replaces the nameservers, too: clients asked it for routes and waited 2 s."""
    registry = FakeRegistry()
    registry.settling = True
    stage.net.serve("ns:1", registry.rpcs())
    broker = await begun_with_a_topic(stage, route_settle_ms=60_000)
    known = broker.cluster.known.brokers
    known.look(dict.fromkeys([*peers, "gone"], "1"), 1)
    known.look(dict.fromkeys(peers, "1"), 2)
    knows = asyncio.ensure_future(broker.cluster.routes_known())
    await stage.clock.advance(1_000)
    assert knows.done() == (not peers), "one that was missing before need not come"
    for number, _ in enumerate(peers):
        assert not knows.done(), f"{len(peers) - number} are missing"
        seen = [replace(broker.cluster.own.now(), name=one) for one in peers[: number + 1]]
        broker.catalog.routes.snapshot("ns:1", "fake-1", seen, stage.clock.monotonic_ms(), settling=True)
        broker.cluster.routes_changed()
        broker.catalog.changes.routes.notify()
        await stage.clock.advance(10)
    assert knows.done()


async def test_an_empty_broker_waits_for_no_routes(stage: Any) -> None:
    broker = await stage.broker(nameservers="nowhere:1", route_settle_ms=20_000)
    knows = asyncio.ensure_future(broker.cluster.routes_known())
    await asyncio.sleep(0)
    assert knows.done(), "it has no peers to miss"


async def test_an_address_that_leads_to_any_broker_is_known_by_its_listener_unless_the_call_names_a_broker(
    stage: Any,
) -> None:
    broker = await stage.broker(listeners="outside=a:2", shared_listeners="outside")
    assert broker.cluster.leads_anywhere(through("outside"))
    assert not broker.cluster.leads_anywhere(through("default"))
    assert not broker.cluster.leads_anywhere(through("outside", **{BROKER_HEADER: "a"}))


async def test_brokers_that_share_an_address_make_it_lead_anywhere(stage: Any) -> None:
    broker = await stage.broker()
    shared = BrokerAddress("default", "one-address", 1)
    views = [RegisteredBroker(name=name, addresses=(shared,)) for name in ("b", "c")]
    assert not broker.cluster.leads_anywhere(through("default"))
    broker.catalog.routes.snapshot("ns:1", "n", views, broker.runtime.clock.monotonic_ms())
    assert broker.cluster.leads_anywhere(through("default"))


async def test_facts_wait_a_moment_for_the_first_nameserver_and_not_when_one_answers(stage: Any) -> None:
    alone = await stage.broker("a", nameservers="nowhere:1")
    started_ms = stage.clock.monotonic_ms()
    await stage.during(alone.cluster.facts_settled())
    assert stage.clock.monotonic_ms() - started_ms >= ROUTE_WAIT_MS
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    known = await stage.broker("b", nameservers="ns:1")
    settled = asyncio.ensure_future(known.cluster.facts_settled())
    await asyncio.sleep(0)
    assert settled.done()


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


async def test_a_nameserver_that_refuses_after_it_was_away_has_both_reasons_in_the_log(
    stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Both processes often start together: "connection refused" alone would hide what an operator has to change."""
    registry = FakeRegistry()
    broker = await stage.broker(nameservers="ns:1")
    await stage.clock.advance(5_000)

    async def refuse(_request: bytes, _context: RpcContext) -> bytes:
        raise Forbidden("register_from allows 192.0.2.0/24")

    registry._register = refuse
    stage.net.serve("ns:1", registry.rpcs())
    await stage.clock.advance(10_000)
    reasons = [record.message for record in caplog.records if record.message.startswith("not registered at")]
    assert len(reasons) == 2, reasons
    assert "register_from" in reasons[1]
    assert not registry.brokers
    assert broker.cluster.started
