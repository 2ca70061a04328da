"""Calls from a thread that waits for the answer, over channels of grpcio, with `GrpcNet`'s options, TLS and errors.

`GrpcNet.blocking` uses it instead of `evenq.wire.blocking_net` if the user set options of gRPC's channels.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from evenq import errors
from evenq.runtime.clock import SystemClock
from evenq.wire.addresses import target_of
from evenq.wire.call_errors import grpc_call_error, shutting_down
from evenq.wire.tls import Hints
from evenq.wire.tls_channels import TlsChannels
from evenq.wire.tls_diagnosis import explain, worth_asking

EXPLAINED_MS = 2_000
_PLAIN = -1
_monotonic_ms = SystemClock().monotonic_ms


class _Link:
    """The channel to one address and its call objects by method."""

    __slots__ = ("calls", "channel", "target", "used_ms", "version")

    def __init__(self, target: str, channel: grpc.Channel, version: int) -> None:
        self.target = target
        self.channel = channel
        self.version = version  # version of the TLS files of the channel; -1: plain text
        self.used_ms = _monotonic_ms()  # when the last call began
        self.calls: dict[str, Any] = {}


class GrpcBlockingNet:
    """Thread-safe; calls do not wait for each other. One channel per address, made on first use. Above `channels_max`
    the least recently used channel without a running call is closed.
    """

    def __init__(
        self,
        *,
        tls: Callable[[], TlsChannels],
        encrypted: bool,
        hints: Hints,
        options: Sequence[tuple[str, int | str]],
        channels_max: int,
        sign: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        """`encrypted`: TLS for addresses without a scheme. `sign`: makes additional headers of each call."""
        self._tls = tls
        self._encrypted = encrypted
        self._hints = hints
        self._options = options
        self._channels_max = channels_max
        self.sign = sign
        self._links: dict[str, _Link] = {}
        self._retired: deque[tuple[int, grpc.Channel]] = deque()
        """Channels of replaced TLS files, and the time when the last call over them has ended, ms."""
        self._longest_ms = 0
        self._explained: dict[str, tuple[int, str]] = {}
        self._lock = threading.Lock()
        self._explaining = threading.Lock()
        self._closed = False

    def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Sequence[tuple[str, str]]
    ) -> bytes:
        """Sends one request and returns one answer; waits at most `timeout_ms`. Raises as `GrpcNet.unary`."""
        link = self._links.get(address)
        if link is None or (link.version != _PLAIN and link.version != self._tls().version):
            link = self._renew(address, link)
        link.used_ms = _monotonic_ms()
        self._longest_ms = max(self._longest_ms, timeout_ms)
        if self.sign is not None:
            metadata = (*metadata, *self.sign().items())
        try:
            call = link.calls.get(method)
            if call is None:
                call = link.calls.setdefault(method, link.channel.unary_unary(method, None, None))  # bytes as they are
            response: bytes = call(request, timeout_ms / 1000, metadata)
        except grpc.RpcError as error:
            raise self._failure(error, link, address, method, timeout_ms) from error
        except ValueError as error:  # the channel was closed
            raise shutting_down(address) from error
        return response

    def look_after(self) -> None:
        """Does nothing: channels maintain themselves."""

    def close(self) -> None:
        """Closes all channels; running calls are cancelled."""
        with self._lock:
            self._closed = True
            channels = [*(link.channel for link in self._links.values()), *(channel for _, channel in self._retired)]
            self._links.clear()
            self._retired.clear()
        for channel in channels:
            channel.close()

    def _renew(self, address: str, stale: _Link | None) -> _Link:
        if stale is not None:
            self._retire(address, stale)
        made = self._open(address)
        with self._lock:
            closed = self._closed
            link = self._links.get(address)  # if two threads make it, one is used
            if link is None and not closed and (len(self._links) < self._channels_max or self._make_room()):
                link = self._links[address] = made
        if link is not made:
            made.channel.close()
        if closed:
            raise shutting_down(address)
        if link is None:
            raise errors.TooManyRequests(
                f"calls run to {self._channels_max} addresses at the same time, the maximum; wait for one to end"
            )
        return link

    def _make_room(self) -> bool:
        """Frees a place, with the lock held; False: calls may run on all channels."""
        now_ms = _monotonic_ms()
        address, idle = min(self._links.items(), key=lambda item: item[1].used_ms)
        # Channels do not count calls. If no call began within the longest time limit, none is running.
        if now_ms - idle.used_ms <= self._longest_ms:
            return False
        del self._links[address]
        self._retired.append((now_ms + 2 * self._longest_ms, idle.channel))  # a thread may be about to use it
        return True

    def _open(self, address: str) -> _Link:
        target, scheme = target_of(address)
        if not (self._encrypted if scheme is None else scheme):
            return _Link(target, grpc.insecure_channel(target, options=self._options), _PLAIN)
        tls = self._tls()
        try:
            credentials, more, version = tls.secure(target)
        except OSError as error:
            reason = self._explain(target, secure=True)
            raise errors.TlsFailed(reason or f"no certificate can be fetched from {target}: {error}") from error
        channel = grpc.secure_channel(target, credentials, options=(*self._options, *more))
        return _Link(target, channel, version)

    def _retire(self, address: str, link: _Link) -> None:
        """Closes the channel after its running calls; the next call makes a new one."""
        now_ms, ended = _monotonic_ms(), []
        with self._lock:
            if self._links.get(address) is link:
                del self._links[address]
                # Twice: for a thread that has the channel and did not call yet, and for its call.
                self._retired.append((now_ms + 2 * self._longest_ms, link.channel))
            while self._retired and self._retired[0][0] <= now_ms:
                ended.append(self._retired.popleft()[1])
        for channel in ended:
            channel.close()

    def _failure(self, error: grpc.RpcError, link: _Link, address: str, method: str, timeout_ms: int) -> errors.Error:
        known = grpc_call_error(error, link.target, method, timeout_ms)
        if not isinstance(known, errors.ConnectionFailed) or not worth_asking(error.details() or "", link.target):
            return known
        secure = link.version != _PLAIN
        reason = self._explain(link.target, secure=secure)
        if secure:  # a new authority, or a new certificate of the pinned server, may be the fix
            tls = self._tls()
            tls.look(_monotonic_ms())
            tls.forget(link.target)
            if tls.tls.insecure or link.version != tls.version:
                self._retire(address, link)
        return errors.TlsFailed(reason) if reason else known

    def _explain(self, target: str, *, secure: bool) -> str:
        with self._explaining:
            now_ms = _monotonic_ms()
            known = self._explained.get(target)
            if known is not None and now_ms - known[0] < EXPLAINED_MS:
                return known[1]
            reason = explain(target, self._tls().files if secure else None, self._hints)
            if len(self._explained) >= self._channels_max:
                self._explained.clear()
            self._explained[target] = (_monotonic_ms(), reason)
            return reason
