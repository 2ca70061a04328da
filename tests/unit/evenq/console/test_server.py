"""The HTTP server of the console, on a port of this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from evenq_proofs.waiting import until_async
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from evenq.console import server as module
from evenq.console.app import create_app
from evenq.console.server import ConsoleServer
from evenq.console.settings import ConsoleSettings
from evenq.errors import PortInUse, SettingsError
from evenq.runtime.clock import SystemClock

FORM = (
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n"
)
UPGRADE = (
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
PROBE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = b"HEAD /login HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def console(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ConsoleServer]:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 8)
    monkeypatch.setattr(module, "REQUEST_S", 0.3)
    async with ConsoleServer(ConsoleSettings(port=0, endpoint="127.0.0.1:1"), SystemClock()) as server:
        yield server


class Line:
    """A connection that sends bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, server: ConsoleServer) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    async def ask(self, request: bytes) -> bytes:
        """Returns the response up to its end, or up to the end of the connection."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        if request.startswith(b"HEAD") or head.startswith(b"HTTP/1.1 204"):
            return head
        return head + (await self.reader.readexactly(int(length)) if length.strip() else await self.reader.read())

    async def ended(self) -> bool:
        """Returns when the server has closed it."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.writer.close()


async def test_it_serves_at_its_url_and_ends(console: ConsoleServer) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.get(console.url + "healthz")
    assert (answer.status_code, answer.text) == (200, "ok\n")
    assert "server" not in answer.headers, "the program and its version are not named"


async def test_two_consoles_on_free_ports_have_cookies_of_their_own() -> None:
    """Cookies of one host are sent to all of its ports."""
    names = set()
    for _ in range(2):
        settings = ConsoleSettings(port=0, endpoint="127.0.0.1:1")
        async with ConsoleServer(settings, SystemClock()) as one, httpx.AsyncClient() as client:
            names.add((await client.get(one.url + "login")).headers["set-cookie"].partition("=")[0])
            assert names.issuperset({f"evenq-console-{one.port}"})
    assert len(names) == 2


async def test_a_port_in_use_is_an_error_that_names_it(console: ConsoleServer) -> None:
    with pytest.raises(PortInUse, match=str(console.port)):
        ConsoleServer(ConsoleSettings(port=console.port), SystemClock())


@pytest.mark.parametrize(
    ("host", "prefix", "url"),
    [
        ("127.0.0.1", "", "http://127.0.0.1:{}/"),
        ("localhost", "/evenq", "http://localhost:{}/evenq/"),
        ("0.0.0.0", "", "http://127.0.0.1:{}/"),
    ],
)
async def test_its_url_is_one_that_a_browser_on_this_machine_can_open(host: str, prefix: str, url: str) -> None:
    async with ConsoleServer(ConsoleSettings(host=host, port=0, prefix=prefix), SystemClock()) as server:
        assert server.url == url.format(server.port)


async def test_a_certificate_that_cannot_be_read_is_an_error_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("not a certificate")
    for certificate in (tmp_path / "missing.pem", tmp_path / "c.pem"):
        settings = ConsoleSettings(port=0, certificate=certificate, key=certificate)
        with pytest.raises(SettingsError, match=certificate.name):
            async with ConsoleServer(settings, SystemClock()):
                raise AssertionError("it started")


async def test_a_connection_that_sends_nothing_is_closed(console: ConsoleServer) -> None:
    line = await Line.to(console)
    assert await line.ended()
    line.close()


async def test_a_request_that_never_ends_is_closed(console: ConsoleServer) -> None:
    """Some of a head, some of a body, and a body after the response."""
    for begin in (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ",
        FORM + b"Content-Length: 100\r\n\r\na=",
        FORM + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
    ):
        line = await Line.to(console)
        line.writer.write(begin)
        assert await line.ended()
        line.close()


async def test_a_slow_request_that_ends_in_time_is_answered(console: ConsoleServer) -> None:
    line = await Line.to(console)
    ask = b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for byte in ask[:-1]:
        line.writer.write(bytes([byte]))
        await line.writer.drain()
    assert b"200 OK" in await line.ask(ask[-1:])
    assert b"200 OK" in await line.ask(ask), "the next request has time of its own"
    line.close()


