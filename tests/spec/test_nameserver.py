"""NS-1 .. NS-9 and RT-1 .. RT-5 where they concern the nameserver, over the real door with a clock that the test moves at the
time.
"""

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import evenq_nameserver.app
import pytest
from evenq_nameserver.app import Nameserver
from evenq_nameserver.settings import NameserverSettings

from evenq.errors import SettingsError
from evenq.runtime.clock import FakeClock
from evenq.serving.program.settings import load
from evenq.wire.net import GrpcNet
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import registry_pb2

SERVICE = "/evenq.v1.Registry/"


@dataclass
class Broker:
    """What a broker does towards nameservers."""

    net: GrpcNet
    name: str
    topics: dict[str, int]
    incarnation: str = "i1"
    data_version: int = 1

    def state(self) -> registry_pb2.BrokerState:
        state = registry_pb2.BrokerState(data_version=self.data_version)
        state.broker.name, state.broker.incarnation, state.broker.start_ms = self.name, self.incarnation, 1
        state.broker.listeners.add(name="default", host=f"{self.name}.example", port=8081)
        for topic, queues in self.topics.items():
            state.topics.add(name=topic, read_queues=queues, write_queues=queues, permission=definition_pb2.READ_WRITE)
        return state

    async def register(self, address: str) -> registry_pb2.RegisterResponse:
        request = registry_pb2.RegisterRequest(state=self.state()).SerializeToString()
        answer = registry_pb2.RegisterResponse.FromString(
            await self.net.unary(address, SERVICE + "Register", request, timeout_ms=5_000)
        )
        check(answer.status)
        return answer

    async def heartbeat(self, address: str) -> bool:
        request = registry_pb2.RegistryHeartbeatRequest(
            broker_name=self.name, incarnation=self.incarnation, data_version=self.data_version
        )
        answer = registry_pb2.RegistryHeartbeatResponse.FromString(
            await self.net.unary(address, SERVICE + "Heartbeat", request.SerializeToString(), timeout_ms=5_000)
        )
        check(answer.status)
        return answer.full_wanted

    async def unregister(self, address: str) -> None:
        request = registry_pb2.UnregisterRequest(broker_name=self.name, incarnation=self.incarnation)
        await self.net.unary(address, SERVICE + "Unregister", request.SerializeToString(), timeout_ms=5_000)


async def routes(net: GrpcNet, address: str, *topics: str) -> registry_pb2.GetRoutesResponse:
    request = registry_pb2.GetRoutesRequest(topics=topics).SerializeToString()
    answer = registry_pb2.GetRoutesResponse.FromString(
        await net.unary(address, SERVICE + "GetRoutes", request, timeout_ms=5_000)
    )
    check(answer.status)
    return answer


async def names(net: GrpcNet, address: str) -> list[str]:
    return [broker.name for broker in (await routes(net, address)).brokers]


def watch(net: GrpcNet, address: str) -> AsyncIterator[bytes]:
    return net.stream(address, SERVICE + "WatchRoutes", b"", timeout_ms=None)


async def event(frames: AsyncIterator[bytes]) -> registry_pb2.RouteEvent:
    return registry_pb2.RouteEvent.FromString(await asyncio.wait_for(anext(frames), 60))


Test = Callable[[FakeClock, GrpcNet, str, str], Awaitable[None]]


@asynccontextmanager
async def running() -> AsyncIterator[tuple[FakeClock, GrpcNet, str, str]]:
    clock, net = FakeClock(), GrpcNet()
    settings = NameserverSettings(port=0, metrics_port=-1, drain_ms=0)
    servers = [Nameserver(settings, clock=clock, rng=random.Random(seed)) for seed in (1, 2)]
    for server in servers:
        await server.start()
    one, two = (f"127.0.0.1:{server.port}" for server in servers)
    try:
        async with asyncio.timeout(60):
            yield clock, net, one, two
    finally:
        await net.close()
        await clock.during(asyncio.gather(*(server.close() for server in servers)), step_ms=1)


async def test_ns_1_ns_5_brokers_register_topics_and_are_discovered() -> None:
    async with running() as (_clock, net, one, _two):
        assert await names(net, one) == []
        await Broker(net, "a", {"t": 4, "u": 2}).register(one)
        answer = await routes(net, one)
        assert [route.topic for route in answer.routes] == ["t", "u"]
        assert [broker.name for broker in answer.brokers] == ["a"]


async def test_ns_2_ns_7_nameservers_do_not_exchange_information_and_differ_visibly() -> None:
    async with running() as (_clock, net, one, two):
        await Broker(net, "a", {"t": 4}).register(one)
        assert (await names(net, one), await names(net, two)) == (["a"], [])
        first, second = await event(watch(net, one)), await event(watch(net, two))
        assert first.nameserver != second.nameserver
    assert "GrpcNet" not in inspect.getsource(evenq_nameserver.app)


async def test_ns_3_a_nameserver_starts_with_nobody_there() -> None:
    async with running() as (_clock, net, one, _two):
        answer = await routes(net, one)
        assert (answer.version, list(answer.routes), list(answer.brokers)) == (0, [], [])


