"""Marks of messages, a few bytes each: a reader keeps the mark of the last message and sees whether it is still there.

A queue that lost its end and grew again has another message at an offset that a reader knows: its time or its content
differs. Called by `rpc.delivery.data`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from evenq.errors import BadRequest

MARKS_MAX = 256  # marks of one call: each reads a message


def mark_of(store_ms: int, head: bytes, system: bytes) -> str:
    """Returns the store time as hexadecimal ms since the epoch, a dot, and a checksum of the stored message."""
    return f"{store_ms:x}.{crc32(system, crc32(head)):08x}"


def marks_asked(mark_at: Sequence[int], queues: int) -> Sequence[int]:
    """Returns for each queue the offset behind the message whose mark is wanted; 0: none. Raises BadRequest."""
    if mark_at and len(mark_at) != queues:
        raise BadRequest(f"{len(mark_at)} mark_at for {queues} queues; give one per queue, or none")
    if (count := sum(offset > 0 for offset in mark_at)) > MARKS_MAX:
        raise BadRequest(f"{count} mark_at in one call, the limit is {MARKS_MAX}; ask in parts")
    return mark_at or [0] * queues
