"""The small HTTP page: what it answers, and to whom it does not."""

import asyncio

import pytest

from evenq.errors import PortInUse, SettingsError
from evenq.serving.page import CONNECTIONS_MAX, HEAD_BYTES_MAX, open_page


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


def played(story, *, metrics=lambda: b"m 1\n", ready=lambda: True):
    async def body():
        page = await open_page(host="127.0.0.1", port=0, metrics=metrics, ready=ready)
        try:
            await asyncio.wait_for(story(page.port), 20)
        finally:
            await page.close()

    asyncio.run(body())


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
def test_each_path_has_its_answer(request_line, status, body):
    async def story(port):
        head, _, found = (await ask(port, f"{request_line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition("\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status}\r\n")
        assert found == body

    played(story)


def test_a_program_that_is_not_ready_or_cannot_count_says_so():
    def broken():
        raise ValueError("a mistake")

    async def story(port):
        assert "503" in await ask(port, b"GET /readyz HTTP/1.1\r\n\r\n")
        told = await ask(port, b"GET /metrics HTTP/1.1\r\n\r\n")
        assert "500" in told
        assert "a mistake" not in told
        assert "200" in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")

    played(story, metrics=broken, ready=lambda: False)


def test_too_long_a_head_is_dropped_and_the_next_caller_answered():
    async def story(port):
        assert await ask(port, b"GET /" + b"x" * (4 * HEAD_BYTES_MAX)) == ""
        assert "200" in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")

    played(story)


def test_connections_over_the_maximum_are_closed_and_come_again_when_there_is_room():
    async def story(port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        reader, over = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        over.close()
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()
        while "200" not in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n"):
            pass  # the page has not seen all of them leave yet; `played` has the deadline

    played(story)


def test_a_port_that_cannot_be_had_is_told_and_minus_one_is_none():
    async def story(port):
        for host, wrong, kind in (("127.0.0.1", port, PortInUse), ("256.0.0.1", 0, SettingsError)):
            with pytest.raises(kind):
                await open_page(host=host, port=wrong, metrics=bytes, ready=bool)
        assert await open_page(host="127.0.0.1", port=-1, metrics=bytes, ready=bool) is None

    played(story)
