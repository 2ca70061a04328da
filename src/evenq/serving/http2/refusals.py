"""Refusal of calls: those that may not begin, and those for whose requests a connection has no room.

Always true: a call that is refused at a bound is counted under the name of the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from evenq.serving.http2.addresses import Address
from evenq.serving.http2.backpressure import Backpressure
from evenq.serving.http2.calls import Call, Method
from evenq.serving.http2.limits import Http2Limits
from evenq.serving.http2.messages import plain
from evenq.serving.http2.requests import request_head
from evenq.serving.http2.sending import StreamSender
from evenq.serving.http2.streams import Http2Stream
from evenq.serving.rpc import CallKind
from evenq.wire.http2 import frames as f
from evenq.wire.http2.codes import ErrorCode, Status
from evenq.wire.http2.fields import HeaderBlock

NOT_GRPC = b"This port speaks gRPC.\n"


class Loaded(Protocol):
    """The part of a connection that decides about refusals."""

    address: Address
    request_bytes: int  # kept bytes of incomplete requests

    @property
    def limits(self) -> Http2Limits:
        """Bounds of the front."""

    @property
    def core(self) -> StreamSender:
        """Its streams and their queues."""

    @property
    def pressure(self) -> Backpressure:
        """State of the answers that the peer has not taken."""


def refusal_of(
    connection: Loaded, method: Method | None, block: HeaderBlock, *, stopping: bool
) -> tuple[Status, str] | None:
    """Returns the status and its text; None: the call may begin. Called once per request. `stopping`: of the server."""
    if method is None:
        return Status.UNIMPLEMENTED, f"method {request_head(block).path[:256]} is not served here"
    limits, address = connection.limits, connection.address
    probes = method.anybody and method.kind is CallKind.UNARY  # otherwise filled bounds make a server look dead
    if block.size > limits.header_list_bytes_max:
        limit = "header_list_bytes_max"
        words = f"the metadata has {block.size} bytes, more than {limits.header_list_bytes_max}"
    # Streams too: a stream whose handler has ended holds memory until its answer is read.
    elif (
        max(address.calls, address.streams - 1) >= limits.calls_per_address_max
        and not probes
        and not address.make_room()
    ):
        limit = "calls_per_address_max"
        words = f"{limits.calls_per_address_max} calls run from this address, the maximum; try again after a pause"
    elif connection.core.unread_bytes >= limits.connection_unread_bytes:
        limit = "connection_unread_bytes"
        words = f"{connection.core.unread_bytes} bytes of answers are not read on this connection; read them first"
    # A streaming handler can wait for room; a unary answer cannot, so its call is refused before it (decision 57).
    elif method.kind is CallKind.UNARY and not probes and (limit := connection.pressure.refuses):
        words = (
            "answers of this client's address, or of all clients, are not read and at their maximum, and this "
            f"connection has more than its share of them, {connection.core.unread_bytes} bytes; read them first"
        )
    elif stopping and method.kind is CallKind.BIDI:
        return Status.UNAVAILABLE, "the server is stopping"
    else:
        return None
    connection.core.totals.refuse_call(limit)
    return Status.RESOURCE_EXHAUSTED, words


def refuse_newest(connection: Loaded) -> None:
    """Frees room on a connection that has used its window while its requests are incomplete.

    A client that sends its requests in turns, as gRPC's Go library does, has all of them half-complete then, and none
    could ever be completed. The newest are refused, so that the others can be.
    """
    bytes_max = connection.limits.connection_request_bytes_max
    for stream in reversed(list(connection.core.streams.values())):
        if connection.request_bytes < bytes_max >> 1:
            break
        call = stream.call
        if isinstance(call, Call) and call.incomplete:
            connection.core.totals.refuse_call("connection_request_bytes_max")
            words = f"incomplete requests of this connection have {bytes_max} bytes, the maximum"
            call.end(Status.RESOURCE_EXHAUSTED, f"{words}; send fewer at the same time")
            call.abandon()


class PlainRequest:
    """A request that is not gRPC: it is read to its end, so that faults of HTTP/2 are detected, and answered in text.

    Takes the place of a `Call`, for browsers, health checks and HTTP clients at the wrong port.
    """

    __slots__ = ("_core", "_status", "_stream", "_touch")

    postponed = False

    def __init__(self, core: StreamSender, touch: Callable[[], None], stream: Http2Stream, http_status: int) -> None:
        """`touch`: called when `core` has output."""
        self._core, self._touch, self._stream, self._status = core, touch, stream, http_status

    def receive(self, data: bytes, *, ended: bool) -> None:
        core = self._core
        if not ended:
            core.consumed(self._stream, len(data))
            return
        core.send_headers(self._stream, plain(self._status))
        core.send_data(self._stream, NOT_GRPC)
        core.send_end(self._stream, f.END_OF_DATA)
        self._stream.call = None
        self._touch()

    @property
    def waits_since_ms(self) -> int:
        return self._stream.since_ms

    def end(self, _code: int, _message: str = "") -> None:
        self._core.reset(self._stream, ErrorCode.CANCEL)

    def abandon(self, _code: ErrorCode = ErrorCode.CANCEL) -> None:
        pass
