"""Calls from threads over real connections: TLS by address, files that change, mistakes by their sentences, an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.rpcs import fake_rpc

from evenq import errors
from evenq.runtime.clock import SystemClock
from evenq.runtime.net import BlockingCalls
from evenq.serving.front.grpc_servers import GrpcServers, open_grpc_servers, usual_addresses
from evenq.serving.grpc_server_options import Front, GrpcServerOptions
from evenq.serving.rpc import RpcContext
from evenq.serving.tls import TlsSettings
from evenq.testing.certificates import Authority, CertificatePair
from evenq.wire.blocking_grpc import GrpcBlockingNet
from evenq.wire.blocking_net import BlockingNet
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.evenq.v1 import registry_pb2
from evenq.wire.tls import Tls
from evenq.wire.tls_diagnosis import explain

METHOD = "/evenq.v1.Registry/Heartbeat"
HERE = ("localhost", "127.0.0.1")


async def echo(request: bytes, context: RpcContext) -> bytes:
    if request == b"slow":
        await asyncio.sleep(0.5)
    return f"{context.listener.name} {context.listener.tls}".encode()


RPC = fake_rpc(METHOD, echo, registry_pb2.RegistryHeartbeatResponse)


@pytest.fixture(params=["sockets", "grpcio"], autouse=True)
def carrier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("evenq.wire.net.BLOCKING_OVER", request.param)
    return str(request.param)


@pytest.fixture(params=["http2", "grpcio"])
def front(request: pytest.FixtureRequest) -> Front:
    chosen: Front = request.param
    return chosen


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


async def opened(
    pair: CertificatePair, front: Front, port: int = -1, host: str = "127.0.0.1", **more: Any
) -> GrpcServers:
    tls = TlsSettings(**{"port": 0, "certificate": pair.certificate, "key": pair.key, **more})
    options = GrpcServerOptions(front=front)
    return await open_grpc_servers([RPC], usual_addresses(host, port, tls), tls, clock=SystemClock(), options=options)


def said(net: BlockingCalls, address: str, request: bytes = b"hello") -> str:
    return net.unary(address, METHOD, request, timeout_ms=60_000, metadata=()).decode()


async def until_let_in(address: str, tls: Tls) -> None:
    """Wait until a new client with these files gets in: the server has read its own files again."""
    while True:
        net = GrpcNet(tls=tls).blocking()
        try:
            assert await asyncio.to_thread(said, net, address)
        except errors.ConnectionFailed:
            await asyncio.sleep(0.02)
        else:
            return
        finally:
            net.close()


def version_at(net: BlockingCalls, address: str) -> int:
    while True:  # other threads take and renew them as well
        assert said(net, address)
        if isinstance(net, GrpcBlockingNet):
            link = net._links.get(address)
            if link is not None:
                return link.version
            continue
        assert isinstance(net, BlockingNet)
        versions = [connection.version for connection in list(net._pools[address].idle)]
        if versions:
            return max(versions)


@asynccontextmanager
async def bounded() -> AsyncIterator[None]:
    async with asyncio.timeout(60):
        yield


async def test_each_address_is_called_as_its_scheme_or_the_net_says(authority: Authority, front: Front) -> None:
    async with bounded():
        doors = await opened(authority.sign("server", hosts=HERE), front, port=0)
        trusting, plain = GrpcNet(tls=Tls(ca=authority.ca)).blocking(), GrpcNet().blocking()
        plain_port, tls_port = doors.port, doors.port_of("tls")
        try:
            for net, address, value in (
                (trusting, f"127.0.0.1:{tls_port}", "tls True"),
                (trusting, f"evenqs://localhost:{tls_port}/", "tls True"),
                (trusting, f"evenq://127.0.0.1:{plain_port}", "default False"),
                (plain, f"127.0.0.1:{plain_port}", "default False"),
            ):
                assert await asyncio.to_thread(said, net, address) == value
            with pytest.raises(errors.IllegalAccessPoint):
                said(plain, "http://127.0.0.1:1")
        finally:
            trusting.close()
            plain.close()
            await doors.stop()


async def test_a_name_of_the_clients_choice_and_a_certificate_that_is_pinned_get_in(
    authority: Authority, front: Front
) -> None:
    async with bounded():
        doors = await opened(authority.sign("server", hosts=["broker.example"]), front)
        for tls in (Tls(ca=authority.ca, server_name="broker.example"), Tls(insecure=True)):
            net = GrpcNet(tls=tls).blocking()
            assert await asyncio.to_thread(said, net, f"127.0.0.1:{doors.port}") == "tls True"
            net.close()
        await doors.stop()


async def test_a_mistake_is_the_sentence_of_the_other_net_and_is_not_looked_into_by_each_call(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front: Front, carrier: str
) -> None:
    probes: list[str] = []

    def counted(target: str, *rest: Any) -> str:
        probes.append(target)
        return explain(target, *rest)

    module = "blocking_net" if carrier == "sockets" else "blocking_grpc"
    monkeypatch.setattr(f"evenq.wire.{module}.explain", counted)
    async with bounded():
        doors = await opened(authority.sign("server", hosts=HERE), front, port=0)
        stranger = Authority(tmp_path / "stranger")
        for tls, address, words in (
            (None, f"127.0.0.1:{doors.port_of('tls')}", "speaks TLS and this side plain text"),
            (None, f"localhost:{doors.port_of('tls')}", "speaks TLS and this side plain text"),
            (Tls(ca=stranger.ca), f"localhost:{doors.port_of('tls')}", "is not signed by"),
            (Tls(ca=authority.ca), f"127.0.0.1:{doors.port}", "speaks plain text and this side TLS"),
            (Tls(ca=stranger.ca), f"127.0.0.1:{doors.port_of('tls')}", "is not signed by"),
            (Tls(insecure=True), f"127.0.0.1:{doors.port}", "speaks plain text and this side TLS"),
        ):
            net = GrpcNet(tls=tls).blocking()
            probes.clear()
            for _ in range(5):
                with pytest.raises(errors.TlsFailed, match=words):
                    await asyncio.to_thread(said, net, address)
            assert len(probes) <= 3, "2 s serve one probe"
            net.close()
        await doors.stop()
        with pytest.raises(errors.ConnectionFailed) as gone:
            await asyncio.to_thread(said, GrpcNet(tls=Tls(ca=authority.ca)).blocking(), f"127.0.0.1:{doors.port}")
        assert not isinstance(gone.value, errors.TlsFailed)


@pytest.mark.slow
async def test_new_files_are_used_by_the_next_call_while_running_ones_end_on_the_old_channel(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front: Front, carrier: str
) -> None:
    """A new authority of the cluster and a new certificate of the client's, under calls of four threads."""
    monkeypatch.setattr("evenq.wire.tls_channels.LOOK_MS", 50)
    async with bounded():
        server, client = authority.sign("server", hosts=HERE), authority.sign("client")
        both = tmp_path / "both.pem"
        both.write_bytes(authority.ca.read_bytes())
        doors = await opened(server, front, client_ca=both, reload_ms=100)
        net = GrpcNet(tls=Tls(ca=both, certificate=client.certificate, key=client.key)).blocking()
        address, over, failures = f"127.0.0.1:{doors.port}", threading.Event(), list[BaseException]()

        def load(request: bytes) -> None:
            while not over.is_set():
                try:
                    assert said(net, address, request) == "tls True"
                except BaseException as error:  # noqa: BLE001  the test shows it
                    failures.append(error)
                    return

        loads = [asyncio.create_task(asyncio.to_thread(load, request)) for request in (b"", b"", b"slow", b"slow")]
        try:
            first = await asyncio.to_thread(version_at, net, address)
            successor = Authority(tmp_path / "successor")
            both.write_bytes(authority.ca.read_bytes() + successor.ca.read_bytes())  # first trusted, then used
            other = successor.sign("other")
            await until_let_in(address, Tls(ca=both, certificate=other.certificate, key=other.key))
            for mine, theirs in ((server, successor.sign("server", hosts=HERE)), (client, successor.sign("client"))):
                mine.key.write_bytes(theirs.key.read_bytes())
                mine.certificate.write_bytes(theirs.certificate.read_bytes())
                await asyncio.sleep(0.3)  # calls on mixed files, by chance
            await until_let_in(address, Tls(ca=successor.ca, certificate=other.certificate, key=other.key))
            both.write_bytes(successor.ca.read_bytes())  # the old authority is out: only new files get in
            while failures == [] and await asyncio.to_thread(version_at, net, address) <= first:
                pass  # each look is a call
            await asyncio.sleep(0.3)  # calls on the new files alone
            assert failures == []
            if isinstance(net, GrpcBlockingNet):
                assert len(net._retired) >= 1
        finally:
            over.set()
            await asyncio.gather(*loads)
        assert failures == []
        assert await asyncio.to_thread(said, net, address)
        net.close()
        with pytest.raises(errors.ConnectionFailed, match="shutting down"):
            said(net, address)
        await doors.stop()


