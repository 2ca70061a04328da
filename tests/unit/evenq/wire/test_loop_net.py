"""Calls over sockets on the loop: to both fronts, in plain text and with TLS, and to servers that are late or gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from evenq_proofs.waiting import until_async

from evenq.errors import BadRequest, ConnectionFailed, InternalError, RequestTimeout, TlsFailed, Unsupported
from evenq.model import PLAIN_LISTENER, TLS_LISTENER
from evenq.runtime.clock import SystemClock
from evenq.runtime.net import Net
from evenq.serving.front.grpc_servers import GrpcServers, open_grpc_servers, usual_addresses
from evenq.serving.grpc_server_options import Front, GrpcServerOptions
from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext
from evenq.serving.tls import TlsSettings
from evenq.testing.certificates import Authority
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode
from evenq.wire.loop_net import IDLE_MAX, LoopNet
from evenq.wire.stubs.evenq.v1 import registry_pb2
from evenq.wire.tls import Tls

ONE, MANY, HANG_S, MIB = "/evenq.v1.Registry/Heartbeat", "/evenq.v1.Registry/WatchRoutes", 120, 1 << 20


class Echo:
    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.go_on = asyncio.Event()

    async def once(self, request: bytes, context: RpcContext) -> bytes:
        if request == b"refuse":
            raise BadRequest("this is refused")
        if request == b"wait":
            await self.go_on.wait()
        return context.header("who").encode() + request

    async def repeatedly(self, request: bytes, context: RpcContext) -> AsyncIterator[bytes]:
        try:
            for number in range(3):
                yield request * number
            if request == b"wait":
                await self.go_on.wait()
            if request == b"refuse":
                raise BadRequest("this is refused")
        finally:
            self.ended.set()

    def rpcs(self) -> list[Rpc]:
        access = Access(Resource.NONE, Action.DESCRIBE)
        return [
            Rpc(
                method=ONE, kind=CallKind.UNARY, handler=self.once, access=access,
                response=registry_pb2.RegistryHeartbeatResponse,
            ),
            Rpc(
                method=MANY, kind=CallKind.SERVER_STREAM, handler=self.repeatedly, access=access,
                response=registry_pb2.RouteEvent,
            ),
        ]  # fmt: skip


@asynccontextmanager
async def served(
    front: Front = "http2", *, tls: TlsSettings | None = None, trusts: Tls | None = None
) -> AsyncIterator[tuple[Echo, LoopNet, str, GrpcServers]]:
    echo, settings = Echo(), tls or TlsSettings()
    servers = await open_grpc_servers(
        echo.rpcs(), usual_addresses("127.0.0.1", 0, settings), settings, clock=SystemClock(),
        options=GrpcServerOptions(front=front),
    )  # fmt: skip
    net = LoopNet(tls=trusts)
    try:
        async with asyncio.timeout(HANG_S):
            port = servers.port_of((PLAIN_LISTENER if tls is None else TLS_LISTENER).name)
            yield echo, net, f"127.0.0.1:{port}", servers
    finally:
        echo.go_on.set()
        await net.close()
        await servers.stop()


async def one(net: Net, address: str, request: bytes, timeout_ms: int = 60_000) -> bytes:
    return await net.unary(address, ONE, request, timeout_ms=timeout_ms, metadata={"who": "me "})


async def many(net: Net, address: str, request: bytes) -> list[bytes]:
    return [frame async for frame in net.stream(address, MANY, request, timeout_ms=60_000)]


@pytest.mark.parametrize("front", ["http2", "grpcio"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
async def test_answers_come_whole_over_one_connection(front: Front, encrypted: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, client = authority.sign("server", hosts=("127.0.0.1",)), authority.sign("client")
    tls = TlsSettings(port=0, certificate=own.certificate, key=own.key, client_ca=authority.ca)
    trusts = Tls(ca=authority.ca, certificate=client.certificate, key=client.key)
    async with served(front, tls=tls if encrypted else None, trusts=trusts if encrypted else None) as (
        _,
        net,
        address,
        _,
    ):
        for request in (b"", b"hello", b"x" * (3 * MIB)):
            assert await one(net, address, request) == b"me " + request
            assert await many(net, address, request) == [b"", request, request * 2]
        assert len(net._open) == 1


@pytest.mark.parametrize("front", ["http2", "grpcio"])
async def test_errors_of_the_server_are_those_of_the_table(front: Front) -> None:
    async with served(front) as (_, net, address, _):
        with pytest.raises(BadRequest, match="this is refused"):
            await many(net, address, b"refuse")
        with pytest.raises(Unsupported):
            await net.unary(address, "/evenq.v1.Registry/Missing", b"", timeout_ms=60_000)
        with pytest.raises(InternalError, match="more than one message"):
            await net.unary(address, MANY, b"x", timeout_ms=60_000)
        assert await one(net, address, b"after") == b"me after"


async def test_a_late_answer_costs_its_connection_and_no_other() -> None:
    async with served() as (echo, net, address, _):
        waiting = asyncio.ensure_future(one(net, address, b"wait"))
        await until_async(lambda: net._open)
        with pytest.raises(RequestTimeout, match="within 50 ms"):
            await one(net, address, b"wait", timeout_ms=50)
        await until_async(lambda: len(net._open) == 1)
        echo.go_on.set()
        assert await waiting == b"me wait"


async def test_closing_a_stream_ends_it_at_the_server() -> None:
    async with served() as (echo, net, address, _):
        async with aclosing(net.stream(address, MANY, b"wait", timeout_ms=None)) as frames:
            async for _ in frames:
                break
        await echo.ended.wait()
        assert not net._open


async def test_connections_are_kept_up_to_a_limit() -> None:
    async with served() as (_, net, address, _):
        assert len(await asyncio.gather(*(one(net, address, b"%d" % n) for n in range(3 * IDLE_MAX)))) == 3 * IDLE_MAX
        assert len(net._open) == IDLE_MAX
        await net.renew(address)
        assert not net._open
        assert await one(net, address, b"new") == b"me new"


async def test_no_server_no_loop_of_requests_and_a_closed_net_are_errors() -> None:
    async with served() as (_, net, address, servers):
        await one(net, address, b"x")

        async def requests() -> AsyncIterator[bytes]:
            yield b""

        with pytest.raises(Unsupported, match="LoopNet"):
            [frame async for frame in net.stream(address, MANY, requests(), timeout_ms=None)]
        await servers.stop()
        with pytest.raises(ConnectionFailed):
            await one(net, address, b"x")
        await net.close()
        with pytest.raises(ConnectionFailed, match="shutting down"):
            await one(net, address, b"x")


async def test_a_call_that_the_server_refused_unseen_is_made_once_more() -> None:
    streams: list[int] = []
    ended = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f.settings({}))
        await reader.readexactly(len(f.PREFACE))
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                high, low, kind, _, stream_id = f.HEADER.unpack(await reader.readexactly(f.HEADER_BYTES))
                await reader.readexactly(high << 8 | low)
                if kind == f.HEADERS:
                    streams.append(stream_id)
                    writer.write(f.reset(stream_id, ErrorCode.REFUSED_STREAM))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    net = LoopNet()
    with pytest.raises(ConnectionFailed, match="REFUSED_STREAM"):
        await one(net, address, b"x")
    assert len(streams) == 2
    await net.close()
    await ended.wait()
    server.close()


async def test_tls_with_a_server_that_has_none_says_so() -> None:
    async with served(trusts=Tls(insecure=True)) as (_, net, address, _):
        with pytest.raises(TlsFailed):
            await one(net, address, b"x")


async def test_a_forked_child_closes_the_sockets_and_the_parent_goes_on() -> None:
    async with served() as (_, net, address, _):
        await one(net, address, b"x")
        [connection] = net._open
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # forking beside threads is the point here
            child = os.fork()
        if child == 0:
            os._exit(0 if connection.socket is not None and connection.socket.fileno() < 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222 - it ends at once
        assert await one(net, address, b"x") == b"me x"
        assert len(net._open) == 1
