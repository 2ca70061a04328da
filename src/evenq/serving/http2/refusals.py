"""Which calls are refused: those that may not begin, and those for whose requests a connection has no room.

Always true: a call that is refused at a bound is counted under the name of the bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.serving.http2.calls import Call
from evenq.serving.http2.requests import request_head
from evenq.serving.rpc import CallKind
from evenq.wire.http2.codes import Status

if TYPE_CHECKING:
    from evenq.serving.http2.calls import Method
    from evenq.serving.http2.protocol import Http2Protocol
    from evenq.wire.http2.fields import HeaderBlock

__all__ = ["refusal_of", "refuse_newest"]


def refusal_of(connection: Http2Protocol, method: Method | None, block: HeaderBlock) -> tuple[Status, str] | None:
    """The status to answer with, and its text; None: the call may begin. Asked once for each request."""
    if method is None:
        return Status.UNIMPLEMENTED, f"no method {request_head(block).path[:256]} is served here"
    limits, address = connection.limits, connection.address
    if block.size > limits.header_list_bytes_max:
        limit = "header_list_bytes_max"
        words = f"the metadata has {block.size} bytes, more than {limits.header_list_bytes_max}"
    elif address.calls >= limits.calls_per_address_max or address.streams > limits.calls_per_address_max:
        limit = "calls_per_address_max"
        words = f"{limits.calls_per_address_max} calls run from this address, the maximum; try again after a pause"
    elif connection.core.unread_bytes >= limits.connection_unread_bytes:
        limit = "connection_unread_bytes"
        words = f"{connection.core.unread_bytes} bytes of answers are not read on this connection; read them first"
    elif method.kind is CallKind.UNARY and (limit := connection.pressure.refuses):
        words = (
            "answers of this client's address, or of all clients, are not read and at their maximum, and this "
            f"connection has more than its share of them, {connection.core.unread_bytes} bytes; read them first"
        )
    elif connection.server.stopping and method.kind is CallKind.BIDI:
        return Status.UNAVAILABLE, "the server stops"
    else:
        return None
    connection.server.totals.refuse_call(limit)
    return Status.RESOURCE_EXHAUSTED, words


def refuse_newest(connection: Http2Protocol) -> None:
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
            connection.server.totals.refuse_call("connection_request_bytes_max")
            words = f"requests of this connection that are not complete have {bytes_max} bytes, the maximum"
            call.end(Status.RESOURCE_EXHAUSTED, f"{words}; send fewer at once")
            call.abandon()
