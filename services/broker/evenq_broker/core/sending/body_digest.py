"""The digest of a message's body in its stored system properties (field `body_digest`), and what it identifies.

A broker stores one digest for each message and delivers it. The official SDKs compare it with the body and drop or
refuse what differs, but they write a CRC32 in three ways (decision 151): Java, Go and C# in hexadecimal without leading
zeros, C++ and Python with eight digits, Node.js in decimal. A CRC32 of eight digits is the same text in all but the
last. So CRC32 is stored where it has eight digits without padding, which are 15 of 16 bodies, and MD5 for the others.
Clients of Node.js get MD5 at the delivery (`for_node`).

The duplicate window distinguishes bodies with one message id by their CRC32, whichever digest is stored. So messages of
older brokers, which have MD5, and those of senders with a digest of their own are recognized as well. Pure.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Sequence
from hashlib import md5, sha1
from zlib import crc32

from evenq.errors import MessageCorrupted
from evenq.store import StoredMessage
from evenq_broker.core.sending.sent_message import BodyDigest

CRC32_HEAD = b"\x22\x0c\x08\x01\x12\x08"
"""Bytes in front of the digits: `body_digest` 4 {type 1 = CRC32, checksum 2 of eight digits}."""
MD5_HEAD = b"\x22\x24\x08\x02\x12\x20"
_SHA1_HEAD = b"\x22\x2c\x08\x03\x12\x28"
CRC32_DIGITS = 8
EIGHT_DIGITS = 1 << 28
"""A CRC32 from here on has eight digits without padding."""
NODE = "HTTP"
"""`x-mq-language` of the SDK for Node.js."""
_CRC32, _MD5, _SHA1 = 1, 2, 3
_TOPIC, _PROPERTY, _BODY = 0x0A, 0x12, 0x22  # first bytes of the fields of a stored head


def md5_field(body: bytes) -> bytes:
    return MD5_HEAD + hexlify(md5(body, usedforsecurity=False).digest()).upper()


def digest_field(body: bytes, *, only_md5: bool) -> bytes:
    """Returns the digest that is stored for a body whose sender gave none."""
    crc = crc32(body)
    return md5_field(body) if only_md5 or crc < EIGHT_DIGITS else CRC32_HEAD + b"%X" % crc


def field_of_sent(sent: BodyDigest, body: bytes, *, only_md5: bool) -> bytes:
    """Compares the digest that came with a message; returns the stored one, of the same type if that is possible.
    SDKs write a CRC32 with and without leading zeros. Unknown types are ignored. Raises MessageCorrupted.
    """
    given = sent.checksum.upper()
    match sent.type if given else 0:
        case 1:
            name, head, own, given = "CRC32", b"", f"{crc32(body):08X}", given.rjust(CRC32_DIGITS, "0")
        case 2:
            name, head, own = "MD5", MD5_HEAD, md5(body, usedforsecurity=False).hexdigest().upper()
        case 3:
            name, head, own = "SHA1", _SHA1_HEAD, sha1(body, usedforsecurity=False).hexdigest().upper()
        case _:
            return digest_field(body, only_md5=only_md5)
    if given != own:
        raise MessageCorrupted(
            f"the body's {name} is {own}, the message says {sent.checksum[:64]!r}; it was damaged on its way"
        )
    if head and (head == MD5_HEAD or not only_md5):
        return head + own.encode()
    return digest_field(body, only_md5=only_md5)


def mark_of(head: bytes, system: bytes) -> bytes:
    """Returns the CRC32 of a stored message's body, eight digits: the part of its key in the duplicate window."""
    at = system.rfind(CRC32_HEAD)
    # Behind the digest are fields of a broker alone. A text of a client in front of it may look like another one.
    if at >= 0 and system.find(MD5_HEAD, at + 1) < 0 and system.find(_SHA1_HEAD, at + 1) < 0:
        return system[at + len(CRC32_HEAD) : at + len(CRC32_HEAD) + CRC32_DIGITS]
    return b"%08X" % crc32(body_of(head))


def body_of(head: bytes) -> bytes:
    """Returns the body in a stored head; empty if the head is not one that a broker wrote."""
    at, end = 0, len(head)
    while at < end:
        tag = head[at]
        size = shift = 0
        while True:
            at += 1
            if at >= end:
                return b""
            size |= (head[at] & 0x7F) << shift
            shift += 7
            if head[at] <= 0x7F:
                break
        at += 1
        if tag == _BODY:
            return head[at : at + size]
        if tag not in (_TOPIC, _PROPERTY):
            return b""
        at += size
    return b""


def for_node(messages: Sequence[StoredMessage]) -> list[StoredMessage]:
    """Returns the messages as a client of Node.js accepts them: MD5 behind a CRC32, because the later field wins."""
    return [_with_md5(message) if CRC32_HEAD in message.system else message for message in messages]


def _with_md5(message: StoredMessage) -> StoredMessage:
    return StoredMessage(
        message.topic_id,
        message.queue_id,
        message.queue_offset,
        message.log_offset,
        message.born_ms,
        message.store_ms,
        message.tag_hash,
        message.head,
        message.system + md5_field(body_of(message.head)),
    )
