"""Rules of reading one queue, pure: the answer for an offset, the end of a batch, the lag that suggests a replica.

All engines share them; they are called by `Engine.read` and the consume queues.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq.local.messages import Message
from evenq.local.statuses import GetStatus

INDEX_BYTES_MIN = 16_000  # LQ-65
ENTRY_BYTES = 12


@dataclass(frozen=True, slots=True)
class GetResult:
    """Result of a read at an offset of one queue; the next read is at `next_offset`."""

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
    """Returns why there is nothing to read at `offset`; None if there is (LQ-59 to LQ-62, in this order)."""
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
    """Returns how many entries of a consume queue one read may use: those that begin in its bytes (LQ-65)."""
    return -(-max(INDEX_BYTES_MIN, count * ENTRY_BYTES) // ENTRY_BYTES)


def within(messages: list[Message], bytes_max: int) -> list[Message]:
    """Returns the first messages whose bodies fit in `bytes_max` together; at least one (LQ-66)."""
    room = bytes_max
    for index, message in enumerate(messages):
        room -= len(message.body)
        if room < 0 and index:
            return messages[:index]
    return messages


def is_far_behind(store_end: int, looked_at: int, machine_bytes: int, ratio: int) -> bool:
    """Returns True if a replica should serve `looked_at`: it is more than `ratio` % of the memory behind (LQ-69)."""
    return (store_end - looked_at) * 100 > machine_bytes * ratio
