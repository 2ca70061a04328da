"""Format of half messages in the log, and the transaction ids that their producers get.

A half message is a timer of the store of kind 2 that becomes due for its next check. Its head begins with `HalfHeader`:

| bytes | content                                                                                            |
|-------|----------------------------------------------------------------------------------------------------|
| 1     | version, 1                                                                                         |
| 8     | number of the transaction: log offset of its first timer; all ones in that timer itself            |
| 8     | when it began, ms since the epoch                                                                  |
| 2, 2  | checks made, and checks in a row without a producer                                                |
| 2     | length of the producer's client id, which follows; behind it comes the head of the message         |

A transaction id is the text `t1.<broker name>.<hex>`; the hex part is topic id 4, number 8, checksum 16, keyed as
receipt handles are. It is not stored; any broker can read which broker made it.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import NamedTuple

from evenq.errors import InvalidTransactionId, StoreCorrupted

HALF_MESSAGE = 2  # the kind of our timers
DECIDED_NUMBER = (1 << 64) - 1
"""Number of no transaction: an id with it names one that was decided long ago, whose number is not known any more."""

_VERSION = 1
_OWN = (1 << 64) - 1
_HEADER = struct.Struct(">BQQHHH")
_COUNT_MAX = 0xFFFF
_CLIENT_BYTES_MAX = 1_024
_PREFIX = "t1."
_FIELDS = struct.Struct(">IQ")
_CHECKSUM_BYTES = 16


class HalfHeader(NamedTuple):
    """Data that the broker keeps with a half message."""

    number: int | None  # the transaction; None in its first timer, whose log offset is the number
    first_ms: int  # when it began, ms since the epoch
    checks: int
    missed: int
    client_id: str  # producer that sent it; empty if it sent no id, or one over 1,024 bytes


class TransactionId(NamedTuple):
    topic_id: int
    number: int


def pack_half(header: HalfHeader, head: bytes) -> bytes:
    client = header.client_id.encode()
    if len(client) > _CLIENT_BYTES_MAX:
        client = b""
    number = _OWN if header.number is None else header.number
    counts = (min(header.checks, _COUNT_MAX), min(header.missed, _COUNT_MAX))
    return _HEADER.pack(_VERSION, number, header.first_ms, *counts, len(client)) + client + head


def unpack_half(data: bytes) -> tuple[HalfHeader, bytes]:
    """Returns the header, and the head of the message. Raises StoreCorrupted for an unknown version."""
    if len(data) < _HEADER.size or data[0] != _VERSION:
        raise StoreCorrupted(f"a half message has version {data[0] if data else 'none'}, this program reads {_VERSION}")
    _, number, first_ms, checks, missed, length = _HEADER.unpack_from(data)
    end = _HEADER.size + length
    client_id = data[_HEADER.size : end].decode(errors="replace")
    return HalfHeader(None if number == _OWN else number, first_ms, checks, missed, client_id), data[end:]


def number_of(timer_id: int, head: bytes) -> int:
    """Returns the transaction of a half message's timer. Raises StoreCorrupted for an unknown version."""
    number = unpack_half(head)[0].number
    return timer_id if number is None else number


class TransactionIds:
    """Maker and reader of the transaction ids of one broker."""

    __slots__ = ("_key", "_prefix")

    def __init__(self, broker_name: str, key: bytes) -> None:
        self._prefix = f"{_PREFIX}{broker_name}."
        self._key = key

    def make(self, topic_id: int, number: int) -> str:
        """Returns the id's text: printable ASCII."""
        fields = _FIELDS.pack(topic_id, number)
        return self._prefix + (fields + self._checksum(fields)).hex()

    def read(self, text: str) -> TransactionId:
        """Returns what the id names. Raises InvalidTransactionId for an id that this broker did not make."""
        try:
            data = bytes.fromhex(text.removeprefix(self._prefix)) if text.startswith(self._prefix) else b""
        except ValueError:
            data = b""
        fields = data[: _FIELDS.size]
        if len(data) != _FIELDS.size + _CHECKSUM_BYTES or data[_FIELDS.size :] != self._checksum(fields):
            shown = text if len(text) <= 40 else f"{text[:40]}..."
            raise InvalidTransactionId(
                f"the transaction id {shown!r} was not made by this broker, or its broker is not alive; give the one "
                "that SendMessage answered"
            )
        return TransactionId(*_FIELDS.unpack(fields))

    def _checksum(self, data: bytes) -> bytes:
        return blake2b(self._prefix.encode() + data, digest_size=_CHECKSUM_BYTES, key=self._key).digest()


def transaction_broker_of(text: str) -> str:
    """Returns the name of the broker that made the id; empty if it is not a transaction id."""
    return text[len(_PREFIX) :].rpartition(".")[0] if text.startswith(_PREFIX) else ""
