"""One connection to a server for calls from threads: a plain blocking socket, optional TLS, and HTTP/2.

Made and kept by `evenq.wire.blocking_net`; owned by one thread at a time. The kernel's time limits (SO_RCVTIMEO,
SO_SNDTIMEO) bound each wait, because a time-out of Python's sockets adds a system call to each read and write. TLS
works in memory, so the same code reads both.
Always true: no call waits longer than its time limit; after any error the connection is unusable.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
from collections.abc import Sequence
from typing import Any, Self

from evenq.runtime.clock import SystemClock
from evenq.wire.addresses import host_and_port
from evenq.wire.http2.codes import ConnectionFault
from evenq.wire.http2.frames import EncodedHeaders
from evenq.wire.http2.unary import UnaryConnection
from evenq.wire.tls_channels import SecureSocket

RECEIVE_BYTES = 64 << 10
PLACES_MAX = 8  # most addresses of one name that are tried
CONNECT_MS = 2_500
"""Time to connect, for all addresses of the name together, as in `GrpcNet`. It survives a lost SYN, which is repeated
after 1 s, and a round trip of 600 ms. An address that is not used answers nothing.
"""
NEXT_PLACE_MS = 250
"""Time without an answer after which the next address of the name is tried, too (RFC 8305)."""
LOOKS_MAX = 16
"""Most reads of pending input between calls; a server that sends more is not worth a call."""
SLACK_MS = 20
"""A wait may last this much longer than its call before the kernel's limit is set again."""
PLAIN = -1
DEAD_AFTER_S = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 2))
"""Detects a dead peer behind NAT, as gRPC's pings do for the loop's net."""
_TIME = struct.Struct("@ll")
_monotonic_ms = SystemClock().monotonic_ms


class Unreachable(Exception):
    """A connection could not be made; nothing was sent."""

    def __init__(self, reason: str, *, listens: bool = False) -> None:
        super().__init__(reason)
        self.listens = listens  # a server listens but does not speak as expected; TLS may be the reason


class Lost(Exception):
    """The end of a connection before the end of its call."""

    def __init__(self, reason: str, *, undone: bool = False) -> None:
        super().__init__(reason)
        self.undone = undone  # the server cannot have executed the call: it never had the whole request


