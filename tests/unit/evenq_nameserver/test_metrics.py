"""What Prometheus reads of a nameserver."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from evenq_nameserver.metrics import metrics
from evenq_nameserver.rpc.registry import RegistryService
from evenq_nameserver.settings import NameserverSettings
from evenq_nameserver.stats import NameserverStats

from evenq.runtime.clock import FakeClock
from evenq.serving.program.metrics import MetricKind, exposition
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.evenq.v1 import registry_pb2


@asynccontextmanager
async def running() -> AsyncIterator[tuple[RegistryService, NameserverStats]]:
    stats = NameserverStats()
    service = RegistryService(settings=NameserverSettings(), clock=FakeClock(), identity="n", stats=stats)
    yield service, stats


def page(service: RegistryService, stats: NameserverStats) -> dict[str, float]:
    lines = exposition(metrics(service, stats)).decode().splitlines()
    split = (line.split(" ") for line in lines if line.startswith("evenq_nameserver_"))
    return {name: float(number) for name, number in split}


async def test_the_numbers_follow_brokers_and_topics() -> None:
    async with running() as (service, stats):
        rpcs = {rpc.method.rpartition("/")[2]: rpc.handler for rpc in service.rpcs()}
        context = RpcContext("m", [], "127.0.0.1:1", None)
        for number, name in enumerate(("a", "b")):
            state = registry_pb2.BrokerState(data_version=1)
            state.broker.name, state.broker.incarnation = name, "i"
            state.broker.listeners.add(name="default", host=name, port=8081)
            for topic in ("t", f"only-{number}"):
                state.topics.add(name=topic, read_queues=4, write_queues=4)
            request = registry_pb2.RegisterRequest(state=state)
            await rpcs["Register"](request.SerializeToString(), context)  # type: ignore[misc]  # a unary handler
        beat = registry_pb2.RegistryHeartbeatRequest(broker_name="a", incarnation="i", data_version=1)
        await rpcs["Heartbeat"](beat.SerializeToString(), context)  # type: ignore[misc]  # as above
        found = page(service, stats)
        assert found["evenq_nameserver_brokers"] == 2
        assert found["evenq_nameserver_topics"] == 3
        assert found["evenq_nameserver_registrations_total"] == 2
        assert found["evenq_nameserver_heartbeats_total"] == 1
        assert found["evenq_nameserver_expired_total"] == 0
        before = found["evenq_nameserver_route_version"]
        leave = registry_pb2.UnregisterRequest(broker_name="a", incarnation="i")
        await rpcs["Unregister"](leave.SerializeToString(), context)  # type: ignore[misc]  # as above
        found = page(service, stats)
        assert (found["evenq_nameserver_brokers"], found["evenq_nameserver_topics"]) == (1, 2)
        assert found["evenq_nameserver_route_version"] > before


async def test_each_metric_is_served_and_counters_say_so_in_their_names() -> None:
    async with running() as (service, stats):
        listed = metrics(service, stats)
        assert set(page(service, stats)) == {metric.name for metric in listed}
        for metric in listed:
            assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total"), metric.name
