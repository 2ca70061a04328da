"""Ports whose connections lead to the same ports of another host: bytes go on, nothing is read or decrypted.

A copy that follows opens the ports that its leader serves clients at, so that a load balancer may choose any copy. A
connection that comes while no copy leads is held, for `HOLD_S` at most, until somebody does: refused, a client of gRPC
would pause for a second, then for longer.
A copy that stops ends its connections by `leave`: what the leader has answered reaches the client. A leader holds a
message by the life of the push consumer that it gave it to: an answer that is lost on the way would hold it for a day.
Always true: at most `CONNECTIONS_MAX` connections, which take two descriptors each, and half of the process's at most;
of one address half as many; each with at most `PIECE_BYTES` in each direction that have not left yet, because a
side is not read while the other one has not taken what was read before; no connection leads to these ports themselves;
after `close` no port and no connection is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import cast

from evenq.runtime.tasks import spawn
from evenq.serving.binding import bind, close_listening
from evenq.serving.front.grpc_servers import ListenAddress
from evenq.serving.program.open_files import open_files

__all__ = ["CONNECTIONS_MAX", "HERE", "PIECE_BYTES", "ConnectionForwarder"]

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 8_000
"""One more is closed at once; with two sides of `PIECE_BYTES` each that is 250 MiB at most."""
PIECE_BYTES = 16 << 10
DESCRIPTORS_SHARE = 4
"""One connection for so many descriptors that the process may have: two are its own, and as many stay for all else."""
REFUSED_PAUSE_MS = 60_000
"""Between two lines about refused connections."""
LAST_BYTES_S = 5.0
"""Longest time for the last bytes to leave when the other side has ended."""
LEAVE_S = 1.0
"""Longest time for what the leader has answered to leave when this host goes."""
HOLD_S = 10.0
"""Longest wait for a host that answers; then its connection ends, and the client tries again."""
CONNECT_S = 1.5
"""Longest wait for one answer of the host."""
RETRY_S = 0.1
"""Before a host that refused is tried again: it leads, and opens its ports in a moment, or another one will."""
HERE = "(this host)"
"""To lead to: the ports themselves, once another server listens there. For connections that came before."""
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # compared with, never bound  # nosec B104


class ConnectionForwarder:
    """See the module. Belongs to one event loop."""

    def __init__(
        self, addresses: Sequence[ListenAddress], *, connections_max: int = CONNECTIONS_MAX, per_address_max: int = 0
    ) -> None:
        """`addresses`: where to listen; their ports are those of the other host, too. `per_address_max`: connections of
        one client's address; 0 or more than half of all: half of all, since a load balancer has one address.
        """
        self._addresses = list(addresses)
        self._connections_max = min(connections_max, max(1, open_files()[1] // DESCRIPTORS_SHARE))
        half = -(-self._connections_max // 2)
        self._per_address_max = min(per_address_max or half, half)
        self._of_address: Counter[str] = Counter()
        self._refused_ms = -float(REFUSED_PAUSE_MS)
        self.host = ""
        """Where connections lead; empty: no leader is known."""
        self._own_host = ""
        """A host that turned out to be this one."""
        self._listening: list[asyncio.Server] = []
        self._pairs: dict[_Pair, None] = {}
        self._fewer = asyncio.Event()
        """A pair has ended."""
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
                    here = "127.0.0.1" if address.host in _WILDCARDS else address.host
                    listening = await loop.create_server(partial(_Client, self, address.port, here), sock=bound)
                    self._listening.append(listening)
        except BaseException:
            self.close()
            raise

    async def stop_listening(self) -> None:
        """Close the ports; connections stay. Idempotent."""
        listening, self._listening = self._listening, []
        await close_listening(listening)

    async def leave(self) -> None:
        """Close ports and connections; what the leader answered before it saw that arrives at the clients, for
        `LEAVE_S` at most. Idempotent.
        """
        await self.stop_listening()
        for pair in list(self._pairs):
            pair.leave()
        try:
            async with asyncio.timeout(LEAVE_S):
                while self._pairs:
                    self._fewer.clear()
                    await self._fewer.wait()
        except TimeoutError:
            log.debug("%d clients' connections have not ended by themselves", len(self._pairs))
        finally:
            self.close()

    def close(self) -> None:
        """Close ports and connections, now. Idempotent."""
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        for pair in list(self._pairs):
            pair.end()

    def lead_to(self, host: str) -> None:
        """Connections go to this host from now on, and those to another one end. Empty: no leader is known; then new
        ones wait and others go on. `HERE` only after `stop_listening`.
        """
        if host == self.host:
            return
        self.host = host
        pairs = list(self._pairs)
        ended = sum(pair.look() for pair in pairs)
        if ended:
            log.info("clients' connections lead to %s now, %d to another host end", host, ended)

    def accepted(self, client: _Client, port: int, here: str) -> None:
        """A client came."""
        address = client.address
        full = len(self._pairs) >= self._connections_max or self._of_address[address] >= self._per_address_max
        if full or not self._listening:
            client.transport.abort()
            if full:
                self._refuse(address)
            return
        self._of_address[address] += 1
        self._pairs[_Pair(self, client, port, here)] = None

    def _refuse(self, address: str) -> None:
        now_ms = asyncio.get_running_loop().time() * 1_000
        if now_ms - self._refused_ms >= REFUSED_PAUSE_MS:
            self._refused_ms = now_ms
            log.warning(
                "connections of clients are refused: %d lead on, %d of them from %s; at most %d may, and %d from one "
                "address. Give clients the addresses of all copies, or more descriptors (ulimit -n) to the broker",
                len(self._pairs), self._of_address[address], address, self._connections_max, self._per_address_max,
            )  # fmt: skip

    def leads_here(self, address: str, port: int) -> bool:
        """Whether a connection to this address would come to one of the ports that are listened on here: then the other
        copy is on this host, and its ports are others.
        """
        for listening in self._listening:
            for bound in listening.sockets:
                host, at = bound.getsockname()[:2]
                if at == port and (host == address or (host in _WILDCARDS and _is_own(address))):
                    return True
        return False

    def refuse_own(self, host: str) -> None:
        """Said once for a host."""
        if host != self._own_host:
            self._own_host = host
            log.error(
                "clients cannot be led on: the leader's host %s is this host, so its ports are not those of this copy. "
                "replication.forward_clients needs a host (an address) of its own for each copy: set it to false, and "
                "give clients the addresses of all copies", host,
            )  # fmt: skip

    def ended(self, pair: _Pair) -> None:
        """A pair is no more."""
        if pair in self._pairs:
            del self._pairs[pair]
            self._of_address[pair.address] -= 1
            if not self._of_address[pair.address]:
                del self._of_address[pair.address]
        self._fewer.set()


class _LeadsHere(Exception):  # no error of a connection
    """The host that is to be led to is this one."""


def _is_own(address: str) -> bool:
    """Whether the address is one of this host: only such can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


