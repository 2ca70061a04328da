"""Delivered bytes without parsing or re-encoding (architecture.md 2).

A stored message is `head` (everything but `system_properties`) and `system` (the content of `system_properties`). A
delivery appends its few fields to the content of `system_properties` and writes that field's tag and new length: a
later occurrence of a scalar wins in every protobuf library. Nested fields that a delivery sets (times) must therefore
not be in `system`; the send path takes them out (`core.validation`).
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Stored", "delivered", "extra_fields", "field", "text_field", "varint", "varint_field"]


class Stored(Protocol):
    """What of a stored message a frame needs; `evenq.store.StoredMessage` is one."""

    @property
    def head(self) -> bytes: ...
    @property
    def system(self) -> bytes: ...


def varint(value: int) -> bytes:
    """`value` as an unsigned varint; a negative int32 or int64 takes ten bytes, as protobuf has it."""
    if value < 0x80:
        if value < 0:
            value += 1 << 64
        else:
            return _SMALL[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


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


def _moment(number: int, ms: int) -> bytes:
    # Timestamp and Duration alike: seconds = 1, nanos = 2.
    seconds, rest = divmod(ms, 1000)
    return field(number, varint_field(1, seconds) + varint_field(2, rest * 1_000_000))


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
    seconds, rest = divmod(store_ms, 1000)
    moment = b"\x08" + varint(seconds) + (b"\x10" + varint(rest * 1_000_000) if rest else b"")
    parts = [b"\x4a", varint(len(moment)), moment]  # 9 store_timestamp
    if handle is not None:
        encoded = handle.encode()
        parts += (b"\x62", varint(len(encoded)), encoded)  # 12 receipt_handle
    parts += (b"\x68", varint(queue_id), b"\x70", varint(queue_offset))  # 13, 14
    if invisible_ms is not None:
        parts.append(_moment(15, invisible_ms))
    if attempt is not None:
        parts += (b"\x80\x01", varint(attempt))  # 16 delivery_attempt
    return b"".join(parts)


def delivered(stored: Stored, *, extra: bytes = b"") -> bytes:
    """The encoded v2 `Message`: the head, then `system_properties` with `extra` behind what was stored."""
    system = stored.system
    return b"".join((stored.head, b"\x1a", varint(len(system) + len(extra)), system, extra))
