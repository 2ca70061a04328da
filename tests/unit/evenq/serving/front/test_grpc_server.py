"""The door over real loopback connections: errors, bounds, cancellation, shutdown, bad bytes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from evenq_proofs.rpcs import fake_rpc
from evenq_proofs.waiting import until_async

from evenq import errors
from evenq.model import Listener
from evenq.runtime.clock import SystemClock
from evenq.serving.front.grpc_server import GrpcServer, open_grpc_server
from evenq.serving.front.grpc_servers import GrpcServers
from evenq.serving.front.health import NOT_SERVING, SERVING
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.rpc import Access, Action, CallKind, Frames, Resource, Rpc, RpcContext
from evenq.serving.tls import ServerTls, TlsSettings
from evenq.wire.net import GrpcNet
from evenq.wire.status import error_of
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import registry_pb2

HERE = Path(__file__).parent
ACCESS = Access(resource=Resource.NONE, action=Action.DESCRIBE)
UNARY = "/evenq.v1.Groups/UnlockQueues"
STREAM = "/evenq.v1.Data/Scan"
BARE = "/evenq.v1.Registry/WatchRoutes"
BIDI = "/evenq.v1.Groups/Session"


class Service:
    """Handlers that do what the test says."""

    def __init__(self) -> None:
        self.contexts: list[RpcContext] = []
        self.unary: Callable[[bytes], Awaitable[bytes]] = self.echo
        self.events: list[str] = []
        self.parked = asyncio.Event()
        self.ended = asyncio.Event()

    async def echo(self, request: bytes) -> bytes:
        return request

    async def park(self, request: bytes) -> bytes:
        self.parked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return request

    async def on_unary(self, request: bytes, context: RpcContext) -> bytes:
        self.contexts.append(context)
        return await self.unary(request)

    async def on_stream(self, request: bytes, context: RpcContext) -> AsyncIterator[bytes]:
        yield b"first"
        yield await self.on_unary(request, context)

    async def on_bidi(self, requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        self.contexts.append(context)
        try:
            async for request in requests:
                yield await self.unary(request)
        finally:
            self.ended.set()

    def rpcs(self) -> list[Rpc]:
        return [
            fake_rpc(UNARY, self.on_unary, service_pb2.AckMessageResponse, access=ACCESS),
            fake_rpc(
                STREAM, self.on_stream, service_pb2.ReceiveMessageResponse, kind=CallKind.SERVER_STREAM, access=ACCESS
            ),
            fake_rpc(BARE, self.on_stream, registry_pb2.RouteEvent, kind=CallKind.SERVER_STREAM, access=ACCESS),
            fake_rpc(BIDI, self.on_bidi, service_pb2.AckMessageResponse, kind=CallKind.BIDI, access=ACCESS),
        ]


FRONT: Any = "grpcio"


@pytest.fixture(autouse=True, params=["grpcio", "http2"])
def front(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each promise of the door holds for both fronts."""
    monkeypatch.setattr(request.module, "FRONT", request.param)


async def failing(error: Exception) -> bytes:
    raise error


@asynccontextmanager
async def a_server(options: GrpcServerOptions | None = None) -> AsyncIterator[tuple[Service, GrpcServer, GrpcNet, str]]:
    service = Service()
    chosen = replace(options or GrpcServerOptions(), front=FRONT)
    door = await open_grpc_server(service.rpcs(), host="127.0.0.1", port=0, clock=SystemClock(), options=chosen)
    net = GrpcNet()
    try:
        async with asyncio.timeout(60):
            yield service, door, net, f"127.0.0.1:{door.port}"
    finally:
        await net.close()
        await door.stop()


async def test_bytes_pass_as_they_are_and_the_context_knows_the_caller() -> None:
    async with a_server() as (service, door, net, address):
        metadata = {"x-mq-client-id": "c1", "x-mq-language": "java"}
        assert await net.unary(address, UNARY, b"\x00\xff", timeout_ms=3_000, metadata=metadata) == b"\x00\xff"
        context = service.contexts[0]
        assert (context.client_id, context.language, context.method) == ("c1", "JAVA", UNARY)
        assert context.peer.startswith("127.0.0.1:")
        left_ms = (context.deadline_ms or 0) - SystemClock().monotonic_ms()
        assert 0 < left_ms < 3_100  # gRPC rounds up on the way
        assert door.stats[UNARY].finished == 1
        assert door.running == 0


