"""The gRPC mapping on HTTP/2: length-prefixed messages, statuses, and the constant blocks of every answer.

Pure. Always true: a `RequestMessageReader` keeps what it was given and nothing beside it, and says that the next
message will be too long as soon as it is asked for it; a `grpc-message` is printable ASCII whatever the text is.
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
JOINED_MAX = 16 << 10
"""Longest piece that is put together of small ones: it is let go as a whole."""
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
    # 405 must name what is allowed (RFC 9110, 15.5.6).
    fields = [(b":status", b"%d" % http_status), (b"content-type", b"text/plain"), (b"allow", b"POST")]
    return EncodedHeaders(encode(fields if http_status == 405 else fields[:2]))


def prefix(size: int) -> bytes:
    """What stands before a message of `size` bytes."""
    # The first byte is the flag of compression, 0 because no size is so large that it needs that byte.
    return size.to_bytes(PREFIX_BYTES, "big")


class RequestMessageReader:
    """Cuts a request's DATA into messages, each when it is asked for: what waits is kept as it came."""

    __slots__ = ("_chunks", "_encoding", "_limit", "_position", "_size", "kept_bytes")

    def __init__(self, limit: int, encoding: str) -> None:
        self._limit = limit
        self._encoding = encoding
        self._chunks: list[bytes | bytearray] = []
        self._position = 0
        """Bytes of the first chunk that were taken."""
        self._size = -1
        """Of the next message; -1: its prefix was not read."""
        self.kept_bytes = 0
        """In the chunks, and not taken."""

    @property
    def clean(self) -> bool:
        """True: no message is cut off, and none waits."""
        return self._size < 0 and not self.kept_bytes

    @property
    def surplus(self) -> bool:
        """True: there is something behind the next message."""
        return 0 <= self._size < self.kept_bytes

    def put(self, data: bytes) -> None:
        """What came next."""
        if not data:
            return
        self.kept_bytes += len(data)
        chunks = self._chunks
        last = chunks[-1] if chunks and len(data) < SMALL_PIECE else None
        if isinstance(last, bytearray) and len(last) < JOINED_MAX:
            last += data
        elif last is not None and len(last) < SMALL_PIECE:
            # Small pieces go together, else each byte of a message could cost an object.
            chunks[-1] = bytearray(last) + data
        else:
            chunks.append(data)

    def ready(self) -> bool:
        """True: `next` has a message. Raises GrpcFault for one that is too long or compressed."""
        if self._size < 0:
            if self.kept_bytes < PREFIX_BYTES:
                return False
            self._size = self._read_prefix(self._take(PREFIX_BYTES))
        return self.kept_bytes >= self._size

    def next(self) -> bytes | None:
        """The next message, if it is complete. Raises as `ready`."""
        if not self.ready():
            return None
        size, self._size = self._size, -1
        return self._take(size) if size else b""

    def clear(self) -> None:
        """Forget everything."""
        self._chunks, self._position, self._size, self.kept_bytes = [], 0, -1, 0

    def _take(self, size: int) -> bytes:
        chunks, start = self._chunks, self._position
        self.kept_bytes -= size
        first = chunks[0]
        end = start + size
        if end < len(first):
            self._position = end
            return bytes(first[start:end])
        parts, missing, count = [first[start:]], end - len(first), 1
        while missing and missing >= len(chunks[count]):
            parts.append(chunks[count])
            missing -= len(chunks[count])
            count += 1
        if missing:
            parts.append(chunks[count][:missing])
        self._position = missing
        del chunks[:count]
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

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
