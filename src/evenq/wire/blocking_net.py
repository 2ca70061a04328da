"""Calls from a thread that waits for the answer, over plain sockets: the counterpart of `GrpcNet` for the sync client.

Switching to the loop's thread and back costs more than a call, and a call over grpcio three times as much as one over a
socket (decision 38). `GrpcNet.blocking` and `SignedNet.blocking` make it, with the same TLS. Only for short single
calls: streams and calls that may wait long belong to the loop.
Always true: errors are those of `GrpcNet`; a connection serves one call at a time. Connections are bounded, and a
thread waits for one no longer than its call may last. A call is repeated only if the server cannot have executed it.
Forked children begin without connections.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from evenq import errors
from evenq.runtime.clock import SystemClock
from evenq.wire.addresses import target_of
from evenq.wire.blocking_socket import PLAIN, BlockingSocket, Lost, Unreachable
from evenq.wire.call_errors import call_error, late, no_answer, shutting_down
from evenq.wire.http2.answers import request_headers
from evenq.wire.http2.codes import ConnectionFault, Status
from evenq.wire.http2.frames import EncodedHeaders
from evenq.wire.tls import Hints
from evenq.wire.tls_channels import SecureSocket, TlsChannels
from evenq.wire.tls_diagnosis import explain

CONNECTIONS_MAX = 32  # most threads that call one address at the same time; others wait
IDLE_MS = 30_000
"""An unused connection is closed after this time, before servers check that its client is alive."""
QUIET_MS = 250
"""Connections used within this time are not maintained by `look_after`: their next call does it."""
EXPLAINED_MS = 2_000
HEADERS_MAX = 256  # most cached header blocks of one address; when exceeded, all are made again
TRIES = 2
CLOCKS_DIFFER_MS = 50
_monotonic_ms = SystemClock().monotonic_ms
_Metadata = tuple[tuple[str, str], ...]


class _Pool:
    """The connections to one address."""

    __slots__ = ("changed", "closed", "encrypted", "headers", "idle", "open", "target", "used_ms", "waiting")

    def __init__(self, target: str, *, encrypted: bool) -> None:
        self.target = target
        self.encrypted = encrypted
        self.headers: dict[tuple[str, int, _Metadata], EncodedHeaders] = {}
        self.idle: deque[BlockingSocket] = deque()  # newest last; taken and returned without a lock
        self.open = 0  # all connections, also those that are idle or being made; changed with `changed` held
        self.changed = threading.Condition()
        self.waiting = 0  # threads that wait for a connection
        self.used_ms = 0
        self.closed = False


class BlockingNet:
    """Thread-safe; calls do not wait for each other. At most `addresses_max` addresses have connections. Above that the
    connections to the least recently used address without a running call are closed.
    """

    def __init__(
        self,
        *,
        tls: Callable[[], TlsChannels],
        encrypted: bool,
        hints: Hints,
        addresses_max: int = 256,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """`encrypted`: TLS for addresses without a scheme. `connections_max`: to one address."""
        self.sign: Callable[[], Mapping[str, str]] | None = None
        """Function that makes additional headers of each call."""
        self._tls = tls
        self._encrypted = encrypted
        self._hints = hints
        self._addresses_max = addresses_max
        self._connections_max = connections_max
        self._pools: dict[str, _Pool] = {}
        self._explained: dict[str, tuple[int, str]] = {}
        self._lock = threading.Lock()
        self._explaining = threading.Lock()
        self._closed = False
        _nets.add(self)

    def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Sequence[tuple[str, str]]
    ) -> bytes:
        """Sends one request and returns one answer. Waits at most `timeout_ms` after the name is resolved.

        Raises as `GrpcNet.unary`.
        """
        now_ms = _monotonic_ms()
        until_ms = now_ms + timeout_ms
        pool = self._pools.get(address)
        if pool is None:
            pool = self._add(address)
        pool.used_ms = now_ms
        all_metadata = tuple(metadata) if self.sign is None else (*metadata, *self.sign().items())
        key = (method, timeout_ms, all_metadata)
        headers = pool.headers.get(key)
        if headers is None:
            headers = self._make_headers(pool, key)
        for attempt in range(TRIES, 0, -1):
            connection = self._take(pool, address, method, until_ms)
            try:
                connection.call(headers, request, timeout_ms=timeout_ms, until_ms=until_ms)
            except TimeoutError:
                self._discard(pool, connection)
                raise late(pool.target, method, timeout_ms) from None
            except (Lost, ConnectionFault) as error:
                self._discard(pool, connection)
                if attempt > 1 and isinstance(error, Lost) and error.undone:
                    continue
                raise no_answer(pool.target, method, str(error)) from error
            except BaseException:
                self._discard(pool, connection)
                raise
            core = connection.core
            status, message, refused = core.status, core.message, core.refused
            details, trailers = core.details, core.trailers
            # Read before the connection is returned: the next thread's call overwrites `core`.
            self._give_back(pool, connection)
            if not status:
                return message if type(message) is bytes else bytes(message)
            if not (refused and attempt > 1):
                break
        if status == Status.CANCELLED and _monotonic_ms() >= until_ms - CLOCKS_DIFFER_MS:
            raise late(pool.target, method, timeout_ms)  # the server's clock was slightly faster
        raise call_error(status, details, trailers, address=pool.target, method=method, timeout_ms=timeout_ms)

    def close(self) -> None:
        """Closes all connections; those of running calls when the calls end."""
        with self._lock:
            self._closed = True
            pools = list(self._pools.values())
            self._pools.clear()
        for pool in pools:
            _empty(pool)

    # -------------------------------------------------------------------------------------------------- addresses

    def _add(self, address: str) -> _Pool:
        target, scheme = target_of(address)
        made = _Pool(target, encrypted=self._encrypted if scheme is None else scheme)
        spare: _Pool | None = None
        with self._lock:
            if self._closed:
                raise shutting_down(address)
            pool = self._pools.get(address)  # if two threads make it, one is used
            if pool is None:
                if len(self._pools) >= self._addresses_max:
                    spare = self._make_room()
                pool = self._pools[address] = made
        if spare is not None:
            _empty(spare)
        return pool

    def _make_room(self) -> _Pool:
        for address, pool in sorted(self._pools.items(), key=lambda item: item[1].used_ms):
            if pool.open == len(pool.idle) and not pool.waiting:
                return self._pools.pop(address)
        raise errors.TooManyRequests(
            f"calls run to {self._addresses_max} addresses at the same time, the maximum; wait for one to end"
        )

    def _make_headers(self, pool: _Pool, key: tuple[str, int, _Metadata]) -> EncodedHeaders:
        method, timeout_ms, metadata = key
        if len(pool.headers) >= HEADERS_MAX:
            pool.headers.clear()
        made = pool.headers[key] = request_headers(
            method,
            scheme="https" if pool.encrypted else "http",
            authority=pool.target,
            timeout_ms=timeout_ms,
            metadata=metadata,
        )
        return made

    # ------------------------------------------------------------------------------------------------ connections

    def _take(self, pool: _Pool, address: str, method: str, until_ms: int) -> BlockingSocket:
        """Returns an open connection for this thread alone."""
        version = self._tls().version if pool.encrypted else PLAIN
        while True:
            try:
                # The newest: old ones become idle and are closed by `look_after`. The pop of a deque needs no lock.
                connection = pool.idle.pop()
            except IndexError:
                waited = self._wait(pool, address, method, until_ms)
                if waited is None:
                    break
                connection = waited
            try:
                # Checked before the request is written: after a write into a closed connection it is unknown whether
                # the server read the request.
                if connection.version == version and connection.is_fresh():
                    return connection
            except BaseException:
                self._discard(pool, connection)
                raise
            self._discard(pool, connection)
        try:
            return self._open(pool, address, method, until_ms)
        except BaseException:
            self._leave(pool)
            raise

    def _wait(self, pool: _Pool, address: str, method: str, until_ms: int) -> BlockingSocket | None:
        """Waits for an idle connection; None: the caller may make one, which is already counted."""
        with pool.changed:
            pool.waiting += 1  # before the check: a thread that returns a connection reads it afterwards
            try:
                while True:
                    if pool.closed:
                        raise shutting_down(address)
                    if pool.idle:
                        with contextlib.suppress(IndexError):  # another thread may take it first
                            return pool.idle.pop()
                    if pool.open < self._connections_max:
                        pool.open += 1
                        return None
                    left_ms = until_ms - _monotonic_ms()
                    if left_ms <= 0:
                        raise errors.TooManyRequests(
                            f"{self._connections_max} calls to {pool.target} are running, the maximum, and none ended "
                            f"in time for {method.rpartition('/')[2]}; use fewer threads"
                        )
                    pool.changed.wait(left_ms / 1000)
            finally:
                pool.waiting -= 1

    def _give_back(self, pool: _Pool, connection: BlockingSocket) -> None:
        if pool.closed or connection.core.leaving:
            self._discard(pool, connection)
            return
        connection.used_ms = _monotonic_ms()
        pool.idle.append(connection)
        if pool.waiting:
            with pool.changed:
                pool.changed.notify()
        if pool.closed:  # by another thread in the meantime
            _empty(pool)

    def look_after(self) -> None:
        """Answers servers on unused connections, and closes those that the server left or that are idle for long.

        Does not wait. Call it about once a second, so that a stopping server is answered.
        """
        now_ms = _monotonic_ms()
        for pool in list(self._pools.values()):
            for _ in range(len(pool.idle)):
                try:
                    connection = pool.idle.popleft()
                except IndexError:
                    break
                quiet_ms = now_ms - connection.used_ms
                if quiet_ms < QUIET_MS:  # the following ones were used even later
                    pool.idle.appendleft(connection)
                    break
                if quiet_ms < IDLE_MS and connection.is_fresh():
                    pool.idle.append(connection)
                else:
                    self._discard(pool, connection)
            if pool.closed:
                _empty(pool)

    def _discard(self, pool: _Pool, connection: BlockingSocket) -> None:
        connection.give_up()
        self._leave(pool)

    def _leave(self, pool: _Pool) -> None:
        with pool.changed:
            pool.open -= 1
            pool.changed.notify()

    # ------------------------------------------------------------------------------------------------------ opening

    def _open(self, pool: _Pool, address: str, method: str, until_ms: int) -> BlockingSocket:
        target, secure = pool.target, self._secure(pool)
        if self._closed:
            raise shutting_down(address)
        try:
            connection = BlockingSocket.open(target, secure, until_ms=until_ms)
        except Unreachable as error:
            reason = self._explain(target, secure=pool.encrypted) if error.listens else ""
            if error.listens and pool.encrypted:
                # A new authority, or a new certificate of the pinned server, may be the fix.
                tls = self._tls()
                tls.look(_monotonic_ms())
                tls.forget(target)
            if reason:
                raise errors.TlsFailed(reason) from error
            raise no_answer(target, method, str(error)) from error
        if connection.core.leaving:
            connection.close()
            raise no_answer(target, method, "the server accepts no calls")
        return connection

    def _secure(self, pool: _Pool) -> SecureSocket | None:
        if not pool.encrypted:
            return None
        try:
            return self._tls().secure_socket(pool.target)
        except OSError as error:
            reason = self._explain(pool.target, secure=True)
            raise errors.TlsFailed(reason or f"no certificate can be fetched from {pool.target}: {error}") from error

    def _explain(self, target: str, *, secure: bool) -> str:
        with self._explaining:
            now_ms = _monotonic_ms()
            known = self._explained.get(target)
            if known is not None and now_ms - known[0] < EXPLAINED_MS:
                return known[1]
            reason = explain(target, self._tls().files if secure else None, self._hints)
            if len(self._explained) >= self._addresses_max:
                self._explained.clear()
            self._explained[target] = (_monotonic_ms(), reason)
            return reason

    def begin_anew(self) -> None:
        """Resets a forked child: connections belong to the parent, and threads that are not here may hold locks."""
        pools, self._pools = list(self._pools.values()), {}
        self._lock, self._explaining = threading.Lock(), threading.Lock()
        for pool in pools:
            # Only closed: the parent owns the socket too, and output of the child would end the parent's call.
            for connection in pool.idle:
                connection.close()


def _empty(pool: _Pool) -> None:
    """Closes a pool: its idle connections now, others when they are returned."""
    with pool.changed:
        pool.closed = True
        pool.changed.notify_all()
    while True:
        try:
            connection = pool.idle.popleft()
        except IndexError:
            return
        connection.give_up()


_nets: weakref.WeakSet[BlockingNet] = weakref.WeakSet()


def _forget_after_fork() -> None:
    for net in list(_nets):
        net.begin_anew()


os.register_at_fork(after_in_child=_forget_after_fork)