async def test_a_client_id_that_is_too_long_reaches_no_handler() -> None:
    """104,000 ids of 11.5 KB each were kept for good."""
    async with a_server() as (service, _door, net, address):
        metadata = {"x-mq-client-id": "c" * 11_500}
        reply = await net.unary(address, UNARY, b"", timeout_ms=3_000, metadata=metadata)
        status = service_pb2.AckMessageResponse.FromString(reply).status
        assert (status.code, "x-mq-client-id has 11500 characters, the limit is 255" in status.message) == (40000, True)
        frames = [frame async for frame in net.stream(address, STREAM, b"", timeout_ms=3_000, metadata=metadata)]
        assert service_pb2.ReceiveMessageResponse.FromString(frames[0]).status.code == 40000
        assert service.contexts == []


async def test_an_error_of_a_handler_is_a_status_in_the_response() -> None:
    async with a_server() as (service, door, net, address):
        service.unary = lambda _: failing(errors.IllegalTopic("topic 'a b' holds a blank"))
        response = service_pb2.AckMessageResponse.FromString(await net.unary(address, UNARY, b"", timeout_ms=3_000))
        assert (response.status.code, response.status.message) == (40002, "topic 'a b' holds a blank")
        frames = [frame async for frame in net.stream(address, STREAM, b"", timeout_ms=3_000)]
        assert frames[0] == b"first"
        assert service_pb2.ReceiveMessageResponse.FromString(frames[1]).status.code == 40002
        assert door.stats[UNARY].errors == {40002: 1}


async def test_a_mistake_of_ours_is_an_id_that_is_also_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with a_server() as (service, _door, net, address):
        service.unary = lambda _: failing(KeyError("/secret/path"))
        response = service_pb2.AckMessageResponse.FromString(await net.unary(address, UNARY, b"", timeout_ms=3_000))
        assert response.status.code == 50001
        assert "secret" not in response.status.message
        incident = response.status.message.split()[2].rstrip(";")
        assert [record for record in caplog.records if getattr(record, "incident", "") == incident]


async def test_a_request_that_does_not_decode_is_the_callers_mistake() -> None:
    async with a_server() as (service, _door, net, address):

        async def decode(request: bytes) -> bytes:
            return service_pb2.AckMessageRequest.FromString(request).SerializeToString()

        service.unary = decode
        sent = await net.unary(address, UNARY, b"\xff\xff\xff", timeout_ms=3_000)
        assert service_pb2.AckMessageResponse.FromString(sent).status.code == 40000


async def test_errors_that_name_files_do_not_travel() -> None:
    async with a_server() as (service, _door, net, address):
        service.unary = lambda _: failing(errors.StoreCorrupted("/data/0000.log at 77"))
        response = service_pb2.AckMessageResponse.FromString(await net.unary(address, UNARY, b"", timeout_ms=3_000))
        assert response.status.code == 50001
        assert "/data" not in response.status.message


async def test_a_disk_that_fails_under_a_call_leaves_its_outcome_open(caplog: pytest.LogCaptureFixture) -> None:
    """As many calls may wait then as a broker takes: the cause is said once, by the process that ends."""
    async with a_server() as (service, _door, net, address):
        service.unary = lambda _: failing(errors.StorePoisoned("writing /data/0000.log failed"))
        answer = service_pb2.AckMessageResponse.FromString(await net.unary(address, UNARY, b"", timeout_ms=3_000))
        assert answer.status.code == 50401
        assert "it is unknown whether this was stored" in answer.status.message
        assert "/data" not in answer.status.message
    assert not caplog.records


async def test_a_stream_without_status_ends_with_the_error_itself() -> None:
    async with a_server() as (service, _door, net, address):
        service.unary = lambda _: failing(errors.TooManyRequests("the watcher is 1000 events behind"))
        with pytest.raises(errors.TooManyRequests, match="1000 events behind"):
            async for _ in net.stream(address, BARE, b"", timeout_ms=3_000):
                pass


async def test_messages_that_leave_in_one_piece_are_messages_of_the_stream() -> None:
    async with a_server() as (service, _door, net, _address):

        async def pieces(request: bytes, context: RpcContext) -> AsyncIterator[Frames]:
            yield [b"one", b"", b"x" * 70_000]
            yield b"last"

        service.on_stream = pieces  # type: ignore[method-assign, assignment]
        rpcs = [rpc for rpc in service.rpcs() if rpc.method == BARE]
        other = await open_grpc_server(
            rpcs, host="127.0.0.1", port=0, clock=SystemClock(), options=GrpcServerOptions(front=FRONT)
        )
        result = [frame async for frame in net.stream(f"127.0.0.1:{other.port}", BARE, b"", timeout_ms=3_000)]
        await other.stop()
        assert result == [b"one", b"", b"x" * 70_000, b"last"]


