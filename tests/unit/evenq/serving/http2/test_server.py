"""The server on real sockets, on both loops, with gRPC's blocking client in threads: addresses, TLS, time, drain."""

import asyncio
import gc
import socket
import ssl
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop
from evenq_proofs.waiting import until_async

from evenq import errors
from evenq.runtime.clock import SystemClock
from evenq.serving.http2.calls import Call, Method
from evenq.serving.http2.limits import Http2Limits
from evenq.serving.http2.messages import GrpcFault
from evenq.serving.http2.protocol import Http2Protocol
from evenq.serving.http2.server import LOOK_EACH, Http2Server
from evenq.serving.http2.turns import ROUND, WAKES_MAX
from evenq.serving.rpc import CallKind
from evenq.testing.certificates import Authority
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import Status
from evenq.wire.http2.hpack import encode

NO_GROWTH = [("grpc.http2.bdp_probe", 0)]
"""Else a client of gRPC opens its window as far as the network carries, until all is on its side."""
LOOPS: list[Any] = [asyncio.new_event_loop, uvloop.new_event_loop]


class Service:
    """Handlers, and what they saw."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.parked = threading.Event()
        self.ended = threading.Event()

    async def echo(self, request: bytes, call: Call) -> bytes:
        self.calls.append(call)
        return request

    async def park(self, _request: bytes, call: Call) -> bytes:
        self.calls.append(call)
        self.parked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return b""

    async def refuse(self, _request: bytes, call: Call) -> bytes:
        call.trailers = [("why-bin", b"\xff")]
        raise GrpcFault(Status.ABORTED, "grün\n", [("a", "b")])

    async def pour(self, _request: bytes, call: Call) -> None:
        try:
            for _ in range(100):
                await call.send(bytes(100_000))
        finally:
            self.ended.set()

    async def chat(self, requests: AsyncIterator[bytes], call: Call) -> None:
        self.calls.append(call)
        async for request in requests:
            await call.send(request)

    @property
    def methods(self) -> dict[str, Method]:
        unary, stream = CallKind.UNARY, CallKind.SERVER_STREAM
        return {
            "/s/Echo": Method(unary, self.echo), "/s/Park": Method(unary, self.park),
            "/s/Refuse": Method(unary, self.refuse), "/s/Pour": Method(stream, self.pour),
            "/s/Chat": Method(CallKind.BIDI, self.chat), "/s/Alive": Method(unary, self.echo, anybody=True),
            "/s/Reflect": Method(CallKind.BIDI, self.chat, anybody=True),
        }  # fmt: skip


class Forgetful(list[Call]):
    """Tells of each call and keeps none."""

    def __init__(self, tell: Callable[[Call], None]) -> None:
        super().__init__()
        self.append = tell  # type: ignore[method-assign]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Any:
    return request.param


@asynccontextmanager
async def running(
    *, host: str = "127.0.0.1", tls: Callable[[], ssl.SSLContext] | None = None, **limits: int
) -> AsyncIterator[tuple[Service, Http2Server, int]]:
    service = Service()
    server = Http2Server(service.methods, clock=SystemClock(), limits=Http2Limits(**limits), tls=tls)
    port = await server.start(host, 0)
    try:
        async with asyncio.timeout(60):
            yield service, server, port
    finally:
        await server.stop(0)
    assert server.totals.connections == server.totals.streams == 0
    assert server.totals.request_bytes == server.totals.unread_bytes == 0
    assert len(server.deadlines) == 0


def called(address: str, method: str, request: bytes = b"x", *, credentials: Any = None, **options: Any) -> Any:
    """The answer, or the error, of one call on its own connection: channels share those that are not closed yet, and
    one to a server that has ended at the same address may be among them.
    """
    own = [("grpc.use_local_subchannel_pool", 1)]
    channel = (
        grpc.insecure_channel(address, own) if credentials is None else grpc.secure_channel(address, credentials, own)
    )
    with channel:
        try:
            return channel.unary_unary(method)(request, timeout=options.pop("timeout", 5), **options)
        except grpc.RpcError as error:
            return error


async def test_a_wildcard_serves_ipv4_and_ipv6_and_peers_are_told_apart(loop_factory: Any) -> None:
    async with running(host="0.0.0.0") as (service, _, port):
        assert await asyncio.to_thread(called, f"127.0.0.1:{port}", "/s/Echo") == b"x"
        assert service.calls[0].peer.startswith("127.0.0.1:")
        if socket.has_ipv6:
            assert await asyncio.to_thread(called, f"[::1]:{port}", "/s/Echo") == b"x"
            assert service.calls[1].peer.startswith("[::1]:")


async def test_a_unix_socket_serves_and_one_in_use_is_named(loop_factory: Any, tmp_path: Path) -> None:
    path = f"unix:{tmp_path}/s"
    for _ in range(2):  # the file that is left is no obstacle
        async with running(host=path) as (service, _, port):
            assert port == 0
            assert await asyncio.to_thread(called, path, "/s/Echo") == b"x"
            assert service.calls[0].peer == "unix:"
            with pytest.raises(errors.PortInUse, match="another path"):
                await Http2Server({}, clock=SystemClock()).start(path, 0)


async def test_a_handlers_status_comes_with_its_words_and_trailers(loop_factory: Any) -> None:
    async with running() as (_, __, port):
        error = await asyncio.to_thread(called, f"127.0.0.1:{port}", "/s/Refuse")
        assert (error.code(), error.details()) == (grpc.StatusCode.ABORTED, "grün\n")
        assert set(error.trailing_metadata()) == {("a", "b"), ("why-bin", b"\xff")}


async def test_a_compressed_message_is_refused_with_what_would_be_read(loop_factory: Any) -> None:
    async with running() as (_, __, port):
        gzip = grpc.Compression.Gzip
        error = await asyncio.to_thread(called, f"127.0.0.1:{port}", "/s/Echo", bytes(10_000), compression=gzip)
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert ("grpc-accept-encoding", "identity") in [
            *error.trailing_metadata(),
            ("grpc-accept-encoding", "identity"),
        ]


@pytest.mark.slow
async def test_what_is_over_is_freed_without_the_collector(loop_factory: Any) -> None:
    """10,000 clients that vanish would otherwise be held, with all their buffers, until it comes."""
    gc.collect()
    gc.disable()
    try:
        async with running() as (service, _, port):

            def client() -> None:
                with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                    for _ in range(3):
                        assert channel.unary_unary("/s/Echo")(b"x", timeout=60) == b"x"
                    with pytest.raises(grpc.RpcError):
                        channel.unary_unary("/s/Refuse")(b"x", timeout=60)
                    assert list(channel.stream_stream("/s/Chat")(iter([b"a"]), timeout=60)) == [b"a"]
                    # Both are kept: a call that is not held is cancelled, maybe before it leaves.
                    parked = channel.unary_unary("/s/Park").future(b"x", timeout=60)
                    chat = channel.stream_stream("/s/Chat")(iter(threading.Event().wait, True), timeout=60)
                    assert chat.initial_metadata() == ()
                    assert service.parked.wait(60)
                    assert not parked.done()

            seen: list[weakref.ref[Any]] = []
            service.calls = Forgetful(lambda call: seen.extend(map(weakref.ref, (call, call.connection))))
            await asyncio.to_thread(client)
            await until_async(lambda: service.ended.is_set() and len(seen) == 2 * 6)
            await until_async(lambda: not any(ref() for ref in seen))
    finally:
        gc.enable()


async def test_a_deadline_and_a_caller_that_leaves_end_the_handler(loop_factory: Any) -> None:
    async with running() as (service, server, port):
        while not service.parked.is_set():  # on a busy machine the deadline may pass before the call arrives
            error = await asyncio.to_thread(called, f"127.0.0.1:{port}", "/s/Park", timeout=0.3)
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until_async(service.ended.is_set)
        service.ended.clear()
        service.parked.clear()

        def leave() -> None:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                future = channel.unary_unary("/s/Park").future(b"")
                service.parked.wait(60)
                future.cancel()

        await asyncio.to_thread(leave)
        await until_async(service.ended.is_set)
        await until_async(lambda: not server.totals.streams)


async def test_a_handler_waits_for_a_client_that_does_not_read(loop_factory: Any) -> None:
    async with running() as (service, server, port):

        def slowly() -> Iterator[int]:
            with grpc.insecure_channel(f"127.0.0.1:{port}", options=NO_GROWTH) as channel:
                frames = channel.unary_stream("/s/Pour")(b"", timeout=60)
                yield len(next(frames))
                yield sum(map(len, frames))

        reader = slowly()
        assert await asyncio.to_thread(next, reader) == 100_000
        await until_async(lambda: server.totals.unread_bytes)
        assert server.totals.unread_bytes < 1 << 20
        assert not service.ended.is_set()
        assert await asyncio.to_thread(next, reader) == 99 * 100_000
        reader.close()


async def test_mtls_shows_the_callers_certificate_and_refuses_others(loop_factory: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    pair, mine = authority.sign("server", hosts=["127.0.0.1"]), authority.sign("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.load_verify_locations(authority.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    root = authority.ca.read_bytes()
    invited = grpc.ssl_channel_credentials(root, mine.key.read_bytes(), mine.certificate.read_bytes())
    async with running(tls=lambda: context, preface_ms=1500) as (service, server, port):
        address = f"127.0.0.1:{port}"
        for _ in range(20):
            assert await asyncio.to_thread(called, address, "/s/Echo", credentials=invited) == b"x"
        assert "client" in str(service.calls[0].peer_certificate["subject"])
        stranger = await asyncio.to_thread(
            called, address, "/s/Echo", credentials=grpc.ssl_channel_credentials(root), timeout=2
        )
        assert isinstance(stranger, grpc.RpcError)
        await until_async(lambda: server.totals.handshakes_failed)
        silent = socket.create_connection(("127.0.0.1", port))
        await until_async(lambda: server.totals.connections == 1)
        silent.settimeout(10)
        assert not await asyncio.to_thread(silent.recv, 100)  # no handshake within preface_ms
        silent.close()
        await until_async(lambda: not server.totals.connections)


def raw(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    made.sendall(f.PREFACE + f.settings({}))
    return made


def last_words(made: socket.socket) -> list[int]:
    """Types of the frames until the server closes the connection."""
    received, kinds, position = b"", [], 0
    with made:
        while data := made.recv(1 << 16):
            received += data
    while position < len(received):
        high, low, kind, *_ = f.HEADER.unpack_from(received, position)
        kinds.append(kind)
        position += f.HEADER_BYTES + (high << 8 | low)
    return kinds


@pytest.mark.slow
async def test_an_idle_connection_is_ended_politely_and_a_dead_one_without_a_word(loop_factory: Any) -> None:
    async with running(idle_ms=300) as (_, _, port):
        assert (await asyncio.to_thread(last_words, raw(port)))[-3:] == [f.GOAWAY, f.PING, f.GOAWAY]
    async with running(keepalive_ms=300, keepalive_timeout_ms=300) as (_, server, port):
        assert (await asyncio.to_thread(last_words, raw(port)))[-1] == f.PING
        assert server.totals.keepalive_timeouts == 1


async def test_connections_are_looked_at_in_shares_and_none_is_left_out(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[tuple[int, Http2Protocol]] = []
    first = Http2Protocol.tick

    def looked(self: Http2Protocol, now_ms: int) -> None:
        looks.append((now_ms, self))
        first(self, now_ms)

    async with running() as (_, server, port):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in opened:
            writer.write(f.PREFACE + f.settings({}))
        await until_async(lambda: len(server.connections) == 20)
        monkeypatch.setattr(Http2Protocol, "tick", looked)
        await until_async(lambda: len({connection for _, connection in looks}) == 20)
        assert max(Counter(now_ms for now_ms, _ in looks).values()) == 20 / LOOK_EACH
        monkeypatch.undo()
        looks.clear()
        for _, writer in opened:
            writer.close()
        await until_async(lambda: not server.connections)


async def test_a_drain_says_goaway_twice_and_lets_running_calls_end(loop_factory: Any) -> None:
    async with running() as (service, server, port):
        call = asyncio.ensure_future(asyncio.to_thread(called, f"127.0.0.1:{port}", "/s/Park"))
        await until_async(service.parked.is_set)
        watcher = asyncio.ensure_future(asyncio.to_thread(last_words, raw(port)))
        await until_async(lambda: server.totals.connections == 2)
        await server.stop(400)
        assert (await watcher).count(f.GOAWAY) == 2
        assert (await call).code() is grpc.StatusCode.UNAVAILABLE


class FakeTransport:
    """What a connection asks of its transport, without a socket."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.reads = True
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.1", self.number) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.written += b"".join(pieces)

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    abort = close


