"""All bounds of the front, and the counters that show which were reached.

The server makes `Http2Limits` from its options and settings; all its connections share one `Totals`: their common sums,
and the numbers of refusals. Always true: everything that a peer can make grow has a bound here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evenq.wire.http2.codes import ConnectionFault, ErrorCode

SHARE_MIN = 16 << 10
"""Unread bytes of answers that any connection may have, whatever its address has: a usual answer on its way."""
CREDIT = 16
"""Saved credit for our own frames, in bursts: a client may acknowledge answers to thousands of streams together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Bounds of one server, in bytes unless the name has ms or counts something."""

    connections_max: int = 30_000
    """Connections at the same time, including those in a TLS handshake; one more is closed."""
    connections_per_address_max: int = 15_000
    """The same from one peer address; half of all, because a load balancer is one address."""
    streams_per_connection_max: int = 4_096
    """Streams of one connection (SETTINGS_MAX_CONCURRENT_STREAMS): a push consumer has a waiting one per queue."""
    calls_per_address_max: int = 25_000
    """Calls at the same time from one peer address; one more is answered RESOURCE_EXHAUSTED. Half of a broker's
    `calls_max`: 10,000 clients behind one load balancer have two each, a stream and a waiting poll.
    """

    header_list_bytes_max: int = 16 << 10
    """Header fields of one request; more is answered RESOURCE_EXHAUSTED. Four times this ends the connection."""
    header_block_bytes_max: int = 64 << 10
    """One compressed header block; more ends the connection."""
    header_fields_max: int = 256
    """Fields of one request; more ends the connection."""
    continuations_max: int = 16
    """CONTINUATION frames of one block; more ends the connection."""
    frame_bytes_max: int = 64 << 10
    """One frame (SETTINGS_MAX_FRAME_SIZE)."""
    message_bytes_max: int = 8 << 20
    """One request message; a longer one is answered RESOURCE_EXHAUSTED as soon as its length is known."""

    frames_per_turn: int = 128
    """Frames of one connection per turn of the loop; then the others have theirs. A unary call is two."""

    stream_window_bytes: int = 4 << 20
    """Bytes that a peer may send on one stream before a WINDOW_UPDATE: the largest usual message."""
    connection_window_bytes: int = 16 << 20
    """The same for all its streams together."""
    connection_request_bytes_max: int = 64 << 20
    """Bytes of one connection's messages that are incomplete, or not read by their handler; then the peer waits."""
    request_bytes_max: int = 512 << 20
    """The same for all connections; then incomplete requests are refused."""

    stream_unread_bytes: int = 256 << 10
    """Unread bytes of one stream's answers; at this a streaming handler waits. A longer message waits alone."""
    connection_unread_bytes: int = 16 << 20
    """The same for one connection; streaming handlers wait, and further calls are refused."""
    connection_unread_bytes_max: int = 128 << 20
    """At this the connection ends, because unary answers do not wait."""
    address_unread_bytes: int = 32 << 20
    """The same for all connections of one peer address. At this, connections over their share (the bound divided by
    their number) wait: their handlers get no message and make none, unary calls are refused at twice the bound, and
    stalled streams end after `pressed_stall_ms`.
    """
    unread_bytes: int = 256 << 20
    """The same for all connections; unary calls are refused immediately."""

    preface_ms: int = 10_000
    """From accept to the peer's first SETTINGS, TLS included."""
    request_ms: int = 60_000
    """From the start of a request, or of a message of a stream, to its last byte. A bidirectional stream owes its first
    message from the beginning; one that needs no credentials owes each.
    """
    idle_ms: int = 600_000
    """A connection without calls is closed after this."""
    keepalive_ms: int = 60_000
    """A silent connection is pinged after this."""
    keepalive_timeout_ms: int = 20_000
    """An unanswered ping ends the connection after this."""
    write_stall_ms: int = 30_000
    """A peer whose socket accepts no byte for this time is disconnected; one of an ended connection has it in total."""
    stall_ms: int = 600_000
    """A stream whose window stays closed for this time is reset."""
    pressed_stall_ms: int = 5_000
    """The same, for streams and sockets over their share, while `unread_bytes` or `address_unread_bytes` is reached."""
    linger_bytes: int = 1 << 20
    """Input that is read and dropped after a fault, so that the GOAWAY arrives: the system resets a connection that is
    closed with unread input.
    """
    linger_ms: int = 500
    """The longest time for that."""
    drain_ping_ms: int = 200
    """Longest wait between the two GOAWAY of a drain, for requests on their way."""

    flood_burst: int = 1_000
    """Frames that cost us work and the peer nothing (PING, PRIORITY, WINDOW_UPDATE, unknown types), in one burst."""
    flood_per_s: int = 100
    """The same on average, in addition to those that our own frames cause."""
    settings_burst: int = 32
    """SETTINGS frames in one burst; one a second on average."""
    empty_data_burst: int = 256
    """DATA frames without data and without END_STREAM in one burst; one a second on average."""
    resets_burst: int = 8_192
    """Streams that the peer resets before they are answered, in one burst: twice its maximum of open ones."""
    resets_per_s: int = 200
    """The same on average."""


