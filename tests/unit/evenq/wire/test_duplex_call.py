"""Calls with messages both ways over real connections: to both fronts, in plain text and with TLS, and to servers that
stop reading, go away or are none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.rpcs import fake_rpc
from evenq_proofs.waiting import until_async

from evenq.errors import BadRequest, ConnectionFailed, TlsFailed
from evenq.model import PLAIN_LISTENER, TLS_LISTENER
from evenq.runtime.clock import SystemClock
from evenq.serving.front.grpc_servers import open_grpc_servers, usual_addresses
from evenq.serving.grpc_server_options import Front, GrpcServerOptions
from evenq.serving.http2.messages import prefix
from evenq.serving.rpc import CallKind, Rpc, RpcContext
from evenq.serving.tls import TlsSettings
from evenq.testing.certificates import Authority
from evenq.wire import duplex_call
from evenq.wire.duplex_call import READ_BYTES, WRITE_BYTES
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode
from evenq.wire.http2.hpack import encode
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.evenq.v1 import registry_pb2
from evenq.wire.tls import Tls

METHOD, MIB, HANG_S = "/evenq.v1.Registry/WatchRoutes", 1 << 20, 60
CLOCK = SystemClock()


class Echo:
    """Sends back what comes, once it may read."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.ended = asyncio.Event()
        self.who = ""

    async def serve(self, requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        self.who = context.header("who")
        try:
            yield b"stands"
            await self.reads.wait()
            async for request in requests:
                if request == b"refuse":
                    raise BadRequest("this is refused")
                if request == b"end":
                    return
                yield request
        finally:
            self.ended.set()

    def rpc(self) -> Rpc:
        return fake_rpc(METHOD, self.serve, registry_pb2.RouteEvent, kind=CallKind.BIDI)


class Talk:
    """One call: sends as room comes, keeps what came."""

    def __init__(self, net: GrpcNet, address: str) -> None:
        self.call = net.duplex(address, METHOD, metadata={"who": "me"})
        self.call.on_room = self.send_on
        self.waiting: list[bytes] = []
        self.sent = 0
        self.came: list[bytes] = []

    def say(self, *messages: bytes) -> None:
        self.waiting += messages
        self.send_on()

    def send_on(self) -> None:
        while self.waiting and self.call.has_room:
            self.call.send(self.waiting.pop(0))
            self.sent += 1

    async def listen(self, count: int = 1 << 30) -> None:
        """Until this number of answers came, or the call ended."""
        async with aclosing(self.call.answers()) as answers:
            async for answer in answers:
                self.came.append(answer)
                if len(self.came) >= count:
                    return


@asynccontextmanager
async def served(
    front: Front = "http2", *, tls: TlsSettings | None = None, trusts: Tls | None = None
) -> AsyncIterator[tuple[Echo, GrpcNet, str]]:
    """A server and a net to it."""
    echo = Echo()
    settings = tls or TlsSettings()
    servers = await open_grpc_servers(
        [echo.rpc()], usual_addresses("127.0.0.1", 0, settings), settings, clock=CLOCK,
        options=GrpcServerOptions(front=front),
    )  # fmt: skip
    net = GrpcNet(tls=trusts)
    try:
        async with asyncio.timeout(HANG_S):
            port = servers.port_of((PLAIN_LISTENER if tls is None else TLS_LISTENER).name)
            yield echo, net, f"127.0.0.1:{port}"
    finally:
        await net.close()
        await servers.stop()


MESSAGES = [b"one", b"", bytes(range(256)) * 1_000, b"x" * (3 * MIB), *(b"%d" % number for number in range(300))]


@pytest.mark.parametrize("front", ["http2", "grpcio"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
async def test_messages_of_both_sides_come_whole_and_in_order(front: Front, encrypted: bool, tmp_path: Path) -> None:
    """With certificates on both sides where it is encrypted, and messages larger than any window."""
    authority = Authority(tmp_path)
    own, client = authority.sign("server", hosts=("127.0.0.1",)), authority.sign("client")
    tls = TlsSettings(port=0, certificate=own.certificate, key=own.key, client_ca=authority.ca)
    trusts = Tls(ca=authority.ca, certificate=client.certificate, key=client.key)
    async with served(front, tls=tls if encrypted else None, trusts=trusts if encrypted else None) as (
        echo,
        net,
        address,
    ):
        talk = Talk(net, address)
        talk.say(*MESSAGES)
        await talk.listen(1 + len(MESSAGES))
        assert talk.came == [b"stands", *MESSAGES]
        assert echo.who == "me"
        await echo.ended.wait()
        assert not talk.call.has_room
        ended = Talk(net, address)
        ended.say(b"last", b"end")
        await ended.listen()
        assert ended.came == [b"stands", b"last"]
        refused = Talk(net, address)
        refused.say(b"refuse")
        with pytest.raises(BadRequest, match="this is refused"):
            await refused.listen()


async def test_a_connection_that_breaks_between_greeting_and_call_ends_the_call() -> None:
    async with served() as (_, net, address):
        talk = Talk(net, address)
        opened = talk.call._open

        async def breaks() -> Any:
            connection = await opened()
            connection.connection_lost(None)
            return connection

        talk.call._open = breaks  # type: ignore[method-assign]
        with pytest.raises(ConnectionFailed, match="server closed the connection"):
            await talk.listen()


@pytest.mark.parametrize("front", ["http2", "grpcio"])
async def test_a_server_that_does_not_read_holds_the_sender_and_costs_a_bounded_amount(front: Front) -> None:
    async with served(front) as (echo, net, address):
        echo.reads.clear()
        talk = Talk(net, address)
        listening = asyncio.ensure_future(talk.listen(65))
        await until_async(lambda: talk.came)
        talk.say(*(bytes([number]) * MIB for number in range(64)))
        seen = -1
        while seen != talk.sent:  # until windows and buffers are full
            seen = talk.sent
            await asyncio.sleep(0.5)
        assert 1 <= talk.sent < 40
        assert not talk.call.has_room
        connection = talk.call._connection
        assert connection is not None
        assert connection.core.unsent_bytes <= MIB + 5
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() <= WRITE_BYTES + MIB + 64 * f.HEADER_BYTES + 5
        echo.reads.set()
        await listening
        assert talk.came[1:] == [bytes([number]) * MIB for number in range(64)]


async def test_answers_that_nobody_takes_are_not_read() -> None:
    async with served() as (_, net, address):
        talk = Talk(net, address)
        async with aclosing(talk.call.answers()) as answers:
            await anext(answers)
            talk.say(*([bytes(100_000)] * 200))
            connection = talk.call._connection
            assert connection is not None
            await until_async(lambda: connection._deaf)
            kept = sum(map(len, connection.core.messages))
            assert READ_BYTES - 100_000 <= kept <= READ_BYTES + 2 * MIB
            for _ in range(200):
                assert await anext(answers) == bytes(100_000)
            assert not connection._deaf


async def test_a_call_that_is_closed_ends_at_the_server() -> None:
    async with served() as (echo, net, address):
        talk = Talk(net, address)
        listening = asyncio.ensure_future(talk.listen())
        await until_async(lambda: talk.came)
        assert not echo.ended.is_set()
        listening.cancel()
        await asyncio.wait({listening})
        await echo.ended.wait()


# --------------------------------------------------------------------------------------------- servers that are none


class Raw:
    """A server by hand: what it does with each connection."""

    def __init__(self, does: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.does = does

    async def talk(self, *, trusts: Tls | None = None) -> Talk:
        """A call to it, to its end. Raises what the call raises."""
        connected: list[Any] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.append(asyncio.current_task())
            try:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    await self.does(reader, writer)
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        net = GrpcNet(tls=trusts)
        self.call = talk = Talk(net, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        talk.waiting = [b"x" * 400_000] * 20
        try:
            async with asyncio.timeout(HANG_S):
                await talk.listen()
        finally:
            server.close()
            await net.close()
            await asyncio.wait(connected, timeout=HANG_S)
        return talk


HEAD = f.frame(f.HEADERS, f.END_HEADERS, 1, encode([(b":status", b"200"), (b"content-type", b"application/grpc")]))


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *more: bytes) -> None:
    writer.write(f.settings({}))
    await reader.readexactly(1_000)  # the call has begun
    writer.write(b"".join(more))
    await writer.drain()


async def goes_within_a_message(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await greet(reader, writer, HEAD, f.frame(f.DATA, 0, 1, prefix(5) + b"wholehalf"[:5] + prefix(100) + b"half"))


async def goes_at_once(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Accepts and closes."""


async def greets_and_goes(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(f.settings({}))
    await writer.drain()


async def breaks_the_rules(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await greet(reader, writer, f.frame(f.DATA, 0, 7, b"x"))
    await reader.read()


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await greet(reader, writer, HEAD, f.reset(1, ErrorCode.REFUSED_STREAM))
    await reader.read()


async def takes_no_calls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(f.settings({f.MAX_CONCURRENT_STREAMS: 0}))
    await reader.read()


async def leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await greet(reader, writer, f.go_away(0, ErrorCode.NO_ERROR))
    await reader.read()


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (goes_within_a_message, "server closed the connection|reset by peer|ECONNRESET|Broken pipe"),
        (goes_at_once, "server closed the connection|reset by peer"),
        (greets_and_goes, "server closed the connection|reset by peer|Broken pipe"),
        (breaks_the_rules, "a frame has a stream that is idle"),
        (resets, "REFUSED_STREAM"),
        (takes_no_calls, "accepts no calls"),
        (leaves, "GOAWAY"),
    ],
)
async def test_a_server_that_goes_or_breaks_the_rules_ends_the_call_with_the_reason(does: Any, words: str) -> None:
    raw = Raw(does)
    with pytest.raises(ConnectionFailed, match=words):
        await raw.talk()
    assert raw.call.came == ([b"whole"] if does is goes_within_a_message else [])
    assert not raw.call.call.has_room


def test_a_server_that_listens_and_says_nothing_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def says_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    monkeypatch.setattr(duplex_call, "OPEN_MS", 300)
    with pytest.raises(ConnectionFailed, match="no connection came about in time"):
        asyncio.run(Raw(says_nothing).talk())


async def test_nobody_there_and_a_name_that_leads_nowhere_are_said() -> None:
    server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    net = GrpcNet()
    with pytest.raises(ConnectionFailed, match=r"cannot connect to 127\.0\.0\.1: Connection refused"):
        await Talk(net, f"127.0.0.1:{port}").listen()
    with pytest.raises(ConnectionFailed, match="cannot be resolved"):
        await Talk(net, "no-such-host.invalid:1").listen()
    await net.close()


async def test_what_is_wrong_with_tls_is_said_in_words(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "own"), Authority(tmp_path / "other")
    own = authority.sign("server", hosts=("127.0.0.1",))
    tls = TlsSettings(port=0, certificate=own.certificate, key=own.key, client_ca=authority.ca)

    async def report(trusts: Tls | None, words: str, settings: TlsSettings | None = tls) -> None:
        async with served(tls=settings, trusts=trusts) as (_, net, address):
            with pytest.raises(TlsFailed, match=words):
                await Talk(net, address).listen()

    await report(Tls(ca=other.ca), "is not signed by")
    await report(Tls(ca=authority.ca), "requires a certificate of this side")
    stranger = other.sign("client")
    await report(Tls(ca=authority.ca, certificate=stranger.certificate, key=stranger.key), "rejects the certificate")
    await report(None, "speaks TLS and this side plain text")
    await report(Tls(ca=authority.ca), "speaks plain text and this side TLS", settings=None)


async def test_an_insecure_client_trusts_what_the_server_shows(tmp_path: Path) -> None:
    pair = Authority(tmp_path).sign("server", hosts=("elsewhere",))

    tls = TlsSettings(port=0, certificate=pair.certificate, key=pair.key)
    async with served(tls=tls, trusts=Tls(insecure=True)) as (_, net, address):
        talk = Talk(net, address)
        talk.say(b"hello")
        await talk.listen(2)
        assert talk.came == [b"stands", b"hello"]
