"""Delivered bytes of stored messages, made without parsing or encoding them again (architecture.md 2).

A stored message is `head` (everything but `system_properties`) and `system` (the content of `system_properties`). A
delivery appends its few fields to that content and writes the tag and new length of the field. In every protobuf
library a later occurrence of a scalar wins. Nested fields that a delivery sets (times) must therefore not be in
`system`; the send path removes them (`core.sending.validation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol


class Stored(Protocol):
    """Parts of a stored message that a frame needs; `evenq.store.StoredMessage` has them."""

    @property
    def head(self) -> bytes: ...
    @property
    def system(self) -> bytes: ...


class StoredAt(Stored, Protocol):
    """A stored message with its position and time."""

    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def store_ms(self) -> int: ...


def varint(value: int) -> bytes:
    """Encodes `value` as an unsigned varint; a negative int32 or int64 takes ten bytes, as in protobuf."""
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


def near(value: int) -> bytes:
    """Encodes numbers that mostly follow each other, as offsets do: all but the last seven bits are remembered."""
    return _CONTINUED[value & 0x7F] + _upper(value >> 7) if value > 0x7F else _SMALL[value]


_upper = lru_cache(1024)(varint)
_CONTINUED = [bytes((value | 0x80,)) for value in range(128)]
_SMALL = [bytes((value,)) for value in range(128)]


def field(number: int, payload: bytes) -> bytes:
    """Encodes a length-delimited field: a message, text or bytes."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def text_field(number: int, text: str) -> bytes:
    return field(number, text.encode())


def varint_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


OK_STATUS = field(1, varint_field(1, 20_000))
"""An encoded `status` field of an answer: number 1 in every response, repeated in front of each of its entries."""


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
    """Encodes the fields of `SystemProperties` that only the broker knows: place and time, and for a delivery its
    handle, its number (from 1) and how long it stays invisible (ms). Wire contract 5.3.
    """
    encoded = None if handle is None else handle.encode()
    return _extra(queue_id, queue_offset, store_ms, encoded, attempt, invisible_ms)


def _extra(
    queue_id: int,
    queue_offset: int,
    store_ms: int,
    handle: bytes | None,
    attempt: int | None,
    invisible_ms: int | None,
) -> bytes:
    return b"".join(
        (
            _moment(9, store_ms),
            b"\x62" + varint(len(handle)) + handle if handle is not None else b"",  # 12 receipt_handle
            _queue_field(queue_id),
            b"\x70",
            near(queue_offset),  # 13, 14
            _delivery_end(invisible_ms, attempt),
        )
    )


def delivered(stored: Stored, *, extra: bytes = b"") -> bytes:
    """Returns the encoded v2 `Message`: the head, then `system_properties` with `extra` behind what was stored."""
    system = stored.system
    return b"".join((stored.head, b"\x1a", varint(len(system) + len(extra)), system, extra))


def delivery_frame(stored: StoredAt, handle: bytes, attempt: int, invisible_ms: int | None) -> tuple[bytes, int]:
    """Returns the field `message` of a ReceiveMessageResponse, and the length of the message in it: `delivered` with
    `extra_fields`, in one step.
    """
    head, system = stored.head, stored.system
    extra = _extra(stored.queue_id, stored.queue_offset, stored.store_ms, handle, attempt, invisible_ms)
    inside = varint(len(system) + len(extra))
    size = len(head) + 1 + len(inside) + len(system) + len(extra)
    return b"".join((b"\x12", varint(size), head, b"\x1a", inside, system, extra)), size


def delivery_frames(
    messages: Sequence[StoredAt], handles: Sequence[bytes], attempt: int, invisible_ms: int | None
) -> tuple[list[bytes], int]:
    """Returns `delivery_frame` of messages of one queue that are delivered alike, and their length without the frames:
    what they share is made once.
    """
    frames: list[bytes] = []
    total, store_ms, length, start = 0, -1, -1, b""
    queue_field = _queue_field(messages[0].queue_id) + b"\x70" if messages else b""
    end = _delivery_end(invisible_ms, attempt)
    for message, handle in zip(messages, handles, strict=True):
        if message.store_ms != store_ms or len(handle) != length:
            store_ms, length = message.store_ms, len(handle)
            start = b"".join((_moment(9, store_ms), b"\x62", varint(length)))
            around = len(start) + length + len(queue_field) + len(end)
        head, system, offset = message.head, message.system, near(message.queue_offset)
        inside = len(system) + around + len(offset)
        encoded = _size(inside)
        size = len(head) + 1 + len(encoded) + inside
        total += size
        frames.append(
            b"".join((b"\x12", _size(size), head, b"\x1a", encoded, system, start, handle, queue_field, offset, end))
        )
    return frames, total


_size = lru_cache(maxsize=4096)(varint)


@lru_cache(maxsize=1024)
def _queue_field(queue_id: int) -> bytes:
    return varint_field(13, queue_id)


@lru_cache(maxsize=1024)
def _delivery_end(invisible_ms: int | None, attempt: int | None) -> bytes:
    return b"".join(
        (
            _moment(15, invisible_ms) if invisible_ms is not None else b"",
            varint_field(16, attempt) if attempt is not None else b"",
        )
    )


def delayed_entry(message_id: bytes, recall_handle: str) -> bytes:
    """Returns the entry of SendMessage's answer for a delayed message.

    Its handle is made from what the log has of the timer. So the bytes are the same for the first try
    (`rpc.sending.send`) and for a retry that a later process or another copy answers (`loops.sending.dedup`).
    """
    return field(2, OK_STATUS + field(2, message_id) + field(5, recall_handle.encode()))


def half_entry(message_id: bytes, transaction_id: str) -> bytes:
    """Returns the entry of SendMessage's answer for a half message; its id is made as that of `delayed_entry`."""
    return field(2, OK_STATUS + field(2, message_id) + field(3, transaction_id.encode()))
