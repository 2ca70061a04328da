"""Hand-written protobuf fields: for the two small foreign services of the server (health, reflection), and for fields
that are appended to a stored message (`namespaces`).

Only varints and length-delimited fields. All messages of evenq use `evenq.wire.stubs`.
"""

from __future__ import annotations

from collections.abc import Iterator

from evenq.errors import BadRequest


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field; skips fixed-width ones. Raises BadRequest for an invalid message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                yield tag >> 3, value
            case 2:
                size, at = _varint(data, at)
                if at + size > len(data):
                    raise BadRequest(f"field {tag >> 3} has a length of {size} bytes, but {len(data) - at} follow")
                yield tag >> 3, data[at : at + size]
                at += size
            case 1:
                at += 8
            case 5:
                at += 4
            case kind:
                raise BadRequest(f"field {tag >> 3} has wire type {kind}, which is not in use")


def write_varint(number: int, value: int) -> bytes:
    """Encodes a field with an integer that is not negative."""
    return _encode(number << 3) + _encode(value)


def write_bytes(number: int, value: bytes) -> bytes:
    """Encodes a field with bytes, text or an embedded message."""
    return _encode(number << 3 | 2) + _encode(len(value)) + value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise BadRequest(f"a number ends too early or is too long at byte {at}")


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
