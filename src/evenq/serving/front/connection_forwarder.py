"""Ports whose connections are forwarded to the same ports of another host, as bytes that are not decrypted.

A copy that follows opens its leader's client ports, so that a load balancer may choose any copy. A connection that
arrives while no copy leads is held for at most `HOLD_S`: after a refusal a gRPC client would pause for a second, then
longer. A copy that stops ends its connections by `leave`, so that the leader's answers reach the clients: a lost answer
could hold a push consumer's message for a day.
Always true: there are at most `CONNECTIONS_MAX` connections, with two descriptors each, and they use at most half of
the process's descriptors; one address has at most half of them. Each buffers at most `PIECE_BYTES` in each direction: a
side is not read until the other one has taken the previous bytes. No connection leads to these ports themselves. After
`close` no port and no connection is left.
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

from evenq.model.route import WILDCARDS
from evenq.runtime.tasks import spawn
from evenq.serving.binding import bind, close_listening
from evenq.serving.front.grpc_servers import ListenAddress
from evenq.serving.program.open_files import open_files

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 8_000
"""One more is closed immediately; with two sides of `PIECE_BYTES` each, the maximum needs 250 MiB."""
PIECE_BYTES = 16 << 10
DESCRIPTORS_SHARE = 4
"""One connection for this number of descriptors of the process: two are its own, and two remain for other uses."""
REFUSED_PAUSE_MS = 60_000  # between two log lines about refused connections
LAST_BYTES_S = 5.0  # longest time for the last bytes to leave after the other side has ended
LEAVE_S = 1.0  # longest time for the leader's answers to leave when this host stops
HOLD_S = 10.0  # longest wait for a host that accepts; then the connection ends, and the client tries again
CONNECT_S = 1.5  # longest wait for one answer of the host
RETRY_S = 0.1  # before a host that refused is tried again: it opens its ports soon, or another one will
HERE = "(this host)"
"""Target of connections that arrived before another server listens at these ports: the ports themselves."""


class ConnectionForwarder:
    """Forwarder of one copy; belongs to one event loop."""

    def __init__(
        self, addresses: Sequence[ListenAddress], *, connections_max: int = CONNECTIONS_MAX, per_address_max: int = 0
    ) -> None:
        """`addresses`: where to listen, and the ports of the other host. `per_address_max`: connections of one client's
        address; 0 or more than half of all: half of all, since a load balancer has one address.
        """
        self._addresses = list(addresses)
        self._connections_max = min(connections_max, max(1, open_files()[1] // DESCRIPTORS_SHARE))
        half = -(-self._connections_max // 2)
        self._per_address_max = min(per_address_max or half, half)
        self._of_address: Counter[str] = Counter()
        self._refused_ms = -float(REFUSED_PAUSE_MS)
        self.host = ""  # target of connections; empty: no leader is known
        self._own_host = ""  # a target that is this host itself
        self._listening: list[asyncio.Server] = []
        self._pairs: dict[_Pair, None] = {}
        self._fewer = asyncio.Event()  # set when a pair ends
        self.piece = memoryview(bytearray(PIECE_BYTES))
        """Buffer of the last read, of any connection: it is written before the loop reads another one."""

    @property
    def connections(self) -> int:
        """Number of connections that are forwarded or held."""
        return len(self._pairs)

    async def open(self) -> None:
        """Starts to listen, unless it does. Raises PortInUse, SettingsError."""
        if self._listening:
            return
        loop = asyncio.get_running_loop()
        try:
            for address in self._addresses:
                for bound in bind(address.host, address.port):
                    here = "127.0.0.1" if address.host in WILDCARDS else address.host
                    listening = await loop.create_server(partial(_Client, self, address.port, here), sock=bound)
                    self._listening.append(listening)
        except BaseException:
            self.close()
            raise

    async def stop_listening(self) -> None:
        """Closes the ports; connections stay. Idempotent."""
        listening, self._listening = self._listening, []
        await close_listening(listening)

    async def leave(self) -> None:
        """Closes ports and connections; the leader's answers before that reach the clients, for at most `LEAVE_S`.
        Idempotent.
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
            log.debug("%d clients' connections have not ended", len(self._pairs))
        finally:
            self.close()

    def close(self) -> None:
        """Closes ports and connections immediately. Idempotent."""
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        for pair in list(self._pairs):
            pair.end()

    def lead_to(self, host: str) -> None:
        """Forwards connections to this host from now on, and ends those to another one. Empty: no leader is known; new
        connections wait, others continue. `HERE` only after `stop_listening`.
        """
        if host == self.host:
            return
        self.host = host
        pairs = list(self._pairs)
        ended = sum(pair.look() for pair in pairs)
        if ended:
            log.info("clients' connections lead to %s now, %d to another host end", host, ended)

    def accepted(self, client: _Client, port: int, here: str) -> None:
        """Forwards a new client, or refuses it at a maximum."""
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
                "connections of clients are refused: %d are forwarded, %d of them from %s; at most %d may be, and %d "
                "from one address. Give clients the addresses of all copies, or more descriptors (ulimit -n) to the "
                "broker",
                len(self._pairs),
                self._of_address[address],
                address,
                self._connections_max,
                self._per_address_max,
            )

    def leads_here(self, address: str, port: int) -> bool:
        """Returns whether a connection to this address would reach a port of this forwarder: then the other copy is on
        this host, with other ports.
        """
        for listening in self._listening:
            for bound in listening.sockets:
                host, at = bound.getsockname()[:2]
                if at == port and (host == address or (host in WILDCARDS and _is_own(address))):
                    return True
        return False

    def refuse_own(self, host: str) -> None:
        """Logs the error, once for a host."""
        if host != self._own_host:
            self._own_host = host
            log.error(
                "clients cannot be forwarded: the leader's host %s is this host, so its ports are not those of this "
                "copy. replication.forward_clients needs a separate host (an address) for each copy: set it to false, "
                "and give clients the addresses of all copies",
                host,
            )

    def ended(self, pair: _Pair) -> None:
        """Removes a pair that has ended."""
        if pair in self._pairs:
            del self._pairs[pair]
            self._of_address[pair.address] -= 1
            if not self._of_address[pair.address]:
                del self._of_address[pair.address]
        self._fewer.set()