class PeerTotals:
    """Sums over the connections of one peer address."""

    __slots__ = ("connections", "streams", "unread_bytes")

    def __init__(self) -> None:
        self.connections = 0
        self.streams = 0  # open now: running calls, and those whose answers wait for the peer
        self.unread_bytes = 0  # as in `Totals`


@dataclass(slots=True)
class Totals:
    """Sums over the connections of one server, and numbers of refusals. Plain integers of one loop."""

    connections: int = 0
    """Open now, including those in a handshake."""
    streams: int = 0
    """Open now."""
    request_bytes: int = 0
    """Received and not yet passed to a handler, now."""
    unread_bytes: int = 0
    """Answered and not yet taken by the peer, now: queued for its windows or its socket."""
    sent_answers: int = 0
    """Answers sent whole whose handlers are notified if they are not taken, now."""
    accepted: int = 0
    """Connections since the start; the same for all below."""
    requests: int = 0
    connections_refused: int = 0
    """Over a maximum of connections."""
    handshakes_failed: int = 0
    """TLS or preface: wrong, or late."""
    calls_refused: int = 0
    """Calls answered RESOURCE_EXHAUSTED by the front itself."""
    streams_refused: int = 0
    """REFUSED_STREAM: over the maximum, or during a drain."""
    deadlines: int = 0
    """Calls answered DEADLINE_EXCEEDED."""
    cancelled: int = 0
    """Calls that their caller cancelled."""
    stalled: int = 0
    """Streams and connections ended because the peer did not read."""
    late_requests: int = 0
    """Requests that were not complete in time."""
    keepalive_timeouts: int = 0
    untaken: int = 0
    """Answers sent whole whose handlers were notified that they were not taken."""
    faults: dict[str, int] = field(default_factory=dict)
    """Connections ended by a fault of the peer, by error code."""
    reached: dict[str, int] = field(default_factory=dict)
    """Number of times that a bound was reached, by its name in `Http2Limits`."""

    def reach(self, limit: str) -> None:
        self.reached[limit] = self.reached.get(limit, 0) + 1

    def refuse_call(self, limit: str) -> None:
        """Counts a call that is answered RESOURCE_EXHAUSTED at this bound."""
        self.calls_refused += 1
        self.reach(limit)

    def fault(self, code: str) -> None:
        self.faults[code] = self.faults.get(code, 0) + 1


class Bucket:
    """Remaining budget of one kind of frame that costs the peer nothing; it fills with time.

    Some of these frames answer ours (WINDOW_UPDATE follows DATA, gRPC clients measure with a PING when data arrives),
    so our frames fill those buckets too. Always true: an empty bucket raises ConnectionFault with ENHANCE_YOUR_CALM,
    and a connection that only does what its calls need never empties one.
    """

    __slots__ = ("_at_ms", "_credit", "_earned", "_left", "_limit", "_name", "burst", "per_s")

    def __init__(self, name: str, limit: str, *, burst: int, per_s: int) -> None:
        """`name`: of the frames, for the peer; `limit`: name of the bound, for metrics."""
        self._name = name
        self._limit = limit
        self.burst = burst
        self.per_s = per_s
        self._left = burst * 1_000
        self._credit = 0
        self._at_ms = 0
        self._earned = 0

    def spend(self, now_ms: int, earned: int = 0) -> None:
        """Takes one. `earned`: a counter that only grows; its growth is added. Raises ConnectionFault."""
        if earned != self._earned:
            self._credit = min(CREDIT * self.burst, self._credit + earned - self._earned)
            self._earned = earned
        if self._credit:
            self._credit -= 1
            return
        left = self._left
        if left < self.burst * 1_000:
            left = min(self.burst * 1_000, left + (now_ms - self._at_ms) * self.per_s)
        self._at_ms = now_ms
        if left < 1_000:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many frames: {self._name}", self._limit)
        self._left = left - 1_000
