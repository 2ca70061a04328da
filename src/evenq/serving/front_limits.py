"""Bounds of a server's gRPC front that an operator may change: the settings `front_limits.*` of every server.

Names and defaults are those of `evenq.serving.http2.limits.Http2Limits`; its other bounds are constants or follow from
a setting. Always true: the values in `limits()` are consistent. Otherwise the settings were rejected with both names,
values and the fix.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, Field, model_validator

from evenq.serving.http2.limits import Http2Limits
from evenq.wire.http2.frames import WINDOW_MAX

_DEFAULT = Http2Limits()
_WINDOW_MIN = 1 << 16  # the protocol's first window is one byte less, and the server can only add to it
_COUNT_MAX = 1_000_000
_BYTES_MAX = 1 << 40
_MS_MAX = 86_400_000

_NOT_ABOVE = (
    ("stream_window_bytes", "connection_window_bytes", "a stream cannot use more than its connection has"),
    ("connection_window_bytes", "connection_request_bytes_max", "a peer may send what its window allows"),
    ("connection_request_bytes_max", "request_bytes_max", "one connection would exceed the bound of all"),
    ("stream_unread_bytes", "connection_unread_bytes", "one stream would exceed the bound of its connection"),
    ("connection_unread_bytes", "connection_unread_bytes_max", "connections would end before their handlers wait"),
    ("connection_unread_bytes_max", "unread_bytes", "one connection would exceed the bound of all"),
    ("streams_per_connection_max", "resets_burst", "a client that cancels all its calls would count as a flood"),
    ("pressed_stall_ms", "stall_ms", "streams would stall longer while memory is short"),
)
"""Pairs of settings of which the first must not be above the second, and the reason."""


class FrontLimits(BaseModel, frozen=True, extra="forbid"):
    """Bounds of the memory and work that clients can cause in the gRPC front."""

    connections_max: int = Field(
        default=_DEFAULT.connections_max,
        ge=1,
        le=_COUNT_MAX,
        description="Most connections of one listener; further ones are closed.",
    )
    connections_per_address_max: int = Field(
        default=_DEFAULT.connections_per_address_max,
        ge=1,
        le=_COUNT_MAX,
        description="Most connections from one address; a load balancer is one address.",
    )
    streams_per_connection_max: int = Field(
        default=_DEFAULT.streams_per_connection_max,
        ge=1,
        le=_COUNT_MAX,
        description="Most calls at the same time on one connection; a push consumer has a waiting one for "
        "each queue. Also with front=grpcio.",
    )
    calls_per_address_max: int = Field(
        default=_DEFAULT.calls_per_address_max,
        ge=1,
        le=_COUNT_MAX,
        description="Most calls at the same time from one address; further ones are answered RESOURCE_EXHAUSTED. "
        "Streams without a first message, and those of reflection, are ended before; health checks never count.",
    )
    header_list_bytes_max: int = Field(
        default=_DEFAULT.header_list_bytes_max,
        ge=4 << 10,
        le=1 << 20,
        description="Largest header list of a request, bytes; a larger one is answered RESOURCE_EXHAUSTED, "
        "one of four times this size ends the connection. Also with front=grpcio.",
    )
    frames_per_turn: int = Field(
        default=_DEFAULT.frames_per_turn,
        ge=2,
        le=65_536,
        description="Most frames that are read from one connection before other connections get their "
        "turn; a unary call is two frames.",
    )

    stream_window_bytes: int = Field(
        default=_DEFAULT.stream_window_bytes,
        ge=_WINDOW_MIN,
        le=WINDOW_MAX,
        description="Bytes that a client may send on one stream before it must wait (HTTP/2 flow control).",
    )
    connection_window_bytes: int = Field(
        default=_DEFAULT.connection_window_bytes,
        ge=_WINDOW_MIN,
        le=WINDOW_MAX,
        description="Bytes that a client may send on all streams of one connection before it must wait "
        "(HTTP/2 flow control).",
    )
    connection_request_bytes_max: int = Field(
        default=_DEFAULT.connection_request_bytes_max,
        ge=1 << 20,
        le=_BYTES_MAX,
        description="Most bytes of one connection's requests that are incomplete, or not yet read by their "
        "handler; beyond it the client must wait, and the newest requests are refused if none could be "
        "completed.",
    )
    request_bytes_max: int = Field(
        default=_DEFAULT.request_bytes_max,
        ge=1 << 20,
        le=_BYTES_MAX,
        description="Most bytes of such requests of all connections of one listener; beyond it they are "
        "answered RESOURCE_EXHAUSTED.",
    )

    stream_unread_bytes: int = Field(
        default=_DEFAULT.stream_unread_bytes,
        ge=1 << 10,
        le=_BYTES_MAX,
        description="Bytes of one stream's answer that its client has not read; at this size a streaming "
        "handler waits.",
    )
    connection_unread_bytes: int = Field(
        default=_DEFAULT.connection_unread_bytes,
        ge=1 << 16,
        le=_BYTES_MAX,
        description="Bytes of one connection's answers that its client has not read; at this size "
        "streaming handlers wait, and further calls are answered RESOURCE_EXHAUSTED.",
    )
    connection_unread_bytes_max: int = Field(
        default=_DEFAULT.connection_unread_bytes_max,
        ge=16 << 20,
        le=_BYTES_MAX,
        description="Most bytes of one connection's answers that its client has not read; beyond it the "
        "connection is closed.",
    )
    address_unread_bytes: int = Field(
        default=_DEFAULT.address_unread_bytes,
        ge=1 << 20,
        le=_BYTES_MAX,
        description="Bytes of the answers of all connections of one address that it has not read. At this "
        "size, connections with more than their share of it wait, and streams that are not read are reset "
        "after pressed_stall_ms; at twice this size their unary calls are answered RESOURCE_EXHAUSTED. A "
        "load balancer is one address.",
    )
    unread_bytes: int = Field(
        default=_DEFAULT.unread_bytes,
        ge=16 << 20,
        le=_BYTES_MAX,
        description="Bytes of the answers of all connections of one listener that clients have not read; "
        "at this size the same holds for connections of all addresses, and their unary calls are refused "
        "immediately.",
    )

    preface_ms: int = Field(
        default=_DEFAULT.preface_ms,
        ge=100,
        le=_MS_MAX,
        description="Longest time from the accepted connection to the client's first frame, TLS handshake "
        "included, ms.",
    )
    request_ms: int = Field(
        default=_DEFAULT.request_ms,
        ge=100,
        le=_MS_MAX,
        description="Longest time from the first to the last byte of a request, or of a message of a stream, ms. A "
        "bidirectional stream must send its first message within this time.",
    )
    idle_ms: int = Field(
        default=_DEFAULT.idle_ms,
        ge=1_000,
        le=_MS_MAX,
        description="A connection without calls is closed after this time, ms. Also with front=grpcio.",
    )
    keepalive_ms: int = Field(
        default=_DEFAULT.keepalive_ms,
        ge=1_000,
        le=_MS_MAX,
        description="A silent connection gets a PING after this time, ms. Also with front=grpcio.",
    )
    keepalive_timeout_ms: int = Field(
        default=_DEFAULT.keepalive_timeout_ms,
        ge=100,
        le=_MS_MAX,
        description="A connection whose PING is not answered within this time is closed, ms. Also with front=grpcio.",
    )
    write_stall_ms: int = Field(
        default=_DEFAULT.write_stall_ms,
        ge=1_000,
        le=_MS_MAX,
        description="A connection whose socket accepts no byte for this time is closed, ms.",
    )
    stall_ms: int = Field(
        default=_DEFAULT.stall_ms,
        ge=100,
        le=_MS_MAX,
        description="A stream whose client reads nothing of the answer for this time is reset, ms.",
    )
    pressed_stall_ms: int = Field(
        default=_DEFAULT.pressed_stall_ms,
        ge=100,
        le=_MS_MAX,
        description="The value of both stall_ms and write_stall_ms while unread_bytes or "
        "address_unread_bytes is reached, ms.",
    )

    flood_burst: int = Field(
        default=_DEFAULT.flood_burst,
        ge=32,
        le=_COUNT_MAX,
        description="Most frames in one burst that cost their sender nothing (PING, PRIORITY, WINDOW_UPDATE), "
        "not counting those that answer the server's own frames; a further one ends the connection.",
    )
    flood_per_s: int = Field(
        default=_DEFAULT.flood_per_s, ge=1, le=_COUNT_MAX, description="The same on average, frames a second."
    )
    resets_burst: int = Field(
        default=_DEFAULT.resets_burst,
        ge=32,
        le=_COUNT_MAX,
        description="Most calls in one burst that a client resets before they are answered; a further one ends "
        "the connection.",
    )
    resets_per_s: int = Field(
        default=_DEFAULT.resets_per_s, ge=1, le=_COUNT_MAX, description="The same on average, calls a second."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for lower, upper, why in _NOT_ABOVE:
            low, high = getattr(self, lower), getattr(self, upper)
            if low > high:
                raise ValueError(
                    f"front_limits.{lower} = {low} is above front_limits.{upper} = {high}: {why}; "
                    f"lower the first or raise the second"
                )
        return self

    def limits(self) -> Http2Limits:
        return Http2Limits(**self.model_dump(), header_block_bytes_max=4 * self.header_list_bytes_max)
