"""Meaning of the header blocks of an answer, and the header block of a request, by "gRPC over HTTP2".

Pure. A repeated block is read once (`HeaderBlock.request`). Always true: an answer that is not gRPC's gets the status
that gRPC derives from its HTTP status.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import unquote_to_bytes

from evenq.errors import BadRequest
from evenq.wire.http2.codes import ErrorCode, Status
from evenq.wire.http2.fields import FieldKind, HeaderBlock
from evenq.wire.http2.frames import EncodedHeaders
from evenq.wire.http2.hpack import encode

TIMEOUT_MS_MAX = 10**8 - 1  # eight digits, in ms: 27 hours
_METADATA, _BINARY = int(FieldKind.METADATA), int(FieldKind.BINARY)

# "HTTP to gRPC Status Code Mapping" of the gRPC project.
_HTTP = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    429: Status.UNAVAILABLE,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}
# "gRPC over HTTP2", Errors.
_RESETS = {
    ErrorCode.REFUSED_STREAM: Status.UNAVAILABLE,
    ErrorCode.CANCEL: Status.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    ErrorCode.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}


class AnswerHead:
    """Headers, trailers, or both in one."""

    __slots__ = ("http_status", "is_grpc", "message", "metadata", "status")

    def __init__(self) -> None:
        self.http_status = 0  # 0: not present, as in trailers
        self.is_grpc = False  # True by its content type
        self.status: int | None = None  # `grpc-status`; None: missing or not a number
        self.message = ""
        self.metadata: Sequence[tuple[str, str]] = ()


def answer_head(block: HeaderBlock) -> AnswerHead:
    """Returns the meaning of a block; the same object for a repeated block."""
    known: AnswerHead | None = block.request
    if known is None:
        known = block.request = _read(block)
    return known


def _read(block: HeaderBlock) -> AnswerHead:
    head, metadata = AnswerHead(), []
    for (name, value), kind, _, _ in block.fields:
        if name == ":status":
            head.http_status = int(value) if value.isdecimal() and len(value) == 3 else 0
        elif name == "content-type":
            # A format (`+proto`) or a parameter may follow.
            head.is_grpc = value.startswith("application/grpc") and value[16:17] in {"", "+", ";"}
        elif name == "grpc-status":
            head.status = int(value) if value.isdecimal() and len(value) <= 3 else None
        elif name == "grpc-message":
            head.message = unquote_to_bytes(value.encode("latin-1")).decode("utf-8", "replace")
        elif kind in {_METADATA, _BINARY}:
            metadata.append((name, value))
    head.metadata = metadata
    return head


def status_of_http(status: int) -> Status:
    """Returns the status of an answer whose `:status` is not 200, or that is not gRPC's."""
    return _HTTP.get(status, Status.UNKNOWN)


def status_of_reset(code: ErrorCode) -> Status:
    """Returns the status of a stream that the server reset."""
    return _RESETS.get(code, Status.INTERNAL)


def request_headers(
    method: str, *, scheme: str, authority: str, timeout_ms: int | None, metadata: Iterable[tuple[str, str]]
) -> EncodedHeaders:
    """Returns a header block that needs no state, so equal calls share it. `timeout_ms` None: no time limit.

    Raises BadRequest for metadata that a header cannot carry.
    """
    fields = [
        (b":method", b"POST"),
        (b":scheme", scheme.encode()),
        (b":path", method.encode()),
        (b":authority", authority.encode("ascii", "replace")),
        # Servers of gRPC check it to detect proxies that drop trailers.
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"evenq"),
        *([] if timeout_ms is None else [(b"grpc-timeout", _timeout(timeout_ms))]),
        *(_field(name, value) for name, value in metadata),
    ]
    return EncodedHeaders(encode(fields))


def _field(name: str, value: str) -> tuple[bytes, bytes]:
    if not (value.isascii() and value.isprintable()):
        raise BadRequest(f"header {name} has the value {value!r:.80}; a header value must be printable ASCII")
    if not name.isascii() or name.endswith("-bin"):
        raise BadRequest(f"header {name!r:.80} cannot be sent; the name must be ASCII and must not end in -bin")
    return name.lower().encode(), value.encode()


def _timeout(timeout_ms: int) -> bytes:
    # At most eight digits ("gRPC over HTTP2", TimeoutValue), so longer times are sent in seconds.
    if timeout_ms <= TIMEOUT_MS_MAX:
        return b"%dm" % max(1, timeout_ms)
    return b"%dS" % min(timeout_ms // 1000, TIMEOUT_MS_MAX)
