"""Meaning of a request's header block for gRPC: the method, its metadata, its time limit; or why it is not valid.

Pure. A repeated block is read once (`HeaderBlock.request`), and so is the common part of blocks that differ in a
deadline or an id (`HeaderBlock.common`). Malformed requests are defined by RFC 9113 8.3.1, the rest by "gRPC over
HTTP2". Always true: an accepted request has a path, and metadata without fields that the transport keeps for itself.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence

from evenq.serving.rpc import CallHeaders, MoreHeaders
from evenq.wire.http2.fields import Field, FieldKind, HeaderBlock

_METADATA, _BINARY = int(FieldKind.METADATA), int(FieldKind.BINARY)
_METHOD, _SCHEME, _PATH = int(FieldKind.METHOD), int(FieldKind.SCHEME), int(FieldKind.PATH)
_AUTHORITY, _CONTENT_TYPE = int(FieldKind.AUTHORITY), int(FieldKind.CONTENT_TYPE)
_TIMEOUT, _ENCODING, _MALFORMED = int(FieldKind.TIMEOUT), int(FieldKind.ENCODING), int(FieldKind.MALFORMED)
_OF_MS = {"n": 1_000_000, "u": 1_000, "m": 1}
_MS = {"S": 1_000, "M": 60_000, "H": 3_600_000}
TIMEOUT_DIGITS_MAX = 8  # gRPC over HTTP2, TimeoutValue


class RequestHead:
    __slots__ = (
        "authority",
        "bad_timeout",
        "encoding",
        "headers",
        "malformed",
        "metadata",
        "not_grpc",
        "path",
        "timeout_ms",
    )

    def __init__(self) -> None:
        self.path = ""  # `/package.Service/Rpc`
        self.authority = ""
        self.metadata: Sequence[tuple[str, str | bytes]] = ()
        """Lower-case names; values of names that end in `-bin` as bytes."""
        self.headers: CallHeaders  # the metadata in the form for handlers
        self.timeout_ms: int | None = None  # None: the caller waits without a limit
        self.bad_timeout = False
        self.encoding = "identity"
        self.malformed = False  # True: a stream error, nothing is answered
        self.not_grpc = 0  # HTTP status for a request that is not gRPC; 0: it is gRPC


def request_head(block: HeaderBlock) -> RequestHead:
    """Returns the head of a request; the same object for a repeated block."""
    known: RequestHead | None = block.request
    if known is None:
        common = block.common
        known = block.request = _read(block) if common is None else _with(request_head(common), block.changing)
    return known


def _with(common: RequestHead, changing: Sequence[Field]) -> RequestHead:
    """Returns the head of a request that differs from a common one in a deadline or metadata."""
    head = RequestHead()
    head.path, head.authority, head.encoding = common.path, common.authority, common.encoding
    head.malformed, head.not_grpc = common.malformed, common.not_grpc
    metadata: list[tuple[str, str | bytes]] = []
    for pair, kind, _, _ in changing:
        if kind == _TIMEOUT:
            head.timeout_ms = timeout_ms(pair[1])
            head.bad_timeout = head.timeout_ms is None
        else:
            metadata.append(pair)
    if metadata:
        head.metadata = [*common.metadata, *metadata]
        head.headers = MoreHeaders(common.headers, metadata)
    else:
        head.metadata, head.headers = common.metadata, common.headers
    return head


def _read(block: HeaderBlock) -> RequestHead:
    head = RequestHead()
    metadata: list[tuple[str, str | bytes]] = []
    append = metadata.append
    pseudo: dict[int, str] = {}
    content_type, regular, malformed = "", False, False
    for pair, kind, _, _ in block.fields:
        if kind == _METADATA:
            regular = True
            append(pair)
        elif kind == _BINARY:
            regular = True
            append((pair[0], _binary(pair[1])))
        elif kind <= _AUTHORITY:
            # Pseudo-headers come first, each once (RFC 9113, 8.3).
            malformed = malformed or regular or kind in pseudo
            pseudo[kind] = pair[1]
        elif kind == _MALFORMED:
            malformed = True
        else:
            regular = True
            if kind == _CONTENT_TYPE:
                content_type = pair[1]
            elif kind == _TIMEOUT:
                head.timeout_ms = timeout_ms(pair[1])
                head.bad_timeout = head.timeout_ms is None
            elif kind == _ENCODING:
                head.encoding = pair[1]
    head.path, head.authority, method = pseudo.get(_PATH, ""), pseudo.get(_AUTHORITY, ""), pseudo.get(_METHOD, "")
    head.malformed = malformed or not method or not head.path or _SCHEME not in pseudo
    head.metadata = metadata
    head.headers = CallHeaders(metadata)
    if method != "POST":
        head.not_grpc = 405
    # `application/grpc+proto`, `application/grpc;...`; `application/grpc-web` is another protocol.
    elif not content_type.startswith("application/grpc") or content_type[16:17] not in {"", "+", ";"}:
        head.not_grpc = 415
    return head


def _binary(text: str) -> bytes:
    """Decodes a `-bin` value, with or without padding; a value that is not base64 stays as it is."""
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except (binascii.Error, ValueError):
        return text.encode("latin-1", "replace")


def timeout_ms(text: str) -> int | None:
    """Returns `grpc-timeout` in ms, rounded up; None if it is not valid."""
    digits, unit = text[:-1], text[-1:]
    if not digits.isdecimal() or not digits.isascii() or len(digits) > TIMEOUT_DIGITS_MAX:
        return None
    parts = _OF_MS.get(unit)
    if parts is not None:
        # Rounded up: a time limit of some microseconds must not become 0, which has already passed.
        return -(-int(digits) // parts)
    whole = _MS.get(unit)
    return None if whole is None else int(digits) * whole
