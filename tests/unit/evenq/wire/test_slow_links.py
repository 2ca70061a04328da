"""Connections over links that are slow, lose packets or lead nowhere, with each kind of net."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.forward import Forward, SilentPort, silent_port
from evenq_proofs.rpcs import fake_rpc
from evenq_proofs.waiting import until, until_async

from evenq import errors
from evenq.client.rpc.calls import Calls
from evenq.model import PLAIN_LISTENER, TLS_LISTENER
from evenq.runtime.clock import SystemClock
from evenq.serving.front.grpc_servers import open_grpc_servers, usual_addresses
from evenq.serving.rpc import Access, Action, Resource, RpcContext
from evenq.serving.tls import TlsSettings
from evenq.testing.certificates import Authority
from evenq.wire import blocking_socket, duplex_call
from evenq.wire.loop_net import LoopNet
from evenq.wire.net import GrpcNet
from evenq.wire.tls import Tls

ECHO, HANG_S, FOREVER_MS = "/evenq.v1.Data/Echo", 60, 600_000
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full backlog refuses")


async def echo(request: bytes, _context: RpcContext) -> bytes:
    return request


@asynccontextmanager
async def served(settings: TlsSettings | None = None) -> AsyncIterator[int]:
    """Port of a server."""
    settings = settings or TlsSettings()
    rpc = fake_rpc(ECHO, echo, bytes, access=Access(resource=Resource.NONE, action=Action.DESCRIBE))
    servers = await open_grpc_servers([rpc], usual_addresses("127.0.0.1", 0, settings), settings, clock=SystemClock())
    try:
        async with asyncio.timeout(HANG_S):
            yield servers.port_of((TLS_LISTENER if settings.certificate else PLAIN_LISTENER).name)
    finally:
        await servers.stop()


class Blocking:
    """Calls from threads."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._net = GrpcNet(tls=tls).blocking()

    async def unary(self, address: str, method: str, request: bytes, *, timeout_ms: int) -> bytes:
        return await asyncio.to_thread(self._net.unary, address, method, request, timeout_ms=timeout_ms, metadata=())

    async def close(self) -> None:
        self._net.close()


def make_net(kind: str, tls: Tls | None = None) -> Any:
    kinds: dict[str, Callable[..., Any]] = {"grpc": GrpcNet, "loop": LoopNet, "threads": Blocking}
    return kinds[kind](tls=tls)


every_net = pytest.mark.parametrize("kind", ["grpc", "loop", "threads"])
sockets = pytest.mark.parametrize("kind", ["loop", "threads"])


@every_net
async def test_a_distant_server_with_tls_is_reached(kind: str, tmp_path: Path) -> None:
    """The handshake takes three round trips. On a busy machine it is a later attempt that succeeds."""
    authority = Authority(tmp_path)
    pair = authority.sign("server", hosts=["localhost", "127.0.0.1"])
    settings = TlsSettings(certificate=str(pair.certificate), key=str(pair.key), port=0)
    async with served(settings) as port:
        with closing(Forward(port, late_s=0.5)) as link:
            net = make_net(kind, Tls(ca=authority.ca))

            async def is_answered() -> bool:
                try:
                    return await net.unary(f"127.0.0.1:{link.port}", ECHO, b"hi", timeout_ms=FOREVER_MS) == b"hi"
                except errors.ConnectionFailed:
                    await SystemClock().sleep_ms(100)
                    return False

            await until_async(is_answered)
            await net.close()


def connects_after_a_lost_syn(silent: SilentPort, kind: str) -> bool:
    accepted: list[socket.socket] = []

    def answer_the_next() -> None:
        until(silent.dropped, "a client calls")
        accepted.append(silent.answer())

    thread = threading.Thread(target=answer_the_next, daemon=True)
    thread.start()

    async def call() -> bool:
        net = make_net(kind)
        try:
            await net.unary(f"127.0.0.1:{silent.port}", ECHO, b"", timeout_ms=3_500)
        except errors.RequestTimeout:
            return True  # connected: nothing answers behind it
        except errors.ConnectionFailed as error:
            return "sends nothing in time" in str(error)
        finally:
            await net.close()
        return False

    connected = asyncio.run(call())
    thread.join(HANG_S)
    for one in accepted:
        one.close()
    return connected


@linux
@sockets
def test_a_lost_syn_is_waited_for(kind: str) -> None:
    """The kernel repeats it after a second. On a busy machine several attempts may be needed."""

    def one_attempt() -> bool:
        with silent_port() as silent:
            return connects_after_a_lost_syn(silent, kind)

    until(one_attempt, "no connection after a lost SYN")


@linux
@sockets
async def test_a_silent_address_of_a_name_does_not_use_the_time_of_the_others(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_socket, "CONNECT_MS", FOREVER_MS)
    monkeypatch.setattr(duplex_call, "CONNECT_MS", FOREVER_MS)
    async with served() as port:
        with silent_port() as silent:
            places = [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", number)) for number in (silent.port, port)
            ]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: list(places))
            net = make_net(kind)
            assert await net.unary("two-pods.example:8081", ECHO, b"hi", timeout_ms=FOREVER_MS) == b"hi"
            await net.close()


@linux
@pytest.mark.parametrize("kind", ["grpc", "loop"])
async def test_a_call_that_any_broker_can_answer_does_not_wait_for_a_silent_access_point(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplex_call, "CONNECT_MS", FOREVER_MS)
    async with served() as port:
        with silent_port() as silent:
            net = GrpcNet(options=[("grpc.min_reconnect_backoff_ms", FOREVER_MS)]) if kind == "grpc" else LoopNet()
            endpoint = f"127.0.0.1:{silent.port};127.0.0.1:{port}"
            calls = Calls(net, endpoint=endpoint, client_id="c", timeout_ms=FOREVER_MS)
            assert await calls.at_access_point(ECHO, b"hi") == b"hi"
            assert calls.access_point == f"127.0.0.1:{port}"
            assert await calls.at_access_point(ECHO, b"ho") == b"ho"
            await net.close()