HELLO = f.PREFACE + f.settings({})
CALL = encode([
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/Echo"), (b":authority", b"h"),
    (b"content-type", b"application/grpc"), (b"te", b"trailers"),
])  # fmt: skip


def calls(count: int, first: int = 1) -> bytes:
    return b"".join(
        f.frame(f.HEADERS, f.END_HEADERS, number, CALL) + f.frame(f.DATA, f.END_STREAM, number, bytes(5))
        for number in range(first, first + 2 * count, 2)
    )


def count_frames_alone(server: Http2Server) -> None:
    """On a machine with other work any turn may take long."""
    spend = server.turns.spend
    server.turns.spend = lambda frames, _took_ms: spend(frames, 0)  # type: ignore[method-assign]


async def in_a_turn(work: Callable[[], None]) -> None:
    """Do it as the loop calls a protocol, in no task."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def turn() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  the test shows it
            done.set_exception(error)

    asyncio.get_running_loop().call_soon(turn)
    await done


@pytest.mark.parametrize("writes", ["taken", "stopped"])
async def test_thousands_of_calls_in_one_piece_leave_the_others_their_turns(loop_factory: Any, writes: str) -> None:
    async with running() as (service, server, _):
        count_frames_alone(server)
        crowd, other = Http2Protocol(server), Http2Protocol(server)
        ends = [FakeTransport(1), FakeTransport(2)]

        def one_turn() -> None:
            for protocol, end in zip((crowd, other), ends, strict=True):
                protocol.connection_made(end)  # type: ignore[arg-type]  # as much of it as is used
                protocol.data_received(HELLO)
            crowd.data_received(calls(2_000))
            assert len(service.calls) == 64
            assert not ends[0].reads
            crowd.data_received(calls(10, first=4_001))  # what a transport had read already
            assert len(service.calls) == 64
            other.data_received(calls(1))
            assert service.calls[-1].connection is other
            if writes == "stopped":
                crowd.pause_writing()

        await in_a_turn(one_turn)
        if writes == "stopped":
            await SystemClock().sleep_ms(20)
            assert len(service.calls) == 65, "who reads no answers gets no more of them"
            crowd.resume_writing()
            crowd.pause_writing()
            crowd.resume_writing()
        turns, before = 0, len(service.calls)
        while len(service.calls) < 2_011:
            await SystemClock().sleep_ms(0)
            assert len(service.calls) - before <= 64
            before, turns = len(service.calls), turns + 1
        assert turns >= 2_010 // 64 - 1
        await until_async(lambda: ends[0].reads)
        for protocol in (crowd, other):
            protocol.connection_lost(None)


async def test_a_crowd_of_floods_leaves_a_good_client_its_turns(loop_factory: Any) -> None:
    """However many connections have much to read, a turn of the loop is short, and each of them goes on."""
    crowd, each, frames = 200, 50, 16
    async with running(frames_per_turn=frames) as (service, server, _):
        count_frames_alone(server)
        ends = [FakeTransport(number) for number in range(crowd + 1)]
        protocols = [Http2Protocol(server) for _ in ends]
        *floods, good = protocols
        asked = 1

        def begin() -> None:
            for protocol, end in zip(protocols, ends, strict=True):
                protocol.connection_made(end)  # type: ignore[arg-type]  # as much of it as is used
                protocol.data_received(HELLO)
            for protocol in floods:
                protocol.data_received(calls(each))
            good.data_received(calls(1))

        def ask() -> None:
            good.data_received(calls(1, first=2 * asked + 1))
            assert service.calls[-1].connection is good, "a call waits behind the crowd"

        await in_a_turn(begin)
        while asked < 40 or len(service.calls) < crowd * each + asked:
            before = len(service.calls)
            await SystemClock().sleep_ms(0)
            assert len(service.calls) - before <= ROUND * frames, "a turn of the loop is long"
            assert len(service.calls) > before or asked >= 40, "no call goes on"
            if asked == 1 and good not in {call.connection for call in service.calls}:
                continue  # it came last, and waits for its first turn
            if asked < 40:
                await in_a_turn(ask)
                asked += 1
        for protocol in protocols:
            protocol.connection_lost(None)


async def test_who_is_not_answered_when_the_peer_ends_is_cancelled_and_answers_leave_before(loop_factory: Any) -> None:
    """Nothing lies between: a receive that believes that its answer left would keep its messages for a client that never
    saw them.
    """
    async with running() as (service, server, _):
        loop, gates, cancelled = asyncio.get_running_loop(), [asyncio.Event(), asyncio.Event()], []

        async def gated(_request: bytes, call: Call) -> bytes:
            service.calls.append(call)
            try:
                await gates[len(service.calls) - 1].wait()
            except asyncio.CancelledError:
                cancelled.append(call)
                raise
            return b"answer"

        server.methods["/s/Echo"] = Method(CallKind.UNARY, gated)
        protocol, end = Http2Protocol(server), FakeTransport(1)

        def begin() -> None:
            protocol.connection_made(end)  # type: ignore[arg-type]  # as much of it as is used
            protocol.data_received(HELLO + calls(2))
            gates[0].set()
            loop.call_soon(ended)  # behind the answer of the first call, before it is written

        def ended() -> None:
            assert not protocol.eof_received()
            assert end.written.count(b"answer") == 1
            end.close()
            gates[1].set()
            loop.call_soon(protocol.connection_lost, None)

        await in_a_turn(begin)
        await until_async(lambda: protocol not in server.connections)
        assert cancelled == service.calls[1:]
        assert end.written.count(b"answer") == 1


class FairClient:
    """Sends its requests in turns, a frame of each, as far as the windows go."""

    def __init__(self, protocol: Http2Protocol, end: FakeTransport, size: int, count: int) -> None:
        self.protocol, self.end = protocol, end
        self.left = dict.fromkeys(range(1, 2 * count, 2), size + 5)
        self.window = 65_535
        self.ended: set[int] = set()
        self.whole = size
        self.read = 0

    def take_in(self) -> None:
        output = self.end.written
        while self.read < len(output):
            high, low, kind, flags, stream_id = f.HEADER.unpack_from(output, self.read)
            payload = output[self.read + 9 : (after := self.read + 9 + (high << 8 | low))]
            self.read = after
            if kind == f.WINDOW_UPDATE and not stream_id:
                self.window += int.from_bytes(payload, "big")
            elif kind in {f.HEADERS, f.RST_STREAM} and (flags & f.END_STREAM or kind == f.RST_STREAM):
                self.ended.add(stream_id)
                self.left.pop(stream_id, None)

    def turn(self) -> int:
        """Send one frame of each request; the bytes that were sent."""
        sent = 0
        for stream_id, left in list(self.left.items()):
            size = min(left, 1_000, self.window)
            if not size:
                continue
            body = (self.whole.to_bytes(5, "big") + bytes(1_000))[:size] if left == self.whole + 5 else bytes(size)
            self.left[stream_id] -= size
            self.window -= size
            sent += size
            if not self.left[stream_id]:
                del self.left[stream_id]
            last = f.END_STREAM if stream_id not in self.left else 0
            self.protocol.data_received(f.frame(f.DATA, last, stream_id, body))
        return sent


async def test_large_requests_that_come_in_turns_are_not_stuck_half_way(loop_factory: Any) -> None:
    """None would ever be complete if all had to wait for room."""
    async with running(connection_window_bytes=70000, connection_request_bytes_max=140000) as (service, server, _):
        protocol, end = Http2Protocol(server), FakeTransport(1)
        client = FairClient(protocol, end, size=20_000, count=20)

        def begin() -> None:
            protocol.connection_made(end)  # type: ignore[arg-type]  # as much of it as is used
            protocol.data_received(HELLO + f.window_update(0, 1 << 20))
            for stream_id in list(client.left):
                protocol.data_received(f.frame(f.HEADERS, f.END_HEADERS, stream_id, CALL))

        def one_turn() -> None:
            nonlocal idle
            client.take_in()
            idle = 0 if client.turn() else idle + 1
            protocol.flush()

        idle = 0
        await in_a_turn(begin)
        while client.left:  # what a turn of the loop does is bounded by time: a slow machine needs more of them
            assert idle < 1_000, f"stuck: {len(client.ended)} of 20 requests came to an end"
            await in_a_turn(one_turn)
        client.take_in()
        assert len(client.ended) == 20
        assert len(service.calls) >= 5
        assert server.totals.calls_refused == 20 - len(service.calls)
        protocol.connection_lost(None)


@pytest.mark.parametrize("writes", [True, False])
async def test_an_error_of_a_stream_waits_for_its_callers_first_message(loop_factory: Any, writes: bool) -> None:
    """Python's client of gRPC loses the status of a stream that ends before it has written."""

    async def refuse(_requests: AsyncIterator[bytes], _call: Call) -> None:
        raise GrpcFault(Status.PERMISSION_DENIED, "not you")

    async with running() as (_, server, __):
        server.methods = {"/s/Echo": Method(CallKind.BIDI, refuse)}
        protocol, end = Http2Protocol(server), FakeTransport(1)

        def begin() -> None:
            protocol.connection_made(end)  # type: ignore[arg-type]  # as much of it as is used
            protocol.data_received(HELLO + f.frame(f.HEADERS, f.END_HEADERS, 1, CALL))

        await in_a_turn(begin)
        assert b"not you" not in end.written
        if writes:
            await in_a_turn(lambda: protocol.data_received(f.frame(f.DATA, 0, 1, bytes(5))))
            assert b"not you" in end.written
        await until_async(lambda: b"not you" in end.written)
        assert not protocol.core.streams
        protocol.connection_lost(None)


