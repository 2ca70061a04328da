"""The gRPC mapping on HTTP/2: length-prefixed messages, statuses, and the constant blocks of every answer.

Pure. Always true: a `RequestMessageReader` keeps at most one message that is not complete, and says how long it will be
before it keeps any of it; a `grpc-message` is printable ASCII whatever the text is.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from evenq.wire.http2.codes import Status
from evenq.wire.http2.frames import EncodedHeaders
from evenq.wire.http2.hpack import encode, literal

__all__ = ["OK_HEAD", "OK_TAIL", "GrpcFault", "RequestMessageReader", "metadata_block", "plain", "prefix", "status"]

PREFIX_BYTES = 5
SMALL_PIECE = 1_024
STATUS_TEXT_MAX = 1_024
"""Characters of a status message; clients take 8 KiB of trailers, percent-encoded."""


class GrpcFault(Exception):
    """Ends a call with this status. Raised by the front for what a request is, and by handlers."""

    def __init__(
        self, code: int, message: str = "", trailers: Iterable[tuple[str, str | bytes]] = (), *, limit: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.trailers = trailers
        self.limit = limit
        """Name of the front's bound that was passed, for metrics; empty: none was."""


_HEAD_FIELDS = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
_OK_FIELD = literal(b"grpc-status", b"0")
OK_HEAD = EncodedHeaders(_HEAD_FIELDS)
"""Headers of every answer that has messages."""
OK_TAIL = EncodedHeaders(_OK_FIELD)


def metadata_block(pairs: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Metadata of ours as fields; bytes as base64 without padding, which needs a name in `-bin`."""
    return encode((name.encode("ascii"), _value(value)) for name, value in pairs)


def _value(value: str | bytes) -> bytes:
    if isinstance(value, str):
        return value.encode("ascii", "replace")
    import base64

    return base64.b64encode(value).rstrip(b"=")


def head(metadata: Iterable[tuple[str, str | bytes]]) -> EncodedHeaders:
    """Headers of an answer with metadata of its own."""
    return EncodedHeaders(_HEAD_FIELDS + metadata_block(metadata))


def status(
    code: int, message: str = "", trailers: Iterable[tuple[str, str | bytes]] = (), *, alone: bool = False
) -> EncodedHeaders:
    """Trailers; `alone`: nothing went before, so they are headers too."""
    block = _HEAD_FIELDS if alone else b""
    block += literal(b"grpc-status", b"%d" % code) if code else _OK_FIELD
    if message:
        block += literal(b"grpc-message", percent_encoded(message))
    return EncodedHeaders(block + metadata_block(trailers))


def percent_encoded(message: str) -> bytes:
    """`grpc-message`: UTF-8, printable ASCII as it is, but for `%`."""
    return quote(message[:STATUS_TEXT_MAX], safe=_SAFE, errors="replace").encode("ascii")


_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def plain(http_status: int) -> EncodedHeaders:
    """Headers of an answer to what is no gRPC; a text follows."""
    fields = [(b":status", b"%d" % http_status), (b"content-type", b"text/plain"), (b"allow", b"POST")]
    return EncodedHeaders(encode(fields if http_status == 405 else fields[:2]))


def prefix(size: int) -> bytes:
    """What stands before a message of `size` bytes."""
    return size.to_bytes(PREFIX_BYTES, "big")


class RequestMessageReader:
    """Cuts a request's DATA into messages, with one copy for a message that comes in pieces."""

    __slots__ = ("_encoding", "_have", "_limit", "_parts", "_prefix", "_size")

    def __init__(self, limit: int, encoding: str) -> None:
        self._limit = limit
        self._encoding = encoding
        self._prefix = b""
        """Its first bytes, while they are less than five."""
        self._size = -1
        """Of the message that comes in; -1: its prefix is not complete."""
        self._parts: list[bytes | bytearray] = []
        self._have = 0
        """Bytes in `_parts`."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of the message that is not complete."""
        return self._have + len(self._prefix)

    @property
    def clean(self) -> bool:
        """True: no message is cut off."""
        return self._size < 0 and not self._prefix

    def feed(self, data: bytes) -> list[bytes]:
        """Messages that are complete now. Raises GrpcFault for one that is too long or compressed."""
        messages: list[bytes] = []
        position, end = 0, len(data)
        while position < end:
            if self._size < 0:
                missing = PREFIX_BYTES - len(self._prefix)
                prefix = self._prefix + data[position : position + missing]
                position += missing
                if len(prefix) < PREFIX_BYTES:
                    self._prefix = prefix
                    break
                self._prefix, self._size = b"", self._read_prefix(prefix)
            missing = self._size - self._have
            piece = data[position : position + missing]
            position += missing
            if len(piece) < missing:
                self._put_by(piece)
                break
            if self._have:
                piece = b"".join((*self._parts, piece))
                self._parts, self._have = [], 0
            messages.append(piece)
            self._size = -1
        return messages

    def _put_by(self, piece: bytes) -> None:
        self._have += len(piece)
        last = self._parts[-1] if self._parts else None
        if isinstance(last, bytearray):
            last += piece
        elif piece:
            # Small pieces go together, else each byte of a message could cost an object.
            self._parts.append(bytearray(piece) if len(piece) < SMALL_PIECE else piece)

    def _read_prefix(self, prefix: bytes) -> int:
        size, flag = int.from_bytes(prefix[1:], "big"), prefix[0]
        if flag == 1 and self._encoding != "identity":
            raise GrpcFault(
                Status.UNIMPLEMENTED,
                f"messages compressed with {self._encoding[:32]!r} are not read; send them as they are",
                [("grpc-accept-encoding", "identity")],
            )
        if flag:
            raise GrpcFault(Status.INTERNAL, f"a message has the flag {flag}, and no grpc-encoding says why")
        if size > self._limit:
            words = f"Received message larger than max ({size} vs. {self._limit})"  # those that clients look for
            raise GrpcFault(Status.RESOURCE_EXHAUSTED, words, limit="message_bytes_max")
        return size
