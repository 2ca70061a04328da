"""Ports whose connections lead to another host: what passes, what ends with what, and what it may hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Self

import pytest

from evenq.errors import PortInUse
from evenq.model import PLAIN_LISTENER
from evenq.runtime.clock import SystemClock
from evenq.serving.connection_forwarder import PIECE_BYTES, ConnectionForwarder
from evenq.serving.grpc_servers import ListenAddress
from evenq.testing.free_ports import FreePorts

HERE, LEADER, NEXT = "127.0.0.1", "127.0.0.2", "127.0.0.3"
Play = Callable[[Callable[[], Awaitable[None]]], None]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """With the server's own address in front."""
    writer.write(f"{writer.get_extra_info('sockname')[0]} ".encode())
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


class Stage:
    """Two hosts that serve, a forwarder, and its clients; closes all of them."""

    def __init__(self, serve: Serve, connections_max: int) -> None:
        self._serve = serve
        self._ports = FreePorts()
        self.port = self._ports.take()
        address = ListenAddress(PLAIN_LISTENER, HERE, self.port)
        self.forwarder = ConnectionForwarder([address], connections_max=connections_max)
        self._servers: list[asyncio.Server] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._servers = [await asyncio.start_server(self._served, host, self.port) for host in (LEADER, NEXT)]
        await self.forwarder.open()
        self.forwarder.lead_to(LEADER)
        return self

    async def client(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HERE, self.port, limit=1_000)
        self._writers.append(writer)
        return reader, writer

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(ConnectionError):
            await self._serve(reader, writer)
        writer.close()

    async def __aexit__(self, *_: object) -> None:
        self.forwarder.close()
        for server in self._servers:
            server.close()
        for writer in self._writers:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        self._ports.close()


def forwarding(*, connections_max: int = 10, serve: Serve = echo) -> Stage:
    return Stage(serve, connections_max)


@pytest.fixture(params=["asyncio", "uvloop"])
def played(request: pytest.FixtureRequest) -> Play:
    """Plays a story on both loops that servers run on; they differ in when they begin to read."""
    factory = None if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop

    def play(story: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(120):
                await story()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    return play


async def ended(reader: asyncio.StreamReader) -> bool:
    """The other side has closed; what it sent before is dropped."""
    try:
        while await reader.read(65_536):
            pass
    except ConnectionError:
        pass
    return True


def test_bytes_pass_in_both_directions_in_their_order(played: Play) -> None:
    async def story() -> None:
        async with forwarding() as stage:
            reader, writer = await stage.client()
            sent = bytes(range(256)) * 20_000  # many times what it holds
            asyncio.get_running_loop().call_soon(writer.write, sent)
            assert await reader.readexactly(len(LEADER) + 1) == f"{LEADER} ".encode()
            assert await reader.readexactly(len(sent)) == sent
            assert stage.forwarder.connections == 1
            writer.close()

    played(story)


def test_both_sides_end_together(played: Play) -> None:
    async def story() -> None:
        gone = asyncio.Event()

        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            data = await reader.read(10)
            writer.write(b"last words of " + data)
            gone.set()

        async with forwarding(serve=once) as stage:
            reader, writer = await stage.client()
            writer.write(b"a")
            assert await reader.read() == b"last words of a"
            await gone.wait()
            while stage.forwarder.connections:
                await SystemClock().sleep_ms(5)

    played(story)


def test_when_another_host_leads_connections_to_the_old_one_end(played: Play) -> None:
    async def story() -> None:
        async with forwarding() as stage:
            reader, writer = await stage.client()
            await reader.readexactly(len(LEADER) + 1)
            stage.forwarder.lead_to("")
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x", "no copy is known to lead: the old leader may go on"
            late, _ = await stage.client()
            assert await ended(late), "a new connection has nowhere to go"
            stage.forwarder.lead_to(LEADER)
            writer.write(b"y")
            assert await reader.readexactly(1) == b"y"
            stage.forwarder.lead_to(NEXT)
            assert await ended(reader)
            reader, _ = await stage.client()
            assert await reader.readexactly(len(NEXT) + 1) == f"{NEXT} ".encode()

    played(story)


def test_one_connection_too_many_is_closed_and_others_go_on(played: Play) -> None:
    async def story() -> None:
        async with forwarding(connections_max=1) as stage:
            reader, writer = await stage.client()
            await reader.readexactly(len(LEADER) + 1)
            late, _ = await stage.client()
            assert await ended(late)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"

    played(story)


def test_who_is_not_read_is_not_read_from(played: Play) -> None:
    """The leader writes without end and the client takes nothing: the leader is held up, and not the memory here filled."""

    async def story() -> None:
        written = 0
        stuck = asyncio.Event()

        async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal written
            while True:
                writer.write(bytes(1 << 20))
                try:
                    await asyncio.wait_for(writer.drain(), 1)
                except TimeoutError:
                    stuck.set()
                    return
                except ConnectionError:
                    return
                written += 1 << 20

        async with forwarding(serve=flood) as stage:
            reader, writer = await stage.client()
            await stuck.wait()
            (pair,) = stage.forwarder._pairs
            held = [side.transport.get_write_buffer_size() for side in pair._sides]
            assert max(held) <= PIECE_BYTES
            writer.close()
            del reader

    played(story)


def test_it_closes_its_ports_and_connections_and_may_open_again(played: Play) -> None:
    async def story() -> None:
        async with forwarding() as stage:
            reader, _ = await stage.client()
            await reader.readexactly(len(LEADER) + 1)
            second = ConnectionForwarder([ListenAddress(PLAIN_LISTENER, HERE, stage.port)])
            with pytest.raises(PortInUse):
                await second.open()
            stage.forwarder.close()
            stage.forwarder.close()
            assert await ended(reader)
            assert stage.forwarder.connections == 0
            with pytest.raises(ConnectionError):
                await stage.client()
            await stage.forwarder.open()
            await stage.forwarder.open()
            reader, _ = await stage.client()
            await reader.readexactly(len(LEADER) + 1)

    played(story)
