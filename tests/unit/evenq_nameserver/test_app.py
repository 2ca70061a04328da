"""The program as an object, as the quick start uses it."""

import asyncio
import random

import pytest
from evenq_nameserver.app import Nameserver
from evenq_nameserver.settings import NameserverSettings

from evenq.errors import ConnectionFailed, PortInUse
from evenq.runtime.clock import SystemClock
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.evenq.v1 import registry_pb2


def nameserver(port: int = 0, metrics_port: int = 0) -> Nameserver:
    settings = NameserverSettings(port=port, metrics_port=metrics_port, drain_ms=0)
    return Nameserver(settings, clock=SystemClock(), rng=random.SystemRandom())


async def test_it_starts_on_free_ports_and_leaves_them_free() -> None:
    first = nameserver()
    await first.start()
    with pytest.raises(PortInUse):
        await nameserver(port=first.port).start()
    with pytest.raises(PortInUse):
        await nameserver(metrics_port=first.metrics_port).start()
    port = first.port
    await first.close()
    await first.close()
    again = nameserver(port=port, metrics_port=-1)
    await again.start()
    assert (again.port, again.metrics_port) == (port, -1)
    assert again.identity != first.identity
    await again.close()


async def test_a_watch_ends_with_an_error_when_it_closes() -> None:
    one, net = nameserver(metrics_port=-1), GrpcNet()
    await one.start()
    try:
        request = registry_pb2.WatchRoutesRequest().SerializeToString()
        method = "/evenq.v1.Registry/WatchRoutes"
        events = net.stream(f"127.0.0.1:{one.port}", method, request, timeout_ms=None)
        first = registry_pb2.RouteEvent.FromString(await anext(events))
        assert (first.snapshot, first.nameserver) == (True, one.identity)
        await one.close()
        with pytest.raises(ConnectionFailed):
            await anext(events)
    finally:
        await net.close()
        await one.close()


async def test_it_runs_until_it_is_told_to_stop() -> None:
    one, stop = nameserver(), asyncio.Event()
    running = asyncio.ensure_future(one.run(stop))
    stop.set()
    await asyncio.wait_for(running, 60)
