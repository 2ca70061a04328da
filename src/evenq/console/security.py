"""Conditions of every request and response of the console, whatever page it is for.

- The `Host` header is an IP address, `localhost` or a configured name. Otherwise a foreign site could resolve its own
  name to this machine and use the console of somebody who visits it (DNS rebinding).
- A request that may change something comes from a page of the console: browsers report the origin.
- A request has a bounded body.
- Scripts and styles come from files of the console only, so text from messages cannot run; no page may be framed, and
  no cache keeps it. That is so for the response to a mistake in the console, too.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 8 << 20
SMALL_BODY_BYTES_MAX = 64 << 10
"""Of the forms that are read without a user, to sign in and out: parsing takes time, 0.3 s for a MiB that was made for
it. Other forms of strangers are not read at all, unless the cluster has no users.
"""
BODIES_BYTES_MAX = 64 << 20
"""Of all requests that are answered at a time: they are in memory or in temporary files."""
LENGTH_DIGITS_MAX = 20
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer, browsers report the origin of a form as null
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_SAFE = ("GET", "HEAD")
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9a-z._-]+))(?::[0-9]{0,5})?", re.IGNORECASE)
log = logging.getLogger(__name__)


class HttpGuard:
    """ASGI middleware around the whole console."""

    def __init__(self, app: ASGIApp, names: Iterable[str], small: Iterable[str] = ()) -> None:
        """`small`: paths of forms that are short."""
        self._app = app
        self._small = frozenset(small)
        self._names = {"localhost", *(name.lower() for name in names)}
        self._bodies = _Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        started = False

        async def guarded_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        body_max = SMALL_BODY_BYTES_MAX if scope["path"] in self._small else BODY_BYTES_MAX
        refusal = self._refusal(scope["method"], headers, body_max)
        if refusal is not None:
            await refusal(scope, receive, guarded_send)
            return
        bounded = _Bounded(receive, body_max, self._bodies)
        try:
            await self._app(scope, bounded, guarded_send)
        except Exception:
            if started:
                raise
            log.exception("The console failed to answer %s %s", scope["method"], scope["path"])
            mistake = PlainTextResponse("The console failed to answer; see its log.\n", 500)
            await mistake(scope, receive, guarded_send)
        finally:
            bounded.end()

    def _refusal(self, method: str, headers: Headers, body_max: int) -> PlainTextResponse | None:
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if not self._is_own(host):
            return PlainTextResponse(
                f"This console does not serve the host name {host[:100]!r}. Start it with --name HOST to allow it.\n",
                421,
            )
        if method not in _SAFE and not _from_here(headers, host):
            return PlainTextResponse("This request comes from another site.\n", 403)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > LENGTH_DIGITS_MAX or int(length) > body_max:
            return PlainTextResponse(f"{_too_large(body_max)}\n", 413, {"connection": "close"})
        return None

    def _is_own(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        address, name = found.groups()
        if name is not None and name.lower() in self._names:
            return True
        try:
            ipaddress.IPv4Address(name) if address is None else ipaddress.IPv6Address(address)
        except ValueError:
            return False
        return True


def _too_large(body_max: int) -> str:
    return f"The request is larger than {body_max >> 10} KiB."


def _from_here(headers: Headers, host: str) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    if origin is None:  # not a browser of the last years; the token of the form still decides
        return True
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False


class _Bodies:
    """Bytes of the requests that are answered now."""

    def __init__(self) -> None:
        self.bytes = 0


class _Bounded:
    """Receives a body without an announced length up to the limits; the rest is never read."""

    def __init__(self, receive: Receive, body_max: int, bodies: _Bodies) -> None:
        self._receive = receive
        self._body_max, self._bodies = body_max, bodies
        self._bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._bytes += size
            self._bodies.bytes += size
            if self._bytes > self._body_max:
                raise HTTPException(413, _too_large(self._body_max), {"connection": "close"})
            if size and self._bodies.bytes > BODIES_BYTES_MAX:
                raise HTTPException(503, "Too many large requests at a time; try again.", {"connection": "close"})
        return message

    def end(self) -> None:
        self._bodies.bytes -= self._bytes
