"""`/metrics`, `/healthz` and `/readyz` over plain HTTP, for Prometheus and for probes without gRPC.

A few lines of HTTP/1.1 on asyncio: GET and HEAD, one answer per connection, bounded in connections, bytes and time.
`/healthz` reports that the loop runs, `/readyz` whether clients should connect. Silent connections do not block others:
each ends after `TIMEOUT_S`, one address has at most `PEER_MAX`, and at the maximum a new one replaces the oldest.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

from evenq.errors import PortInUse, SettingsError
from evenq.serving.binding import close_listening

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 64
PEER_MAX = 16
"""Most connections of one address without a request; a kubelet's probes and two Prometheus need a handful."""
HEAD_BYTES_MAX = 8 << 10
TIMEOUT_S = 10.0  # for the request, and again for the client to take the answer
TEXT = "text/plain; charset=utf-8"
METRICS = "text/plain; version=1.0.0; charset=utf-8"


class MetricsPage:
    """A running HTTP page. Made by `open_page`; owned by the loop that made it."""

    def __init__(
        self,
        metrics: Callable[[], bytes],
        ready: Callable[[], bool],
        why: Callable[[], str] = lambda: "",
        queues: Callable[[], Callable[[], bytes]] | None = None,
    ) -> None:
        self.port = 0  # port that it listens on
        self._metrics = metrics
        self._ready = ready
        self._why = why
        self._queues = queues
        self._one_at_a_time = asyncio.Lock()
        self._silent: dict[asyncio.StreamWriter, str] = {}  # connections without a request: peer address; oldest first
        self._answering = 0
        self._tasks: set[asyncio.Task[None] | None] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listens. Raises PortInUse or SettingsError."""
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
        """Stops listening; closes connections without a request; running answers get `TIMEOUT_S`."""
        if self._server is not None:
            await close_listening([self._server])
            for writer in list(self._silent):
                writer.transport.abort()
            tasks = [task for task in self._tasks if task is not None]
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        self._make_room(writer)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            if self._silent.pop(writer, None) is None:  # closed for a newer one in the turn of its request
                return
            if self._answering >= CONNECTIONS_MAX:  # other clients do not read their answers
                return
            await self._answered(head, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            log.debug("HTTP request dropped")  # slow, too long, or disconnected
        finally:
            self._silent.pop(writer, None)
            self._tasks.discard(task)
            writer.close()

    def _make_room(self, writer: asyncio.StreamWriter) -> None:
        """Adds a new connection, and closes the oldest silent one if there are too many."""
        peername = writer.get_extra_info("peername")
        peer = str(peername[0]) if peername else ""
        own = [one for one, address in self._silent.items() if address == peer]
        oldest = own if len(own) >= PEER_MAX else list(self._silent) if len(self._silent) >= CONNECTIONS_MAX else []
        if oldest:
            del self._silent[oldest[0]]
            oldest[0].transport.abort()
        self._silent[writer] = peer

    async def _answered(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        self._answering += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                # `drain` must wait for the last byte: `close` would wait for the rest without a limit.
                writer.transport.set_write_buffer_limits(high=0)
                writer.write(await self._answer(head))
                await writer.drain()
        except TimeoutError:
            writer.transport.abort()  # `close` would wait for the peer to read
        finally:
            self._answering -= 1

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in {b"GET", b"HEAD"}:
            return _response("405 Method Not Allowed", TEXT, b"GET and HEAD only\n", with_body=True)
        if path == b"/metrics/queues" and self._queues is not None:
            async with self._one_at_a_time:
                status, kind, body = await _read_aside(self._queues)
        else:
            status, kind, body = self._page(path)
        return _response(status, kind, body, with_body=method == b"GET")

    def _page(self, path: bytes) -> tuple[str, str, bytes]:
        match path:
            case b"/metrics":
                return _read(self._metrics)
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
    queues: Callable[[], Callable[[], bytes]] | None = None,
) -> MetricsPage | None:
    """Serves the page at host:port; 0 = any free port, -1 = no page (None). `why`: the reason why it is not ready, for
    people; may be empty. `queues`: reads the data of `/metrics/queues` and returns the function that makes its text in
    a thread (`metrics.gathered`); None = no such page. Raises PortInUse, SettingsError.
    """
    if port < 0:
        return None
    page = MetricsPage(metrics, ready, why, queues)
    await page.start(host, port)
    return page


def _read(metrics: Callable[[], bytes]) -> tuple[str, str, bytes]:
    try:
        return "200 OK", METRICS, metrics()
    except Exception:
        log.exception("reading the metrics failed")
        return _UNREADABLE


async def _read_aside(queues: Callable[[], Callable[[], bytes]]) -> tuple[str, str, bytes]:
    """Makes the text in a thread: that of 50,000 queues takes seconds."""
    try:
        text = queues()
    except Exception:
        log.exception("reading the metrics of queues failed")
        return _UNREADABLE
    return await asyncio.to_thread(_read, text)


_UNREADABLE = "500 Internal Server Error", TEXT, b"reading the metrics failed; see the log\n"


def _response(status: str, kind: str, body: bytes, *, with_body: bool) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (body if with_body else b"")