async def test_a_goaway_for_a_flood_arrives_though_the_flood_goes_on(loop_factory: Any) -> None:
    async with running() as (_, server, port):

        def flood() -> bytes:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as attacker:
                attacker.sendall(HELLO + f.ping(b"12345678") * 50_000)
                said = b""
                while data := attacker.recv(65_536):
                    said += data
                return said

        said = await asyncio.to_thread(flood)
        assert said.endswith(b"too many frames: PING")
        await until_async(lambda: not server.totals.connections)
        assert server.totals.faults == {"ENHANCE_YOUR_CALM": 1}


async def test_a_flood_that_does_not_end_is_not_listened_to_for_long(loop_factory: Any) -> None:
    async with running() as (_, server, port):

        def flood() -> int:
            sent = 0
            with socket.create_connection(("127.0.0.1", port), timeout=60) as attacker:
                try:
                    attacker.sendall(HELLO)
                    while sent < 1 << 28:
                        sent += attacker.send(f.ping(b"12345678") * 1_000)
                except OSError:
                    pass
                return sent

        assert await asyncio.to_thread(flood) < 1 << 27
        await until_async(lambda: not server.totals.connections)


class StuckTransport(FakeTransport):
    """Its peer accepts no byte, so only `abort` ends it; less is unsent than pauses the connection."""

    protocol: Http2Protocol

    def close(self) -> None:
        pass

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            self.protocol.connection_lost(None)


