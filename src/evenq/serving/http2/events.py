"""What a connection tells the layer above, in the order in which it came in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from evenq.serving.http2.streams import Http2Stream
from evenq.wire.http2.codes import ErrorCode
from evenq.wire.http2.fields import HeaderBlock

__all__ = [
    "AnswerRefused",
    "ConnectionEnded",
    "DataReceived",
    "Event",
    "PeerGoesAway",
    "PingAnswered",
    "RequestStarted",
    "StreamEnded",
    "StreamReset",
]


class RequestStarted:
    """The header block of a new stream, and its request if that came with it in one frame."""

    __slots__ = ("block", "data", "ended", "stream")

    def __init__(self, stream: Http2Stream, block: HeaderBlock, *, ended: bool, data: bytes = b"") -> None:
        self.stream = stream
        self.block = block
        self.ended = ended
        """True: nothing follows."""
        self.data = data
        """The whole request, where it came along."""


class DataReceived:
    """Bytes of a request; `Connection.consumed` opens the stream's window again."""

    __slots__ = ("data", "ended", "stream")

    def __init__(self, stream: Http2Stream, data: bytes, *, ended: bool) -> None:
        self.stream = stream
        self.data = data
        self.ended = ended


class StreamEnded:
    """The peer's side ended with trailers, which gRPC requests do not have and which are not read."""

    __slots__ = ("stream",)

    def __init__(self, stream: Http2Stream) -> None:
        self.stream = stream


class StreamReset:
    """The stream is over before its time: reset by the peer, or by us for a fault of the peer."""

    __slots__ = ("code", "stream")

    def __init__(self, stream: Http2Stream, code: ErrorCode) -> None:
        self.stream = stream
        self.code = code


class AnswerRefused:
    """The peer reset a stream whose answer was made, and whose handler wants to know that it was not taken."""

    __slots__ = ("untaken",)

    def __init__(self, untaken: Callable[[], None]) -> None:
        self.untaken = untaken
        """To be called."""


class PingAnswered:
    """A PING of ours came back."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class PeerGoesAway:
    """The peer opens no more streams."""

    __slots__ = ()


class ConnectionEnded:
    """The peer is at fault; GOAWAY is in the output, and nothing is read any more."""

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