class BlockingSocket:
    """A connection whose handshake is complete; for one call after another."""

    __slots__ = ("_armed_ms", "_cipher", "_poll", "_socket", "core", "used_ms", "version")

    def __init__(self, connected: socket.socket, secure: SecureSocket | None) -> None:
        self.core = self._new_core()
        self.version = PLAIN if secure is None else secure.version
        """Version of the TLS files that it was made with; -1: plain text."""
        self.used_ms = 0  # when its last call ended; set by the owner
        self._socket = connected
        self._cipher = None if secure is None else _Cipher(secure)
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._armed_ms = -1

    def _new_core(self) -> UnaryConnection:
        return UnaryConnection()

    @classmethod
    def open(cls, target: str, secure: SecureSocket | None, *, until_ms: int) -> Self:
        """Connects to `host:port`, makes TLS, and waits for the server's SETTINGS. Raises Unreachable."""
        connected = _connect(target, until_ms)
        try:
            made = cls(connected, secure)
            made._greet(until_ms)
        except TimeoutError:
            connected.close()
            raise Unreachable("it listens and sends nothing in time") from None
        except (Lost, ConnectionFault) as error:
            connected.close()
            raise Unreachable(str(error), listens=True) from error
        except BaseException:
            connected.close()
            raise
        return made

    def call(self, headers: EncodedHeaders, message: bytes, *, timeout_ms: int, until_ms: int) -> None:
        """Makes one call; its outcome is in `core`. Raises TimeoutError, Lost, ConnectionFault."""
        core = self.core
        # Calls of one kind have the same time limit, so the kernel's limit seldom changes.
        if timeout_ms != self._armed_ms:
            self._arm(timeout_ms)
        try:
            self._write(core.begin(headers, message), until_ms)
        except Lost as error:
            # A server may answer and close before it has read all, as for a large request: the answer is then received.
            if not self._answered_early():
                raise Lost(str(error), undone=True) from error
            return
        while True:
            ended = core.receive(self._read())
            output = core.take()
            if output:
                written = core.written
                try:
                    self._write(output, until_ms)
                except Lost as error:
                    if not (ended or self._answered_early()):
                        raise Lost(str(error), undone=not written) from error
                    core.leaving = True
                    return
            if ended:
                return
            self._arm_what_is_left(until_ms)

    def is_fresh(self) -> bool:
        """Processes pending input; False: the server closed the connection, or accepts no further call."""
        core = self.core
        for _ in range(LOOKS_MAX):
            if core.leaving:
                return False
            # Polled first: a read that would block costs an exception, and between calls usually nothing arrives.
            if not self._poll.poll(0):
                return True
            try:
                core.receive(self._read(socket.MSG_DONTWAIT))
                output = core.take()
                if output and not self._write_at_once(output):
                    return False
            except (TimeoutError, Lost, ConnectionFault):
                return False
        return False

    def give_up(self) -> None:
        """Ends the connection; cancels the call at the server if that needs no waiting."""
        farewell = self.core.give_up()
        if farewell:
            with contextlib.suppress(Lost, TimeoutError):
                self._write_at_once(farewell)
        self.close()

    def close(self) -> None:
        self._socket.close()

    # ---------------------------------------------------------------------------------------------------- the start

    def _greet(self, until_ms: int) -> None:
        self._arm_what_is_left(until_ms)
        cipher = self._cipher
        if cipher is not None:
            data = b""
            while not cipher.shake(data):
                self._send(cipher.take(), until_ms)
                self._arm_what_is_left(until_ms)
                data = self._receive()
            self._send(cipher.take(), until_ms)
        core = self.core
        self._write(core.take(), until_ms)
        while not core.greeted:
            self._arm_what_is_left(until_ms)
            core.receive(self._read())
        self._write(core.take(), until_ms)

    # -------------------------------------------------------------------------------------------------------- bytes

    def _write(self, data: bytes, until_ms: int) -> None:
        if self._cipher is not None:
            data = self._cipher.encrypt(data)
        self._send(data, until_ms)

    def _send(self, data: bytes, until_ms: int) -> None:
        try:
            sent, size = self._socket.send(data), len(data)
            if sent == size:
                return
            rest = memoryview(data)
            while sent < size:
                self._arm_what_is_left(until_ms)
                sent += self._socket.send(rest[sent:])
        except BlockingIOError:
            raise TimeoutError from None
        except TimeoutError as error:  # the kernel's error, for a peer that acknowledges nothing, has a number
            if error.errno is None:
                raise
            raise Lost(_words(error)) from error
        except OSError as error:
            raise Lost(_words(error)) from error

    def _write_at_once(self, data: bytes) -> bool:
        """Writes without waiting; False: not everything was written."""
        if self._cipher is not None:
            data = self._cipher.encrypt(data)
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT) == len(data)
        except OSError:
            return False

    def _read(self, flags: int = 0) -> bytes:
        data = self._receive(flags)
        return data if self._cipher is None else self._cipher.decrypt(data)

    def _receive(self, flags: int = 0) -> bytes:
        try:
            data = self._socket.recv(RECEIVE_BYTES, flags)
        except BlockingIOError:
            raise TimeoutError from None
        except OSError as error:
            raise Lost(_words(error)) from error
        if not data:
            raise Lost("the server closed the connection")
        return data

    def _receive_into(self, rooms: Sequence[memoryview]) -> int:
        """Fills all buffers; less only if the time or the connection ends meanwhile."""
        try:
            size: int = self._socket.recvmsg_into(rooms, 0, socket.MSG_WAITALL)[0]
        except BlockingIOError:
            raise TimeoutError from None
        except OSError as error:
            raise Lost(_words(error)) from error
        if not size:
            raise Lost("the server closed the connection")
        return size

    def _answered_early(self) -> bool:
        """Returns whether the server answered before it closed the connection during our write."""
        core = self.core
        core.leaving = True
        try:
            while not core.receive(self._read(socket.MSG_DONTWAIT)):
                pass
        except (TimeoutError, Lost, ConnectionFault):
            return False
        return True

    def _arm_what_is_left(self, until_ms: int) -> None:
        left_ms = until_ms - _monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError
        if not left_ms <= self._armed_ms <= left_ms + SLACK_MS:
            self._arm(left_ms)

    def _arm(self, wait_ms: int) -> None:
        """Bounds each wait. The kernel reads 0 as no limit."""
        wait_ms = max(1, wait_ms)
        limit = _TIME.pack(wait_ms // 1000, wait_ms % 1000 * 1000)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        except OSError as error:
            raise Lost(_words(error)) from error
        self._armed_ms = wait_ms


class _Cipher:
    """TLS in memory."""

    __slots__ = ("_incoming", "_object", "_outgoing")

    def __init__(self, secure: SecureSocket) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._object = secure.context.wrap_bio(self._incoming, self._outgoing, server_hostname=secure.server_name)
        except ValueError as error:  # not a valid host name; also UnicodeError
            raise Lost(f"{secure.server_name!r} cannot be the name of a host: {error}") from error

    def shake(self, data: bytes) -> bool:
        """Makes one step of the handshake; True: it is complete. `take` returns the output."""
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except OSError as error:
            raise Lost(_words(error)) from error
        if self._object.selected_alpn_protocol() != "h2":
            raise Lost("the server does not agree on HTTP/2 (ALPN)")
        return True

    def take(self) -> bytes:
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        try:
            written, size = self._object.write(data) if data else 0, len(data)
            while written < size:
                written += self._object.write(memoryview(data)[written:])
        except OSError as error:
            raise Lost(_words(error)) from error
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Returns the decrypted part of the input; may be empty."""
        incoming, read = self._incoming, self._object.read
        incoming.write(data)
        parts: list[bytes] = []
        try:
            while True:
                part = read(RECEIVE_BYTES)
                if not part:
                    raise Lost("the server closed the connection")
                parts.append(part)
                if not incoming.pending and not self._object.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except Lost:
            if not parts:
                raise
        except OSError as error:
            raise Lost(_words(error)) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _connect(target: str, until_ms: int) -> socket.socket:
    """Returns the first connection to an address of the name. One that is silent delays the next by NEXT_PLACE_MS."""
    host, port = host_and_port(target)
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[:PLACES_MAX]
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"the name {host} cannot be resolved: {_words(error)}") from error
    until_ms = min(until_ms, _monotonic_ms() + CONNECT_MS)
    next_ms, reason, poll = 0, "there was no time left to connect", select.poll()
    dialled: dict[int, tuple[socket.socket, str]] = {}
    try:
        while (places or dialled) and (now_ms := _monotonic_ms()) < until_ms:
            if places and (now_ms >= next_ms or not dialled):
                next_ms, (family, kind, protocol, _, address) = now_ms + NEXT_PLACE_MS, places.pop(0)
                try:
                    made = _dial(family, kind, protocol, address)
                except OSError as error:
                    reason = f"cannot connect to {address[0]}: {_words(error)}"
                    continue
                dialled[made.fileno()] = made, str(address[0])
                poll.register(made, select.POLLOUT)
            for number, _ in poll.poll(max(0, (min(until_ms, next_ms) if places else until_ms) - now_ms)):
                poll.unregister(number)
                connected, place = dialled.pop(number)
                failed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not failed:
                    connected.setblocking(True)  # the kernel's time limits bound the waits (decision 38)
                    return connected
                connected.close()
                reason = f"cannot connect to {place}: {os.strerror(failed)}"
        for _, place in dialled.values():
            reason = f"cannot connect to {place}: timed out"
    finally:
        for made, _ in dialled.values():
            made.close()
    raise Unreachable(reason)


def _dial(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    """Returns a socket that has begun to connect."""
    made = new_socket(family, kind, protocol)
    try:
        with contextlib.suppress(BlockingIOError):
            made.connect(address)
    except OSError:
        made.close()
        raise
    return made


def new_socket(family: int, kind: int, protocol: int) -> socket.socket:
    """Returns a socket that is not connected and does not block, with the options of all connections."""
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in DEAD_AFTER_S:
            if hasattr(socket, option):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    except OSError:
        made.close()
        raise
    return made


def _words(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