ENDINGS: dict[str, Callable[[Http2Protocol], None]] = {
    "drained": lambda protocol: (protocol.drain(0), protocol.tick(protocol.limits.drain_ping_ms))[0],
    "faulty": lambda protocol: protocol.data_received(f.frame(f.DATA, 0, 0, b"x")),
    "finished": Http2Protocol.finish,
}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_ended_connection_whose_output_is_not_accepted_is_aborted(loop_factory: Any, ending: str) -> None:
    async with running() as (_, server, _):
        protocol, end = Http2Protocol(server), StuckTransport(1)
        end.protocol = protocol
        protocol.connection_made(end)  # type: ignore[arg-type]  # as much of it as is used
        protocol.data_received(HELLO)
        ENDINGS[ending](protocol)
        await until_async(lambda: protocol._closed)
        ended_ms = server.clock.monotonic_ms()
        protocol.tick(ended_ms + server.limits.linger_ms)
        assert server.totals.connections == 1, "its peer has time to take the output"
        protocol.tick(ended_ms + server.limits.write_stall_ms)
        assert server.totals.connections == 0


@pytest.mark.parametrize("end_it", ["drain", "finish"])
async def test_the_last_answer_leaves_though_the_peer_reads_it_slowly(loop_factory: Any, end_it: str) -> None:
    async with running() as (_, server, _):
        protocol, end = Http2Protocol(server), StuckTransport(1)
        end.protocol = protocol
        protocol.connection_made(end)  # type: ignore[arg-type]  # as much of it as is used
        await in_a_turn(lambda: protocol.data_received(HELLO))
        write = end.writelines

        def fill(pieces: list[bytes]) -> None:
            write(pieces)
            protocol.pause_writing()

        end.writelines = fill  # type: ignore[method-assign]
        await in_a_turn(lambda: protocol.data_received(calls(1)))
        assert not protocol.core.streams, "the transport has the whole answer"
        if end_it == "drain":
            protocol.drain(0)
            protocol.tick(server.limits.drain_ping_ms)
            await in_a_turn(protocol.flush)
        else:
            protocol.finish()
        assert not end.closed
        end.writelines = write  # type: ignore[method-assign]
        protocol.resume_writing()
        assert protocol._closed
        assert not end.closed, "it closes, and does not abort"
        end.abort()


