"""The network over gRPC: `GrpcNet` is the `Net` that real programs and the SDK are given.

One channel per address, made on first use, at most `channels_max`; bytes go in and out as they are. A call that fails
below the protocol raises `ConnectionFailed`, `RequestTimeout` or `Unauthorized` as `evenq.runtime.net` promises,
besides `Unsupported` (the server has no such method), `PayloadTooLarge` and `TooManyRequests`. A stream whose frames
hold no status is ended by our door with the trailer `evenq-code`; it is raised here as the error it was there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from evenq import errors
from evenq.wire.blocking_net import BlockingNet
from evenq.wire.status import error_of

__all__ = ["CODE_TRAILER", "GrpcNet"]

CODE_TRAILER = "evenq-code"
"""Trailer of a call that ends with a gRPC error: the number of `apache.rocketmq.v2.Code` that is meant."""

CHANNEL_OPTIONS: Sequence[tuple[str, int | str]] = (
    ("grpc.max_receive_message_length", -1),  # the servers bound what they send; a batch of messages may pass 4 MiB
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.keepalive_time_ms", 30_000),  # finds a dead peer behind NAT
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a restarted server is back at once, not after gRPC's 1 s .. 120 s
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.dns_min_time_between_resolutions_ms", 500),  # a pod's name comes a moment after it was first asked for
    ("grpc.enable_retries", 0),  # callers retry by class of error; gRPC would do so behind their back
    ("grpc.service_config_disable_resolution", 1),  # no TXT look-ups
    ("grpc.enable_http_proxy", 0),  # peers are near; a proxy of the environment is not for them
    ("grpc.use_local_subchannel_pool", 1),  # two nets in one process share nothing
)


class _Peer:
    """The channel to one address and its call objects by method."""

    __slots__ = ("bidi", "channel", "in_flight", "streams", "unaries")

    def __init__(self, channel: Any) -> None:  # the published types ask for (de)serialisers that we do not want
        self.channel = channel
        self.in_flight = 0
        self.unaries: dict[str, Any] = {}
        self.streams: dict[str, Any] = {}
        self.bidi: dict[str, Any] = {}


class GrpcNet:
    """`Net` on grpc.aio. Belongs to the loop that first calls it."""

    def __init__(
        self,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        options: Sequence[tuple[str, int | str]] = (),
        channels_max: int = 256,
    ) -> None:
        """`credentials`: TLS for all addresses, None = plain text. `channels_max`: addresses held open at once; the
        least recently used one without a running call makes room.
        """
        self._credentials = credentials
        self._options = (*CHANNEL_OPTIONS, *options)
        self._channels_max = channels_max
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._closed = False

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """One request, one answer; waits at most `timeout_ms`."""
        peer = await self._peer(address)
        call = peer.unaries.get(method)
        if call is None:
            call = peer.unaries[method] = peer.channel.unary_unary(method)
        peer.in_flight += 1
        try:
            answer: bytes = await call(
                request, timeout=timeout_ms / 1000, metadata=tuple(metadata.items()) if metadata else None
            )
        except grpc.aio.AioRpcError as error:
            raise _translate(error, address, method, timeout_ms) from error
        finally:
            peer.in_flight -= 1
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
        """Open a stream; `aclose()` of the iterator (or the end of its task) cancels the call. None = no time limit."""
        peer = await self._peer(address)
        kwargs: dict[str, Any] = {
            "timeout": None if timeout_ms is None else timeout_ms / 1000,
            "metadata": tuple(metadata.items()) if metadata else None,
        }
        peer.in_flight += 1
        call: Any = None
        try:
            opener: Any
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
            raise _translate(error, address, method, timeout_ms) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # gRPC cancels a call whose request iterator failed, or whose channel was closed; our task goes on.
            raise errors.ConnectionFailed(f"the stream {method} to {address} was cancelled on this side") from error
        finally:
            peer.in_flight -= 1
            if call is not None:
                call.cancel()

    def blocking(self) -> BlockingNet:
        """For calls from threads; another set of channels, closed by itself."""
        return BlockingNet(
            credentials=self._credentials, options=self._options, channels_max=self._channels_max, translate=_translate
        )

    async def close(self) -> None:
        """End all channels; running calls are cancelled."""
        self._closed = True
        peers = list(self._peers.values())
        self._peers.clear()
        for peer in peers:
            await peer.channel.close(None)

    async def _peer(self, address: str) -> _Peer:
        peer = self._peers.get(address)
        if peer is not None:
            self._peers.move_to_end(address)
            return peer
        if self._closed:
            raise errors.ConnectionFailed(f"cannot call {address}: this side is shutting down")
        if not address or ":" not in address:
            raise errors.IllegalAccessPoint(f"address {address!r} is not host:port; give for example 127.0.0.1:8081")
        spare = self._make_room() if len(self._peers) >= self._channels_max else None
        if self._credentials is None:
            channel = grpc.aio.insecure_channel(address, options=self._options)
        else:
            channel = grpc.aio.secure_channel(address, self._credentials, options=self._options)
        peer = self._peers[address] = _Peer(channel)
        if spare is not None:
            await spare.channel.close(None)
        return peer

    def _make_room(self) -> _Peer:
        for address, peer in self._peers.items():
            if not peer.in_flight:
                return self._peers.pop(address)
        raise errors.TooManyRequests(
            f"calls run to {self._channels_max} addresses at once, the maximum; wait for one to end"
        )


def _translate(error: Any, address: str, method: str, timeout_ms: int | None) -> errors.Error:
    trailers: Any = error.trailing_metadata()
    for key, value in trailers or ():
        if key == CODE_TRAILER and str(value).isdigit():
            return error_of(int(value), error.details() or "no reason given")
    reason = error.details() or "no reason given"
    call = method.rpartition("/")[2]
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return errors.RequestTimeout(
                f"{address} did not answer {call} within {timeout_ms} ms; it may or may not have taken effect"
            )
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return errors.Unauthorized(f"{address} refuses {call}: {reason}; check the credentials")
        case grpc.StatusCode.UNIMPLEMENTED:
            return errors.Unsupported(
                f"{address} does not serve {method}; is this the right port, and does its version match?"
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in reason:
            return errors.PayloadTooLarge(f"{address} does not read {call}: {reason}; send less at once")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return errors.TooManyRequests(f"{address} is overloaded: {reason}; try again later")
        case grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN if "RST_STREAM" not in reason:
            return errors.InternalError(f"{address} failed in {call}: {reason}")
        case _:
            return errors.ConnectionFailed(
                f"no evenq server answers at {address} ({call}: {reason}); is it running, and is host:port right?"
            )
