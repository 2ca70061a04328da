"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): constants, and builders of whole frames.

| bytes | content |
| --- | --- |
| 3 | length of the payload |
| 1 | type |
| 1 | flags |
| 4 | stream, the highest bit is reserved |
| length | payload |

`evenq.serving.http2.connection` and `evenq.wire.http2.unary` read frames. Always true: a frame of a builder fits the
smallest SETTINGS_MAX_FRAME_SIZE; `evenq.serving.http2.sending` and `calling` split DATA.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from evenq.wire.http2.codes import ConnectionFault, ErrorCode

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = struct.Struct(">HBBBI")  # length without its lowest byte, lowest byte, type, flags, stream
HEADER_BYTES = 9
FRAME_BYTES_DEFAULT = 16_384  # largest payload that a peer accepts before its SETTINGS allow more
WINDOW_MAX = (1 << 31) - 1

DATA, HEADERS, PRIORITY_FRAME, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x01
END_HEADERS = 0x04
PADDED = 0x08
PRIORITY = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)

_PAIR = struct.Struct(">HI")
_WORDS = struct.Struct(">II")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_PAIR.pack(name, value) for name, value in values.items()))


def ping(data: bytes, *, ack: bool = False) -> bytes:
    """Returns a PING; `data` has eight bytes."""
    return frame(PING, ACK if ack else 0, 0, data)


def reset(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, int(code).to_bytes(4, "big"))


def window_update(stream_id: int, increment: int) -> bytes:
    """Returns WINDOW_UPDATE; `stream_id` 0: of the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def go_away(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    """Returns GOAWAY; `reason` is for people."""
    return frame(GOAWAY, 0, 0, _WORDS.pack(last_stream_id, code) + reason.encode("ascii", "replace"))


class EncodedHeaders:
    """A header block that is sent repeatedly, with the bytes of its frame before the stream."""

    __slots__ = ("block", "end", "open")

    def __init__(self, block: bytes) -> None:
        self.block = block
        start = len(block).to_bytes(3, "big") + bytes((HEADERS,)) if len(block) < FRAME_BYTES_DEFAULT else b""
        self.open = start and start + bytes((END_HEADERS,))
        """Length, type and flags of a frame with the whole block; empty if it needs CONTINUATION."""
        self.end = start and start + bytes((END_HEADERS | END_STREAM,))  # the same with END_STREAM


END_OF_DATA = EncodedHeaders(b"")
"""An empty DATA frame in place of trailers, for answers without trailers."""
END_OF_DATA.open = END_OF_DATA.end = bytes((0, 0, 0, DATA, END_STREAM))


def header_block(stream_id: bytes, headers: EncodedHeaders, *, end: bool) -> bytes:
    """Returns HEADERS, with CONTINUATION if one frame is not enough. `stream_id`: its four bytes."""
    if headers.open:
        return (headers.end if end else headers.open) + stream_id + headers.block
    parts, block = [], headers.block
    kind, flags = HEADERS, END_STREAM if end else 0
    for start in range(0, len(block), FRAME_BYTES_DEFAULT):
        piece = block[start : start + FRAME_BYTES_DEFAULT]
        if start + FRAME_BYTES_DEFAULT >= len(block):
            flags |= END_HEADERS
        parts.append(frame(kind, flags, int.from_bytes(stream_id, "big"), piece))
        kind, flags = CONTINUATION, 0
    return b"".join(parts)


def without_extras(flags: int, stream_id: int, payload: bytes) -> bytes:
    """Returns the payload without padding and priority, which are not used."""
    padding = start = 0
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a padded frame is empty")
        padding, start = payload[0], 1
    if flags & PRIORITY:
        if len(payload) < start + 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS are too short for their priority")
        if int.from_bytes(payload[start : start + 4], "big") & WINDOW_MAX == stream_id:
            # The block would have to be decoded to keep the tables equal; the whole connection ends instead.
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
        start += 5
    if padding > len(payload) - start:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[start : len(payload) - padding]


def size_or_protocol(stream_id: int) -> ErrorCode:
    """Returns the error of a connection's frame that has a stream, or otherwise a wrong length."""
    return ErrorCode.PROTOCOL_ERROR if stream_id else ErrorCode.FRAME_SIZE_ERROR
