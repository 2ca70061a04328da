"""The network over gRPC: `GrpcNet` is the `Net` of real programs and the SDK.

One channel per address, made on first use, at most `channels_max`; requests and answers are bytes. An address may begin
with `evenqs://` (TLS) or `evenq://` (plain text); others use the default of the net. When the TLS files change, the
next call uses a new channel, and the old one is closed after its last call.
A failed call raises the errors of `evenq.runtime.net` (`TlsFailed` instead of `ConnectionFailed` if TLS is the cause),
`Unsupported` (the server has no such method), `PayloadTooLarge` or `TooManyRequests`. An evenq server ends a stream
whose frames hold no status with the trailer `evenq-code`, which becomes the error that the server raised.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Final, Literal
from weakref import WeakSet

import grpc
import grpc.aio

from evenq import errors
from evenq.runtime.clock import SystemClock
from evenq.runtime.net import BlockingCalls
from evenq.runtime.tasks import spawn
from evenq.wire.addresses import target_of
from evenq.wire.blocking_grpc import GrpcBlockingNet
from evenq.wire.blocking_net import BlockingNet
from evenq.wire.blocking_socket import CONNECT_MS
from evenq.wire.call_errors import ErrorTable, call_error, grpc_call_error, no_answer, shutting_down
from evenq.wire.duplex_call import DuplexCall
from evenq.wire.tls import CLIENT_HINTS, Tls
from evenq.wire.tls_channels import Secure, SecureSocket, TlsChannels
from evenq.wire.tls_diagnosis import explain, worth_asking

CHANNEL_OPTIONS: Sequence[tuple[str, int | str]] = (
    ("grpc.max_receive_message_length", -1),  # the servers bound their answers; a batch of messages may exceed 4 MiB
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.keepalive_time_ms", 30_000),  # detects a dead peer behind NAT
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a restarted server is found soon, not after gRPC's 1 s .. 120 s
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS),  # in gRPC this is the limit of one attempt, TLS included
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.dns_min_time_between_resolutions_ms", 500),  # a pod's name may be published just after the first look-up
    ("grpc.enable_retries", 0),  # callers retry by class of error; gRPC must not retry as well
    ("grpc.service_config_disable_resolution", 1),  # no TXT look-ups
    ("grpc.enable_http_proxy", 0),  # servers are near; a proxy of the environment is not meant for them
    ("grpc.use_local_subchannel_pool", 1),  # two nets in one process share nothing
)

NO_READ_AHEAD: Final = (("grpc.http2.bdp_probe", 0),)
"""For streams of large frames in a process whose memory is bounded. By default gRPC buffers as many bytes of a stream
as it believes that the connection carries in a round trip: up to 80 MB on a busy machine, 10 MB on a calm one. With
this it buffers one frame, so a stream has at most one frame for each round trip.
"""

BLOCKING_OVER: Literal["sockets", "grpcio"] = "sockets"
"""Transport of calls from threads; always grpcio for a net with options for gRPC's channels."""
_monotonic_ms = SystemClock().monotonic_ms
_FAILED = frozenset({grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN})
_EXPLAINED_MS = 2_000
"""How long one explanation of a failure serves all calls to its address: a probe makes up to two connections."""


class _Peer:
    """The channel to one address and its call objects by method."""

    __slots__ = ("bidi", "channel", "in_flight", "retired", "streams", "target", "unaries", "version")

    def __init__(self, target: str, channel: Any, version: int) -> None:
        # The published types of a channel require (de)serialisers, which are not used here.
        self.target = target
        self.channel = channel
        self.version = version  # version of the TLS files of the channel; -1: plain text
        self.retired = False  # True: the last call that ends closes the channel
        self.in_flight = 0
        self.unaries: dict[str, Any] = {}
        self.streams: dict[str, Any] = {}
        self.bidi: dict[str, Any] = {}


