"""Recall handles, with which a producer takes back a delayed message in time (wire contract 3.13).

Text `d1.<broker name>.<hex>`; the hex part is topic id 4, timer id 8, due time 8 (ms since the epoch), checksum 16, and
the message id. Like receipt handles they are not stored, and are checked by the same key.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import NamedTuple

from evenq.errors import BadRequest

_PREFIX = "d1."
_FIELDS = struct.Struct(">IQQ")
_CHECKSUM_BYTES = 16


class Recall(NamedTuple):
    topic_id: int
    timer_id: int
    due_ms: int
    message_id: str


class Recalls:
    """Makes and reads the recall handles of one broker."""

    __slots__ = ("_key", "_prefix")

    def __init__(self, broker_name: str, key: bytes) -> None:
        self._prefix = f"{_PREFIX}{broker_name}."
        self._key = key

    def make(self, topic_id: int, timer_id: int, due_ms: int, message_id: str) -> str:
        """Returns the handle's text: printable ASCII."""
        fields, name = _FIELDS.pack(topic_id, timer_id, due_ms), message_id.encode()
        return self._prefix + (fields + self._checksum(fields + name) + name).hex()

    def read(self, text: str) -> Recall:
        """Returns what the handle names. Raises BadRequest for a handle that this broker did not make."""
        try:
            data = bytes.fromhex(text.removeprefix(self._prefix)) if text.startswith(self._prefix) else b""
        except ValueError:
            data = b""
        fields, name = data[: _FIELDS.size], data[_FIELDS.size + _CHECKSUM_BYTES :]
        if not name or data[_FIELDS.size : -len(name)] != self._checksum(fields + name):
            raise BadRequest(
                f"the recall handle {text[:40]!r} was not made by this broker; use the handle that `evenq produce` or "
                "send() returned"
            )
        topic_id, timer_id, due_ms = _FIELDS.unpack(fields)
        return Recall(topic_id, timer_id, due_ms, name.decode())

    def _checksum(self, data: bytes) -> bytes:
        return blake2b(self._prefix.encode() + data, digest_size=_CHECKSUM_BYTES, key=self._key).digest()


def recall_broker_of(text: str) -> str:
    """Returns the name of the broker that made the handle; empty if it is not a recall handle."""
    return text[len(_PREFIX) :].rpartition(".")[0] if text.startswith(_PREFIX) else ""
