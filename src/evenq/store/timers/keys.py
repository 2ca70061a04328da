"""A timer as 17 bytes: due time, timer id, kind, big-endian. Their order as bytes is the order of firing.

Run files and manifests have the same bytes, so a block is cut into keys without unpacking, and a merge is one sort.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from evenq.errors import BadRequest
from evenq.store.log.record import ByteField, struct_of

ENTRY_FIELDS: Final = (
    ByteField("due ms", "Q"),
    ByteField("timer id", "Q"),
    ByteField("timer kind", "B"),
)
ENTRY: Final = struct_of(ENTRY_FIELDS)
KEY_BYTES: Final = ENTRY.size
DUE_MAX: Final = (1 << 63) - 1  # what a frame's field holds

_pack: Callable[[int, int, int], bytes] = ENTRY.pack
_int = int.from_bytes


def key_of(due_ms: int, timer_id: int, kind: int) -> bytes:
    """Returns a key. Due times before 1970 count as 1970. Raises BadRequest for one that no frame could hold."""
    if due_ms > DUE_MAX:
        raise BadRequest(f"a due time of {due_ms} ms exceeds the largest one, {DUE_MAX}")
    return _pack(max(due_ms, 0), timer_id, kind)


def due_of(key: bytes) -> int:
    """Returns the due time, ms since the epoch."""
    return _int(key[:8], "big")


def id_of(key: bytes) -> int:
    """Returns the log offset of the timer's frame."""
    return _int(key[8:16], "big")


def kind_of(key: bytes) -> int:
    """Returns the kind, 0..255; 1 is a delayed message."""
    return key[16]


def limit_of(now_ms: int) -> bytes:
    """Returns the limit under which keys are due at `now_ms`."""
    return min(max(now_ms + 1, 0), DUE_MAX).to_bytes(8, "big")


def keys_in(data: bytes) -> list[bytes]:
    return [data[position : position + KEY_BYTES] for position in range(0, len(data), KEY_BYTES)]
