"""The broker as an object with ports: free ones, none left behind, and TLS beside plain text."""

import asyncio
import random
import socket
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.__main__ import serve
from evenq_broker.app import BrokerApp
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.delivery.ending import DeliveryShutdown
from evenq_broker.settings import BrokerSettings, StoreSettings
from evenq_proofs.fake_registry import FakeRegistry
from evenq_proofs.nets import open_net

from evenq.errors import PortInUse, StoreCorrupted, StoreLocked
from evenq.runtime.clock import SystemClock
from evenq.runtime.tasks import spawn
from evenq.serving.auth.users import UserResource
from evenq.serving.fields import write_bytes
from evenq.serving.front.grpc_server import open_grpc_server
from evenq.serving.front.health import NOT_SERVING, SERVING
from evenq.serving.tls import TlsSettings
from evenq.store import MessageStore, StoreOptions
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.tls import Tls

PEM = Path(__file__).parents[1] / "evenq" / "serving"
FILES: dict[str, Any] = {"certificate": PEM / "tls_certificate.pem", "key": PEM / "tls_key.pem"}
HEARTBEAT = "/apache.rocketmq.v2.MessagingService/Heartbeat"
TELEMETRY = "/apache.rocketmq.v2.MessagingService/Telemetry"


def app(net: GrpcNet, **settings: Any) -> BrokerApp:
    fields = {"port": 0, "metrics_port": 0, "drain_ms": 0, **settings}
    return BrokerApp(BrokerSettings(**fields), clock=SystemClock(), rng=random.Random(1), net=net)


@pytest.fixture
async def net() -> AsyncIterator[GrpcNet]:
    async with open_net() as net:
        yield net


async def test_the_users_file_says_who_has_a_share_of_the_tables(net: GrpcNet, tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(
        """
[users.servers]
secret = "12345678"
internal = true
[users.shop]
secret = "12345678"
allow = [{ resource = "topic:shop-*", actions = ["publish"] }]
"""
    )
    file.chmod(0o600)
    broker = app(net, auth={"enabled": True, "users": file}).broker
    users = broker.runtime.users()
    assert users is not None
    assert [one.name for one in users.tenants_of(UserResource.TOPIC, "shop-1")] == ["shop"]
    assert app(net).broker.runtime.users() is None


async def beat(net: GrpcNet, port: int) -> int:
    answer = await net.unary(f"127.0.0.1:{port}", HEARTBEAT, b"", timeout_ms=5_000)
    return int(service_pb2.HeartbeatResponse.FromString(answer).status.code)


async def health(net: GrpcNet, port: int, name: str) -> bytes:
    """What the kubelet's probe is answered."""
    request = write_bytes(1, name.encode())
    return await net.unary(f"127.0.0.1:{port}", "/grpc.health.v1.Health/Check", request, timeout_ms=5_000)


async def fetched(port: int, path: str) -> str:
    def get() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


async def test_it_starts_on_free_ports_and_leaves_ports_and_folder_free(net: GrpcNet, tmp_path: Path) -> None:
    store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1)
    first = app(net, store=store)
    assert first.port == first.metrics_port == 0
    await first.start()
    for wrong, kind in (
        ({"store": store}, StoreLocked),
        ({"port": first.port}, PortInUse),
        ({"metrics_port": first.metrics_port}, PortInUse),
        (
            {"tls": TlsSettings(port=first.port, **FILES)},
            PortInUse,
        ),
    ):
        with pytest.raises(kind):
            await app(net, **wrong).start()
    assert await beat(net, first.port) == 20000
    await first.close()
    await first.close()
    again = app(net, store=store, port=first.port or 0)
    await again.start()
    await again.close()