async def test_a_retired_channel_is_closed_once_its_last_call_must_be_over(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, front: Front, carrier: str
) -> None:
    monkeypatch.setattr("evenq.wire.tls_channels.LOOK_MS", 0)
    now_ms = 1_000_000
    monkeypatch.setattr("evenq.wire.blocking_grpc._monotonic_ms", lambda: now_ms)
    async with bounded():
        doors = await opened(authority.sign("server", hosts=HERE), front)
        own = authority.sign("client")
        net = GrpcNet(tls=Tls(ca=authority.ca, certificate=own.certificate, key=own.key)).blocking()
        address = f"127.0.0.1:{doors.port}"
        for _ in range(6):
            await asyncio.to_thread(net.unary, address, METHOD, b"", timeout_ms=60_000, metadata=())
            authority.sign("client")
            now_ms += 125_000  # longer than two calls may take
        if isinstance(net, GrpcBlockingNet):
            assert 1 <= len(net._retired) <= 2
        else:
            assert isinstance(net, BlockingNet)
            assert net._pools[address].open == 1
        net.close()
        await doors.stop()


async def test_a_pinned_server_with_a_new_certificate_is_pinned_again(authority: Authority, front: Front) -> None:
    async with bounded():
        doors = await opened(authority.sign("server", hosts=HERE), front)
        net, port, failed = GrpcNet(tls=Tls(insecure=True)).blocking(), doors.port, 0
        assert await asyncio.to_thread(said, net, f"127.0.0.1:{port}")
        await doors.stop()
        with pytest.raises(errors.ConnectionFailed):
            await asyncio.to_thread(said, net, f"127.0.0.1:{port}")
        pair = authority.sign("server", hosts=HERE)
        tls = TlsSettings(port=port, certificate=pair.certificate, key=pair.key)
        options = GrpcServerOptions(front=front)
        doors = await open_grpc_servers(
            [RPC], usual_addresses("127.0.0.1", -1, tls), tls, clock=SystemClock(), options=options
        )
        while failed < 50:
            try:
                assert await asyncio.to_thread(said, net, f"127.0.0.1:{port}") == "tls True"
            except errors.ConnectionFailed:
                failed += 1
                await asyncio.sleep(0.05)
            else:
                break
        assert failed < 50
        net.close()
        await doors.stop()


