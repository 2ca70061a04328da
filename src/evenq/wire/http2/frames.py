"""Frames of HTTP/2 on the wire (RFC 9113, sections 4 and 6): numbers, and builders of whole frames.

| bytes | what |
| --- | --- |
| 3 | length of the payload |
| 1 | type |
| 1 | flags |
| 4 | stream, the highest bit is reserved |
| length | payload |

Frames are read by `evenq.serving.http2.connection` and `evenq.wire.http2.calling`. Always true: a builder's frame fits
the smallest SETTINGS_MAX_FRAME_SIZE; DATA is cut by `evenq.serving.http2.sending` and by `calling`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from evenq.wire.http2.codes import ConnectionFault, ErrorCode

__all__ = [
    "ACK",
    "END_HEADERS",
    "END_OF_DATA",
    "END_STREAM",
    "FRAME_BYTES_DEFAULT",
    "HEADER",
    "HEADER_BYTES",
    "PADDED",
    "PREFACE",
    "PRIORITY",
    "WINDOW_MAX",
    "EncodedHeaders",
    "frame",
    "go_away",
    "header_block",
    "ping",
    "reset",
    "settings",
    "size_or_protocol",
    "window_update",
    "without_extras",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = struct.Struct(">HBBBI")
"""Length without its lowest byte, lowest byte, type, flags, stream."""
HEADER_BYTES = 9
FRAME_BYTES_DEFAULT = 16_384
"""Largest payload that a peer takes before its SETTINGS say more."""
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
    """Any frame."""
    length = len(payload)
    return HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def settings(values: Mapping[int, int]) -> bytes:
    """Our SETTINGS."""
    return frame(SETTINGS, 0, 0, b"".join(_PAIR.pack(name, value) for name, value in values.items()))


def ping(data: bytes, *, ack: bool = False) -> bytes:
    """`data` has eight bytes."""
    return frame(PING, ACK if ack else 0, 0, data)


def reset(stream_id: int, code: ErrorCode) -> bytes:
    """RST_STREAM."""
    return frame(RST_STREAM, 0, stream_id, int(code).to_bytes(4, "big"))


def window_update(stream_id: int, increment: int) -> bytes:
    """`stream_id` 0: the connection's window."""
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def go_away(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    """GOAWAY; `reason` is for people."""
    return frame(GOAWAY, 0, 0, _WORDS.pack(last_stream_id, code) + reason.encode("ascii", "replace"))


class EncodedHeaders:
    """A header block of ours that is sent again and again, with the frame's bytes before the stream."""

    __slots__ = ("block", "end", "open")

    def __init__(self, block: bytes) -> None:
        self.block = block
        start = len(block).to_bytes(3, "big") + bytes((HEADERS,)) if len(block) < FRAME_BYTES_DEFAULT else b""
        self.open = start and start + bytes((END_HEADERS,))
        """Length, type and flags of a frame with the whole block; empty if it needs CONTINUATION."""
        self.end = start and start + bytes((END_HEADERS | END_STREAM,))
        """The same with END_STREAM."""


END_OF_DATA = EncodedHeaders(b"")
"""In the place of trailers: an empty DATA frame, for answers that have none."""
END_OF_DATA.open = END_OF_DATA.end = bytes((0, 0, 0, DATA, END_STREAM))


def header_block(stream_id: bytes, headers: EncodedHeaders, *, end: bool) -> bytes:
    """HEADERS, and CONTINUATION if one frame is not enough. `stream_id`: its four bytes."""
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
    """The payload without padding and priority, both of which say nothing to us."""
    padding = start = 0
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a padded frame is empty")
        padding, start = payload[0], 1
    if flags & PRIORITY:
        if len(payload) < start + 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS are too short for their priority")
        if int.from_bytes(payload[start : start + 4], "big") & WINDOW_MAX == stream_id:
            # The block must be decoded all the same, or the tables part: so the connection ends.
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
        start += 5
    if padding > len(payload) - start:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[start : len(payload) - padding]


def size_or_protocol(stream_id: int) -> ErrorCode:
    """What a frame of the connection is at fault of that has a stream, or else a wrong length."""
    return ErrorCode.PROTOCOL_ERROR if stream_id else ErrorCode.FRAME_SIZE_ERROR
