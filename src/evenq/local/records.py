"""Byte tables of the two file engines, big-endian: records of Embedded (LQ-15) and Local (LQ-40), the filler at a
file's end (LQ-23), the consume queue entry (LQ-48). `docs/guides/local_queues.md` shows them.

BODYCRC is zlib's CRC-32 over the payload (body length to properties), then the numbers (QUEUEID to STORETIMESTAMP): all
bytes after it. The producer computes the part of the payload before it takes a lock. Total size and magic are checked
by their values. An Embedded record has no space for a checksum: the bucket's index entry has the CRC-32 of the record.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from evenq.errors import BodyTooLarge, PropertiesTooLarge
from evenq.local.messages import Message
from evenq.local.pairs import PAIRS_BYTES_MAX
from evenq.local.statuses import ReadStatus

MESSAGE_MAGIC: Final = 0xDAA320A7  # XO-11
BLANK_MAGIC: Final = 0xCBD43194  # XO-11
EMBEDDED_FIXED_BYTES: Final = 16
LOCAL_FIXED_BYTES: Final = 49
NAME_BYTES_MAX: Final = 127  # LQ-41: a signed byte

EMBEDDED_HEAD: Final = struct.Struct(">III")  # total size, magic, body length
PREFIX: Final = struct.Struct(">III")  # total size, magic, body crc
NUMBERS: Final = struct.Struct(">iqqq")  # queue id, queue offset, physical offset, store timestamp
LENGTH: Final = struct.Struct(">I")
SHORT: Final = struct.Struct(">h")
FILLER: Final = struct.Struct(">II")  # what is left of the file, blank magic; zeros follow
ENTRY: Final = struct.Struct(">qI")  # consume queue: store offset, size
INDEX_ENTRY: Final = struct.Struct(">qII")  # bucket index: store offset, size, crc-32 of the record
HEADER_BYTES: Final = PREFIX.size + NUMBERS.size
NO_PAIRS: Final = b"\0\0\0\0"


def filler(left: int) -> bytes:
    """Returns the mark of the unused last `left` bytes of a file: 8 bytes, or zeros if these do not fit."""
    return FILLER.pack(left, BLANK_MAGIC) if left >= FILLER.size else bytes(left)


def _pairs(message: Message) -> bytes:
    headers, properties = message.packed_headers, message.packed_properties
    if not headers and not properties:
        return NO_PAIRS
    if max(len(headers), len(properties)) > PAIRS_BYTES_MAX:
        raise PropertiesTooLarge(
            f"headers of {len(headers)} and properties of {len(properties)} bytes: the limit is {PAIRS_BYTES_MAX} each"
        )
    return b"".join((SHORT.pack(len(headers)), headers, SHORT.pack(len(properties)), properties))


def check_size(size: int, bytes_max: int) -> None:
    """Raises BodyTooLarge if a record of `size` bytes exceeds the limit."""
    if size > bytes_max:
        raise BodyTooLarge(
            f"the message takes {size} bytes with its record, the limit is {bytes_max}: send it in parts, or open the "
            "queues with a larger message_bytes_max"
        )


def pack_embedded(message: Message) -> bytes:
    pairs = _pairs(message)
    body = message.body
    total = EMBEDDED_HEAD.size + len(body) + len(pairs)
    return b"".join((EMBEDDED_HEAD.pack(total, MESSAGE_MAGIC, len(body)), body, pairs))


def pack_payload(message: Message) -> bytes:
    """Returns the part of a Local record without offsets: body, name, headers, properties, with lengths."""
    name = message.name.encode()
    if len(name) > NAME_BYTES_MAX:
        raise BodyTooLarge(f"the name takes {len(name)} bytes, the limit is {NAME_BYTES_MAX}: choose a shorter one")
    body = message.body
    return b"".join((LENGTH.pack(len(body)), body, bytes((len(name),)), name, _pairs(message)))


def pack_local(message: Message, payload: bytes, payload_crc: int) -> bytes:
    """Returns the 40 bytes before the payload, once the offsets are known. Called under the store's short lock."""
    numbers = NUMBERS.pack(message.queue_id, message.offset, message.store_offset, message.stored_ms)
    return PREFIX.pack(HEADER_BYTES + len(payload), MESSAGE_MAGIC, zlib.crc32(numbers, payload_crc)) + numbers