async def test_ns_4_each_nameserver_hears_the_heartbeats_and_keeps_the_broker() -> None:
    async with running() as (clock, net, one, two):
        broker = Broker(net, "a", {"t": 4})
        response = await broker.register(one)
        await broker.register(two)
        for _ in range(10):
            await clock.advance(response.heartbeat_interval_ms)
            assert not await broker.heartbeat(one)
        assert (await names(net, one), await names(net, two)) == (["a"], [])
        assert await broker.heartbeat(two), "a nameserver that dropped or lost a broker asks for everything"


async def test_ns_5_a_heartbeat_is_light_and_a_change_is_told_in_full() -> None:
    async with running() as (_clock, net, one, _two):
        broker = Broker(net, "a", {"t": 4})
        await broker.register(one)
        broker.topics["u"], broker.data_version = 2, 2
        assert await broker.heartbeat(one)
        await broker.register(one)
        assert not await broker.heartbeat(one)
        assert [route.topic for route in (await routes(net, one)).routes] == ["t", "u"]


async def test_ns_6_whoever_asks_for_a_topic_learns_its_brokers() -> None:
    async with running() as (_clock, net, one, _two):
        await Broker(net, "b", {"t": 2}).register(one)
        await Broker(net, "a", {"t": 4, "u": 1}).register(one)
        answer = await routes(net, one, "t", "missing")
        (route,) = answer.routes
        assert [node.broker.name for node in route.brokers] == ["a", "b"]


async def test_ns_7_each_route_has_a_version_that_grows_with_its_changes_only() -> None:
    async with running() as (_clock, net, one, _two):
        await Broker(net, "a", {"t": 4}).register(one)
        before = (await routes(net, one, "t")).routes[0].version
        await Broker(net, "b", {"u": 4}).register(one)
        assert (await routes(net, one, "t")).routes[0].version == before
        await Broker(net, "c", {"t": 4}).register(one)
        assert (await routes(net, one, "t")).routes[0].version > before


async def test_ns_8_growth_of_a_topic_and_loss_of_a_broker_reach_the_watchers() -> None:
    async with running() as (clock, net, one, _two):
        broker = Broker(net, "a", {"t": 4})
        response = await broker.register(one)
        frames = watch(net, one)
        first = await event(frames)
        assert first.snapshot
        broker.topics["t"], broker.data_version = 8, 2
        await broker.register(one)
        grown = await event(frames)
        assert (grown.snapshot, grown.brokers[0].topics[0].read_queues) == (False, 8)
        lost = asyncio.ensure_future(event(frames))
        await clock.advance(response.expiry_ms * 11 // 10 + 1)
        assert list((await lost).removed) == ["a"]


async def test_ns_9_the_numbers_are_3_s_and_10_s_and_settings() -> None:
    async with running() as (_clock, net, one, _two):
        response = await Broker(net, "a", {}).register(one)
        assert (response.heartbeat_interval_ms, response.expiry_ms) == (3_000, 10_000)
    chosen = load(NameserverSettings, "nameserver", ["--heartbeat-interval-ms=30000", "--expiry-ms=120000"], {})
    assert (chosen.heartbeat_interval_ms, chosen.expiry_ms) == (30_000, 120_000)
    with pytest.raises(SettingsError, match="one lost heartbeat"):
        load(NameserverSettings, "nameserver", ["--expiry-ms=5000"], {})


async def test_ns_9_a_broker_that_says_goodbye_is_gone_at_once() -> None:
    async with running() as (_clock, net, one, _two):
        broker = Broker(net, "a", {"t": 4})
        await broker.register(one)
        await broker.unregister(one)
        assert await names(net, one) == []


async def test_rt_1_2_3_4_a_route_has_addresses_names_ids_and_queue_counts_of_all_broker_groups() -> None:
    async with running() as (_clock, net, one, _two):
        await Broker(net, "a", {"t": 4}).register(one)
        await Broker(net, "b", {"t": 2}).register(one)
        (route,) = (await routes(net, one, "t")).routes
        found = [
            (
                node.broker.name,
                node.broker.id,
                node.broker.listeners[0].host,
                node.broker.listeners[0].port,
                node.entry.write_queues,
                node.entry.read_queues,
            )
            for node in route.brokers
        ]
        assert found == [("a", 0, "a.example", 8081, 4, 4), ("b", 0, "b.example", 8081, 2, 2)]


async def test_rt_5_the_route_holds_all_that_a_message_queue_is_made_of() -> None:
    async with running() as (_clock, net, one, _two):
        await Broker(net, "a", {"t": 4}).register(one)
        await Broker(net, "b", {"t": 2}).register(one)
        (route,) = (await routes(net, one, "t")).routes
        queues = [
            (route.topic, node.broker.name, queue_id)
            for node in route.brokers
            for queue_id in range(node.entry.read_queues)
        ]
        assert len(queues) == len(set(queues)) == 6
