"""Error codes of HTTP/2 (RFC 9113, section 7), the two scopes of an error, and the status codes of gRPC.

A server's `Connection.receive` turns a `StreamFault` into RST_STREAM, and a `ConnectionFault` into GOAWAY and the event
`ConnectionEnded`. A `ConnectionFault` leaves `Calling.receive`, and its caller ends the connection.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13

    @classmethod
    def of(cls, number: int) -> ErrorCode:
        """Returns the code of a frame; INTERNAL_ERROR for an unknown one (RFC 9113, section 7)."""
        try:
            return cls(number)
        except ValueError:
            return cls.INTERNAL_ERROR


class Status(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class ConnectionFault(Exception):
    """A violation of the protocol or of a bound; the whole connection ends with `code`."""

    def __init__(self, code: ErrorCode, reason: str, limit: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason  # for GOAWAY's debug data and our log: ASCII, without data of the peer
        self.limit = limit  # name of the exceeded bound, for metrics; empty: another fault


class HpackFault(ConnectionFault):
    """A header block that does not decode: the tables of both sides differ, so the connection ends."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.COMPRESSION_ERROR, reason)


class StreamFault(Exception):
    """A fault of one stream; the others continue."""

    def __init__(self, stream_id: int, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.code = code
        self.reason = reason