class GrpcNet:
    """`Net` on grpc.aio. Belongs to the loop that first calls it."""

    def __init__(
        self,
        *,
        tls: Tls | None = None,
        encrypted: bool | None = None,
        options: Sequence[tuple[str, int | str]] = (),
        channels_max: int = 256,
        error_table: ErrorTable = call_error,
    ) -> None:
        """`tls`: None = the system's authorities and no certificate. `encrypted`: TLS for addresses without a scheme;
        None = if `tls` is given. `channels_max`: open addresses; above it the least recently used one without a running
        call is closed. `error_table`: meaning of gRPC's statuses; another one for servers that are not evenq's. Raises
        SettingsError for TLS files that are not valid.
        """
        self._encrypted = tls is not None if encrypted is None else encrypted
        self._hints = tls.hints if tls is not None else CLIENT_HINTS
        self._tls = None if tls is None else TlsChannels(tls, now_ms=_monotonic_ms)
        # If an option occurs twice, gRPC uses the first one.
        self._options = tuple({**dict(CHANNEL_OPTIONS), **dict(options)}.items())
        self._channels_max = channels_max
        self._error_table = error_table
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._retired: set[_Peer] = set()
        self._explained: dict[str, tuple[int, asyncio.Task[str]]] = {}
        self._closed = False

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """Sends one request and returns one answer; waits at most `timeout_ms`."""
        peer = await self._peer(address)
        call = peer.unaries.get(method)
        if call is None:
            call = peer.unaries[method] = peer.channel.unary_unary(method)
        peer.in_flight += 1
        try:
            response: bytes = await call(
                request, timeout=timeout_ms / 1000, metadata=tuple(metadata.items()) if metadata else None
            )
        except grpc.aio.AioRpcError as error:
            raise await self._failure(error, peer, address, method, timeout_ms) from _without_call(error)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise errors.ConnectionFailed(f"the call {method} to {address} was cancelled on this side") from error
        finally:
            peer.in_flight -= 1
            if peer.retired:
                await self._end(peer)
        return response

    async def stream(
        self,
        address: str,
        method: str,
        requests: AsyncIterator[bytes] | bytes,
        *,
        timeout_ms: int | None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Opens a stream; `aclose()` of the iterator, or the end of its task, cancels the call. None = no limit."""
        peer = await self._peer(address)
        kwargs: dict[str, Any] = {
            "timeout": None if timeout_ms is None else timeout_ms / 1000,
            "metadata": tuple(metadata.items()) if metadata else None,
        }
        peer.in_flight += 1
        call: Any = None
        try:
            opener: Any
            # A single request is a `unary_stream` call: grpc.aio would otherwise run a task for its iterator.
            if isinstance(requests, bytes):
                opener = peer.streams.get(method)
                if opener is None:
                    opener = peer.streams[method] = peer.channel.unary_stream(method)
            else:
                opener = peer.bidi.get(method)
                if opener is None:
                    opener = peer.bidi[method] = peer.channel.stream_stream(method)
            call = opener(requests, **kwargs)
            async for frame in call:
                yield frame
        except grpc.aio.AioRpcError as error:
            raise await self._failure(error, peer, address, method, timeout_ms) from _without_call(error)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise errors.ConnectionFailed(f"the stream {method} to {address} was cancelled on this side") from error
        finally:
            peer.in_flight -= 1
            if call is not None:
                # A generator may be closed at a `yield`: gRPC receives until the call is cancelled. After the end this
                # does nothing.
                call.cancel()
                call = None  # the error's traceback contains this frame; see `_without_call`
            if peer.retired:
                await self._end(peer)

    def duplex(self, address: str, method: str, *, metadata: Mapping[str, str] | None = None) -> DuplexCall:
        """Returns a call with messages in both directions (`evenq.runtime.duplex`), over its own connection."""
        target, scheme = target_of(address)
        encrypted = self._encrypted if scheme is None else scheme
        return DuplexCall(
            target,
            method,
            metadata=dict(metadata or {}),
            secure=(lambda: self._secure_socket(target)) if encrypted else None,
            why=lambda: self._why_not(target, encrypted=encrypted),
        )

    async def connect(self, address: str, *, timeout_ms: int) -> None:
        """Returns once the address has a connection, and sends nothing over it. Raises ConnectionFailed."""
        peer = await self._peer(address)
        peer.in_flight += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while (state := peer.channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state in _FAILED:
                        raise no_answer(peer.target, "connect", "the attempt failed")
                    await peer.channel.wait_for_state_change(state)
        except TimeoutError:
            raise no_answer(peer.target, "connect", f"no connection within {timeout_ms} ms") from None
        finally:
            peer.in_flight -= 1
            if peer.retired:
                await self._end(peer)

    async def renew(self, address: str) -> None:
        """Makes the next call to the address use a new connection, with its name resolved again; running calls keep the
        old one. For callers that detect a dead connection earlier than gRPC, which needs 40 s for a lost machine.
        """
        peer = self._peers.get(address)
        if peer is not None:
            await self._retire(address, peer)

    def blocking(self) -> BlockingCalls:
        """Returns the net for calls from threads: other connections, which the caller closes."""
        if BLOCKING_OVER == "sockets" and self._options == CHANNEL_OPTIONS:
            return BlockingNet(
                tls=self._channels, encrypted=self._encrypted, hints=self._hints, addresses_max=self._channels_max
            )
        return GrpcBlockingNet(
            tls=self._channels,
            encrypted=self._encrypted,
            hints=self._hints,
            options=self._options,
            channels_max=self._channels_max,
        )

    @property
    def is_open(self) -> bool:
        """True while it has a channel."""
        return bool(self._peers or self._retired)

    async def close(self) -> None:
        """Closes all channels; running calls are cancelled."""
        self._closed = True
        peers = [*self._peers.values(), *self._retired]
        self._peers.clear()
        self._retired.clear()
        for peer in peers:
            await peer.channel.close(None)

    async def _peer(self, address: str) -> _Peer:
        peer = self._peers.get(address)
        if peer is not None and (peer.version < 0 or peer.version == self._channels().version):
            self._peers.move_to_end(address)
            return peer
        if self._closed:
            raise shutting_down(address)
        if peer is not None:
            await self._retire(address, peer)
        return await self._open(address)

    async def _open(self, address: str) -> _Peer:
        target, scheme = target_of(address)
        secure = await self._secure(target) if (self._encrypted if scheme is None else scheme) else None
        made = self._peers.get(address)
        if made is not None:  # by another call, while this one fetched a certificate
            return made
        spare = self._make_room() if len(self._peers) >= self._channels_max else None
        if _forked:
            raise errors.Unsupported(
                "this process was forked while a client of its parent was open, so gRPC would crash here: use the "
                "'spawn' or 'forkserver' method of multiprocessing, or close all clients before the fork"
            )
        if not (self._peers or _holds[os.getpid()] or _threads_start()):
            raise shutting_down(address)
        _nets.add(self)
        if secure is not None:
            credentials, more, version = secure
            channel = grpc.aio.secure_channel(target, credentials, options=(*self._options, *more))
        else:
            channel, version = grpc.aio.insecure_channel(target, options=self._options), -1
        peer = self._peers[address] = _Peer(target, channel, version)
        if spare is not None:
            await spare.channel.close(None)
        return peer

    def _channels(self) -> TlsChannels:
        if self._tls is None:  # the first address with evenqs://
            self._tls = TlsChannels(Tls(), now_ms=_monotonic_ms)
        return self._tls

    async def _secure(self, target: str) -> Secure:
        channels = self._channels()
        if not channels.tls.insecure:
            return channels.secure(target)
        try:
            return await asyncio.to_thread(channels.secure, target)
        except OSError as error:
            reason = await asyncio.to_thread(explain, target, channels.files, self._hints)
            raise errors.TlsFailed(reason or f"no certificate can be fetched from {target}: {error}") from error

    async def _secure_socket(self, target: str) -> SecureSocket:
        """Returns the TLS parameters of a duplex call's connection."""
        channels = self._channels()
        if not channels.tls.insecure:
            return channels.secure_socket(target)
        try:
            return await asyncio.to_thread(channels.secure_socket, target)
        except OSError as error:
            reason = await self._explain(target, encrypted=True)
            raise errors.TlsFailed(reason or f"no certificate can be fetched from {target}: {error}") from error

    async def _why_not(self, target: str, *, encrypted: bool) -> str:
        """Returns why a duplex call has no connection although a server listens; empty if TLS is not the reason."""
        reason = await self._explain(target, encrypted=encrypted)
        if encrypted:  # a new authority, or a new certificate of the pinned server, may be the fix
            channels = self._channels()
            channels.look(_monotonic_ms())
            channels.forget(target)
        return reason

    async def _retire(self, address: str, peer: _Peer) -> None:
        """Closes the channel after its running calls; the next call makes a new one."""
        if self._peers.get(address) is peer:
            del self._peers[address]
        peer.retired = True
        self._retired.add(peer)
        await self._end(peer)

    async def _end(self, peer: _Peer) -> None:
        if not peer.in_flight and peer in self._retired:
            self._retired.discard(peer)
            await peer.channel.close(None)

    async def _failure(
        self, error: grpc.aio.AioRpcError, peer: _Peer, address: str, method: str, timeout_ms: int | None
    ) -> errors.Error:
        known = grpc_call_error(error, peer.target, method, timeout_ms, table=self._error_table)
        # A probe costs up to two connections, so only errors that TLS may have caused are explained.
        if not isinstance(known, errors.ConnectionFailed) or not worth_asking(error.details() or "", peer.target):
            return known
        reason = await self._explain(peer.target, encrypted=peer.version >= 0)
        if peer.version >= 0:  # a new authority, or a new certificate of the pinned server, may be the fix
            channels = self._channels()
            channels.look(_monotonic_ms())
            channels.forget(peer.target)
            if channels.tls.insecure or peer.version != channels.version:
                await self._retire(address, peer)
        return errors.TlsFailed(reason) if reason else known

    async def _explain(self, target: str, *, encrypted: bool) -> str:
        now_ms = _monotonic_ms()
        at_ms, asking = self._explained.get(target, (0, None))
        if asking is None or (asking.done() and now_ms - at_ms >= _EXPLAINED_MS):
            if len(self._explained) >= self._channels_max:
                self._explained.clear()
            files = self._channels().files if encrypted else None
            asking = spawn(asyncio.to_thread(explain, target, files, self._hints), name="TLS diagnosis")
            self._explained[target] = now_ms, asking
        # One probe for all callers: a cancelled caller must not cancel it for the others.
        return await asyncio.shield(asking)

    def _make_room(self) -> _Peer:
        for address, peer in self._peers.items():
            if not peer.in_flight:
                return self._peers.pop(address)
        raise errors.TooManyRequests(
            f"calls run to {self._channels_max} addresses at the same time, the maximum; wait for one to end"
        )


_holds: Counter[int] = Counter()
"""By process: calls of `hold_grpc` without one of `let_grpc_go`. A forked child begins with none."""
_nets: WeakSet[GrpcNet] = WeakSet()
"""Nets that had a channel."""
_forked = False
"""True: gRPC's thread ran when this process was forked."""


def _after_fork() -> None:
    global _forked  # noqa: PLW0603  once per process
    _forked = _forked or any(net.is_open for net in _nets) or any(_holds.values())


os.register_at_fork(after_in_child=_after_fork)


def hold_grpc() -> None:
    """Starts gRPC's thread, as a first channel does: a process that ends cannot start it. Each call needs a
    `let_grpc_go`: a child that is forked while the thread runs cannot use gRPC.
    """
    grpc.aio.init_grpc_aio()  # type: ignore[attr-defined]  # missing in grpc-stubs
    _holds[os.getpid()] += 1


def let_grpc_go() -> None:
    """Lets the thread end with the last channel."""
    _holds[os.getpid()] -= 1
    grpc.aio.shutdown_grpc_aio()  # type: ignore[attr-defined]


def _threads_start() -> bool:
    """False: the process ends, and Python is 3.12 or newer. gRPC would crash without its thread."""
    try:
        threading.Thread(target=bool).start()
    except RuntimeError:
        return False
    return True


def _without_call(error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
    """Returns the error without the frames of the failed call: they would keep the call and its channel alive, and gRPC
    connects again for a channel that was closed.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__context__
    return error


def _is_cancelled() -> bool:
    """Returns whether this task is cancelled. If not, gRPC ended a call (failed iterator, or closed channel)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