class _Side(asyncio.BufferedProtocol):
    """One of the two connections; what it reads is written to the other."""

    transport: asyncio.Transport

    def __init__(self, forwarder: ConnectionForwarder) -> None:
        self._forwarder = forwarder
        self.pair: _Pair | None = None
        self.other: _Side | None = None
        self.early = b""
        """What came before the other side was there."""
        self.unheard = False
        """True: what comes is dropped. Not left unread: a connection that is closed then is reset, and may lose what
        was written to it.
        """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # At 0 the transport says stop as soon as anything waits, so a pair holds one piece in each direction.
        self.transport.set_write_buffer_limits(high=0)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._forwarder.piece

    def buffer_updated(self, size: int) -> None:
        if self.unheard:
            return
        # Copied: the buffer is shared by all connections, and the transport may keep what it cannot write at once.
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
    def __init__(self, forwarder: ConnectionForwarder, port: int, here: str) -> None:
        super().__init__(forwarder)
        self._port, self._here = port, here

    @property
    def address(self) -> str:
        """The client's."""
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._forwarder.accepted(self, self._port, self._here)


class _Pair:
    """A client's connection and the one that it leads to."""

    def __init__(self, forwarder: ConnectionForwarder, client: _Client, port: int, here: str) -> None:
        """`here`: where this machine answers at the client's port."""
        self._forwarder, self._client, self._port, self._here = forwarder, client, port, here
        self.address = client.address
        self._sides: dict[_Side, None] = {client: None}
        """Those that are open."""
        client.pair = self
        self._host = ""
        """That it leads to; empty: not yet."""
        self._moved = asyncio.Event()
        """Another host than before is to be connected to."""
        self._trying: asyncio.Timeout | None = None
        self._connecting = spawn(self._connect(), name="forwarded connection")

    async def _connect(self) -> None:
        client = self._client
        try:
            async with asyncio.timeout(HOLD_S):
                server = await self._reach()
        except _LeadsHere:
            client.transport.abort()
            return
        except TimeoutError:
            log.debug(
                "a client's connection cannot go on to %s port %d", self._forwarder.host or "any host", self._port
            )
            client.transport.abort()
            return
        server.pair = self
        self._sides[server] = None
        client.other, server.other = server, client
        for source, target in ((client, server), (server, client)):
            early, source.early = source.early, b""
            source.transport.resume_reading()
            target.transport.write(early)  # which may hold up the source again

    async def _reach(self) -> _Side:
        """The connection to the host that leads by then."""
        forwarder = self._forwarder
        while True:
            self._moved.clear()
            host = forwarder.host
            if not host:
                await self._moved.wait()
                continue
            server = _Side(forwarder)
            with contextlib.suppress(OSError):  # TimeoutError is one
                async with asyncio.timeout(CONNECT_S) as self._trying:
                    target = self._here if host == HERE else host
                    await self._to_first_of(target, server)
                    self._host = host
            self._trying = None
            # The leader may have changed while the connection came about.
            if self._host and forwarder.host in {"", host}:
                return server
            if self._host:
                server.transport.abort()
                self._host = ""
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._moved.wait()

    async def _to_first_of(self, target: str, server: _Side) -> None:
        """Connect to the first of the name's addresses that takes it. The name is looked up here: one that uvloop looks
        up for a connection goes on when that is given up, and logs its failure as an exception that nobody retrieved.
        """
        loop = asyncio.get_running_loop()
        failed = OSError(f"the name {target} leads nowhere")
        for _, _, _, _, address in await loop.getaddrinfo(target, self._port, type=socket.SOCK_STREAM):
            if self._forwarder.leads_here(str(address[0]), self._port):
                self._forwarder.refuse_own(target)
                raise _LeadsHere(target)
            try:
                await loop.create_connection(lambda: server, str(address[0]), self._port)
            except OSError as error:
                failed = error
            else:
                return
        raise failed

    def look(self) -> bool:
        """Another host leads than before. True if the pair led to another one, and has ended."""
        host = self._forwarder.host
        if self._host and self._client.other is not None:
            if host and host != self._host:
                self.end()
                return True
        elif host:
            self._moved.set()
            if self._trying is not None and not self._trying.expired():
                # Ended at once: a connection attempt to a host that is gone would last `CONNECT_S`.
                self._trying.reschedule(asyncio.get_running_loop().time())
        return False

    def lost(self, side: _Side) -> None:
        """A side is gone; the other one follows by itself."""
        self._connecting.cancel()
        self._sides.pop(side, None)
        if not self._sides:
            self._forwarder.ended(self)

    def leave(self) -> None:
        """Say to the host that nothing comes any more. It ends the connection behind its last answer, and so does the
        client's side then.
        """
        client, server = self._client, self._client.other
        if not self._connecting.done():  # no host has heard of it
            self.end()
        if server is None:  # or one side has ended, and the other is about to
            return
        client.unheard = True
        client.transport.resume_reading()
        server.transport.write_eof()

    def end(self) -> None:
        """Now. The client makes another connection."""
        self._connecting.cancel()
        for side in self._sides:
            side.transport.abort()
        self._forwarder.ended(self)
