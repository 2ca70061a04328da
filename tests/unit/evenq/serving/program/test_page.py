"""The small HTTP page: what it answers, and to whom it does not."""

import asyncio
import socket
import threading
from contextlib import asynccontextmanager

import pytest
from evenq_proofs.waiting import until_async

from evenq.errors import PortInUse, SettingsError
from evenq.serving.program import page as page_module
from evenq.serving.program.page import CONNECTIONS_MAX, HEAD_BYTES_MAX, PEER_MAX, open_page


async def ask(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        await writer.drain()
        return (await reader.read()).decode()
    except ConnectionError:
        return ""
    finally:
        writer.close()


@asynccontextmanager
async def a_port(*, metrics=lambda: b"m 1\n", ready=lambda: True):
    page = await open_page(host="127.0.0.1", port=0, metrics=metrics, ready=ready)
    try:
        async with asyncio.timeout(60):
            yield page.port
    finally:
        await page.close()


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        ("GET /metrics", "200 OK", "m 1\n"),
        ("GET /metrics?x=1", "200 OK", "m 1\n"),
        ("GET /healthz", "200 OK", "ok\n"),
        ("GET /readyz", "200 OK", "ready\n"),
        ("HEAD /metrics", "200 OK", ""),
        ("GET /", "404 Not Found", "here are /metrics, /healthz and /readyz\n"),
        ("GET /../etc/passwd", "404 Not Found", "here are /metrics, /healthz and /readyz\n"),
        ("POST /metrics", "405 Method Not Allowed", "GET and HEAD only\n"),
    ],
)
async def test_each_path_has_its_answer(request_line, status, body):
    async with a_port() as port:
        head, _, found = (await ask(port, f"{request_line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition("\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status}\r\n")
        assert found == body


async def test_a_program_that_is_not_ready_or_cannot_count_says_so():
    def broken():
        raise ValueError("a mistake")

    async with a_port(metrics=broken, ready=lambda: False) as port:
        assert "503" in await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n")
        response = await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert "500" in response
        assert "a mistake" not in response
        assert "200" in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")


async def test_too_long_a_head_is_dropped_and_the_next_caller_answered():
    async with a_port() as port:
        assert await ask(port, b"GET /" + b"x" * (4 * HEAD_BYTES_MAX)) == ""
        assert "200" in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")


async def connections(port, count):
    return [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]


async def test_silent_connections_keep_nobody_out():
    async with a_port() as port:
        idle = await connections(port, CONNECTIONS_MAX)
        for path in ("/healthz", "/readyz", "/metrics"):
            assert "200" in await ask(port, f"GET {path} HTTP/1.1\r\n\r\n".encode())
        for _, writer in idle:
            writer.close()


async def test_one_peer_has_so_many_silent_connections_and_the_oldest_goes():
    async with a_port() as port:
        idle = await connections(port, PEER_MAX + 3)
        for reader, writer in idle[:3]:
            assert await ended(reader), "it was the oldest"
            writer.close()
        for reader, writer in idle[3:]:
            assert not reader.at_eof()
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert b"200" in await reader.read(), "it asks late, within its time"
            writer.close()


async def ended(reader):
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_silent_connections_of_many_peers_make_room_for_the_next(monkeypatch):
    monkeypatch.setattr(page_module, "PEER_MAX", CONNECTIONS_MAX + 1)  # one address stands for many here
    async with a_port() as port:
        idle = await connections(port, CONNECTIONS_MAX)
        assert "200" in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert await ended(idle[0][0])
        assert not idle[1][0].at_eof()
        for _, writer in idle:
            writer.close()


class Connection:
    """What the page wants of a writer."""

    def __init__(self):
        self.transport, self.ended = self, False

    def get_extra_info(self, name):
        return ("10.0.0.1", 1) if name == "peername" else None

    def abort(self):
        self.ended = True

    close = abort


async def test_who_is_closed_for_a_newer_one_in_the_turn_in_which_it_asks_is_no_mistake_of_ours():
    page, reader, writer = page_module.MetricsPage(lambda: b"", lambda: True), asyncio.StreamReader(), Connection()
    serving = asyncio.ensure_future(page._serve(reader, writer))
    await asyncio.sleep(0)
    reader.feed_data(b"GET /healthz HTTP/1.1\r\n\r\n")
    for _ in range(PEER_MAX):
        page._make_room(Connection())
    await serving
    assert writer.ended


async def test_who_says_nothing_is_closed_after_a_while(monkeypatch):
    monkeypatch.setattr(page_module, "TIMEOUT_S", 0.05)
    async with a_port() as port:
        (reader, writer), (slow, other) = await connections(port, 2)
        other.write(b"GET /healthz HTTP/1.1\r\n")  # begun, and never ended
        assert await ended(reader)
        assert await ended(slow)
        writer.close()
        other.close()


async def test_who_does_not_read_the_answer_keeps_nobody_out(monkeypatch):
    monkeypatch.setattr(page_module, "TIMEOUT_S", 0.2)
    async with a_port(metrics=lambda: b"x" * (16 << 20)) as port:
        idle = await connections(port, CONNECTIONS_MAX)
        for _, writer in idle:
            writer.transport.pause_reading()
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        while "200" not in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n"):
            pass  # `played` has the deadline
        for _, writer in idle:
            writer.transport.abort()


async def test_an_answer_whose_last_bytes_are_not_read_ends_with_its_connection(monkeypatch):
    """The unsent rest is less than the 64 KiB at which a transport pauses its writer."""
    accepted = []
    make_room = page_module.MetricsPage._make_room
    monkeypatch.setattr(page_module, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(
        page_module.MetricsPage, "_make_room", lambda page, writer: (accepted.append(writer), make_room(page, writer))
    )
    page = await open_page(host="127.0.0.1", port=0, metrics=lambda: b"x" * (60 << 10), ready=bool)
    page._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 10)  # accepted sockets inherit it
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
        client.connect(("127.0.0.1", page.port))  # the kernel accepts it
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(10):
            await until_async(lambda: accepted)
            assert len(accepted) == 1
            await accepted[0].wait_closed()
    await page.close()


async def test_closing_does_not_wait_for_a_client_that_does_not_read_the_rest_of_its_answer(monkeypatch):
    """`Server.wait_closed` would, since Python 3.12. The answer is still unsent, because `drain` does not wait here."""
    drained = asyncio.Event()

    async def drain(_writer):
        drained.set()

    monkeypatch.setattr(asyncio.StreamWriter, "drain", drain)
    page = await open_page(host="127.0.0.1", port=0, metrics=lambda: b"x" * (16 << 20), ready=bool)
    ((_, writer),) = await connections(page.port, 1)
    writer.transport.pause_reading()
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    await drained.wait()
    async with asyncio.timeout(60):
        await page.close()
    writer.transport.abort()


async def test_single_queues_have_a_page_of_their_own_where_there_are_any():
    async with a_port() as port:
        assert "404" in await ask(port, b"GET /metrics/queues HTTP/1.1\r\n\r\n")
        page = await open_page(host="127.0.0.1", port=0, metrics=bytes, ready=bool, queues=lambda: lambda: b"q 1\n")
        assert (await ask(page.port, b"GET /metrics/queues HTTP/1.1\r\n\r\n")).endswith("q 1\n")
        await page.close()


async def test_the_loop_goes_on_while_the_text_of_many_queues_is_made():
    async with a_port() as _:
        others_are_answered = threading.Event()

        def text():
            assert others_are_answered.wait(60)
            return b"q 1\n"

        page = await open_page(host="127.0.0.1", port=0, metrics=bytes, ready=bool, queues=lambda: text)
        queues = asyncio.ensure_future(ask(page.port, b"GET /metrics/queues HTTP/1.1\r\n\r\n"))
        assert "200" in await ask(page.port, b"GET /healthz HTTP/1.1\r\n\r\n")
        others_are_answered.set()
        assert (await queues).endswith("q 1\n")
        await page.close()


async def test_queues_that_cannot_be_read_are_said_so():
    async with a_port() as _:
        page = await open_page(host="127.0.0.1", port=0, metrics=bytes, ready=bool, queues=lambda: 1 / 0)
        assert "500" in await ask(page.port, b"GET /metrics/queues HTTP/1.1\r\n\r\n")
        await page.close()


async def test_a_port_that_cannot_be_had_is_told_and_minus_one_is_none():
    async with a_port() as port:
        for host, wrong, kind in (("127.0.0.1", port, PortInUse), ("256.0.0.1", 0, SettingsError)):
            with pytest.raises(kind):
                await open_page(host=host, port=wrong, metrics=bytes, ready=bool)
        assert await open_page(host="127.0.0.1", port=-1, metrics=bytes, ready=bool) is None
