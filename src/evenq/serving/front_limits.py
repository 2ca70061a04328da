"""Bounds of a server's gRPC front that an operator may change: the settings `front_limits.*` of every server.

Defaults are those of `evenq.serving.http2.limits.Limits`, whose names they have; what is no setting there is a constant
or follows from a setting. Always true: what is given to `limits()` makes sense together, or the settings were refused
with the two names, their values and what to change.
"""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, Field, model_validator

from evenq.serving.http2.limits import Http2Limits
from evenq.wire.http2.frames import WINDOW_MAX

__all__ = ["FrontLimits"]

_DEFAULT = Http2Limits()
_WINDOW_MIN = 1 << 16
"""The protocol's first window is one byte less, and the server can only add to it."""
_COUNT_MAX = 1_000_000
_BYTES_MAX = 1 << 40
_MS_MAX = 86_400_000

_NOT_ABOVE = (
    ("stream_window_bytes", "connection_window_bytes", "a stream cannot use more than its connection has"),
    ("connection_window_bytes", "connection_request_bytes_max", "a peer may send what its window allows"),
    ("connection_request_bytes_max", "request_bytes_max", "one connection would pass the bound of all"),
    ("stream_unread_bytes", "connection_unread_bytes", "one stream would pass the bound of its connection"),
    ("connection_unread_bytes", "connection_unread_bytes_max", "connections would end before their handlers wait"),
    ("connection_unread_bytes_max", "unread_bytes", "one connection would pass the bound of all"),
    ("streams_per_connection_max", "resets_burst", "a client that gives up all its calls would be taken for a flood"),
    ("pressed_stall_ms", "stall_ms", "streams would stall longer while memory is short"),
)
"""Pairs of which the first may not be above the second, and why."""