async def test_an_unknown_method_is_unimplemented() -> None:
    async with a_server() as (_service, _door, net, address):
        with pytest.raises(errors.Unsupported, match=r"/no\.Such/Method"):
            await net.unary(address, "/no.Such/Method", b"", timeout_ms=3_000)


async def test_one_call_more_than_the_maximum_is_answered_and_not_run() -> None:
    async with a_server(GrpcServerOptions(running_max=1)) as (service, _door, net, address):
        service.unary = service.park
        parked = asyncio.ensure_future(net.unary(address, UNARY, b"", timeout_ms=10_000))
        await service.parked.wait()
        response = service_pb2.AckMessageResponse.FromString(await net.unary(address, UNARY, b"", timeout_ms=3_000))
        assert response.status.code == 42900
        assert len(service.contexts) == 1
        parked.cancel()
        await service.ended.wait()


async def test_a_caller_that_goes_away_cancels_its_handler() -> None:
    async with a_server() as (service, door, net, address):
        service.unary = service.park
        frames = net.stream(address, STREAM, b"", timeout_ms=10_000)
        assert await anext(frames) == b"first"
        await service.parked.wait()
        await frames.aclose()
        await service.ended.wait()
        await until_async(lambda: door.running == 0)


@pytest.mark.slow
async def test_a_burst_of_2000_polls_on_one_connection_is_served() -> None:
    async with a_server() as (service, door, net, address):
        service.unary = service.park
        polls = [net.stream(address, STREAM, b"", timeout_ms=60_000) for _ in range(2_000)]
        # The connection first: 2,000 calls beside it leave a busy machine no turn to make it before gRPC gives it up.
        assert await anext(polls[0]) == b"first"
        assert await asyncio.gather(*(anext(poll) for poll in polls[1:])) == [b"first"] * 1_999
        await until_async(lambda: door.running == 2_000)
        await door.stop()
        ended = await asyncio.gather(*(anext(poll) for poll in polls), return_exceptions=True)
        assert {type(error) for error in ended} == {errors.ConnectionFailed}


async def test_initial_metadata_of_a_bidirectional_stream_comes_before_any_frame() -> None:
    async with a_server() as (_service, _door, _net, address):
        channel: Any
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream(BIDI)()
            await asyncio.wait_for(call.initial_metadata(), 60)
            await call.write(b"a")
            assert await call.read() == b"a"
            call.cancel()


@pytest.mark.parametrize("grace_ms", [0, 60_000])
async def test_stop_ends_bidirectional_streams_at_once_and_cleanly(grace_ms: int) -> None:
    """Decision 25: an error would make Rust's SDK spin for ever."""
    async with a_server() as (service, door, _net, address):
        channel: Any
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream(BIDI)()
            await call.write(b"a")
            assert await call.read() == b"a"
            before = SystemClock().monotonic_ms()
            await door.stop(grace_ms)
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
            assert SystemClock().monotonic_ms() - before < 50_000
        assert service.ended.is_set()


async def test_clients_that_are_turned_away_connect_anew_and_their_calls_go_on() -> None:
    async with a_server() as (service, door, _net, address):
        release = asyncio.Event()

        async def waiting(request: bytes) -> bytes:
            await release.wait()
            return request

        turns = FRONT == "http2"
        channel: Any
        async with grpc.aio.insecure_channel(address) as channel:
            session = channel.stream_stream(BIDI)()
            await session.write(b"a")
            assert await session.read() == b"a"
            service.unary = waiting
            running = asyncio.ensure_future(channel.unary_unary(UNARY)(b"slow"))
            await until_async(lambda: door.running == 2)
            GrpcServers([door], ServerTls(TlsSettings(), clock=SystemClock())).turn_away()
            if turns:
                assert await session.read() is grpc.aio.EOF
                assert await session.code() is grpc.StatusCode.OK
            service.unary = service.echo
            assert await channel.unary_unary(UNARY)(b"next") == b"next"
            assert not running.done()
            release.set()
            assert await running == b"slow"
            assert len({context.peer for context in service.contexts}) == 1 + turns
            session.cancel()


async def test_stop_does_not_wait_for_those_who_watch_the_health() -> None:
    async with a_server() as (_service, door, net, address):
        states = net.stream(address, "/grpc.health.v1.Health/Watch", b"", timeout_ms=None)
        assert await anext(states) == SERVING
        before = SystemClock().monotonic_ms()
        await door.stop(60_000)
        assert [state async for state in states] == [NOT_SERVING]
        assert SystemClock().monotonic_ms() - before < 50_000


