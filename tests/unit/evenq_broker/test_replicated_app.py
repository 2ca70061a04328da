"""A copy as an object with ports: clients may come to any copy where connections are forwarded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from evenq_broker.replicated_app import ReplicatedApp
from evenq_broker.settings import BrokerSettings, ReplicationSettings, StoreSettings
from pydantic import ValidationError

from evenq.errors import ConnectionFailed
from evenq.runtime.clock import SystemClock
from evenq.testing.free_ports import FreePorts
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

HEARTBEAT = "/apache.rocketmq.v2.MessagingService/Heartbeat"
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def copy(number: int, folder: Path, port: int, links: int, net: GrpcNet, *, forward: bool = True) -> ReplicatedApp:
    """On an address of its own, with the ports of the others."""
    settings = BrokerSettings(
        host=HOSTS[number], port=port, metrics_port=-1, drain_ms=1_000, listeners=f"external={HOSTS[number]}:{port + 1}",
        store=StoreSettings(path=folder / str(number), disk_free_min_bytes=0, disk_used_max_ratio=1, segment_bytes=1 << 20),
        replication=ReplicationSettings(
            members=",".join(f"{one}={host}:{links}" for one, host in enumerate(HOSTS)), broker_id=number,
            record=f"file:{folder / 'record'}", forward_clients=forward, renew_ms=200, suspect_ms=5_000,
        ),
    )  # fmt: skip
    return ReplicatedApp(settings, clock=SystemClock(), rng=random.Random(number), net=net)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not what():
            await SystemClock().sleep_ms(20)


async def answered(net: GrpcNet, address: str) -> None:
    """A client's call is, in the end: the leader may not serve yet."""
    async with asyncio.timeout(90):
        while True:
            try:
                answer = await net.unary(address, HEARTBEAT, b"", timeout_ms=5_000)
            except ConnectionFailed:
                net.renew(address)
                await SystemClock().sleep_ms(50)
                continue
            assert service_pb2.HeartbeatResponse.FromString(answer).status.code == 20000
            return


def in_sync(apps: list[ReplicatedApp]) -> bool:
    return all(one.driver.in_sync or one.port for one in apps) and any(one.port for one in apps)


@pytest.mark.timeout(300)
def test_any_copy_takes_clients_whichever_leads(tmp_path: Path) -> None:
    async def story() -> None:
        net = GrpcNet()
        with FreePorts() as ports:
            port, links = ports.take(2), ports.take()
            apps = [copy(number, tmp_path, port, links, net) for number in range(3)]
            try:
                for one in apps:
                    await one.start()
                await until(lambda: in_sync(apps))
                (leader,) = [one for one in apps if one.port]
                for host in HOSTS:
                    for each in (port, port + 1):
                        await answered(net, f"{host}:{each}")
                await leader._control.hand_over(None)
                await until(lambda: in_sync(apps) and not leader.port)
                for host in HOSTS:
                    await answered(net, f"{host}:{port + 1}")
            finally:
                for one in apps:
                    await one.close()
                await net.close()

    asyncio.run(story())


def test_forwarding_needs_ports_that_are_the_same_at_all_copies(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="port 0 is another one at each copy"):
        copy(0, tmp_path, 0, 1, GrpcNet())
