"""Conditions of every request and response, on an application that only echoes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from evenq.console.security import BODIES_BYTES_MAX, BODY_BYTES_MAX, HttpGuard

Header = tuple[bytes, bytes]
PROTECTION = {
    "content-security-policy",
    "x-frame-options",
    "x-content-type-options",
    "referrer-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "permissions-policy",
    "cache-control",
}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(f"{len(body)} bytes")(scope, receive, send)


class Answer:
    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""


async def call(
    headers: Sequence[Header] = ((b"host", b"127.0.0.1"),),
    *,
    method: str = "GET",
    chunks: Sequence[bytes] = (),
    app: Callable[..., Awaitable[None]] = echo,
    names: tuple[str, ...] = ("console.example.com",),
) -> Answer:
    answer = Answer()
    parts = list(chunks) or [b""]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message["body"]

    scope = {
        "type": "http",
        "method": method,
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": list(headers),
        "http_version": "1.1",
    }
    await HttpGuard(app, names)(scope, receive, send)  # type: ignore[arg-type]  # a scope with what is read of it
    return answer


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.0.0.1:8080", "localhost", "LocalHost:1", "localhost:", "[::1]", "[::1]:8080", "10.1.2.3",
        "[fe80::1]", "console.example.com", "CONSOLE.example.com:443",
    ],
)  # fmt: skip
async def test_an_address_or_a_configured_name_is_served(host: str) -> None:
    assert (await call([(b"host", host.encode())])).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "", " ", "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "localhost.",
        "evilconsole.example.com", "console.example.com.", "user@127.0.0.1", "localhost@evil.example",
        "evil.example@localhost", "127.0.0.1/evil", "localhost?x", "localhost#x", "localhost\\evil", "localhost:80:80",
        "localhost:x", "localhost:123456", "[::1", "::1", "[::1]x", "[127.0.0.1]", "[localhost]", "[::1%25eth0]",
        "127.1", "0x7f000001", "2130706433", "127.0.0.1\t", "localhost,evil.example", "local host", "lócalhost",
        "%6cocalhost",
    ],
)  # fmt: skip
async def test_every_other_host_is_refused(host: str) -> None:
    """DNS rebinding: a foreign name that resolves to this machine, and texts that parsers read differently."""
    answer = await call([(b"host", host.encode("latin-1"))])
    assert answer.status == 421
    assert b"--name" in answer.body


async def test_a_request_without_or_with_two_hosts_is_refused() -> None:
    assert (await call([])).status == 421
    assert (await call([(b"host", b"localhost"), (b"host", b"evil.example")])).status == 421
    assert (await call([(b"host", b"localhost"), (b"host", b"localhost")])).status == 421


async def test_a_host_is_shortened_in_the_refusal() -> None:
    answer = await call([(b"host", b"a" * 20_000)])
    assert answer.status == 421
    assert len(answer.body) < 300


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # a program, not a browser: the token of the form decides
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "same-origin", "origin": "null"}, 200),
        ({"origin": "http://127.0.0.1"}, 200),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": ""}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://127.0.0.1"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:81"}, 403),
        ({"origin": "http://127.0.0.1.evil.example"}, 403),
        ({"origin": "http://127.0.0.1@evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "http://127.0.0.1, http://evil.example"}, 403),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"])
async def test_only_a_page_of_the_console_may_change_something(
    headers: dict[str, str], status: int, method: str
) -> None:
    sent = [(b"host", b"127.0.0.1"), *((name.encode(), value.encode()) for name, value in headers.items())]
    assert (await call(sent, method=method)).status == status


async def test_pages_may_be_read_from_links_on_other_sites() -> None:
    for method in ("GET", "HEAD"):
        assert (await call([(b"host", b"localhost"), (b"sec-fetch-site", b"cross-site")], method=method)).status == 200


@pytest.mark.parametrize("length", [str(BODY_BYTES_MAX + 1), "9" * 5_000, "-1", "1e3", "0x1", "", " 1", "1,1", "+1"])
async def test_a_length_above_the_limit_is_refused_before_the_body(length: str) -> None:
    answer = await call([(b"host", b"localhost"), (b"content-length", length.encode())], method="POST")
    assert answer.status == 413
    assert answer.headers["connection"] == "close", "the body is not read"


async def test_a_body_without_a_length_is_bounded() -> None:
    chunk = b"x" * (1 << 20)
    whole = [chunk] * (BODY_BYTES_MAX >> 20)
    assert (await call(method="POST", chunks=whole)).status == 200
    reached: list[bytes] = [*whole, b"x", b"never read"]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})

    answer = await call(method="POST", chunks=reached, app=_with_http_errors(app))
    assert answer.status == 413
    assert answer.headers["connection"] == "close"


async def test_the_bodies_of_all_requests_together_are_bounded_and_count_until_their_answer() -> None:
    held, answers = asyncio.Event(), []

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()
        await held.wait()
        await PlainTextResponse("done")(scope, receive, send)

    guard = HttpGuard(_with_http_errors(slow), ())

    async def post() -> int:
        parts, status = [bytes(BODY_BYTES_MAX)], []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}

        async def send(message: Any) -> None:
            status.append(message.get("status"))

        headers = [(b"host", b"127.0.0.1"), (b"sec-fetch-site", b"same-origin")]
        await guard({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
        answers.append(status[0])
        return int(status[0])

    waiting = [asyncio.ensure_future(post()) for _ in range(BODIES_BYTES_MAX // BODY_BYTES_MAX)]
    await asyncio.sleep(0)
    assert await post() == 503
    held.set()
    assert set(await asyncio.gather(*waiting)) == {200}
    assert await post() == 200


def _with_http_errors(app: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    from starlette.exceptions import HTTPException

    async def around(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except HTTPException as error:
            await PlainTextResponse(error.detail, error.status_code, error.headers)(scope, receive, send)

    return around


async def test_every_response_has_the_headers_of_protection() -> None:
    answers = [
        await call(),
        await call([(b"host", b"evil.example")]),
        await call([(b"host", b"localhost"), (b"origin", b"http://evil.example")], method="POST"),
        await call([(b"host", b"localhost"), (b"content-length", b"99999999999")]),
        await call(method="HEAD"),
    ]
    assert [one.status for one in answers] == [200, 421, 403, 413, 200]
    for answer in answers:
        assert set(answer.headers) >= PROTECTION
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == policy["form-action"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]


async def test_forms_carry_their_origin_over_plain_http() -> None:
    """With the policy no-referrer, a browser reports the origin of a form as null. Over HTTP from another machine there
    is no Sec-Fetch-Site, so every form would be refused.
    """
    assert (await call()).headers["referrer-policy"] == "same-origin"


async def test_a_mistake_of_a_page_is_logged_and_answered_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("secret of the stack")

    with caplog.at_level(logging.ERROR):
        answer = await call(app=app)
    assert answer.status == 500
    assert set(answer.headers) >= PROTECTION
    assert b"secret" not in answer.body
    assert "secret of the stack" in caplog.text


async def test_a_response_that_breaks_in_its_middle_is_not_completed() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await call(app=app)


async def test_other_protocols_reach_the_application_unchanged() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    for kind in ("lifespan", "websocket"):
        await HttpGuard(app, ())({"type": kind}, None, None)  # type: ignore[arg-type]  # nothing of it is used
    assert seen == ["lifespan", "websocket"]