async def test_stop_lets_a_running_call_finish() -> None:
    async with a_server() as (service, door, net, address):
        release = asyncio.Event()

        async def wait(request: bytes) -> bytes:
            service.parked.set()
            await release.wait()
            return request

        service.unary = wait
        call = asyncio.ensure_future(net.unary(address, UNARY, b"x", timeout_ms=10_000))
        await service.parked.wait()
        stopping = asyncio.ensure_future(door.stop(10_000))
        await until_async(lambda: not door.health.serving)
        release.set()
        assert await call == b"x"
        await stopping


async def test_a_port_in_use_is_named() -> None:
    async with a_server() as (_service, door, _net, _address):
        with pytest.raises(errors.PortInUse, match=rf"port {door.port} .* --port"):
            await open_grpc_server(
                [], host="127.0.0.1", port=door.port, clock=SystemClock(), options=GrpcServerOptions(front=FRONT)
            )
        with pytest.raises(errors.SettingsError, match=r"no\.such\.host\.invalid"):
            await open_grpc_server(
                [], host="no.such.host.invalid", port=0, clock=SystemClock(), options=GrpcServerOptions(front=FRONT)
            )


async def test_a_call_knows_the_door_it_came_through() -> None:
    async with a_server() as (service, _door, net, address):
        options = GrpcServerOptions(front=FRONT, listener=Listener("external"))
        other = await open_grpc_server(service.rpcs(), host="127.0.0.1", port=0, clock=SystemClock(), options=options)
        try:
            await net.unary(address, UNARY, b"", timeout_ms=5_000)
            await net.unary(f"127.0.0.1:{other.port}", UNARY, b"", timeout_ms=5_000)
        finally:
            await other.stop()
        assert [context.listener.name for context in service.contexts] == ["default", "external"]


async def test_garbage_on_the_port_hurts_nobody() -> None:
    async with a_server() as (_service, door, net, address):
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 50, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff"):
            with socket.create_connection(("127.0.0.1", door.port)) as connection:
                connection.sendall(garbage)
        assert await net.unary(address, UNARY, b"fine", timeout_ms=3_000) == b"fine"


async def test_a_body_of_4_mib_fits_and_one_over_the_limit_is_refused() -> None:
    async with a_server() as (_service, _door, net, address):
        body = bytes((4 << 20) + (128 << 10))
        assert await net.unary(address, UNARY, body, timeout_ms=10_000) == body
        with pytest.raises(errors.PayloadTooLarge):
            await net.unary(address, UNARY, bytes((8 << 20) + 1), timeout_ms=10_000)


async def test_health_is_checked_and_watched() -> None:
    async with a_server() as (_service, door, net, address):
        check, watch = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
        assert await net.unary(address, check, b"", timeout_ms=3_000) == b"\x08\x01"
        with pytest.raises(errors.NotFound):
            await net.unary(address, check, b"\x0a\x01x", timeout_ms=3_000)
        states = net.stream(address, watch, b"", timeout_ms=10_000)
        assert await anext(states) == b"\x08\x01"
        door.health.set_serving(serving=False)
        assert await anext(states) == b"\x08\x02"
        await states.aclose()


async def test_all_status_codes_of_errors_survive_the_trip() -> None:
    async with a_server() as (service, _door, net, address):
        for code in (40000, 40100, 40300, 40404, 40800, 41301, 42800, 50002, 50100, 50400, 50500):
            service.unary = lambda _, code=code: failing(error_of(code, "text"))  # type: ignore[misc]  # default argument
            with pytest.raises(errors.Error, match="text") as caught:
                async for _ in net.stream(address, BARE, b"", timeout_ms=3_000):
                    pass
            assert caught.value.code == code


async def test_a_full_server_still_says_that_it_is_alive() -> None:
    async with a_server(GrpcServerOptions(running_max=1)) as (service, _door, net, address):
        service.unary = service.park
        parked = asyncio.ensure_future(net.unary(address, UNARY, b"", timeout_ms=60_000))
        await service.parked.wait()
        refused = service_pb2.AckMessageResponse.FromString(await net.unary(address, UNARY, b"", timeout_ms=3_000))
        assert refused.status.code == errors.TooManyRequests.code
        assert await net.unary(address, "/grpc.health.v1.Health/Check", b"", timeout_ms=3_000) == SERVING
        parked.cancel()
        await asyncio.gather(parked, return_exceptions=True)
