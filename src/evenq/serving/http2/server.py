"""A gRPC server on HTTP/2: ports and handshakes, admission of connections, deadlines, and the end.

`Http2Server` gets methods by path and serves them on `host:port` (IPv4, IPv6, both for a wildcard) or on `unix:PATH`,
with TLS if it gets contexts. Always true: connections count from accept on, before any handshake; no connection
outlives `stop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.binding import BACKLOG, UNIX, bind, close_listening
from evenq.serving.http2.addresses import Address, IdleConnections
from evenq.serving.http2.calls import Method
from evenq.serving.http2.deadlines import Deadlines
from evenq.serving.http2.eager_task import EagerTask
from evenq.serving.http2.limits import Http2Limits, Totals
from evenq.serving.http2.protocol import Http2Protocol
from evenq.serving.http2.turns import Turns
from evenq.wire.http2.codes import Status

log = logging.getLogger(__name__)

TICK_MS = 100
LOOK_EACH = 5  # ticks between two checks of a connection
LAST_BYTES_MS = 500  # longest time for the last answers to leave at a shutdown
ALPN = "h2"


class Http2Server:
    """The server; belongs to the loop that starts it."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        clock: Clock,
        limits: Http2Limits | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """`tls` is called at each handshake; None: plain text."""
        self.methods = methods
        self.clock = clock
        self.limits = limits or Http2Limits()
        self.totals = Totals()
        self.deadlines = Deadlines()
        self.connections: dict[Http2Protocol, None] = {}
        self.shares: Iterator[int] = itertools.cycle(range(LOOK_EACH))
        """For each connection in turn: the ticks in which it is checked."""
        self.stopping = False
        self.loop: asyncio.AbstractEventLoop
        self.turns: Turns
        self._tls = tls
        self._addresses: dict[str, Address] = {}
        self._idle = IdleConnections()
        self._listening: list[asyncio.Server] = []
        self._handshakes: dict[asyncio.Transport, None] = {}
        self._ticker: asyncio.Task[Any] | None = None
        self._empty = asyncio.Event()

    async def start(self, host: str, port: int) -> int:
        """Listens and returns the port; 0 = any free port. Raises PortInUse, SettingsError."""
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(self.limits, self.loop, self.clock.monotonic_ms)
        for bound in bind(host, port):
            port = port or (0 if host.startswith(UNIX) else bound.getsockname()[1])
            make: Any = self.loop.create_unix_server if host.startswith(UNIX) else self.loop.create_server
            self._listening.append(await make(self._protocol, sock=bound, backlog=BACKLOG))
        self._ticker = spawn(self._tick(), name="http2 ticks")
        return port

    def _protocol(self) -> asyncio.Protocol:
        return Http2Protocol(self) if self._tls is None else _Accepted(self)

    # --------------------------------------------------------------------------------------------------- connections

    def admit(self, protocol: asyncio.BaseProtocol, transport: asyncio.BaseTransport) -> Address | None:  # noqa: ARG002
        """Counts a new connection; None: there are too many, or the server is stopping."""
        host = _host(transport)
        address = self._addresses.get(host)
        if address is None:
            address = Address(host)
        limits, totals = self.limits, self.totals
        if self.stopping:  # no other connection is ended for one that is refused
            totals.connections_refused += 1
            return None
        reached, room = "", True
        if address.connections >= limits.connections_per_address_max:
            reached, room = "connections_per_address_max", self._has_made_room(address)
        elif totals.connections >= limits.connections_max:
            reached, room = "connections_max", self._idle.end_one(self.connections, self.clock.monotonic_ms())
        if reached:
            totals.reach(reached)
        if not room:
            totals.connections_refused += 1
            return None
        # Entered only for an accepted connection, so refused ones cannot make the table grow.
        self._addresses[host] = address
        address.connections += 1
        totals.connections += 1
        totals.accepted += 1
        return address

    def _has_made_room(self, address: Address) -> bool:
        """Ends a connection of the address that carries no call, to make room for a new one."""
        if address.idle_connections is None:
            address.idle_connections = IdleConnections()
        its_own = (one for one in self.connections if one.address is address)
        return address.idle_connections.end_one(its_own, self.clock.monotonic_ms())

    def release(self, address: Address) -> None:
        """Removes an ended connection from the counts."""
        self.totals.connections -= 1
        address.connections -= 1
        if not address.connections:
            self._addresses.pop(address.host, None)
        if not self.totals.connections:
            self._empty.set()

    def forget(self, connection: Http2Protocol) -> None:
        del self.connections[connection]
        self.release(connection.address)

    def shake_hands(self, transport: asyncio.Transport, address: Address) -> None:
        """Starts TLS on a counted connection, immediately: the peer's first bytes must find TLS in place."""
        self._handshakes[transport] = None
        _Handshake(self.loop).begin(self._shake_hands(transport, address))

    async def _shake_hands(self, transport: asyncio.Transport, address: Address) -> None:
        try:
            encrypted = await self._encrypt(transport, connection := Http2Protocol(self))
        finally:
            del self._handshakes[transport]
        if encrypted is None:
            self.totals.handshakes_failed += 1
            transport.abort()
            self.release(address)
        else:
            connection.begin(encrypted, address)

    async def _encrypt(self, transport: asyncio.Transport, connection: Http2Protocol) -> asyncio.Transport | None:
        assert self._tls is not None
        begun_ms = self.clock.monotonic_ms()
        try:
            encrypted = await self.loop.start_tls(
                transport,
                connection,
                self._tls(),
                server_side=True,
                ssl_handshake_timeout=self.limits.preface_ms / 1000,
            )
        except (OSError, asyncio.CancelledError):  # ssl.SSLError and time-outs are OSErrors
            if self.clock.monotonic_ms() - begun_ms >= self.limits.preface_ms:
                self.totals.reach("preface_ms")
            return None
        agreed: Any = encrypted.get_extra_info("ssl_object") if encrypted is not None else None
        # A client of HTTP/1.1 could not read binary frames; gRPC requires ALPN `h2` on TLS.
        return encrypted if agreed is not None and agreed.selected_alpn_protocol() == ALPN else None

    # ---------------------------------------------------------------------------------------------------------- time

    async def _tick(self) -> None:
        count = 0
        while True:
            await self.clock.sleep_ms(TICK_MS)
            now_ms = self.clock.monotonic_ms()
            self._end_what_is_due(now_ms)
            count += 1
            self._look_at_connections(now_ms, count % LOOK_EACH)

    # Separate from the loop, whose variables would keep the last call and connection alive until the next tick.

    def _end_what_is_due(self, now_ms: int) -> None:
        for call in list(self.deadlines.due(now_ms)):
            self.totals.deadlines += 1
            call.end(Status.DEADLINE_EXCEEDED, "the deadline of the call has passed")
            call.abandon()

    def _look_at_connections(self, now_ms: int, share: int) -> None:
        # A share at a time: 10,000 together would delay all calls by some tens of milliseconds.
        for connection in list(self.connections):
            if connection.share == share or self.stopping:
                connection.tick(now_ms)

    # ----------------------------------------------------------------------------------------------------------- end

    async def close_ports(self) -> None:
        """Closes the ports, and sends the peers of open connections that they must open no more calls."""
        self.stopping = True
        listening, self._listening = self._listening, []
        await close_listening(listening)
        self.drain()

    def drain(self) -> None:
        """Sends all peers that they must open no more calls; each connection ends with its last call."""
        now_ms = self.clock.monotonic_ms()
        for connection in list(self.connections):
            connection.drain(now_ms)

    def end_calls(self, *, endless: bool) -> None:
        """Ends the bidirectional streams with OK (decision 25), or all calls with UNAVAILABLE."""
        for connection in list(self.connections):
            if endless:
                connection.end_calls(endless=True, code=Status.OK, message="")
            else:
                connection.end_calls(endless=False, code=Status.UNAVAILABLE, message="the server is stopping")

    async def stop(self, grace_ms: int) -> None:
        """Waits up to `grace_ms` for running calls, then ends them. Idempotent."""
        await self.close_ports()
        for transport in list(self._handshakes):
            transport.abort()
        if self.totals.connections and grace_ms > 0:
            await self._until_empty(grace_ms)
        self.end_calls(endless=False)
        for connection in list(self.connections):
            connection.finish()
        if self.totals.connections:
            await self._until_empty(LAST_BYTES_MS)
        for connection in list(self.connections):
            connection.abort()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
            self._ticker = None

    async def _until_empty(self, wait_ms: int) -> None:
        self._empty.clear()
        if self.totals.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), wait_ms / 1000)


class _Accepted(asyncio.Protocol):
    """A new connection before its first input: it is counted, then TLS begins."""

    def __init__(self, server: Http2Server) -> None:
        self._server = server

    def connection_made(self, transport: Any) -> None:
        address = self._server.admit(self, transport)
        if address is None:
            transport.abort()
        else:
            self._server.shake_hands(transport, address)


class _Handshake(EagerTask):
    """One handshake. uvloop reads from a new connection immediately, so TLS must be in place when `connection_made`
    returns, not a turn of the loop later.
    """

    __slots__ = ()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._run(work)

    def _returned(self, result: Any) -> None:
        pass

    def _raised(self, error: BaseException) -> None:
        log.error("TLS handshake failed", exc_info=error)


def _host(transport: asyncio.BaseTransport) -> str:
    raw_socket: Any = transport.get_extra_info("socket")
    if raw_socket is not None and raw_socket.family == socket.AF_UNIX:
        return UNIX
    name: Any = transport.get_extra_info("peername")
    host: str = name[0] if name else ""
    # IPv4 clients of a dual-stack socket: under their usual name they have one bound, and logs show known addresses.
    return host.removeprefix("::ffff:") if host.startswith("::ffff:") and "." in host else host
