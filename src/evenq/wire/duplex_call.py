"""A call with messages in both directions over its own connection, on the loop: the client's end of broker links.

`GrpcNet.duplex` makes it. Over grpc.aio each message of such a call costs several turns of the loop and two crossings
to gRPC's thread (decision 70). Here a sent message is in the kernel's buffer before the turn ends, and wakes no thread.
Always true: only the opening waits, at most `OPEN_MS`. Buffered are at most one message and `WRITE_BYTES` to send, and
`READ_BYTES` and a window of received messages. Each call has a new connection and resolves the name anew. Errors are
those of `GrpcNet`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, cast

from evenq import errors
from evenq.runtime.clock import SystemClock
from evenq.runtime.tasks import spawn, write_parts
from evenq.wire.addresses import host_and_port
from evenq.wire.blocking_socket import CONNECT_MS, NEXT_PLACE_MS, PLACES_MAX, Lost, Unreachable, new_socket
from evenq.wire.call_errors import call_error, no_answer
from evenq.wire.http2.answers import request_headers
from evenq.wire.http2.codes import ConnectionFault
from evenq.wire.http2.duplex import DuplexConnection
from evenq.wire.http2.frames import EncodedHeaders
from evenq.wire.http2.unary import CallLimits
from evenq.wire.tls_channels import SecureSocket

OPEN_MS = 4_000  # for name resolution, connection, TLS and the server's SETTINGS together
WRITE_BYTES = 256 << 10
"""While more than this waits for the kernel, there is no room for the next message."""
READ_BYTES = 256 << 10  # limit of messages that were not taken; beyond it the socket is not read
MESSAGE_COST = 128  # added to the bytes of each message, for its objects
JOINED_BYTES = 32 << 10
"""Output up to this size is joined before it is written; larger output is not copied."""
LIMITS = CallLimits(answer_bytes_max=4 << 20, stream_window_bytes=1 << 20, connection_window_bytes=2 << 20)
_monotonic_ms = SystemClock().monotonic_ms


class DuplexCall:
    """The call; `evenq.runtime.duplex.Duplex` documents its methods."""

    def __init__(
        self,
        target: str,
        method: str,
        *,
        metadata: Mapping[str, str],
        secure: Callable[[], Awaitable[SecureSocket]] | None,
        why: Callable[[], Awaitable[str]],
        limits: CallLimits = LIMITS,
    ) -> None:
        """`target`: `host:port`. `secure`: called when the call begins, returns the TLS context; None = plain text.
        `why`: called when a listening server gives no connection; its text, if any, is raised as TlsFailed.
        """
        self.on_room: Callable[[], None] = lambda: None
        self._target, self._method, self._metadata = target, method, metadata
        self._secure, self._why, self._limits = secure, why, limits
        self._connection: _DuplexSocket | None = None

    @property
    def has_room(self) -> bool:
        return self._connection is not None and self._connection.has_room

    def send(self, message: bytes) -> None:
        assert self._connection is not None, "nothing is sent without room"
        self._connection.send(message)

    async def answers(self) -> AsyncGenerator[bytes, None]:
        scheme = "http" if self._secure is None else "https"
        headers = request_headers(
            self._method, scheme=scheme, authority=self._target, timeout_ms=None, metadata=self._metadata.items()
        )
        connection = await self._open()
        try:
            connection.begin(headers, self.on_room)
            self._connection = connection
            self.on_room()
            while True:
                while connection.core.messages:
                    yield connection.next()
                if connection.over:
                    break
                await connection.news()
        finally:
            self._connection = None
            connection.close()
        core = connection.core
        if connection.lost:
            raise no_answer(self._target, self._method, connection.lost)
        if core.status:
            raise call_error(
                core.status, core.details, core.trailers, address=self._target, method=self._method, timeout_ms=None
            )

    async def _open(self) -> _DuplexSocket:
        """Returns a connection whose server has sent its SETTINGS. Raises ConnectionFailed, TlsFailed."""
        try:
            async with asyncio.timeout(OPEN_MS / 1000):
                secure = None if self._secure is None else await self._secure()
                return await _connect(self._target, secure, self._limits)
        except TimeoutError:
            raise no_answer(self._target, self._method, "no connection came about in time") from None
        except Unreachable as error:
            reason = await self._why() if error.listens else ""
            if reason:
                raise errors.TlsFailed(reason) from error
            raise no_answer(self._target, self._method, str(error)) from error


class _DuplexSocket(asyncio.Protocol):
    def __init__(self, limits: CallLimits) -> None:
        loop = asyncio.get_running_loop()
        self.core = DuplexConnection(limits)
        self.greeted: asyncio.Future[None] = loop.create_future()
        self.lost = ""  # why the connection ended before the call; empty: it did not
        self._begun = False
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._on_room: Callable[[], None] = lambda: None
        self._waiter: asyncio.Future[None] | None = None
        self._full = False  # the transport holds more than `WRITE_BYTES`
        self._kept_bytes = 0  # size of messages that were not taken, with `MESSAGE_COST` for each
        self._deaf = False  # reading from the socket is paused

    # ----------------------------------------------------------------------------------------------- for the call

    @property
    def over(self) -> bool:
        """True if no more messages arrive; those in `core.messages` remain."""
        return bool(self.lost) or not self.core.running

    @property
    def has_room(self) -> bool:
        return not self._full and not self.core.unsent_bytes and not self.over

    def begin(self, headers: EncodedHeaders, on_room: Callable[[], None]) -> None:
        self._on_room = on_room
        if not self.lost:
            self._begun = True
            self.core.open(headers)
            self._flush()

    def send(self, message: bytes) -> None:
        self.core.send(message)
        self._flush()

    def next(self) -> bytes:
        """Returns the oldest message that was not taken."""
        message = bytes(self.core.messages.popleft())
        self._kept_bytes -= len(message) + MESSAGE_COST
        if self._deaf and self._kept_bytes <= READ_BYTES and self._transport is not None:
            self._deaf = False
            self._transport.resume_reading()
        return message

    async def news(self) -> None:
        """Waits for a message, or the end."""
        waiter = self._waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def close(self) -> None:
        """Ends the connection; output that the kernel does not accept immediately is not sent."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        farewell = self.core.give_up()
        if farewell and not self._full:
            transport.write(farewell)
            transport.close()
        else:
            transport.abort()

    # ------------------------------------------------------------------------------------------------ of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._flush()

    def data_received(self, data: bytes) -> None:
        core = self.core
        stalled, had = core.unsent_bytes, len(core.messages)
        try:
            if core.running:
                core.feed(data)
            elif not core.leaving:
                core.receive(data)
        except ConnectionFault as fault:
            self._lose(str(fault))
            return
        if core.greeted and not self.greeted.done():
            self.greeted.set_result(None)
        self._flush()
        if len(core.messages) > had:
            self._keep(had)
        if core.messages or not core.running:
            self._wake()
        if stalled and self.has_room:
            self._on_room()

    def eof_received(self) -> None:
        self._lose("the server closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("the server closed the connection" if exc is None else error_words(exc))

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self.has_room:
            self._on_room()

    def _keep(self, had: int) -> None:
        messages = self.core.messages
        self._kept_bytes += sum(len(messages[at]) + MESSAGE_COST for at in range(had, len(messages)))
        if self._kept_bytes > READ_BYTES and not self._deaf and self._transport is not None:
            self._deaf = True
            self._transport.pause_reading()

    def _flush(self) -> None:
        parts, transport = self.core.take_parts(), self._transport
        if not parts or transport is None or transport.is_closing():
            return
        if sum(map(len, parts)) <= JOINED_BYTES:
            transport.write(b"".join(parts))
        else:
            write_parts(transport, parts)

    def _lose(self, reason: str) -> None:
        """Aborts the connection, and wakes the waiting caller with `reason`."""
        # After the end of the call the connection is not needed.
        if self.core.running or not self._begun:
            self.lost = self.lost or reason
        if not self.greeted.done():
            self.greeted.set_exception(Lost(reason))
            self.greeted.exception()  # the waiting caller has it
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def _connect(target: str, secure: SecureSocket | None, limits: CallLimits) -> _DuplexSocket:
    """Returns a new connection. Raises Unreachable."""
    loop = asyncio.get_running_loop()
    plain = await reach(target)
    connection: _DuplexSocket | None = None
    try:
        options: dict[str, Any] = {}
        if secure is not None:
            options = {"ssl": secure.context, "server_hostname": secure.server_name}
        transport, connection = await loop.create_connection(lambda: _DuplexSocket(limits), sock=plain, **options)
        secured = transport.get_extra_info("ssl_object")
        if secured is not None and secured.selected_alpn_protocol() != "h2":
            raise Lost("the server does not agree on HTTP/2 (ALPN)")
        await connection.greeted
        if connection.core.leaving:
            raise Unreachable("the server accepts no calls")
    except (Lost, OSError, ValueError) as error:  # ValueError: not a valid host name
        _drop(connection, plain)
        raise Unreachable(error_words(error), listens=True) from error
    except BaseException:
        _drop(connection, plain)
        raise
    return connection


def _drop(connection: _DuplexSocket | None, plain: socket.socket) -> None:
    if connection is None:
        plain.close()
    else:
        connection.close()


async def reach(target: str) -> socket.socket:
    """Returns the first connection to an address of the name, within CONNECT_MS. An address that is silent delays the
    next one by NEXT_PLACE_MS.
    """
    loop = asyncio.get_running_loop()
    host, port = host_and_port(target)
    try:
        places = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[:PLACES_MAX]
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"the name {host} cannot be resolved: {error_words(error)}") from error
    until_ms, reason = _monotonic_ms() + CONNECT_MS, "the name has no address"
    running: dict[asyncio.Task[socket.socket], str] = {}
    try:
        while (places or running) and (left_ms := until_ms - _monotonic_ms()) > 0:
            if places:
                family, kind, protocol, _, address = places.pop(0)
                task = spawn(_connected(family, kind, protocol, address), name=f"connection to {address[0]}")
                running[task] = str(address[0])
                left_ms = min(left_ms, NEXT_PLACE_MS) if places else left_ms
            done, _ = await asyncio.wait(running, timeout=left_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                failed = task.exception()
                if failed is None:
                    del running[task]
                    return task.result()
                reason = f"cannot connect to {running.pop(task)}: {error_words(failed)}"
        for place in running.values():
            reason = f"cannot connect to {place}: no answer in time"
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(_close_unused)
    raise Unreachable(reason)


async def _connected(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    connected = new_socket(family, kind, protocol)
    try:
        await asyncio.get_running_loop().sock_connect(connected, address)
    except BaseException:
        connected.close()
        raise
    return connected


def _close_unused(task: asyncio.Task[socket.socket]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def error_words(error: BaseException) -> str:
    """Returns the reason of a failed connection, without the error's class and number."""
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
        return str(error) or type(error).__name__
    if error.errno is not None and error.errno > 0:  # asyncio's own text names no cause
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
