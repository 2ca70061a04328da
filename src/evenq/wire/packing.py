"""Compressed bodies on their way from a producer to the broker, which unpacks them (wire contract 5.3).

The protocol has one word, GZIP, that its SDKs read differently; so a body is delivered as IDENTITY, and packing saves
the way to the broker. lz4 and zstd have numbers of our own, which only a broker of ours reads; both need
`evenq[compression]`. What is unpacked is bounded before it is made.
"""

from __future__ import annotations

import zlib
from typing import Any

from evenq.errors import BadRequest, BodyTooLarge, MessageCorrupted, Unsupported

__all__ = ["GZIP", "IDENTITY", "LZ4", "METHODS", "ZSTD", "check_method", "pack", "unpack"]

IDENTITY, GZIP = 1, 2
LZ4, ZSTD = 64, 65
METHODS = {"zlib": GZIP, "lz4": LZ4, "zstd": ZSTD}
"""Names for users, and `body_encoding` of system properties."""

_NAMES = {number: name for name, number in METHODS.items()}
_ANY_HEADER = 47  # zlib reads a gzip or a zlib header by itself
_ZLIB_LEVEL = 5  # RocketMQ 4.9 producer, compress level
_ZSTD_LEVEL = 3
_WINDOW_MAX = 64 << 20  # of a zstd frame: memory of one unpacking
MEMBERS_MAX = 128  # each costs a copy of the rest; 64 KiB members, as block gzip writes them, fill 8 MiB


def check_method(name: str) -> None:
    """Raises BadRequest for an unknown method, Unsupported if its library is not installed. Empty: none."""
    if name and name not in METHODS:
        raise BadRequest(f"compression is {name!r}, it is one of {', '.join(METHODS)}, or empty for none")
    if name:
        pack(name, b"")


def pack(name: str, body: bytes) -> tuple[bytes, int]:
    """The packed body and its encoding; the body as it is if packing gains nothing."""
    match name:
        case "zlib":
            packed = zlib.compress(body, _ZLIB_LEVEL)
        case "lz4":
            packed = _library("lz4.frame", name).compress(body)
        case _:
            packed = _library("zstandard", name).ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
    return (packed, METHODS[name]) if len(packed) < len(body) else (body, IDENTITY)


def unpack(encoding: int, body: bytes, bytes_max: int) -> bytes:
    """The body as it was. Raises BodyTooLarge (over `bytes_max`; no more is ever made), and MessageCorrupted, also if
    the library is not installed here.
    """
    name = _NAMES.get(encoding)
    if name is None:
        raise MessageCorrupted(f"the body has the unknown encoding {encoding}; use IDENTITY or GZIP")
    try:
        plain, whole = _unpacked(name, body, bytes_max)
    except (BodyTooLarge, MessageCorrupted):
        raise
    except Exception as error:  # each library has errors of its own, without a common class
        raise MessageCorrupted(f"the body is said to be compressed but does not unpack: {error}") from error
    if len(plain) > bytes_max:
        raise BodyTooLarge(f"the unpacked body is larger than {bytes_max} bytes, the limit; send less at once")
    if not whole:
        raise MessageCorrupted("the body is said to be compressed but does not unpack: its end is missing")
    return plain


def _unpacked(name: str, body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """At most one byte more than allowed, and whether the end was reached. A body may be several members (gzip) or
    frames (lz4, zstd) one after another, as `cat a.gz b.gz` makes them.
    """
    parts: list[bytes] = []
    size = 0
    while body and len(parts) < MEMBERS_MAX:
        part, whole, body = _first_member(name, body, bytes_max - size)
        parts.append(part)
        size += len(part)
        if size > bytes_max or not whole:
            return b"".join(parts), whole
    if body:
        raise MessageCorrupted(f"the compressed body has more than {MEMBERS_MAX} members; compress it as one")
    return b"".join(parts), True


def _first_member(name: str, body: bytes, bytes_max: int) -> tuple[bytes, bool, bytes]:
    """The first member, at most one byte more than allowed; whether its end was reached; and what follows it."""
    match name:
        case "zlib":
            inflater = zlib.decompressobj(_ANY_HEADER)
            return inflater.decompress(body, bytes_max + 1), inflater.eof, inflater.unused_data
        case "lz4":
            unpacker = _library("lz4.frame", name).LZ4FrameDecompressor()
            part = bytes(unpacker.decompress(body, bytes_max + 1))
            return part, bool(unpacker.eof), unpacker.unused_data or b""
        case _:
            unzstd = _library("zstandard", name).ZstdDecompressor(max_window_size=_WINDOW_MAX)
            # The size that a frame declares can be a lie, and only this way of reading is bounded; it does not tell
            # where the frame ends.
            with unzstd.stream_reader(body) as reader:
                part = reader.read(bytes_max + 1)
            if len(part) > bytes_max:
                return part, True, b""
            frame = unzstd.decompressobj()
            frame.decompress(body)
            return part, frame.eof, frame.unused_data


def _library(module: str, name: str) -> Any:
    try:
        from importlib import import_module

        return import_module(module)
    except ImportError as error:
        raise Unsupported(f"{name} needs a library that is not installed: pip install 'evenq[compression]'") from error
