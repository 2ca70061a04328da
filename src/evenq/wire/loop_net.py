"""The network over plain sockets on the loop: `LoopNet` is the `Net` of programs that fork.

**Problem.** A process that has used gRPC cannot fork: the child hangs or crashes in gRPC's core, whose threads it
lacks, and gRPC's own fork handlers do not run while another thread is inside a call. Celery's prefork pool forks while
its main process receives.

**Idea.** The frames of `evenq.wire.http2` on asyncio's sockets, as `duplex_call` does for streams in both directions.
A call owns its connection until it ends; idle connections of an address serve later calls. `blocking` returns the net
for calls from threads, which are sockets as well (`blocking_net`).

**Invariants.**

- Nothing here touches gRPC's core, so a forked child can make its own net. It only closes the inherited sockets.
- Errors are those of `GrpcNet`. A call is repeated, once, only if the server reports that it did not process it.
- The cancellation of a call, or `aclose` of a stream, resets it at the server: a long poll ends without messages.
- Per address at most `IDLE_MAX` connections are kept, each for at most `IDLE_MS`; running calls bound the rest.

**Limit.** Streams have one request; for others use `duplex`. References: decisions 38, 70.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar, cast

from evenq import errors
from evenq.runtime.clock import SystemClock
from evenq.runtime.net import BlockingCalls
from evenq.wire.addresses import target_of
from evenq.wire.blocking_net import BlockingNet
from evenq.wire.blocking_socket import PLAIN, Lost, Unreachable
from evenq.wire.call_errors import call_error, late, no_answer, shutting_down
from evenq.wire.duplex_call import OPEN_MS, DuplexCall, error_words, reach
from evenq.wire.http2.answers import request_headers
from evenq.wire.http2.codes import ConnectionFault
from evenq.wire.http2.frames import EncodedHeaders
from evenq.wire.http2.streaming import StreamConnection
from evenq.wire.http2.unary import CallLimits
from evenq.wire.tls import CLIENT_HINTS, Tls
from evenq.wire.tls_channels import SecureSocket, TlsChannels
from evenq.wire.tls_diagnosis import explain

IDLE_MAX = 8  # idle connections of one address
IDLE_MS = 30_000
HEADERS_MAX = 256  # most cached header blocks; when exceeded, all are made again
TRIES = 2
LIMITS = CallLimits(answer_bytes_max=256 << 20)
_monotonic_ms = SystemClock().monotonic_ms
ResultT = TypeVar("ResultT")


class _CallSocket(asyncio.Protocol):
    """One connection, for one call after another."""

    def __init__(self) -> None:
        self.core = StreamConnection(LIMITS)
        self.lost = ""  # why the connection ended; empty: it did not
        self.version = PLAIN  # of the TLS files; -1: plain text
        self.used_ms = 0
        self.socket: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def usable(self) -> bool:
        return not self.lost and not self.core.leaving and self.core.greeted

    def begin(self, headers: EncodedHeaders, request: bytes) -> None:
        assert self._transport is not None
        self._transport.write(self.core.begin(headers, request))

    async def news(self) -> None:
        """Waits for input."""
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """Ends the connection; a running call is reset at the server."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        farewell = self.core.give_up()
        if farewell:
            transport.write(farewell)
        transport.close()

    def abort(self) -> None:
        """Ends the connection without waiting for the server."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            if self.core.running:
                self.core.feed(data)
            else:
                self.core.receive(data)
        except ConnectionFault as fault:
            self._lose(str(fault))
            return
        self._flush()
        self._wake()
        if self.core.leaving and not self.core.running and self._transport is not None:
            self._transport.close()  # a server that stops waits for its clients

    def eof_received(self) -> None:
        self._lose("the server closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("the server closed the connection" if exc is None else error_words(exc))

    def _flush(self) -> None:
        output = self.core.take()
        if output and self._transport is not None and not self._transport.is_closing():
            self._transport.write(output)

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class LoopNet:
    """`Net` over sockets. Belongs to the loop that first calls it; `blocking` may be called in any thread."""

    def __init__(self, *, tls: Tls | None = None, addresses_max: int = 256) -> None:
        """`tls`: None = plain text, except for addresses with `evenqs://`. Raises SettingsError for TLS files that are
        not valid.
        """
        self._encrypted = tls is not None
        self._hints = tls.hints if tls is not None else CLIENT_HINTS
        self._tls = None if tls is None else TlsChannels(tls, now_ms=_monotonic_ms)
        self._addresses_max = addresses_max
        self._idle: dict[str, deque[_CallSocket]] = {}
        self._open: set[_CallSocket] = set()
        self._headers: dict[tuple[str, str, int | None, tuple[tuple[str, str], ...]], EncodedHeaders] = {}
        self._closed = False
        _nets.add(self)

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """Sends one request and returns one answer; waits at most `timeout_ms`."""
        answer: bytes | None = None
        async with contextlib.aclosing(
            self.stream(address, method, request, timeout_ms=timeout_ms, metadata=metadata)
        ) as answers:
            async for message in answers:
                if answer is not None:
                    raise errors.InternalError(f"{address} answered {method} with more than one message")
                answer = message
        if answer is None:
            raise errors.InternalError(f"{address} answered {method} without a message")
        return answer

    async def stream(
        self,
        address: str,
        method: str,
        requests: AsyncIterator[bytes] | bytes,
        *,
        timeout_ms: int | None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Opens a stream with one request; `aclose()` of the iterator cancels the call. None = no limit."""
        if not isinstance(requests, bytes):
            raise errors.Unsupported(f"{method} sends a stream of requests, which LoopNet does not; use GrpcNet")
        until_ms = None if timeout_ms is None else _monotonic_ms() + timeout_ms
        target, encrypted = self._target(address)
        headers = self._head(target, method, timeout_ms, tuple((metadata or {}).items()), encrypted=encrypted)
        for attempt in range(TRIES, 0, -1):
            connection = await self._take(target, method, timeout_ms, until_ms, encrypted=encrypted)
            core, begun = connection.core, False
            try:
                connection.begin(headers, requests)
                while True:
                    while core.messages:
                        begun = True
                        yield bytes(core.messages.popleft())
                    if connection.lost or not core.running:
                        break
                    await _within(connection.news(), until_ms, late(target, method, timeout_ms))
                running, status, details = core.running, core.status, core.details
                trailers, refused = core.trailers, core.refused
            finally:
                self._give_back(target, connection)
            if running:
                raise no_answer(target, method, connection.lost)
            if not status:
                return
            if not (refused and attempt > 1 and not begun):
                break
        raise call_error(status, details, trailers, address=target, method=method, timeout_ms=timeout_ms)

    def duplex(self, address: str, method: str, *, metadata: Mapping[str, str] | None = None) -> DuplexCall:
        """Returns a call with messages in both directions (`evenq.runtime.duplex`), over its own connection."""
        target, encrypted = self._target(address)
        return DuplexCall(
            target,
            method,
            metadata=dict(metadata or {}),
            secure=(lambda: self._secure_socket(target)) if encrypted else None,
            why=lambda: self._why_not(target, encrypted=encrypted),
        )

    async def connect(self, address: str, *, timeout_ms: int) -> None:
        """Returns once the address has a connection for the next call. Raises ConnectionFailed, RequestTimeout."""
        target, encrypted = self._target(address)
        until_ms = _monotonic_ms() + timeout_ms
        self._give_back(target, await self._take(target, "connect", timeout_ms, until_ms, encrypted=encrypted))

    async def renew(self, address: str) -> None:
        """Makes the next call to the address use a new connection; running calls keep theirs."""
        target, _ = self._target(address)
        for connection in self._idle.pop(target, ()):
            self._drop(connection)

    def blocking(self) -> BlockingCalls:
        """Returns the net for calls from threads: other connections, which the caller closes."""
        return BlockingNet(
            tls=self._channels, encrypted=self._encrypted, hints=self._hints, addresses_max=self._addresses_max
        )

    async def close(self) -> None:
        """Closes all connections; running calls fail."""
        self._closed = True
        self._idle.clear()
        closing = list(self._open)
        for connection in closing:
            self._drop(connection)
        await SystemClock().sleep_ms(0)  # the transports close in the next turn
        for connection in closing:
            connection.abort()  # with TLS a transport would wait for the other side's end

    def forget_after_fork(self) -> None:
        """Closes the sockets in a forked child: the parent owns the connections, and their ends must not wait for the
        end of the child.
        """
        for connection in list(self._open):
            if connection.socket is not None:
                connection.socket.close()

    # ------------------------------------------------------------------------------------------------ connections

    def _target(self, address: str) -> tuple[str, bool]:
        target, scheme = target_of(address)
        return target, self._encrypted if scheme is None else scheme

    def _head(
        self,
        target: str,
        method: str,
        timeout_ms: int | None,
        metadata: tuple[tuple[str, str], ...],
        *,
        encrypted: bool,
    ) -> EncodedHeaders:
        key = (target, method, timeout_ms, metadata)
        headers = self._headers.get(key)
        if headers is None:
            if len(self._headers) >= HEADERS_MAX:
                self._headers.clear()
            headers = self._headers[key] = request_headers(
                method,
                scheme="https" if encrypted else "http",
                authority=target,
                timeout_ms=timeout_ms,
                metadata=metadata,
            )
        return headers

    async def _take(
        self, target: str, method: str, timeout_ms: int | None, until_ms: int | None, *, encrypted: bool
    ) -> _CallSocket:
        """Returns a connection for one call."""
        version = self._channels().version if encrypted else PLAIN
        idle = self._idle.get(target)
        while idle:
            connection = idle.pop()
            if connection.usable and connection.version == version:
                return connection
            self._drop(connection)
        if self._closed:
            raise shutting_down(target)
        open_until_ms = _monotonic_ms() + OPEN_MS
        if until_ms is not None and until_ms < open_until_ms:
            failure: errors.Error = late(target, method, timeout_ms)
        else:
            until_ms, failure = open_until_ms, no_answer(target, method, "no connection came about in time")
        try:
            return await _within(self._connect(target, encrypted=encrypted), until_ms, failure)
        except Unreachable as error:
            reason = await self._why_not(target, encrypted=encrypted) if error.listens else ""
            if reason:
                raise errors.TlsFailed(reason) from error
            raise no_answer(target, method, str(error)) from error

    async def _connect(self, target: str, *, encrypted: bool) -> _CallSocket:
        secure = await self._secure_socket(target) if encrypted else None
        options: dict[str, Any] = {}
        if secure is not None:
            options = {"ssl": secure.context, "server_hostname": secure.server_name}
        plain = await reach(target)
        connection = _CallSocket()
        connection.socket = plain
        self._open.add(connection)
        try:
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(lambda: connection, sock=plain, **options)
            secured = transport.get_extra_info("ssl_object")
            if secured is not None and secured.selected_alpn_protocol() != "h2":
                raise Lost("the server does not agree on HTTP/2 (ALPN)")
            while not connection.core.greeted:
                if connection.lost:
                    raise Lost(connection.lost)
                await connection.news()
            if connection.core.leaving:
                raise Unreachable("the server accepts no calls")
        except (Lost, OSError, ValueError) as error:  # ValueError: not a valid host name
            self._drop(connection)
            raise Unreachable(error_words(error), listens=True) from error
        except BaseException:
            self._drop(connection)
            raise
        if secure is not None:
            connection.version = secure.version
        return connection

    def _give_back(self, target: str, connection: _CallSocket) -> None:
        """Keeps the connection for the next call, if its call has ended and it is usable."""
        now_ms = _monotonic_ms()
        if self._closed or connection.core.running or not connection.usable:
            self._drop(connection)
        else:
            connection.used_ms = now_ms
            self._idle.setdefault(target, deque()).append(connection)
        for target_idle, idle in list(self._idle.items()):
            while idle and (len(idle) > IDLE_MAX or idle[0].lost or now_ms - idle[0].used_ms > IDLE_MS):
                self._drop(idle.popleft())
            if not idle:
                del self._idle[target_idle]

    def _drop(self, connection: _CallSocket) -> None:
        self._open.discard(connection)
        connection.close()
        if connection.socket is not None and connection.lost == "" and connection.core.greeted is False:
            connection.socket.close()  # no transport owns it yet

    # -------------------------------------------------------------------------------------------------------- TLS

    def _channels(self) -> TlsChannels:
        if self._tls is None:  # the first address with evenqs://
            self._tls = TlsChannels(Tls(), now_ms=_monotonic_ms)
        return self._tls

    async def _secure_socket(self, target: str) -> SecureSocket:
        channels = self._channels()
        if not channels.tls.insecure:
            return channels.secure_socket(target)
        try:
            return await asyncio.to_thread(channels.secure_socket, target)
        except OSError as error:
            reason = await self._why_not(target, encrypted=True)
            raise errors.TlsFailed(reason or f"no certificate can be fetched from {target}: {error}") from error

    async def _why_not(self, target: str, *, encrypted: bool) -> str:
        """Returns why a listening server gives no connection; empty if TLS is not the reason."""
        files = self._channels().files if encrypted else None
        reason = await asyncio.to_thread(explain, target, files, self._hints)
        if encrypted:  # a new authority, or a new certificate of the pinned server, may be the fix
            channels = self._channels()
            channels.look(_monotonic_ms())
            channels.forget(target)
        return reason


async def _within(awaitable: Coroutine[Any, Any, ResultT], until_ms: int | None, failure: errors.Error) -> ResultT:
    """Awaits until a monotonic time; raises `failure` then."""
    if until_ms is None:
        return await awaitable
    try:
        async with asyncio.timeout(max(0, until_ms - _monotonic_ms()) / 1000):
            return await awaitable
    except TimeoutError:
        raise failure from None


_nets: weakref.WeakSet[LoopNet] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for net in list(_nets):
        net.forget_after_fork()


os.register_at_fork(after_in_child=_forget_after_fork)