async def test_addresses_are_bounded_and_a_closed_net_says_so(carrier: str) -> None:
    async with bounded():
        net = GrpcNet(channels_max=1).blocking()
        if not isinstance(net, GrpcBlockingNet):  # tests/unit/evenq/wire/test_blocking_socket.py
            return
        with pytest.raises(errors.ConnectionFailed):
            await asyncio.to_thread(said, net, "127.0.0.1:1")
        with pytest.raises(errors.TooManyRequests, match="1 addresses"):
            await asyncio.to_thread(said, net, "127.0.0.1:2")
        net._longest_ms = 0
        net._links["127.0.0.1:1"].used_ms -= 1
        with pytest.raises(errors.ConnectionFailed):  # brokers come and go: one that is not called makes room
            await asyncio.to_thread(said, net, "127.0.0.1:2")
        assert list(net._links) == ["127.0.0.1:2"]
        net.close()
        for address in ("127.0.0.1:1", "127.0.0.1:2"):
            with pytest.raises(errors.ConnectionFailed, match="shutting down"):
                said(net, address)


async def test_a_server_at_an_ipv6_address_is_called(authority: Authority, front: Front) -> None:
    async with bounded():
        doors = await opened(authority.sign("server", hosts=("::1",)), front, port=0, host="::1")
        for tls, name in ((None, "default"), (Tls(ca=authority.ca), "tls")):
            net = GrpcNet(tls=tls).blocking()
            assert (await asyncio.to_thread(said, net, f"[::1]:{doors.port_of(name)}")).startswith(name)
            net.close()
        await doors.stop()


async def test_a_server_with_connections_that_nobody_uses_stops_at_once_if_they_are_looked_after(
    authority: Authority, front: Front
) -> None:
    async with bounded():
        doors = await opened(authority.sign("server", hosts=HERE), front, port=0)
        net = GrpcNet(tls=Tls(ca=authority.ca)).blocking()
        addresses = [f"evenq://127.0.0.1:{doors.port}", f"127.0.0.1:{doors.port_of('tls')}"]
        for address in addresses:
            assert await asyncio.to_thread(said, net, address)
        stopping = asyncio.create_task(doors.stop(120_000))
        async with asyncio.timeout(50):
            while not stopping.done():
                await asyncio.sleep(0.1)
                net.look_after()
        net.close()


def test_options_for_channels_of_grpc_have_them_used(carrier: str) -> None:
    assert isinstance(GrpcNet(options=[("grpc.enable_http_proxy", 1)]).blocking(), GrpcBlockingNet)
    assert isinstance(GrpcNet().blocking(), BlockingNet if carrier == "sockets" else GrpcBlockingNet)
