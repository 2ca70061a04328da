"""The rules of reading one queue, pure: which answer an offset gets, when a batch is full, when a reader is far behind.

All engines share them; `Engine.get_message` is the one caller.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq.local.messages import Message
from evenq.local.statuses import GetStatus

__all__ = ["GetResult", "index_entries", "is_far_behind", "refusal"]

INDEX_BYTES_MIN = 16_000  # LQ-65
ENTRY_BYTES = 12


@dataclass(frozen=True, slots=True)
class GetResult:
    """What was found at an offset of one queue, and where to go on."""

    status: GetStatus
    next_offset: int
    min_offset: int
    """The smallest readable offset."""
    max_offset: int
    """One past the newest message."""
    messages: list[Message]
    suggest_replica: bool = False
    """The reader is further behind than memory reaches (LQ-69)."""


def refusal(min_offset: int, max_offset: int, offset: int, *, overflow_to_zero: bool = True) -> GetResult | None:
    """Why there is nothing to read at `offset`; None if there is (LQ-59 to LQ-62, in this order)."""
    if max_offset == 0:
        status, following = GetStatus.NO_MESSAGE_IN_QUEUE, 0
    elif offset < min_offset:
        status, following = GetStatus.OFFSET_TOO_SMALL, min_offset
    elif offset == max_offset:
        status, following = GetStatus.OFFSET_OVERFLOW_ONE, offset
    elif offset > max_offset:
        following = 0 if min_offset == 0 and overflow_to_zero else max_offset
        status = GetStatus.OFFSET_OVERFLOW_BADLY
    else:
        return None
    return GetResult(status, following, min_offset, max_offset, [])


def index_entries(count: int) -> int:
    """Entries of a consume queue that one read may walk over: those that begin in its bytes (LQ-65)."""
    return -(-max(INDEX_BYTES_MIN, count * ENTRY_BYTES) // ENTRY_BYTES)


def within(messages: list[Message], bytes_max: int) -> list[Message]:
    """The first messages whose bodies stay within `bytes_max` together; at least one (LQ-66)."""
    room = bytes_max
    for index, message in enumerate(messages):
        room -= len(message.body)
        if room < 0 and index:
            return messages[:index]
    return messages


def is_far_behind(store_end: int, looked_at: int, machine_bytes: int, ratio: int) -> bool:
    """True if a replica should serve what is at `looked_at`: more than `ratio` % of the memory behind (LQ-69)."""
    return (store_end - looked_at) * 100 > machine_bytes * ratio