class FrontLimits(BaseModel, frozen=True, extra="forbid"):
    """Bounds of what clients can make the gRPC front hold and do."""

    connections_max: int = Field(
        default=_DEFAULT.connections_max,
        ge=1,
        le=_COUNT_MAX,
        description="Most connections of one listener; one more is closed.",
    )
    connections_per_address_max: int = Field(
        default=_DEFAULT.connections_per_address_max,
        ge=1,
        le=_COUNT_MAX,
        description="Most connections of one peer address; a load balancer is one address.",
    )
    streams_per_connection_max: int = Field(
        default=_DEFAULT.streams_per_connection_max,
        ge=1,
        le=_COUNT_MAX,
        description="Most calls at once on one connection; a push consumer parks one per queue. Both fronts.",
    )
    calls_per_address_max: int = Field(
        default=_DEFAULT.calls_per_address_max,
        ge=1,
        le=_COUNT_MAX,
        description="Most calls at once from one peer address; one more is answered RESOURCE_EXHAUSTED.",
    )
    header_list_bytes_max: int = Field(
        default=_DEFAULT.header_list_bytes_max,
        ge=4 << 10,
        le=1 << 20,
        description="Largest header list of a request, bytes; more is answered RESOURCE_EXHAUSTED, four times this "
        "ends the connection. Both fronts.",
    )
    frames_per_turn: int = Field(
        default=_DEFAULT.frames_per_turn,
        ge=2,
        le=65_536,
        description="Most frames of one connection that are read before other connections have their turn; a unary "
        "call is two.",
    )

    stream_window_bytes: int = Field(
        default=_DEFAULT.stream_window_bytes,
        ge=_WINDOW_MIN,
        le=WINDOW_MAX,
        description="What a peer may send on one stream before it must wait for us, bytes.",
    )
    connection_window_bytes: int = Field(
        default=_DEFAULT.connection_window_bytes,
        ge=_WINDOW_MIN,
        le=WINDOW_MAX,
        description="What a peer may send on all streams of one connection before it must wait for us, bytes.",
    )
    connection_request_bytes_max: int = Field(
        default=_DEFAULT.connection_request_bytes_max,
        ge=1 << 20,
        le=_BYTES_MAX,
        description="Most bytes of one connection's requests that are not complete, or not read by their handler; at "
        "this the peer must wait, and the newest are refused if none could be completed.",
    )
    request_bytes_max: int = Field(
        default=_DEFAULT.request_bytes_max,
        ge=1 << 20,
        le=_BYTES_MAX,
        description="Most bytes of all such requests of one listener; over it they are answered RESOURCE_EXHAUSTED.",
    )

    stream_unread_bytes: int = Field(
        default=_DEFAULT.stream_unread_bytes,
        ge=1 << 10,
        le=_BYTES_MAX,
        description="Answers of one stream that its peer has not taken, bytes; at this a handler that streams waits.",
    )
    connection_unread_bytes: int = Field(
        default=_DEFAULT.connection_unread_bytes,
        ge=1 << 16,
        le=_BYTES_MAX,
        description="Answers of one connection that its peer has not taken, bytes; at this handlers that stream wait, "
        "and further calls are answered RESOURCE_EXHAUSTED.",
    )
    connection_unread_bytes_max: int = Field(
        default=_DEFAULT.connection_unread_bytes_max,
        ge=16 << 20,
        le=_BYTES_MAX,
        description="Most bytes of one connection's answers that its peer has not taken; over it the connection ends.",
    )
    address_unread_bytes: int = Field(
        default=_DEFAULT.address_unread_bytes,
        ge=1 << 20,
        le=_BYTES_MAX,
        description="Answers of all connections of one peer address that it has not taken, bytes; at this, connections "
        "that leave more than their share of it unread wait, and what stalls ends after pressed_stall_ms; at twice "
        "this their unary calls are answered RESOURCE_EXHAUSTED. A load balancer is one address.",
    )
    unread_bytes: int = Field(
        default=_DEFAULT.unread_bytes,
        ge=16 << 20,
        le=_BYTES_MAX,
        description="Answers of all connections of one listener that peers have not taken, bytes; at this the same "
        "holds for connections of all addresses, and their unary calls are refused at once.",
    )

    preface_ms: int = Field(
        default=_DEFAULT.preface_ms,
        ge=100,
        le=_MS_MAX,
        description="Longest time from accept to the peer's first frame, TLS included, ms.",
    )
    request_ms: int = Field(
        default=_DEFAULT.request_ms,
        ge=100,
        le=_MS_MAX,
        description="Longest time from the start of a request, or of a message of a stream, to its last byte, ms.",
    )
    idle_ms: int = Field(
        default=_DEFAULT.idle_ms,
        ge=1_000,
        le=_MS_MAX,
        description="A connection without calls is closed after this, ms. Both fronts.",
    )
    keepalive_ms: int = Field(
        default=_DEFAULT.keepalive_ms,
        ge=1_000,
        le=_MS_MAX,
        description="A silent connection is asked for a sign of life after this, ms. Both fronts.",
    )
    keepalive_timeout_ms: int = Field(
        default=_DEFAULT.keepalive_timeout_ms,
        ge=100,
        le=_MS_MAX,
        description="Longest time for that sign, ms; then the connection is closed. Both fronts.",
    )
    write_stall_ms: int = Field(
        default=_DEFAULT.write_stall_ms,
        ge=1_000,
        le=_MS_MAX,
        description="A peer whose socket takes no byte for this long is taken for gone, ms.",
    )
    stall_ms: int = Field(
        default=_DEFAULT.stall_ms,
        ge=100,
        le=_MS_MAX,
        description="A stream whose peer reads nothing of its answer for this long is reset, ms.",
    )
    pressed_stall_ms: int = Field(
        default=_DEFAULT.pressed_stall_ms,
        ge=100,
        le=_MS_MAX,
        description="The same, and longest time for a socket that takes no byte, while all connections together are "
        "at unread_bytes or those of the address at address_unread_bytes, ms.",
    )

    flood_burst: int = Field(
        default=_DEFAULT.flood_burst,
        ge=32,
        le=_COUNT_MAX,
        description="Most frames at once that cost their sender nothing (PING, PRIORITY, WINDOW_UPDATE), beside those "
        "that our own frames call for; one more ends the connection.",
    )
    flood_per_s: int = Field(
        default=_DEFAULT.flood_per_s, ge=1, le=_COUNT_MAX, description="The same in the long run, frames a second."
    )
    resets_burst: int = Field(
        default=_DEFAULT.resets_burst,
        ge=32,
        le=_COUNT_MAX,
        description="Most calls at once that a connection gives up before their answers; one more ends it.",
    )
    resets_per_s: int = Field(
        default=_DEFAULT.resets_per_s, ge=1, le=_COUNT_MAX, description="The same in the long run, calls a second."
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
        """All bounds of the front."""
        return Http2Limits(**self.model_dump(), header_block_bytes_max=4 * self.header_list_bytes_max)