def _start(data: bytes, position: int, fixed: int, left: int) -> tuple[ReadStatus, int]:
    """Returns the status and claimed size of the record at `position`, `left` bytes before the end of the file."""
    if left < FILLER.size:
        return ReadStatus.END, 0
    if len(data) - position < FILLER.size:
        return ReadStatus.CUT, 0
    total, magic = FILLER.unpack_from(data, position)
    if magic == BLANK_MAGIC:
        return (ReadStatus.END, 0) if total == left else (ReadStatus.BAD_CHECKSUM, 0)
    if magic != MESSAGE_MAGIC:
        return (ReadStatus.BAD_MAGIC if total or magic else ReadStatus.EMPTY), 0
    if not fixed <= total <= left:
        return ReadStatus.BAD_CHECKSUM, 0
    if position + total > len(data):
        return ReadStatus.CUT, total
    return ReadStatus.RECORD, total


def _split_pairs(data: bytes, position: int, end: int) -> tuple[bytes, bytes] | None:
    """Returns headers and properties if they fill `data` from `position` to `end` exactly."""
    (size,) = SHORT.unpack_from(data, position)
    middle = position + 2 + size
    if size < 0 or middle + 2 > end:
        return None
    (size,) = SHORT.unpack_from(data, middle)
    if size < 0 or middle + 2 + size != end:
        return None
    return data[position + 2 : middle], data[middle + 2 : end]


def read_embedded(
    data: bytes, position: int, left: int, name: str, queue_id: int
) -> tuple[ReadStatus, int, Message | None]:
    """Reads the record at `position`, `left` bytes before the end of its file: status, size, message.

    The lengths are checked; the caller checks the CRC of the index entry.
    """
    status, size = _start(data, position, EMBEDDED_FIXED_BYTES, left)
    if status is not ReadStatus.RECORD:
        return status, size, None
    body_start = position + EMBEDDED_HEAD.size
    (body_length,) = LENGTH.unpack_from(data, position + 8)
    end = position + size
    if size < EMBEDDED_FIXED_BYTES + body_length:
        return ReadStatus.BAD_CHECKSUM, size, None
    pairs = _split_pairs(data, body_start + body_length, end)
    if pairs is None:
        return ReadStatus.BAD_CHECKSUM, size, None
    return status, size, Message(name, queue_id, data[body_start : body_start + body_length], *pairs)


def read_local(data: bytes, position: int, left: int, store_offset: int) -> tuple[ReadStatus, int, Message | None]:
    """Reads the record at `position`, which is at `store_offset` of the store. Everything is checked (LQ-42)."""
    status, size = _start(data, position, LOCAL_FIXED_BYTES, left)
    if status is not ReadStatus.RECORD:
        return status, size, None
    end = position + size
    body_start = position + HEADER_BYTES + LENGTH.size
    view = memoryview(data)
    crc = zlib.crc32(
        view[position + PREFIX.size : position + HEADER_BYTES], zlib.crc32(view[position + HEADER_BYTES : end])
    )
    queue_id, offset, physical, stored_ms = NUMBERS.unpack_from(data, position + PREFIX.size)
    if crc != LENGTH.unpack_from(data, position + 8)[0] or physical != store_offset:
        return ReadStatus.BAD_CHECKSUM, size, None
    (body_length,) = LENGTH.unpack_from(data, position + HEADER_BYTES)
    name_at = body_start + body_length
    if size < LOCAL_FIXED_BYTES + body_length or size < LOCAL_FIXED_BYTES + body_length + data[name_at]:
        return ReadStatus.BAD_CHECKSUM, size, None
    pairs_at = name_at + 1 + data[name_at]
    pairs = _split_pairs(data, pairs_at, end)
    if pairs is None:
        return ReadStatus.BAD_CHECKSUM, size, None
    name = data[name_at + 1 : pairs_at].decode("utf-8", "replace")
    message = Message(name, queue_id, data[body_start:name_at], *pairs)
    message.offset, message.store_offset, message.stored_ms = offset, store_offset, stored_ms
    return status, size, message