async def test_messages_for_many_streams_with_slow_handlers_leave_the_loop_its_turns(loop_factory: Any) -> None:
    """A message costs one frame whatever its handler does with it: the time is bounded, not only the frames."""
    crowd = 150
    chat = encode([
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/Chat"), (b":authority", b"h"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"),
    ])  # fmt: skip
    async with running() as (_, server, _):
        woken = list[Http2Protocol]()

        async def slow(requests: AsyncIterator[bytes], call: Call) -> None:
            async for _request in requests:
                woken.append(call.connection)
                threading.Event().wait(0.003)

        server.methods = {**server.methods, "/s/Chat": Method(CallKind.BIDI, slow)}
        protocols = [Http2Protocol(server) for _ in range(crowd)]

        def begin() -> None:
            for number, protocol in enumerate(protocols):
                protocol.connection_made(FakeTransport(number))  # type: ignore[arg-type]  # as much as is used
                protocol.data_received(HELLO + f.frame(f.HEADERS, f.END_HEADERS, 1, chat))

        def ask() -> None:
            for protocol in protocols:
                protocol.data_received(f.frame(f.DATA, 0, 1, bytes(5)))

        await in_a_turn(begin)
        await until_async(lambda: all(protocol.core.streams for protocol in protocols))
        await in_a_turn(ask)
        assert len(woken) <= 2 * WAKES_MAX, "all are woken at once"
        turns = list[int]()
        while len(woken) < crowd:
            before = len(woken)
            await SystemClock().sleep_ms(0)
            turns.append(len(woken) - before)
        assert max(turns) <= 2 * WAKES_MAX, "a turn of the loop wakes everybody"
        assert max(turns[-8:]) <= 8, "turns stay long"
        assert set(woken) == set(protocols)
        for protocol in protocols:
            protocol.connection_lost(None)
        await SystemClock().sleep_ms(10)