class _LeadsHere(Exception):  # not an error of a connection
    """The target host is this one."""


def _is_own(address: str) -> bool:
    """Returns whether the address is one of this host: others cannot be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


class _Side(asyncio.BufferedProtocol):
    """One of the two connections of a pair; its input is written to the other one."""

    transport: asyncio.Transport

    def __init__(self, forwarder: ConnectionForwarder) -> None:
        self._forwarder = forwarder
        self.pair: _Pair | None = None
        self.other: _Side | None = None
        self.early = b""  # input before the other side was connected
        self.unheard = False
        """True: input is dropped. If it were left unread, closing would reset the connection and could lose output."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # At 0 the transport pauses as soon as anything waits, so a pair buffers one piece in each direction.
        self.transport.set_write_buffer_limits(high=0)

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._forwarder.piece

    def buffer_updated(self, size: int) -> None:
        if self.unheard:
            return
        # Copied: all connections share the buffer, and the transport may keep what it cannot write immediately.
        data = bytes(self._forwarder.piece[:size])
        if self.other is not None:
            self.other.transport.write(data)
        else:  # the other side is not connected yet
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
                other.transport.close()  # its remaining output may leave
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
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._forwarder.accepted(self, self._port, self._here)


class _Pair:
    """A client's connection and the one that it is forwarded to."""

    def __init__(self, forwarder: ConnectionForwarder, client: _Client, port: int, here: str) -> None:
        """`here`: address of this machine for the client's port."""
        self._forwarder, self._client, self._port, self._here = forwarder, client, port, here
        self.address = client.address
        self._sides: dict[_Side, None] = {client: None}  # open connections
        client.pair = self
        self._host = ""  # host that it is connected to; empty: not connected yet
        self._moved = asyncio.Event()  # set when the target has changed
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
                "a client's connection cannot be forwarded to %s port %d",
                self._forwarder.host or "any host",
                self._port,
            )
            client.transport.abort()
            return
        server.pair = self
        self._sides[server] = None
        client.other, server.other = server, client
        for source, target in ((client, server), (server, client)):
            early, source.early = source.early, b""
            source.transport.resume_reading()
            target.transport.write(early)  # this may pause the source again

    async def _reach(self) -> _Side:
        """Returns a connection to the host that leads when it is made."""
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
            # The leader may have changed meanwhile.
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
        """Connects to the first address of the name that accepts. The name is resolved here: a look-up by uvloop for a
        connection continues after a cancellation, and its failure is logged as an exception that nobody retrieved.
        """
        loop = asyncio.get_running_loop()
        failed = OSError(f"the name {target} has no address")
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
        """Reacts to another target host. Returns True if the pair was connected to another one, and has ended."""
        host = self._forwarder.host
        if self._host and self._client.other is not None:
            if host and host != self._host:
                self.end()
                return True
        elif host:
            self._moved.set()
            if self._trying is not None and not self._trying.expired():
                # Ended immediately: a connection attempt to a lost host would last `CONNECT_S`.
                self._trying.reschedule(asyncio.get_running_loop().time())
        return False

    def lost(self, side: _Side) -> None:
        """Removes a lost side; the other one ends by itself."""
        self._connecting.cancel()
        self._sides.pop(side, None)
        if not self._sides:
            self._forwarder.ended(self)

    def leave(self) -> None:
        """Sends the host the end of the input. It closes the connection after its last answer, and then the client's
        side is closed too.
        """
        client, server = self._client, self._client.other
        if not self._connecting.done():  # no host has received anything
            self.end()
        if server is None:  # or one side has ended, and the other one is about to
            return
        client.unheard = True
        client.transport.resume_reading()
        server.transport.write_eof()

    def end(self) -> None:
        """Ends immediately. The client makes another connection."""
        self._connecting.cancel()
        for side in self._sides:
            side.transport.abort()
        self._forwarder.ended(self)
