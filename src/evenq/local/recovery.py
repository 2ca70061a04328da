"""Walking over the message store: the post-put loop of LQ-46, for recovery and for rebuilding consume queues.

At each place there is a record, filler, or the end. The first place without either is the true end, if nothing that
was surely on disk lies behind it; otherwise it is damage, and the start refuses with file and offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from evenq.errors import StoreCorrupted
from evenq.local.messages import Message
from evenq.local.partitions import Partitions
from evenq.local.records import read_local
from evenq.local.statuses import ReadStatus

__all__ = ["Walked", "check_end", "walk"]

CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Walked:
    """Where a walk ended and why."""

    end: int
    """The true end: everything before it is whole."""
    status: ReadStatus
    """EMPTY or CUT at a plain end; otherwise what stood there."""
    count: int
    """Messages on the way."""


def walk(store: Partitions, store_offset: int, on_message: Callable[[Message, int], None]) -> Walked:
    """Call `on_message(message, size)` for each record from `store_offset` on, in order."""
    count = 0
    want = CHUNK_BYTES
    while store.starts and store_offset < store.starts[-1] + store.file_bytes:
        file_end = store.start_of(store_offset) + store.file_bytes
        data = store.read(store_offset, want) or b""
        all_there_is = len(data) < want
        status, size, position = ReadStatus.EMPTY, 0, 0
        while position < len(data):
            status, size, message = read_local(data, position, file_end - store_offset, store_offset)
            if message is None:
                break
            on_message(message, size)
            count += 1
            position += size
            store_offset += size
        if status is ReadStatus.END:
            store_offset = file_end  # size 0 in the documents' words: go to the next file's start
        elif status is ReadStatus.CUT and not all_there_is:
            want = max(CHUNK_BYTES, size)
        elif status is ReadStatus.RECORD and (store_offset == file_end or not all_there_is):
            want = CHUNK_BYTES
        else:
            return Walked(store_offset, ReadStatus.EMPTY if status is ReadStatus.RECORD else status, count)
    return Walked(store_offset, ReadStatus.EMPTY, count)


def check_end(store: Partitions, walked: Walked, synced: int) -> None:
    """Raises StoreCorrupted if the walk ended before what was surely on disk: damage, not a torn end."""
    if walked.end < synced:
        raise StoreCorrupted(
            f"{store.describe(walked.end)} (store offset {walked.end}): {walked.status} where a record must be; the "
            f"store was on disk up to {synced}: restore the file from a copy"
        )
