"""Ports whose connections lead to another host: what passes, what ends with what, and what it may hold."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest
from evenq_proofs.waiting import until_async

from evenq.errors import PortInUse
from evenq.model import PLAIN_LISTENER
from evenq.runtime.clock import SystemClock
from evenq.serving.front import connection_forwarder
from evenq.serving.front.connection_forwarder import PIECE_BYTES, ConnectionForwarder
from evenq.serving.front.grpc_servers import ListenAddress
from evenq.testing.free_ports import FreePorts

HERE, LEADER, NEXT, VANISHED = "127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"
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
        self._servers = [await asyncio.start_server(self.served, host, self.port) for host in (LEADER, NEXT)]
        await self.forwarder.open()
        self.forwarder.lead_to(LEADER)
        return self

    async def client(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HERE, self.port, limit=1_000)
        self._writers.append(writer)
        return reader, writer

    async def served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
def loop_factory(request: pytest.FixtureRequest) -> Any:
    """Both loops that servers run on; they differ in when they begin to read."""
    return None if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop


async def ended(reader: asyncio.StreamReader) -> bool:
    """The other side has closed; what it sent before is dropped."""
    try:
        while await reader.read(65_536):
            pass
    except ConnectionError:
        pass
    return True


async def test_bytes_pass_in_both_directions_in_their_order(loop_factory: Any) -> None:
    async with forwarding() as stage:
        reader, writer = await stage.client()
        sent = bytes(range(256)) * 20_000  # many times what it holds
        asyncio.get_running_loop().call_soon(writer.write, sent)
        assert await reader.readexactly(len(LEADER) + 1) == f"{LEADER} ".encode()
        assert await reader.readexactly(len(sent)) == sent
        assert stage.forwarder.connections == 1
        writer.close()


async def test_both_sides_end_together(loop_factory: Any) -> None:
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


async def test_when_another_host_leads_connections_to_the_old_one_end(loop_factory: Any) -> None:
    async with forwarding() as stage:
        reader, writer = await stage.client()
        await reader.readexactly(len(LEADER) + 1)
        stage.forwarder.lead_to("")
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x", "nobody is known to lead: the old leader may go on"
        stage.forwarder.lead_to(LEADER)
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        stage.forwarder.lead_to(NEXT)
        assert await ended(reader)
        reader, _ = await stage.client()
        assert await reader.readexactly(len(NEXT) + 1) == f"{NEXT} ".encode()


async def test_a_connection_is_held_while_nobody_leads_and_while_the_leader_refuses(loop_factory: Any) -> None:
    """A client of gRPC that is refused pauses for a second, then for longer."""
    async with forwarding() as stage:
        stage.forwarder.lead_to("")
        reader, writer = await stage.client()
        writer.write(b"early")
        stage.forwarder.lead_to("127.0.0.9")  # nobody listens there: a leader that begins, or one that is gone
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 3 * connection_forwarder.RETRY_S)
        assert stage.forwarder.connections == 1
        stage.forwarder.lead_to(NEXT)
        assert await reader.readexactly(len(NEXT) + 6) == f"{NEXT} early".encode()


async def test_a_connection_does_not_wait_for_a_host_that_is_silent_when_another_one_leads(
    loop_factory: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine that vanished answers nothing, not even that it refuses."""
    async with forwarding() as stage:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        connect = loop.create_connection

        async def silent(protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> object:
            if host == VANISHED:
                asked.set()
                await asyncio.Event().wait()
            return await connect(protocol, host, port)

        stage.forwarder.lead_to(VANISHED)
        with monkeypatch.context() as patch:
            patch.setattr(type(loop), "create_connection", lambda _, *arguments: silent(*arguments))
            patch.setattr(connection_forwarder, "CONNECT_S", 1_000.0)
            patch.setattr(connection_forwarder, "HOLD_S", 1_000.0)
            reader, _ = await stage.client()
            await asked.wait()
            stage.forwarder.lead_to(NEXT)
            assert await reader.readexactly(len(NEXT) + 1) == f"{NEXT} ".encode()


def test_a_name_that_is_given_up_while_it_is_looked_up_leaves_nothing_behind() -> None:
    """As a follower's of a leader whose pod is gone; uvloop, which servers run on, logged each as an error."""
    uvloop = pytest.importorskip("uvloop")
    said: list[str] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
        async with forwarding() as stage:
            await stage.client()
            for number in range(4):
                stage.forwarder.lead_to(f"gone-{number}.invalid")
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            stage.forwarder.lead_to(LEADER)
            reader, writer = await stage.client()
            writer.write(b"on")
            assert await asyncio.wait_for(reader.readuntil(b"on"), 10) == f"{LEADER} on".encode()
            for _ in range(100):
                await asyncio.sleep(0.01)
                gc.collect()

    uvloop.run(scenario())
    assert said == []


async def test_a_connection_that_nobody_takes_ends(loop_factory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_forwarder, "HOLD_S", 0.3)
    async with forwarding() as stage:
        stage.forwarder.lead_to("")
        reader, _ = await stage.client()
        assert await ended(reader)
        while stage.forwarder.connections:
            await SystemClock().sleep_ms(5)


async def test_held_connections_go_to_who_listens_at_the_ports_next(loop_factory: Any) -> None:
    """The copy itself leads: what came to it before stays, and nobody new is taken."""
    async with forwarding() as stage:
        old, _ = await stage.client()
        await old.readexactly(len(LEADER) + 1)
        stage.forwarder.lead_to("")
        held, _ = await stage.client()
        await stage.forwarder.stop_listening()
        own = await asyncio.start_server(stage.served, HERE, stage.port)
        stage.forwarder.lead_to(connection_forwarder.HERE)
        assert await held.readexactly(len(HERE) + 1) == f"{HERE} ".encode()
        assert await ended(old), "it led to the leader of before"
        own.close()


async def test_one_connection_too_many_is_closed_and_others_go_on(loop_factory: Any) -> None:
    async with forwarding(connections_max=1) as stage:
        reader, writer = await stage.client()
        await reader.readexactly(len(LEADER) + 1)
        late, _ = await stage.client()
        assert await ended(late)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"


async def test_one_address_has_half_of_the_connections_at_most(
    loop_factory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with forwarding(connections_max=5) as stage:
        kept = [await stage.client() for _ in range(3)]
        for reader, _ in kept:
            await reader.readexactly(len(LEADER) + 1)
        for _ in range(2):
            late, _ = await stage.client()
            assert await ended(late)
        kept[0][1].close()
        await until_async(lambda: stage.forwarder.connections == 2)
        reader, _ = await stage.client()
        assert await reader.readexactly(len(LEADER) + 1)
    [line] = [one.getMessage() for one in caplog.records if "are refused" in one.getMessage()]
    assert "3 are forwarded, 3 of them from 127.0.0.1; at most 5 may be, and 3 from one address" in line


async def test_connections_take_half_of_the_descriptors_at_most(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_forwarder, "open_files", lambda: (0, 8))
    async with forwarding() as stage:
        reader, _ = await stage.client()
        await reader.readexactly(len(LEADER) + 1)
        late, _ = await stage.client()
        assert await ended(late)


@pytest.mark.parametrize("own", [HERE, "localhost"])
@pytest.mark.parametrize("listens_at", [HERE, "0.0.0.0"])
async def test_connections_never_lead_to_the_ports_themselves(
    loop_factory: Any, caplog: pytest.LogCaptureFixture, own: str, listens_at: str
) -> None:
    """A leader on this host has other ports: each connection made a next one, to this copy, until nothing was left."""
    ports = FreePorts()
    port = ports.take()
    forwarder = ConnectionForwarder([ListenAddress(PLAIN_LISTENER, listens_at, port)])
    await forwarder.open()
    forwarder.lead_to(own)
    for _ in range(3):
        reader, writer = await asyncio.open_connection(HERE, port)
        assert await ended(reader)
        writer.close()
    await until_async(lambda: forwarder.connections == 0)
    forwarder.close()
    ports.close()
    [line] = [one.getMessage() for one in caplog.records if "cannot be forwarded" in one.getMessage()]
    assert f"the leader's host {own} is this host" in line


async def test_who_is_not_read_is_not_read_from(loop_factory: Any) -> None:
    """The leader writes without end and the client takes nothing: the leader is held up, and not the memory here filled."""
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


async def test_what_the_leader_answered_arrives_when_the_host_goes(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was given by a lost answer would be held by the life of its push consumer, for a day."""
    monkeypatch.setattr(connection_forwarder, "LEAVE_S", 60.0)  # a busy machine takes long for what is nothing
    answered, size = asyncio.Semaphore(0), 3 << 20

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(bytes(size))  # more than lies in sockets
        answered.release()
        while await reader.read(65_536):
            pass

    async with forwarding(serve=answer) as stage:
        clients = [await stage.client() for _ in range(3)]
        for _, writer in clients:
            writer.write(b"?")
        for _ in clients:
            await answered.acquire()
        leaving = asyncio.create_task(stage.forwarder.leave())
        for _, writer in clients:
            writer.write(b"more questions" * 1_000)  # nobody hears them, and nothing is lost by that
        assert [len(await reader.read(-1)) for reader, _ in clients] == [size] * 3
        await leaving
        assert stage.forwarder.connections == 0


async def test_a_host_that_goes_waits_for_no_leader_that_is_silent(
    loop_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_forwarder, "LEAVE_S", 0.3)
    stuck = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await stuck.wait()

    async with forwarding(serve=silent) as stage:
        reader, writer = await stage.client()
        writer.write(b"?")
        stage.forwarder.lead_to("")
        held, _ = await stage.client()
        await stage.forwarder.leave()
        assert stage.forwarder.connections == 0
        assert await ended(reader)
        assert await ended(held)
        stuck.set()
        await stage.forwarder.leave()


async def test_it_closes_its_ports_and_connections_and_may_open_again(loop_factory: Any) -> None:
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
