"""Receipt handles: self-contained, checked by a key, and not stored.

Text `e1.<broker name>.<hex>`; the hex part is 49 bytes: group id 4, topic id 4, queue id 4, queue offset 8, delivery
number 4, expiry 8 (ms since the epoch), unused 1, checksum 16. The checksum is keyed with 32 bytes of the broker's
journal, so handles survive a restart and a forged one is refused. Any broker can read which broker made a handle
(architecture.md 4).
"""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from evenq.errors import InvalidReceiptHandle

KEY_BYTES = 32
_CHECKSUM_BYTES = 16
_FIELDS = struct.Struct(">IIIQIQB")
_FIELDS_BYTES = _FIELDS.size
_HANDLE_BYTES = _FIELDS_BYTES + _CHECKSUM_BYTES
_LENGTH = _HANDLE_BYTES * 2
_unpack, _new = _FIELDS.unpack, tuple.__new__
_PREFIX = "e1."


class Handle(NamedTuple):
    """One delivery of one message to one group."""

    group_id: int
    topic_id: int
    queue_id: int
    queue_offset: int
    number: int
    """Number of this delivery of the message to the group; grows with each."""
    expires_ms: int
    """End of the invisible time that this handle promises, ms since the epoch."""
    flags: int = 0


class Handles:
    """Maker and reader of the handles of one broker."""

    __slots__ = ("_begun", "_prefix", "_prefix_bytes")

    def __init__(self, broker_name: str, key: bytes) -> None:
        self._prefix = f"{_PREFIX}{broker_name}."
        self._prefix_bytes = self._prefix.encode()
        self._begun = blake2b(self._prefix_bytes, digest_size=_CHECKSUM_BYTES, key=key)  # a copy costs half as much

    def make(self, group_id: int, topic_id: int, queue_id: int, queue_offset: int, number: int, expires_ms: int) -> str:
        """Returns the handle's text: printable ASCII, under 300 characters."""
        return self.encoded(group_id, topic_id, queue_id, queue_offset, number, expires_ms).decode()

    def encoded(
        self, group_id: int, topic_id: int, queue_id: int, queue_offset: int, number: int, expires_ms: int
    ) -> bytes:
        fields = _FIELDS.pack(group_id, topic_id, queue_id, queue_offset, number, expires_ms, 0)
        check = self._begun.copy()
        check.update(fields)
        return self._prefix_bytes + hexlify(fields + check.digest())

    def encoded_all(
        self, group_id: int, topic_id: int, queue_id: int, offsets: Iterable[int], number: int, expires_ms: int
    ) -> list[bytes]:
        """Returns the handles of messages of one queue that are delivered alike."""
        pack, begun, prefix = _FIELDS.pack, self._begun, self._prefix_bytes
        made: list[bytes] = []
        for offset in offsets:
            fields = pack(group_id, topic_id, queue_id, offset, number, expires_ms, 0)
            check = begun.copy()
            check.update(fields)
            made.append(prefix + hexlify(fields + check.digest()))
        return made

    def is_own(self, text: str) -> bool:
        """Returns True if the text names this broker as its maker."""
        return text.startswith(self._prefix)

    def read_all(self, texts: Sequence[str]) -> list[Handle] | None:
        """Reads many handles; None if this broker did not make one of them."""
        prefix, begun = self._prefix, self._begun
        start, length = len(prefix), len(prefix) + _LENGTH
        for text in texts:
            if len(text) != length or not text.startswith(prefix):
                return None
        try:
            data = bytes.fromhex("".join([text[start:] for text in texts]))
        except ValueError:
            return None
        if len(data) != len(texts) * _HANDLE_BYTES:  # there are spaces in it
            return None
        handles: list[Handle] = []
        for at in range(0, len(data), _HANDLE_BYTES):
            end = at + _FIELDS_BYTES
            fields = data[at:end]
            check = begun.copy()
            check.update(fields)
            if check.digest() != data[end : at + _HANDLE_BYTES]:
                return None
            handles.append(_new(Handle, _unpack(fields)))
        return handles

    def read(self, text: str) -> Handle:
        """Returns the handle behind `text`. Raises InvalidReceiptHandle for anything this broker did not make."""
        prefix = self._prefix
        if not text.startswith(prefix) or len(text) != len(prefix) + _LENGTH:
            raise _invalid(text)
        try:
            data = bytes.fromhex(text[len(prefix) :])
        except ValueError:
            raise _invalid(text) from None
        fields = data[:_FIELDS_BYTES]
        check = self._begun.copy()
        check.update(fields)
        if check.digest() != data[_FIELDS_BYTES:] or len(data) != _FIELDS_BYTES + _CHECKSUM_BYTES:
            raise _invalid(text)
        return _new(Handle, _unpack(fields))


def broker_of(text: str) -> str | None:
    """Returns the name of the broker that made the handle; None if it is not a receipt handle."""
    if not text.startswith(_PREFIX):
        return None
    name, dot, _ = text[len(_PREFIX) :].rpartition(".")
    return name if dot and name else None


def _invalid(text: str) -> InvalidReceiptHandle:
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return InvalidReceiptHandle(
        f"the receipt handle {shown!r} was not made by this broker; use the one of the last delivery of the message"
    )
