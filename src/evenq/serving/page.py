"""`/metrics`, `/healthz` and `/readyz` over plain HTTP, for Prometheus and for probes that know no gRPC.

A few lines of HTTP/1.1 on asyncio: GET and HEAD, one answer per connection, bounded in connections, bytes and time.
`/healthz` says that the loop turns, `/readyz` whether clients should come.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

from evenq.errors import PortInUse, SettingsError

__all__ = ["Page", "open_page"]

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 64
HEAD_BYTES_MAX = 8 << 10
TIMEOUT_S = 10.0
TEXT = "text/plain; charset=utf-8"
METRICS = "text/plain; version=1.0.0; charset=utf-8"


class Page:
    """A running HTTP page. Made by `open_page`; owned by the loop that made it."""

    def __init__(
        self, metrics: Callable[[], bytes], ready: Callable[[], bool], why: Callable[[], str] = lambda: ""
    ) -> None:
        self.port = 0
        """The port that is listened on."""
        self._metrics = metrics
        self._ready = ready
        self._why = why
        self._connections = 0
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises PortInUse or SettingsError."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX)
        except (OSError, OverflowError) as error:
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                raise PortInUse(
                    f"metrics port {port} on {host} is in use; choose another with --metrics-port (0 = any, -1 = off)"
                ) from error
            raise SettingsError(f"cannot listen on {host} metrics port {port}: {error}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            log.debug("HTTP request dropped")  # slow, too long, or gone
        finally:
            self._connections -= 1
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in {b"GET", b"HEAD"}:
            return _response("405 Method Not Allowed", TEXT, b"GET and HEAD only\n", with_body=True)
        status, kind, body = self._page(path)
        return _response(status, kind, body, with_body=method == b"GET")

    def _page(self, path: bytes) -> tuple[str, str, bytes]:
        match path:
            case b"/metrics":
                try:
                    return "200 OK", METRICS, self._metrics()
                except Exception:
                    log.exception("metrics cannot be read")
                    return "500 Internal Server Error", TEXT, b"metrics cannot be read; see the log\n"
            case b"/healthz":
                return "200 OK", TEXT, b"ok\n"
            case b"/readyz" if self._ready():
                return "200 OK", TEXT, b"ready\n"
            case b"/readyz":
                why = self._why()
                return "503 Service Unavailable", TEXT, f"not ready{why and ': '}{why}\n".encode()
            case _:
                return "404 Not Found", TEXT, b"here are /metrics, /healthz and /readyz\n"


async def open_page(
    *,
    host: str,
    port: int,
    metrics: Callable[[], bytes],
    ready: Callable[[], bool],
    why: Callable[[], str] = lambda: "",
) -> Page | None:
    """Serve the page at host:port; 0 = any free port, -1 = no page (None). `why`: the reason why it is not ready, for
    people; empty = there is nothing to say. Raises PortInUse, SettingsError.
    """
    if port < 0:
        return None
    page = Page(metrics, ready, why)
    await page.start(host, port)
    return page


def _response(status: str, kind: str, body: bytes, *, with_body: bool) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (body if with_body else b"")