async def test_idle_connections_of_strangers_do_not_keep_users_out(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 60)
    idle = [await Line.to(console) for _ in range(30)]
    user = await Line.to(console)
    assert b"200 OK" in await user.ask(HEAD)
    assert await idle[0].ended(), "the one that waited longest made room"
    for line in [*idle, user]:
        line.close()


@pytest.fixture
async def busy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ConsoleServer, asyncio.Event]]:
    """A console with eight places, and an event; requests of `/slow` are answered after it."""
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 8)
    monkeypatch.setattr(module, "PROBES_MAX", 4)
    ready = asyncio.Event()

    def with_slow_page(settings: ConsoleSettings, clock: SystemClock) -> Starlette:
        async def slow(_request: Request) -> Response:
            await ready.wait()
            return PlainTextResponse("slow\n")

        app = create_app(settings, clock)
        app.router.routes.insert(0, Route("/slow", slow))
        return app

    monkeypatch.setattr(module, "create_app", with_slow_page)
    async with ConsoleServer(ConsoleSettings(port=0, endpoint="127.0.0.1:1"), SystemClock()) as server:
        yield server, ready
        ready.set()


async def use_all_places(server: ConsoleServer) -> list[Line]:
    """Returns seven connections with a request that is not answered yet: the eighth place is that of a refusal."""
    lines = [await Line.to(server) for _ in range(7)]
    for line in lines:
        line.writer.write(SLOW)
    await until_async(lambda: len(server._server.server_state.tasks) == 7)
    return lines


