"""Parts of a stored message that a filter reads from its bytes: the tag, and what precedes the body.

A head is the encoded v2 `Message` without system properties: topic (1), user properties (2), body (4). Called by
`core.delivery.filters` and by the decoder of user properties (`loops.wire.stored_messages`); pure.
"""

from __future__ import annotations

_BODY = 0x22  # field 4 of Message, length-delimited
_TAG = 0x0A  # field 1 of SystemProperties, length-delimited


def tag_of(system: bytes) -> str:
    """Returns the tag in stored system properties, of which it is the first; "" if there is none."""
    if not system or system[0] != _TAG:
        return ""
    size, at = _size(system, 1)
    return system[at : at + size].decode()


def without_body(head: bytes) -> bytes:
    """Returns the head up to its body; all of it if the body is not last, or a field is neither text nor bytes."""
    at, end = 0, len(head)
    while at < end and head[at] & 7 == 2 and head[at] < 0x80:
        size, following = _size(head, at + 1)
        following += size
        if head[at] == _BODY and following == end:
            return head[:at]
        at = following
    return head


def _size(data: bytes, at: int) -> tuple[int, int]:
    # A varint and the position behind it.
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
