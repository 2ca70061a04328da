"""Delivered bytes without parsing or re-encoding (architecture.md 2).

A stored message is `head` (everything but `system_properties`) and `system` (the content of `system_properties`). A
delivery appends its few fields to the content of `system_properties` and writes that field's tag and new length: a
later occurrence of a scalar wins in every protobuf library. Nested fields that a delivery sets (times) must therefore
not be in `system`; the send path takes them out (`core.validation`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

__all__ = ["Stored", "delivered", "extra_fields", "field", "offset_field", "text_field", "varint", "varint_field"]


class Stored(Protocol):
    """What of a stored message a frame needs; `evenq.store.StoredMessage` is one."""

    @property
    def head(self) -> bytes: ...
    @property
    def system(self) -> bytes: ...


def varint(value: int) -> bytes:
    """`value` as an unsigned varint; a negative int32 or int64 takes ten bytes, as protobuf has it."""
    if 0 <= value < 0x80:
        return _SMALL[value]
    if 0 <= value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0:
        value += 1 << 64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def offset_field(offset: int) -> bytes:
    """The field `offset` of an answer to SendMessage (number 4, as of any field of that number), for offsets that mostly
    follow each other: all but the last seven bits are remembered.
    """
    return _OFFSETS[offset & 0x7F] + _upper(offset >> 7) if offset > 0x7F else b"\x20" + _SMALL[offset]


_upper = lru_cache(1024)(varint)
_OFFSETS = [bytes((0x20, value | 0x80)) for value in range(128)]

_SMALL = [bytes((value,)) for value in range(128)]


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field: a message, text or bytes."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def text_field(number: int, text: str) -> bytes:
    """A string field."""
    return field(number, text.encode())


def varint_field(number: int, value: int) -> bytes:
    """An integer, bool or enum field."""
    return varint(number << 3) + varint(value)


@lru_cache(maxsize=1024)
def _moment(number: int, ms: int) -> bytes:
    # Timestamp and Duration alike: seconds = 1, nanos = 2. Messages of one batch share theirs.
    seconds, rest = divmod(ms, 1000)
    return field(number, varint_field(1, seconds) + (varint_field(2, rest * 1_000_000) if rest else b""))


def extra_fields(
    queue_id: int,
    queue_offset: int,
    store_ms: int,
    handle: str | None = None,
    attempt: int | None = None,
    invisible_ms: int | None = None,
) -> bytes:
    """The fields of `SystemProperties` that only the broker knows: place and time, and for a delivery its handle,
    its number (from 1) and how long it stays invisible (ms). Wire contract 5.3.
    """
    told = b"" if handle is None else handle.encode()
    return b"".join((
        _moment(9, store_ms),
        b"\x62" + varint(len(told)) + told if handle is not None else b"",  # 12 receipt_handle
        b"\x68", varint(queue_id), b"\x70", varint(queue_offset),  # 13, 14
        _moment(15, invisible_ms) if invisible_ms is not None else b"",
        b"\x80\x01" + varint(attempt) if attempt is not None else b"",  # 16 delivery_attempt
    ))  # fmt: skip


def delivered(stored: Stored, *, extra: bytes = b"") -> bytes:
    """The encoded v2 `Message`: the head, then `system_properties` with `extra` behind what was stored."""
    system = stored.system
    return b"".join((stored.head, b"\x1a", varint(len(system) + len(extra)), system, extra))
