"""The gRPC mapping on HTTP/2: length-prefixed messages, statuses, and the constant blocks of every answer.

Pure. Always true: a `RequestMessageReader` keeps only its input, and rejects the next message as soon as its prefix is
read if it is too long; a `grpc-message` is printable ASCII for any text.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from evenq.wire.http2.codes import Status
from evenq.wire.http2.frames import EncodedHeaders
from evenq.wire.http2.hpack import encode, literal

PREFIX_BYTES = 5
SMALL_PIECE = 1_024
JOINED_MAX = 16 << 10  # longest piece joined from small ones; it is released as a whole
STATUS_TEXT_MAX = 1_024  # characters of a status message; clients accept 8 KiB of trailers, percent-encoded


class GrpcFault(Exception):
    """A status that ends a call. Raised by the front for a request, and by handlers."""

    def __init__(
        self, code: int, message: str = "", trailers: Iterable[tuple[str, str | bytes]] = (), *, limit: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.trailers = trailers
        self.limit = limit  # name of the front's exceeded bound, for metrics; empty: no bound


_HEAD_FIELDS = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")
_OK_FIELD = literal(b"grpc-status", b"0")
OK_HEAD = EncodedHeaders(_HEAD_FIELDS)  # headers of every answer with messages
OK_TAIL = EncodedHeaders(_OK_FIELD)


def metadata_block(pairs: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Encodes metadata as fields; bytes as base64 without padding, which needs a name in `-bin`."""
    return encode((name.encode("ascii"), _value(value)) for name, value in pairs)


def _value(value: str | bytes) -> bytes:
    if isinstance(value, str):
        return value.encode("ascii", "replace")
    import base64

    return base64.b64encode(value).rstrip(b"=")


def head(metadata: Iterable[tuple[str, str | bytes]]) -> EncodedHeaders:
    """Returns headers of an answer with its own metadata."""
    return EncodedHeaders(_HEAD_FIELDS + metadata_block(metadata))


def status(
    code: int, message: str = "", trailers: Iterable[tuple[str, str | bytes]] = (), *, alone: bool = False
) -> EncodedHeaders:
    """Returns trailers; `alone`: they are headers too, because nothing was sent before."""
    block = _HEAD_FIELDS if alone else b""
    block += literal(b"grpc-status", b"%d" % code) if code else _OK_FIELD
    if message:
        block += literal(b"grpc-message", percent_encoded(message))
    return EncodedHeaders(block + metadata_block(trailers))


def percent_encoded(message: str) -> bytes:
    """Encodes a `grpc-message` from UTF-8; printable ASCII stays except `%`."""
    return quote(message[:STATUS_TEXT_MAX], safe=_SAFE, errors="replace").encode("ascii")


_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def plain(http_status: int) -> EncodedHeaders:
    """Returns headers of the answer to a request that is not gRPC; a text follows."""
    # 405 must name the allowed methods (RFC 9110, 15.5.6).
    fields = [(b":status", b"%d" % http_status), (b"content-type", b"text/plain"), (b"allow", b"POST")]
    return EncodedHeaders(encode(fields if http_status == 405 else fields[:2]))


def prefix(size: int) -> bytes:
    """Returns the prefix of a message of `size` bytes."""
    # The first byte is the flag of compression; it is 0, because no size needs that byte.
    return size.to_bytes(PREFIX_BYTES, "big")


class RequestMessageReader:
    """Splits a request's DATA into messages when they are requested; until then the data is kept as it arrived."""

    __slots__ = ("_chunks", "_encoding", "_limit", "_position", "_size", "kept_bytes")

    def __init__(self, limit: int, encoding: str) -> None:
        self._limit = limit
        self._encoding = encoding
        self._chunks: list[bytes | bytearray] = []
        self._position = 0  # bytes of the first chunk that were taken
        self._size = -1  # size of the next message; -1: its prefix was not read
        self.kept_bytes = 0  # bytes in the chunks that were not taken

    @property
    def clean(self) -> bool:
        """True if no message is incomplete or waits."""
        return self._size < 0 and not self.kept_bytes

    @property
    def surplus(self) -> bool:
        """True if data follows the next message."""
        return 0 <= self._size < self.kept_bytes

    def put(self, data: bytes) -> None:
        """Adds input."""
        if not data:
            return
        self.kept_bytes += len(data)
        chunks = self._chunks
        last = chunks[-1] if chunks and len(data) < SMALL_PIECE else None
        if isinstance(last, bytearray) and len(last) < JOINED_MAX:
            last += data
        elif last is not None and len(last) < SMALL_PIECE:
            # Small pieces are joined, otherwise each byte of a message could cost an object.
            chunks[-1] = bytearray(last) + data
        else:
            chunks.append(data)

    def ready(self) -> bool:
        """Returns whether `next` has a message. Raises GrpcFault for one that is too long or compressed."""
        if self._size < 0:
            if self.kept_bytes < PREFIX_BYTES:
                return False
            self._size = self._read_prefix(self._take(PREFIX_BYTES))
        return self.kept_bytes >= self._size

    def next(self) -> bytes | None:
        """Returns the next message if it is complete. Raises as `ready`."""
        if not self.ready():
            return None
        size, self._size = self._size, -1
        return self._take(size) if size else b""

    def clear(self) -> None:
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
                f"messages compressed with {self._encoding[:32]!r} are not supported; send them uncompressed",
                [("grpc-accept-encoding", "identity")],
            )
        if flag:
            raise GrpcFault(Status.INTERNAL, f"a message has the flag {flag}, and there is no grpc-encoding")
        if size > self._limit:
            words = f"Received message larger than max ({size} vs. {self._limit})"  # clients search for this text
            raise GrpcFault(Status.RESOURCE_EXHAUSTED, words, limit="message_bytes_max")
        return size
