"""Keys by which a stored message is found, from its system properties: its keys, then its message id.

Scans the encoded `SystemProperties` (apache.rocketmq.v2) without building an object, because the message index needs
them for each message of the log. Invalid bytes give no keys and no error; a later message id wins, as in protobuf.
"""

from __future__ import annotations

TAG_TAG = 1 << 3 | 2  # string tag = 1
KEYS_TAG = 2 << 3 | 2  # repeated string keys = 2
MESSAGE_ID_TAG = 3 << 3 | 2  # string message_id = 3
FIELD_MAX = (1 << 29) - 1
TAG_MAX = FIELD_MAX << 3 | 7
VARINT_BYTES_MAX = 10
GROUPS_MAX = 100  # nested groups: protobuf's own limit

_UP_TO_ID = frozenset({TAG_TAG, KEYS_TAG, MESSAGE_ID_TAG})
_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)


def keys_of(head: bytes, system: bytes) -> list[bytes]:  # noqa: ARG001  # the message store passes it
    """Returns the keys and the message id, each once, in the order of their occurrence, without empty ones. `head` is
    not read. Empty for bytes that protobuf would refuse.
    """
    keys, message_id = _read(system)
    if message_id:
        keys.append(message_id)
    return list(dict.fromkeys(keys)) if len(keys) > 1 else keys


def message_id_of(system: bytes) -> bytes:
    """Returns the message id; empty if there is none. Fast for what a server wrote, with the fields in their order."""
    position, end = 0, len(system) - 1
    while position < end:
        tag, length = system[position], system[position + 1]
        if tag not in _UP_TO_ID or length > 0x7F:
            break
        start, position = position + 2, position + 2 + length
        if tag == MESSAGE_ID_TAG:
            return system[start:position]
    return _read(system)[1]


def _read(system: bytes) -> tuple[list[bytes], bytes]:
    """Returns the keys, maybe repeated, and the message id."""
    keys: list[bytes] = []
    message_id = b""
    position, end = 0, len(system)
    try:
        while position < end:
            tag = system[position]
            position += 1
            if tag > 0x7F:
                tag, position = _varint(system, position - 1)
            if tag & 7 == _BYTES:
                length = system[position]
                position += 1
                if length > 0x7F:
                    length, position = _varint(system, position - 1)
                start, position = position, position + length
                if position > end:
                    return [], b""
                if tag == KEYS_TAG:
                    if length:
                        keys.append(system[start:position])
                elif tag == MESSAGE_ID_TAG:
                    message_id = system[start:position]
                elif not 8 <= tag <= TAG_MAX:
                    return [], b""
            elif 8 <= tag <= 0x78 and not tag & 7 and system[position] < 0x80:
                position += 1  # a small number in one of the first fields, like the message type
            else:
                position = _skip(system, position, tag)
    except (IndexError, ValueError):
        return [], b""
    return (keys, message_id) if position == end else ([], b"")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns a value and the position behind it. Raises IndexError, ValueError."""
    value = 0
    for number in range(VARINT_BYTES_MAX):
        byte = data[position + number]
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value, position + number + 1
    raise ValueError("a varint has over ten bytes")


def _skip(data: bytes, position: int, tag: int) -> int:
    """Returns the position behind the value of a field that is not text or bytes. Raises IndexError, ValueError."""
    open_groups: list[int] = []
    while True:
        number, kind = tag >> 3, tag & 7
        if not 1 <= number <= FIELD_MAX or len(open_groups) > GROUPS_MAX:
            raise ValueError("no field has this number, or groups are nested too deep")
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        elif kind == _BYTES:
            length, position = _varint(data, position)
            position += length
        elif kind == _GROUP:
            open_groups.append(number)
        elif kind != _GROUP_END or not open_groups or open_groups.pop() != number:
            raise ValueError("no field has this kind, or a group ends that was not begun")
        if not open_groups:
            return position
        tag, position = _varint(data, position)
