"""Compression of bodies between a producer and the broker, which decompresses them (wire contract 5.3).

The protocol has one value, GZIP, which its SDKs decode differently. So a body is delivered as IDENTITY, and compression
only saves traffic to the broker. lz4 and zstd have numbers that only evenq reads, and need `evenq[compression]`.
Always true: decompression never produces more than one byte above the limit.
"""

from __future__ import annotations

import sys
import zlib
from typing import Any

from evenq.errors import BadRequest, BodyTooLarge, MessageCorrupted, Unsupported

IDENTITY, GZIP = 1, 2
LZ4, ZSTD = 64, 65
METHODS = {"zlib": GZIP, "lz4": LZ4, "zstd": ZSTD}
"""Names for users, and `body_encoding` of system properties."""

_NAMES = {number: name for name, number in METHODS.items()}
_ANY_HEADER = 47  # zlib detects a gzip or a zlib header
_ZLIB_LEVEL = 5  # RocketMQ 4.9 producer, compress level
_ZSTD_LEVEL = 3
_ZSTD_MODULE = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
_WINDOW_LOG_MAX = 26  # of a zstd frame, 64 MiB: memory of one decompression
MEMBERS_MAX = 128  # each member costs a copy of the rest; 64 KiB members, as of block gzip, fill 8 MiB


def check_method(name: str) -> None:
    """Raises BadRequest for an unknown method, Unsupported if its library is not installed. Empty: no compression."""
    if name and name not in METHODS:
        raise BadRequest(f"compression is {name!r}; it must be one of {', '.join(METHODS)}, or empty for none")
    if name:
        pack(name, b"")


def pack(name: str, body: bytes) -> tuple[bytes, int]:
    """Returns the compressed body and its encoding; the body unchanged if compression gains nothing."""
    match name:
        case "zlib":
            packed = zlib.compress(body, _ZLIB_LEVEL)
        case "lz4":
            packed = _library("lz4.frame", name).compress(body)
        case _:
            packed = _library(_ZSTD_MODULE, name).compress(body, level=_ZSTD_LEVEL)
    return (packed, METHODS[name]) if len(packed) < len(body) else (body, IDENTITY)


def unpack(encoding: int, body: bytes, bytes_max: int) -> bytes:
    """Returns the original body. Raises BodyTooLarge over `bytes_max`, MessageCorrupted also without the library."""
    name = _NAMES.get(encoding)
    if name is None:
        raise MessageCorrupted(f"the body has the unknown encoding {encoding}; use IDENTITY or GZIP")
    try:
        plain, whole = _unpacked(name, body, bytes_max)
    except (BodyTooLarge, MessageCorrupted):
        raise
    except Exception as error:  # the libraries' errors have no common class
        raise MessageCorrupted(f"the body is marked as compressed but does not decompress: {error}") from error
    if len(plain) > bytes_max:
        raise BodyTooLarge(f"the decompressed body is larger than {bytes_max} bytes, the limit; send smaller bodies")
    if not whole:
        raise MessageCorrupted("the body is marked as compressed but does not decompress: its end is missing")
    return plain


def _unpacked(name: str, body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """Returns at most one byte more than allowed, and whether the end was reached. A body may have several members
    (gzip) or frames (lz4, zstd), as `cat a.gz b.gz` makes them.
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
        raise MessageCorrupted(f"the compressed body has more than {MEMBERS_MAX} members; compress it as one member")
    return b"".join(parts), True


def _first_member(name: str, body: bytes, bytes_max: int) -> tuple[bytes, bool, bytes]:
    """Returns the first member, at most one byte more than allowed; whether its end was reached; and the rest."""
    match name:
        case "zlib":
            inflater = zlib.decompressobj(_ANY_HEADER)
            return inflater.decompress(body, bytes_max + 1), inflater.eof, inflater.unused_data
        case "lz4":
            unpacker = _library("lz4.frame", name).LZ4FrameDecompressor()
            part = bytes(unpacker.decompress(body, bytes_max + 1))
            return part, bool(unpacker.eof), unpacker.unused_data or b""
        case _:
            zstd = _library(_ZSTD_MODULE, name)
            unzstd = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX})
            part = unzstd.decompress(body, bytes_max + 1)
            return part, unzstd.eof, unzstd.unused_data


def _library(module: str, name: str) -> Any:
    try:
        from importlib import import_module

        return import_module(module)
    except ImportError as error:
        raise Unsupported(f"{name} needs a library that is not installed: pip install 'evenq[compression]'") from error
