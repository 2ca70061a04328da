"""Events of a connection for the layer above, in the order of the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from evenq.serving.http2.streams import Http2Stream
from evenq.wire.http2.codes import ErrorCode
from evenq.wire.http2.fields import HeaderBlock


class RequestStarted:
    """The header block of a new stream, and its request if that arrived in one frame with it."""

    __slots__ = ("block", "data", "ended", "stream")

    def __init__(self, stream: Http2Stream, block: HeaderBlock, *, ended: bool, data: bytes = b"") -> None:
        self.stream = stream
        self.block = block
        self.ended = ended  # True: nothing follows
        self.data = data  # the whole request, if it arrived with the header block


class DataReceived:
    """Bytes of a request; `Connection.consumed` opens the stream's window again."""

    __slots__ = ("data", "ended", "stream")

    def __init__(self, stream: Http2Stream, data: bytes, *, ended: bool) -> None:
        self.stream = stream
        self.data = data
        self.ended = ended


class StreamEnded:
    """The end of the peer's side by trailers, which gRPC requests do not have and which are not read."""

    __slots__ = ("stream",)

    def __init__(self, stream: Http2Stream) -> None:
        self.stream = stream


class StreamReset:
    """The early end of a stream: reset by the peer, or by us for a fault of the peer."""

    __slots__ = ("code", "stream")

    def __init__(self, stream: Http2Stream, code: ErrorCode) -> None:
        self.stream = stream
        self.code = code


class AnswerRefused:
    """A reset of a stream whose answer was sent and whose handler must be notified (`untaken`)."""

    __slots__ = ("untaken",)

    def __init__(self, untaken: Callable[[], None]) -> None:
        self.untaken = untaken


class PingAnswered:
    """The answer to a PING of ours."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class PeerGoesAway:
    """The peer's GOAWAY: it opens no more streams."""

    __slots__ = ()


class ConnectionEnded:
    """A fault of the peer; GOAWAY is in the output, and no more input is processed."""

    __slots__ = ("code", "reason")

    def __init__(self, code: ErrorCode, reason: str) -> None:
        self.code = code
        self.reason = reason


Event: TypeAlias = (
    RequestStarted
    | DataReceived
    | StreamEnded
    | StreamReset
    | AnswerRefused
    | PingAnswered
    | PeerGoesAway
    | ConnectionEnded
)
