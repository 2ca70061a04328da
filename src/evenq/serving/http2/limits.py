"""Every bound of the front, in one place, and the counters that tell what came near them.

`Http2Limits` is made by the server from its options and settings; `Totals` is what all connections of one server share:
what they hold together, and how often something was refused. Always true: nothing that a peer can make grow is without
a bound here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["SHARE_MIN", "Http2Limits", "PeerTotals", "Totals"]

SHARE_MIN = 16 << 10
"""Bytes of answers that a connection may leave unread however many others its address has: a usual answer on its way.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Bounds of one server. Bytes, unless the name says ms or counts something."""

    connections_max: int = 30_000
    """Connections at once, those in a TLS handshake included; one more is closed."""
    connections_per_address_max: int = 15_000
    """The same from one peer address; half of all, because a load balancer is one address."""
    streams_per_connection_max: int = 4_096
    """Streams at once on one connection (SETTINGS_MAX_CONCURRENT_STREAMS): a push consumer parks one per queue."""
    calls_per_address_max: int = 25_000
    """Calls at once from one peer address; one more is answered RESOURCE_EXHAUSTED. Half of what a broker takes in all
    (`calls_max`): 10,000 clients behind one load balancer have two each, a stream and a parked poll."""

    header_list_bytes_max: int = 16 << 10
    """Header fields of one request; more is answered RESOURCE_EXHAUSTED. Four times this ends the connection."""
    header_block_bytes_max: int = 64 << 10
    """One header block as it comes, compressed; more ends the connection."""
    header_fields_max: int = 256
    """Fields of one request; more ends the connection."""
    continuations_max: int = 16
    """CONTINUATION frames of one block; more ends the connection."""
    frame_bytes_max: int = 64 << 10
    """One frame (SETTINGS_MAX_FRAME_SIZE)."""
    message_bytes_max: int = 8 << 20
    """One request message; a longer one is answered RESOURCE_EXHAUSTED as soon as its length is known."""

    frames_per_turn: int = 128
    """Frames of one connection that one turn of the loop reads; then the others have theirs. A unary call is two."""

    stream_window_bytes: int = 4 << 20
    """What a peer may send on one stream before we say more: the largest usual message in one go."""
    connection_window_bytes: int = 16 << 20
    """The same of all its streams together."""
    connection_request_bytes_max: int = 64 << 20
    """Messages of one connection that are not complete, or not read by their handler; at this the peer must wait."""
    request_bytes_max: int = 512 << 20
    """The same of all connections; at this incomplete requests are refused."""

    stream_unread_bytes: int = 256 << 10
    """Answers of one stream that the peer has not taken; a handler that streams waits at this. A longer message waits
    alone."""
    connection_unread_bytes: int = 16 << 20
    """The same of one connection; handlers that stream wait, and further calls are refused."""
    connection_unread_bytes_max: int = 128 << 20
    """At this the connection ends: unary answers do not wait."""
    address_unread_bytes: int = 32 << 20
    """The same of all connections of one peer address. At this those that have more than their share of it (all of it,
    divided by their number) wait: no handler of theirs is given a message or asked for one, unary calls are refused at
    twice the bound, and what stalls ends after `pressed_stall_ms`."""
    unread_bytes: int = 256 << 20
    """The same of all connections, with the same consequences; unary calls are refused at once."""

    preface_ms: int = 10_000
    """From accept to the peer's first SETTINGS, TLS included."""
    request_ms: int = 60_000
    """From the start of a request, or of a message of a stream, to its last byte. A bidirectional stream owes its first
    message from the beginning, one that anybody may open each."""
    idle_ms: int = 600_000
    """A connection without calls is closed after this."""
    keepalive_ms: int = 60_000
    """A silent connection is pinged after this."""
    keepalive_timeout_ms: int = 20_000
    """An unanswered ping ends the connection after this."""
    write_stall_ms: int = 30_000
    """A peer that takes no byte from its socket for this long is gone."""
    stall_ms: int = 600_000
    """A stream whose window stays shut for this long is reset."""
    pressed_stall_ms: int = 5_000
    """The same, for streams and sockets, while all connections together are at `unread_bytes`, or those of an address
    at `address_unread_bytes`."""
    linger_bytes: int = 1 << 20
    """Of a connection that ends for a fault, what is still read and thrown away, so that its GOAWAY arrives: the
    system resets a connection that is closed over unread bytes."""
    linger_ms: int = 500
    """The longest time for that."""
    drain_ping_ms: int = 200
    """Longest wait between the two GOAWAY of a drain, for requests that are on their way."""

    flood_burst: int = 1_000
    """Frames that cost us work and the peer nothing (PING, PRIORITY, WINDOW_UPDATE, unknown ones) at once."""
    flood_per_s: int = 100
    """The same in the long run, beside what our own frames call for."""
    settings_burst: int = 32
    """SETTINGS frames at once; one a second in the long run."""
    empty_data_burst: int = 256
    """DATA frames without data and without END_STREAM at once; one a second in the long run."""
    resets_burst: int = 8_192
    """Streams at once that the peer resets before they were answered, twice what it may have open."""
    resets_per_s: int = 200
    """The same in the long run."""


class PeerTotals:
    """What the connections of one peer address hold together."""

    __slots__ = ("connections", "streams", "unread_bytes")

    def __init__(self) -> None:
        self.connections = 0
        self.streams = 0
        """Open now: calls that run, and those whose answers wait for the peer."""
        self.unread_bytes = 0
        """As of `Totals`."""


@dataclass(slots=True)
class Totals:
    """What the connections of one server hold together, and what was refused. Plain integers of one loop."""

    connections: int = 0
    """Open now, those in a handshake included."""
    streams: int = 0
    """Open now."""
    request_bytes: int = 0
    """Received and not yet given to a handler, now."""
    unread_bytes: int = 0
    """Answered and not yet taken by the peer, now: queued for its windows, or for its socket."""
    sent_answers: int = 0
    """Answers sent whole whose handlers are told if they are not taken, now."""
    accepted: int = 0
    """Connections since the start; so all below."""
    requests: int = 0
    connections_refused: int = 0
    """Over a maximum of connections."""
    handshakes_failed: int = 0
    """TLS or preface: wrong, or late."""
    calls_refused: int = 0
    """Answered RESOURCE_EXHAUSTED by the front itself."""
    streams_refused: int = 0
    """REFUSED_STREAM: over the maximum, or while draining."""
    deadlines: int = 0
    """Calls that were answered DEADLINE_EXCEEDED."""
    cancelled: int = 0
    """Calls that their caller gave up."""
    stalled: int = 0
    """Streams and connections ended because the peer did not read."""
    late_requests: int = 0
    """Requests that were not complete in time."""
    keepalive_timeouts: int = 0
    untaken: int = 0
    """Answers that were sent whole and that their callers gave up unread, of those whose handlers want to know."""
    faults: dict[str, int] = field(default_factory=dict)
    """Connections ended by a fault of the peer, by error code."""
    reached: dict[str, int] = field(default_factory=dict)
    """Times that a bound was reached, by its name in `Http2Limits`."""

    def reach(self, limit: str) -> None:
        """Count one."""
        self.reached[limit] = self.reached.get(limit, 0) + 1

    def refuse_call(self, limit: str) -> None:
        """Count a call that is answered RESOURCE_EXHAUSTED at this bound."""
        self.calls_refused += 1
        self.reach(limit)

    def fault(self, code: str) -> None:
        """Count one."""
        self.faults[code] = self.faults.get(code, 0) + 1
