"""What a message is, in a few bytes: readers keep the mark of what they read last, and see whether it is still there.

A queue that lost its end and grew again has another message at an offset that a reader knows; it was stored at another
time or holds something else. Called by `rpc.delivery.data`. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from evenq.errors import BadRequest

__all__ = ["MARKS_MAX", "mark_of", "marks_asked"]

MARKS_MAX = 256
"""Of one call: each reads a message."""


def mark_of(store_ms: int, head: bytes, system: bytes) -> str:
    """When it was stored, as hexadecimal ms since the epoch, a dot, and a checksum of it as it is stored."""
    return f"{store_ms:x}.{crc32(system, crc32(head)):08x}"


def marks_asked(mark_at: Sequence[int], queues: int) -> Sequence[int]:
    """By queue, the offset of whose predecessor the mark is wanted; 0: of none. Raises BadRequest."""
    if mark_at and len(mark_at) != queues:
        raise BadRequest(f"{len(mark_at)} mark_at for {queues} queues; give one per queue, or none")
    if (count := sum(offset > 0 for offset in mark_at)) > MARKS_MAX:
        raise BadRequest(f"{count} mark_at in one call, the limit is {MARKS_MAX}; ask in parts")
    return mark_at or [0] * queues
