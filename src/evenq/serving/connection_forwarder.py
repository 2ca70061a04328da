"""Ports whose connections lead to the same ports of another host: bytes go on, nothing is read or decrypted.

A copy that follows opens the ports that its leader serves clients at, so that a load balancer may choose any copy.
Always true: at most `CONNECTIONS_MAX` connections, each with at most `PIECE_BYTES` in each direction that have not left
yet, because a side is not read while the other one has not taken what was read before; after `close` no port and no
connection is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

from evenq.runtime.tasks import spawn
from evenq.serving.binding import bind
from evenq.serving.grpc_servers import ListenAddress

__all__ = ["CONNECTIONS_MAX", "PIECE_BYTES", "ConnectionForwarder"]

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 8_000
"""One more is closed at once; with two sides of `PIECE_BYTES` each that is 250 MiB at most."""
PIECE_BYTES = 16 << 10
LAST_BYTES_S = 5.0
"""Longest time for the last bytes to leave when the other side has ended."""
CONNECT_S = 5.0
"""Longest wait for the other host; then the client learns it by the end of its connection, and tries again."""


class ConnectionForwarder:
    """See the module. Belongs to one event loop."""

    def __init__(self, addresses: Sequence[ListenAddress], *, connections_max: int = CONNECTIONS_MAX) -> None:
        """`addresses`: where to listen; their ports are those of the other host, too."""
        self._addresses = list(addresses)
        self._connections_max = connections_max
        self._host = ""
        self._listening: list[asyncio.AbstractServer] = []
        self._pairs: dict[_Pair, None] = {}
        self.piece = memoryview(bytearray(PIECE_BYTES))
        """What was read last, of any connection: it is written on before the loop reads another one."""

    @property
    def connections(self) -> int:
        """That lead on now, or are about to."""
        return len(self._pairs)

    async def open(self) -> None:
        """Listen. Does nothing if it does. Raises PortInUse, SettingsError."""
        if self._listening:
            return
        loop = asyncio.get_running_loop()
        try:
            for address in self._addresses:
                for bound in bind(address.host, address.port):
                    port = address.port
                    listening = await loop.create_server(lambda port=port: _Client(self, port), sock=bound)  # type: ignore[misc]  # the default binds this port
                    self._listening.append(listening)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close ports and connections. Idempotent."""
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        for pair in list(self._pairs):
            pair.end()

    def lead_to(self, host: str) -> None:
        """Connections go to this host from now on, and those to another one end. Empty: no host is known; then new ones
        are closed and others go on.
        """
        if host and self._host and host != self._host:
            log.info("clients' connections lead to %s now, %d to %s end", host, len(self._pairs), self._host)
            for pair in list(self._pairs):
                pair.end()
        self._host = host

    def accepted(self, client: _Client, port: int) -> None:
        """A client came."""
        if not self._host or len(self._pairs) >= self._connections_max or not self._listening:
            client.transport.abort()
            return
        pair = _Pair(self, client, self._host, port)
        self._pairs[pair] = None

    def ended(self, pair: _Pair) -> None:
        """A pair is no more."""
        self._pairs.pop(pair, None)


class _Side(asyncio.BufferedProtocol):
    """One of the two connections; what it reads is written to the other."""

    transport: asyncio.Transport

    def __init__(self, forwarder: ConnectionForwarder) -> None:
        self._forwarder = forwarder
        self.pair: _Pair | None = None
        self.other: _Side | None = None
        self.early = b""
        """What came before the other side was there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=0)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._forwarder.piece

    def buffer_updated(self, size: int) -> None:
        data = bytes(self._forwarder.piece[:size])
        if self.other is not None:
            self.other.transport.write(data)
        else:  # there is no host to write to yet
            self.early += data
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        other, self.other = self.other, None
        if other is not None:
            other.other = None
            if error is None:
                other.transport.close()  # what it has not taken yet may leave
                asyncio.get_running_loop().call_later(LAST_BYTES_S, other.transport.abort)
            else:
                other.transport.abort()
        if self.pair is not None:
            self.pair.lost(self)


class _Client(_Side):
    def __init__(self, forwarder: ConnectionForwarder, port: int) -> None:
        super().__init__(forwarder)
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._forwarder.accepted(self, self._port)


class _Pair:
    """A client's connection and the one that it leads to."""

    def __init__(self, forwarder: ConnectionForwarder, client: _Client, host: str, port: int) -> None:
        self._forwarder, self._client = forwarder, client
        self._sides: dict[_Side, None] = {client: None}
        """Those that are open."""
        client.pair = self
        self._connecting = spawn(self._connect(host, port), name="forwarded connection")

    async def _connect(self, host: str, port: int) -> None:
        client, server = self._client, _Side(self._forwarder)
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(lambda: server, host, port)
        except OSError as error:  # TimeoutError is one
            log.debug("a client's connection cannot go on to %s port %d: %s", host, port, error)
            client.transport.abort()
            return
        server.pair = self
        self._sides[server] = None
        client.other, server.other = server, client
        for source, target in ((client, server), (server, client)):
            early, source.early = source.early, b""
            source.transport.resume_reading()
            target.transport.write(early)  # which may hold up the source again

    def lost(self, side: _Side) -> None:
        """A side is gone; the other one follows by itself."""
        self._connecting.cancel()
        self._sides.pop(side, None)
        if not self._sides:
            self._forwarder.ended(self)

    def end(self) -> None:
        """Now. The client makes another connection."""
        self._connecting.cancel()
        for side in self._sides:
            side.transport.abort()
        self._forwarder.ended(self)
