"""What `GrpcNet` does when the other side is away, silent or strange; the good path is in the door's tests."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing

import pytest
from evenq_proofs.nets import open_net
from evenq_proofs.rpcs import fake_rpc

from evenq import errors
from evenq.runtime.clock import SystemClock
from evenq.serving.front.grpc_server import GrpcServer, open_grpc_server
from evenq.serving.rpc import Access, Action, CallKind, Resource, RpcContext
from evenq.wire.net import GrpcNet

ECHO = "/evenq.v1.Data/Echo"
SILENT = "/evenq.v1.Data/Silent"
CHAT = "/evenq.v1.Data/Chat"
PEER = "/evenq.v1.Data/Peer"


async def echo(request: bytes, _context: RpcContext) -> bytes:
    return request


async def peer(_request: bytes, context: RpcContext) -> bytes:
    return context.peer.encode()


async def silent(request: bytes, _context: RpcContext) -> bytes:
    await asyncio.Event().wait()
    return request


async def chat(requests: AsyncIterator[bytes], _context: RpcContext) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def server(port: int = 0) -> GrpcServer:
    access = Access(resource=Resource.NONE, action=Action.DESCRIBE)
    rpcs = [
        fake_rpc(ECHO, echo, bytes, access=access),
        fake_rpc(PEER, peer, bytes, access=access),
        fake_rpc(SILENT, silent, bytes, access=access),
        fake_rpc(CHAT, chat, bytes, kind=CallKind.BIDI, access=access),
    ]
    return await open_grpc_server(rpcs, host="127.0.0.1", port=port, clock=SystemClock())


@asynccontextmanager
async def a_net(*, channels_max: int = 256) -> AsyncIterator[GrpcNet]:
    async with open_net(channels_max=channels_max) as net:
        async with asyncio.timeout(60):
            yield net


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_nobody_there_is_connection_failed_with_the_address() -> None:
    async with a_net() as net:
        address = f"127.0.0.1:{free_port()}"
        with pytest.raises(errors.ConnectionFailed, match=address):
            await net.unary(address, ECHO, b"", timeout_ms=5_000)
        with pytest.raises(errors.ConnectionFailed, match=address):
            async with aclosing(net.stream(address, CHAT, b"", timeout_ms=5_000)) as frames:
                await anext(frames)


async def test_silence_is_request_timeout_with_the_time() -> None:
    async with a_net() as net:
        door = await server()
        with pytest.raises(errors.RequestTimeout, match="100 ms"):
            await net.unary(f"127.0.0.1:{door.port}", SILENT, b"", timeout_ms=100)
        await door.stop()


async def test_a_server_that_comes_back_is_found_soon() -> None:
    async with a_net() as net:
        door = await server()
        port, clock = door.port, SystemClock()
        assert await net.unary(f"127.0.0.1:{port}", ECHO, b"1", timeout_ms=5_000) == b"1"
        await door.stop()
        with pytest.raises(errors.ConnectionFailed):
            await net.unary(f"127.0.0.1:{port}", ECHO, b"2", timeout_ms=5_000)
        door = await server(port)
        started = clock.monotonic_ms()
        while True:
            try:
                assert await net.unary(f"127.0.0.1:{port}", ECHO, b"3", timeout_ms=5_000) == b"3"
                break
            except errors.ConnectionFailed:
                await clock.sleep_ms(20)
        assert clock.monotonic_ms() - started < 5_000
        await door.stop()


async def test_a_renewed_address_gets_a_connection_of_its_own_and_running_calls_end_on_the_old_one() -> None:
    async with a_net() as net:
        door = await server()
        address = f"127.0.0.1:{door.port}"
        more = asyncio.Event()

        async def requests() -> AsyncIterator[bytes]:
            yield b"1"
            await more.wait()
            yield b"2"

        await net.renew(address)  # nothing is there yet
        async with aclosing(net.stream(address, CHAT, requests(), timeout_ms=5_000)) as frames:
            assert await anext(frames) == b"1"
            before = await net.unary(address, PEER, b"", timeout_ms=5_000)
            assert await net.unary(address, PEER, b"", timeout_ms=5_000) == before
            await net.renew(address)
            after = await net.unary(address, PEER, b"", timeout_ms=5_000)
            assert after != before
            assert len(net._retired) == 1
            more.set()
            assert await anext(frames) == b"2"
        assert net._retired == set()
        assert await net.unary(address, PEER, b"", timeout_ms=5_000) == after
        await door.stop()


@pytest.mark.parametrize("address", ["", "localhost", "no-port"])
async def test_an_address_without_port_is_refused(address: str) -> None:
    async with a_net() as net:
        with pytest.raises(errors.IllegalAccessPoint, match="host:port"):
            await net.unary(address, ECHO, b"", timeout_ms=1_000)


async def test_channels_are_bounded_and_the_oldest_idle_one_makes_room() -> None:
    async with a_net(channels_max=2) as net:
        doors = [await server() for _ in range(3)]
        for door in [*doors, doors[0]]:
            assert await net.unary(f"127.0.0.1:{door.port}", ECHO, b"x", timeout_ms=5_000) == b"x"
        busy = [
            asyncio.ensure_future(net.unary(f"127.0.0.1:{door.port}", SILENT, b"", timeout_ms=10_000))
            for door in doors[:2]
        ]
        clock = SystemClock()
        async with asyncio.timeout(60):
            while any(door.running == 0 for door in doors[:2]):
                await clock.sleep_ms(5)
        with pytest.raises(errors.TooManyRequests, match="2 addresses"):
            await net.unary(f"127.0.0.1:{doors[2].port}", ECHO, b"x", timeout_ms=5_000)
        for call in busy:
            call.cancel()
        for door in doors:
            await door.stop()


async def test_a_request_iterator_that_fails_does_not_look_like_our_own_cancellation() -> None:
    async with a_net() as net:

        async def requests() -> AsyncIterator[bytes]:
            yield b"one"
            raise KeyError("mistake")

        door = await server()
        with pytest.raises(errors.ConnectionFailed, match="cancelled on this side"):
            async for _ in net.stream(f"127.0.0.1:{door.port}", CHAT, requests(), timeout_ms=5_000):
                pass
        await door.stop()


async def test_many_requests_and_many_answers_in_order() -> None:
    async with a_net() as net:

        async def requests() -> AsyncIterator[bytes]:
            for number in range(100):
                yield b"%d" % number

        door = await server()
        frames = [frame async for frame in net.stream(f"127.0.0.1:{door.port}", CHAT, requests(), timeout_ms=5_000)]
        assert frames == [b"%d" % number for number in range(100)]
        await door.stop()


async def test_after_close_calls_fail_at_once() -> None:
    async with a_net() as net:
        await net.close()
        with pytest.raises(errors.ConnectionFailed, match="shutting down"):
            await net.unary("127.0.0.1:1", ECHO, b"", timeout_ms=1_000)


@pytest.mark.parametrize("kind", ["unary", "stream"])
async def test_a_closed_net_connects_no_more_whoever_keeps_its_errors(kind: str) -> None:
    """A program that keeps the exception of a wrong certificate had handshakes in its log for ever."""
    async with a_net() as net:
        connections, kept = 0, []

        async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            writer.close()

        async def call(address: str) -> None:
            if kind == "unary":
                await net.unary(address, ECHO, b"", timeout_ms=5_000)
                return
            async for _ in net.stream(address, CHAT, b"", timeout_ms=5_000):
                pass

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listening:
            address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            while connections < 5:
                with pytest.raises(errors.ConnectionFailed) as caught:
                    await call(address)
                kept.append(caught.value)
                await SystemClock().sleep_ms(50)
            await net.close()
            await SystemClock().sleep_ms(300)  # one that was on its way
            before = connections
            await SystemClock().sleep_ms(1_000)
            assert connections == before, "gRPC tries five times a second"


async def test_a_call_that_runs_when_the_net_is_closed_fails_and_its_task_goes_on() -> None:
    async with a_net() as net:
        door = await server()
        address = f"127.0.0.1:{door.port}"
        await net.unary(address, ECHO, b"", timeout_ms=5_000)
        call = asyncio.ensure_future(net.unary(address, SILENT, b"", timeout_ms=20_000))
        await asyncio.sleep(0)
        await net.close()
        with pytest.raises(errors.ConnectionFailed, match="cancelled on this side"):
            await call
        await door.stop()


async def test_a_task_that_is_cancelled_in_a_call_is_cancelled() -> None:
    async with a_net() as net:
        door = await server()
        call = asyncio.ensure_future(net.unary(f"127.0.0.1:{door.port}", SILENT, b"", timeout_ms=20_000))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await door.stop()


async def test_an_option_that_is_given_stands_for_the_usual_one() -> None:
    """Of one option given twice gRPC takes the first."""
    there = await server()
    net = GrpcNet(options=[("grpc.max_receive_message_length", 4)])
    try:
        address = f"127.0.0.1:{there.port}"
        with pytest.raises(errors.Error, match=r"larger than max \(9 vs\. 4\)"):
            await net.unary(address, ECHO, b"123456789", timeout_ms=10_000)
    finally:
        await net.close()
        await there.stop()


async def test_what_a_status_means_is_said_by_the_nets_table() -> None:
    def theirs(
        code: int, _details: str, _trailers: object, /, *, address: str, method: str, timeout_ms: int | None
    ) -> errors.Error:
        return errors.NotFound(f"{code} {address} {method} {timeout_ms}")

    net, address = GrpcNet(error_table=theirs), f"127.0.0.1:{free_port()}"
    try:
        with pytest.raises(errors.NotFound, match=f"14 {address} {ECHO} 5000"):
            await net.unary(address, ECHO, b"", timeout_ms=5_000)
    finally:
        await net.close()
