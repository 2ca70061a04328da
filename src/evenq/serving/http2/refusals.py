"""Which calls are refused: those that may not begin, and those for whose requests a connection has no room.

Always true: a call that is refused at a bound is counted under the name of the bound.
"""

from __future__ import annotations

from typing import Protocol

from evenq.serving.http2.addresses import Address
from evenq.serving.http2.backpressure import Backpressure
from evenq.serving.http2.calls import Call, Method
from evenq.serving.http2.limits import Http2Limits
from evenq.serving.http2.requests import request_head
from evenq.serving.http2.sending import StreamSender
from evenq.serving.rpc import CallKind
from evenq.wire.http2.codes import Status
from evenq.wire.http2.fields import HeaderBlock

__all__ = ["Loaded", "refusal_of", "refuse_newest"]


class Loaded(Protocol):
    """A connection, as far as its load decides what is refused."""

    address: Address
    request_bytes: int
    """Of requests that are not complete."""

    @property
    def limits(self) -> Http2Limits:
        """The bounds."""

    @property
    def core(self) -> StreamSender:
        """Its streams, and what they have not sent."""

    @property
    def pressure(self) -> Backpressure:
        """What its peer has not taken."""


def refusal_of(
    connection: Loaded, method: Method | None, block: HeaderBlock, *, stopping: bool
) -> tuple[Status, str] | None:
    """The status to answer with, and its text; None: the call may begin. Called once for each request. `stopping`: of
    the server.
    """
    if method is None:
        return Status.UNIMPLEMENTED, f"no method {request_head(block).path[:256]} is served here"
    limits, address = connection.limits, connection.address
    probes = method.anybody and method.kind is CallKind.UNARY  # or who fills the bounds would make a server look dead
    if block.size > limits.header_list_bytes_max:
        limit = "header_list_bytes_max"
        words = f"the metadata has {block.size} bytes, more than {limits.header_list_bytes_max}"
    # Streams too: a stream whose handler is over but whose answer is not read still holds memory.
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
    # A handler that streams can wait for room, a unary answer cannot: refused before it is made (decision 57).
    elif method.kind is CallKind.UNARY and not probes and (limit := connection.pressure.refuses):
        words = (
            "answers of this client's address, or of all clients, are not read and at their maximum, and this "
            f"connection has more than its share of them, {connection.core.unread_bytes} bytes; read them first"
        )
    elif stopping and method.kind is CallKind.BIDI:
        return Status.UNAVAILABLE, "the server stops"
    else:
        return None
    connection.core.totals.refuse_call(limit)
    return Status.RESOURCE_EXHAUSTED, words


def refuse_newest(connection: Loaded) -> None:
    """Make room on a connection that has sent all it may and whose requests are not complete.

    A client that sends its requests in turns, as gRPC's Go library does, has all of them half-way then: none could ever
    be completed. The newest are refused, so that the others can be.
    """
    bytes_max = connection.limits.connection_request_bytes_max
    for stream in reversed(list(connection.core.streams.values())):
        if connection.request_bytes < bytes_max >> 1:
            break
        call = stream.call
        if isinstance(call, Call) and call.incomplete:
            connection.core.totals.refuse_call("connection_request_bytes_max")
            words = f"requests of this connection that are not complete have {bytes_max} bytes, the maximum"
            call.end(Status.RESOURCE_EXHAUSTED, f"{words}; send fewer at once")
            call.abandon()
