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
    except BodyTooLarge:
        raise
    except Exception as error:  # each library has errors of its own, without a common class
        raise MessageCorrupted(f"the body is said to be compressed but does not unpack: {error}") from error
    if len(plain) > bytes_max:
        raise BodyTooLarge(f"the unpacked body is larger than {bytes_max} bytes, the limit; send less at once")
    if not whole:
        raise MessageCorrupted("the body is said to be compressed but does not unpack: its end is missing")
    return plain


def _unpacked(name: str, body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    """At most one byte more than allowed, and whether the end was reached."""
    match name:
        case "zlib":
            inflater = zlib.decompressobj(_ANY_HEADER)
            plain = inflater.decompress(body, bytes_max + 1)
            return plain, inflater.eof
        case "lz4":
            unpacker = _library("lz4.frame", name).LZ4FrameDecompressor()
            return bytes(unpacker.decompress(body, bytes_max + 1)), bool(unpacker.eof)
        case _:
            library = _library("zstandard", name)
            unzstd = library.ZstdDecompressor(max_window_size=_WINDOW_MAX)
            size = library.frame_content_size(body)
            # The frame says its size: refused before any memory is taken for it.
            if size > bytes_max:
                raise BodyTooLarge(f"the unpacked body has {size} bytes, the limit is {bytes_max}; send less at once")
            if size >= 0:
                return bytes(unzstd.decompress(body)), True
            with unzstd.stream_reader(body) as reader:
                if len(reader.read(bytes_max + 1)) > bytes_max:
                    raise BodyTooLarge(f"the unpacked body is larger than {bytes_max} bytes, the limit; send less")
            return bytes(unzstd.decompress(body, max_output_size=bytes_max)), True  # refuses one without its end


def _library(module: str, name: str) -> Any:
    try:
        from importlib import import_module

        return import_module(module)
    except ImportError as error:
        raise Unsupported(f"{name} needs a library that is not installed: pip install 'evenq[compression]'") from error