async def opened(channel: Any, method: str, *messages: bytes) -> Any:
    """A stream whose handler runs, and that has answered these messages."""
    stream = channel.stream_stream(method)()
    await stream.initial_metadata()
    for message in messages:
        await stream.write(message)
        assert await stream.read() == message
    return stream


async def test_streams_without_credentials_make_room_and_health_never_counts(loop_factory: Any) -> None:
    """25,200 idle streams shut an address out, health checks included, for as long as they stayed."""
    async with (
        running(calls_per_address_max=3) as (service, _, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        spoken = await opened(channel, "/s/Chat", b"credentials")
        silent = await opened(channel, "/s/Chat")
        strange = await opened(channel, "/s/Reflect", b"what is served here?")
        echo, alive = channel.unary_unary("/s/Echo"), channel.unary_unary("/s/Alive")
        assert await echo(b"1", timeout=60) == b"1"
        assert (await silent.code(), "made room" in await silent.details()) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED, True,
        )  # fmt: skip
        parked = []
        for _ in range(2):
            parked.append(channel.unary_unary("/s/Park")(b"x"))
            await until_async(lambda: len(service.calls) == 4 + len(parked))
        assert await strange.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError, match="calls run from this address"):
            await echo(b"2", timeout=60)
        assert await alive(b"3", timeout=60) == b"3"
        await spoken.write(b"more")
        assert await spoken.read() == b"more", "a stream that has spoken is left alone"
        for call in [spoken, *parked]:
            call.cancel()


async def test_a_stream_owes_its_first_message_and_a_stranger_each(loop_factory: Any) -> None:
    async with running(request_ms=300) as (_, server, port):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:  # it is closed before the check
            spoken = await opened(channel, "/s/Chat", b"credentials")
            silent = await opened(channel, "/s/Chat")
            strange = await opened(channel, "/s/Reflect", b"what is served here?")
            for one in (silent, strange):
                assert await one.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            await spoken.write(b"more")
            assert await spoken.read() == b"more"
            spoken.cancel()
        assert server.totals.reached["request_ms"] == 2