async def test_health_probes_are_answered_while_requests_use_all_places(
    busy: tuple[ConsoleServer, asyncio.Event],
) -> None:
    server, ready = busy
    lines = await use_all_places(server)
    user = await Line.to(server)
    assert b" 503 " in await user.ask(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for _ in range(20):
        probe = await Line.to(server)
        assert b"200 OK" in await probe.ask(PROBE)
        assert await probe.ended(), "it keeps no place"
        probe.close()
    ready.set()
    for line in lines:
        assert b"slow" in await line.ask(b"")
        line.close()
    user.close()


async def test_health_probes_take_no_place_of_a_user(busy: tuple[ConsoleServer, asyncio.Event]) -> None:
    """Probes whose clients do not read their answers, too."""
    server, ready = busy
    lines = [await Line.to(server) for _ in range(6)]
    for line in lines:
        line.writer.write(SLOW)
    await until_async(lambda: len(server._server.server_state.tasks) == 6)
    probes = []
    for _ in range(3):
        probes.append(await Line.to(server))
        probes[-1].writer.write(PROBE)
        await probes[-1].reader.readuntil(b"\r\n\r\n")
    user = await Line.to(server)
    assert b"200 OK" in await user.ask(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
    ready.set()
    for line in lines:
        assert b"slow" in await line.ask(b"")
    for line in [*lines, *probes, user]:
        line.close()


async def test_connections_beyond_those_of_probes_are_closed(busy: tuple[ConsoleServer, asyncio.Event]) -> None:
    server, ready = busy
    lines = [await Line.to(server) for _ in range(40)]
    for line in lines:
        line.writer.write(SLOW)
    await until_async(lambda: len(server._server.server_state.connections) <= 12)
    probe = await Line.to(server)
    assert b"200 OK" in await probe.ask(PROBE)
    ready.set()
    for line in [*lines, probe]:
        line.close()


REQUESTS = [
    (b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n", b"200"),
    (b"GET /healthz HTTP/1.0\r\n\r\n", b"421"),
    (b"GET /healthz HTTP/1.1\r\n\r\n", b"400"),
    (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"400"),
    (b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
    (b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"GET /static/../server.py HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"GET /static/%2e%2e/server.py HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"GET /static/%2e%2e%2fserver.py HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"GET /static/..%5cserver.py HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"GET /static/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"GET /static//etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"GET /%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
    (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 40_000, b"400"),
    (b"GET /" + b"x" * 40_000, b"400"),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", b"400"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100 + b"\r\n\r\n", b"400"),
    (UPGRADE, b"200"),
    (b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
    (b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n", b"400"),
]


async def test_a_request_by_hand_is_answered_or_refused(console: ConsoleServer) -> None:
    for request, status in REQUESTS:
        line = await Line.to(console)
        answer = await line.ask(request)
        assert answer.split(b" ")[1] == status, (request, answer)
        assert b"Traceback" not in answer
        assert b"evil.example" not in answer.partition(b"\r\n\r\n")[0]
        line.close()


async def test_headers_of_a_proxy_change_nothing(console: ConsoleServer) -> None:
    async with httpx.AsyncClient(headers={"x-forwarded-proto": "https", "x-forwarded-host": "evil.example"}) as client:
        answer = await client.get(console.url + "login", headers={"x-forwarded-for": "10.0.0.1"})
    assert answer.status_code == 200
    assert "evil.example" not in answer.text
    assert "Secure" not in answer.headers["set-cookie"]


async def test_a_body_above_the_limit_without_a_length_is_refused_and_the_connection_closed(
    console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 60)
    line = await Line.to(console)
    line.writer.write(FORM + b"Transfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b"&" * 0x10000 + b"\r\n"
    answer = b""

    async def read() -> None:
        nonlocal answer
        answer = await line.reader.read(1_000)

    reading = asyncio.ensure_future(read())
    try:
        for _ in range(64):
            if reading.done():
                break
            line.writer.write(chunk)
            await line.writer.drain()
    except ConnectionError:
        pass
    await reading
    assert b" 413 " in answer
    await until_async(line.ended)
    line.close()


LARGE = b"GET /static/htmx.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def is_closed(console: ConsoleServer, line: Line) -> None:
    """Waits until the console has ended the connection, whose client reads nothing meanwhile."""

    def closed() -> bool:
        return not console._server.server_state.connections

    await until_async(closed, seconds=20)
    line.reader._transport.resume_reading()  # type: ignore[attr-defined]
    line.close()
    assert closed()


async def test_a_client_that_does_not_read_is_closed(console: ConsoleServer) -> None:
    line = await Line.to(console)
    line.reader._transport.pause_reading()  # type: ignore[attr-defined]  # the stream would read on by itself
    line.writer.write(LARGE * 400)
    await is_closed(console, line)


async def test_a_client_that_sends_more_and_does_not_read_is_closed(console: ConsoleServer) -> None:
    line = await Line.to(console)
    line.reader._transport.pause_reading()  # type: ignore[attr-defined]
    await until_async(lambda: console._server.server_state.connections)
    (connection,) = console._server.server_state.connections
    sent = 0
    while not connection.flow.write_paused:
        line.writer.write(LARGE)
        sent += 1
        await until_async(
            lambda n=sent: connection.flow.write_paused or console._server.server_state.total_requests == n
        )
    line.writer.write(LARGE)
    await is_closed(console, line)


def with_broken_page(settings: ConsoleSettings, clock: SystemClock) -> Starlette:
    async def broken(_request: Request) -> Response:
        async def body() -> AsyncIterator[bytes]:
            yield b"x" * 50_000
            raise OSError("a mistake")

        return StreamingResponse(body())

    app = create_app(settings, clock)
    app.router.routes.insert(0, Route("/broken", broken))
    return app


BROKEN = b"GET /broken HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "requests",
    [LARGE[:-2] + b"Connection: close\r\n\r\n", LARGE + b"NOT HTTP\r\n\r\n", BROKEN],
    ids=["last", "invalid", "broken"],
)
async def test_a_client_that_does_not_read_the_end_of_its_last_answer_is_closed(
    monkeypatch: pytest.MonkeyPatch, requests: bytes
) -> None:
    """The unsent rest is less than the 64 KiB at which a transport pauses its writer."""
    monkeypatch.setattr(module, "REQUEST_S", 0.3)
    monkeypatch.setattr(module, "create_app", with_broken_page)
    async with ConsoleServer(ConsoleSettings(port=0, endpoint="127.0.0.1:1"), SystemClock()) as console:
        await leave_the_end_unread(console, requests)


async def leave_the_end_unread(console: ConsoleServer, requests: bytes) -> None:
    console._sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 10)  # accepted sockets inherit it
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
    client.connect(("127.0.0.1", console.port))  # the kernel accepts it
    line = Line(*await asyncio.open_connection(sock=client))
    line.reader._transport.pause_reading()  # type: ignore[attr-defined]
    line.writer.write(requests)
    await until_async(lambda: any(one.transport.is_closing() for one in console._server.server_state.connections))
    await is_closed(console, line)