async def test_a_tls_port_answers_beside_the_plain_one_and_both_are_counted(net: GrpcNet) -> None:
    one = app(net, tls=TlsSettings(port=0, **FILES))
    await one.start()
    secure = GrpcNet(tls=Tls(ca=FILES["certificate"]))
    try:
        tls_port = one.port_of("tls")
        assert await beat(secure, tls_port) == 20000
        assert await beat(net, one.port) == 20000
        page = await fetched(one.metrics_port, "/metrics")
        (count,) = [
            line for line in page.splitlines()
            if line.startswith("rocketmq_rpc_latency_count") and 'request_code="Heartbeat"' in line
        ]  # fmt: skip
        assert count.endswith(" 2.0")
        assert await fetched(one.metrics_port, "/readyz") == "ready\n"
    finally:
        await secure.close()
        await one.close()


async def test_probes_hear_that_a_new_broker_waits_for_its_nameserver(net: GrpcNet) -> None:
    held = socket.create_server(("127.0.0.1", 0))  # so that no other process takes the port meanwhile
    port = held.getsockname()[1]
    one = app(net, nameservers=f"127.0.0.1:{port}")
    ready = spawn(one.start(), name="start")
    try:
        async with asyncio.timeout(60):
            while not one.port:
                await SystemClock().sleep_ms(10)
        assert [await health(net, one.port, name) for name in ("readiness", "liveness")] == [NOT_SERVING, SERVING]
        assert not ready.done()
        held.close()
        nameserver = await open_grpc_server(FakeRegistry().rpcs(), host="127.0.0.1", port=port, clock=SystemClock())
        await asyncio.wait_for(ready, 60)
        assert await health(net, one.port, "readiness") == SERVING
        await one.close()
        await nameserver.stop()
    finally:
        held.close()
        ready.cancel()
        await one.close()


def test_a_broker_that_waits_for_its_nameserver_ends_at_once_when_it_is_told_to(tmp_path: Path) -> None:
    """It would wait for 30 s more (`WELCOME_WAIT_MS`); and members that hold something would be waited for, too."""

    async def body() -> None:
        settings = BrokerSettings(
            port=0, metrics_port=0, drain_ms=60_000, nameservers="127.0.0.1:1", store=StoreSettings(path=tmp_path)
        )
        stop = asyncio.Event()
        serving = asyncio.ensure_future(serve(settings, stop))
        async with asyncio.timeout(60):
            while not caught:
                await SystemClock().sleep_ms(10)
        begun_ms = SystemClock().monotonic_ms()
        stop.set()
        await asyncio.wait_for(serving, 60)
        assert SystemClock().monotonic_ms() - begun_ms < 15_000
        again = await MessageStore.open(
            tmp_path, StoreOptions(), clock=SystemClock(), broker_name=settings.broker_name, on_state=print,
            on_snapshot=print,
        )  # fmt: skip
        await again.close()

    caught: list[Any] = []
    first_word = ClusterLink.first_word

    async def noted(link: ClusterLink) -> None:
        caught.append(link)
        await first_word(link)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClusterLink, "first_word", noted)
        patch.setattr(DeliveryShutdown, "_in_hand", lambda *_: 1)
        asyncio.run(body())


async def test_a_poisoned_store_is_neither_ready_nor_alive_to_probes(net: GrpcNet) -> None:
    one = app(net)
    await one.start()
    names = ("", "readiness", "liveness")
    try:
        assert [await health(net, one.port, name) for name in names] == [SERVING, SERVING, SERVING]
        assert one.broker.ledger.store.on_failure is not None
        one.broker.ledger.store.on_failure(StoreCorrupted("a disk that fails"))
        await asyncio.sleep(0)
        assert [await health(net, one.port, name) for name in names] == [NOT_SERVING, NOT_SERVING, NOT_SERVING]
    finally:
        await one.close()


async def test_one_call_more_than_calls_max_is_told_so_and_open_streams_count(net: GrpcNet) -> None:
    one = app(net, calls_max=1)
    await one.start()

    async def settings() -> AsyncIterator[bytes]:
        yield service_pb2.TelemetryCommand(settings={"client_type": 1}).SerializeToString()
        await asyncio.Event().wait()

    stream = net.stream(f"127.0.0.1:{one.port}", TELEMETRY, settings(), timeout_ms=10_000)
    try:
        await anext(stream)
        assert await beat(net, one.port) == 42900
    finally:
        await stream.aclose()
        await one.close()
