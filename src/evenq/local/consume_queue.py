"""One queue of the local engine: positions of its messages in the store (LQ-47, LQ-48, LQ-58 to LQ-70).

Entry n is at byte 12 n: store offset 8, size 4. The newest entries wait in memory and are written in pieces. A lock
keeps the written part and the waiting part consistent. The store's writer appends; any thread reads.
"""

from __future__ import annotations

import bisect
import logging
import threading
from typing import Final

from evenq.errors import StoreCorrupted
from evenq.local import reading
from evenq.local.messages import Message
from evenq.local.options import LocalOptions
from evenq.local.partitions import Partitions
from evenq.local.reading import GetResult
from evenq.local.records import ENTRY, read_local
from evenq.local.statuses import GetStatus
from evenq.local.tail import QueueTail, Topic
from evenq.store.io.disk import Disk
from evenq.store.io.files import ReadFiles

FOLDER: Final = "consumeQueue"  # LQ-9
ENTRY_BYTES: Final = ENTRY.size
WAITING_BYTES: Final = 12_288
"""Waiting entries that are worth a write: 1,024."""
SPAN_BYTES: Final = 64 << 10
"""Messages within this range are read with one call."""

log = logging.getLogger(__name__)


class LocalConsumeQueue(QueueTail):
    __slots__ = ("flushed", "lock", "positions", "waiting")

    def __init__(self, topic: Topic, queue_id: int, disk: Disk, entries_per_file: int, files: ReadFiles) -> None:
        super().__init__(topic, queue_id)
        folder = f"{FOLDER}/{topic.name}/{queue_id}"
        self.positions = Partitions(disk, folder, entries_per_file * ENTRY_BYTES, files)
        self.lock = threading.Lock()
        self.flushed = 0
        """Entries in the file."""
        self.waiting = bytearray()

    def start_at(self, min_offset: int, end: int) -> None:
        super().start_at(min_offset, end)
        self.flushed = end
        self.waiting.clear()

    def add(self, messages: list[Message], sizes: list[int]) -> None:
        """Appends the entries of messages that the store has, in order."""
        pack = ENTRY.pack
        entries = b"".join([pack(message.store_offset, size) for message, size in zip(messages, sizes, strict=True)])
        with self.lock:
            self.waiting += entries
        if len(self.waiting) >= WAITING_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the waiting entries."""
        with self.lock:
            data = bytes(self.waiting)
            per_file = self.positions.file_bytes
            done = 0
            while done < len(data):
                position = self.flushed * ENTRY_BYTES
                part = data[done : done + per_file - position % per_file]
                self.positions.write(position, [part], len(part))
                done += len(part)
                self.flushed += len(part) // ENTRY_BYTES
                del self.waiting[: len(part)]

    def sync(self) -> None:
        with self.lock:
            unsynced = self.positions.take_unsynced()
        self.positions.sync(unsynced)

    def entries(self, offset: int, size: int) -> bytes | None:
        """Returns entries from `offset` on, up to `size` bytes; None if their file is gone."""
        with self.lock:
            flushed = self.flushed
            if offset >= flushed:
                start = (offset - flushed) * ENTRY_BYTES
                return bytes(self.waiting[start : start + size - size % ENTRY_BYTES])
        size = min(size, (flushed - offset) * ENTRY_BYTES)
        data = self.positions.read(offset * ENTRY_BYTES, size - size % ENTRY_BYTES)
        return data if data and len(data) >= ENTRY_BYTES else None

    def first_at(self, boundary: int) -> int:
        """Returns the first offset whose message is at or after `boundary` in the store."""

        def store_offset(offset: int) -> int:
            data = self.entries(offset, ENTRY_BYTES)
            return int(ENTRY.unpack(data)[0]) if data else -1

        return bisect.bisect_left(range(self.end), boundary, lo=self.min, key=store_offset)


def read(
    queue: LocalConsumeQueue,
    store: Partitions,
    options: LocalOptions,
    offset: int,
    count: int,
    ends: tuple[int, int],
    store_end: int,
) -> GetResult:
    """Reads from files when memory no longer has the messages (LQ-63 to LQ-70). Raises StoreCorrupted for damage."""
    minimum, end = ends
    index = queue.entries(offset, min(reading.index_entries(count), end - offset) * ENTRY_BYTES)
    if index is None:
        per_file = options.entries_per_file
        following = (offset // per_file + 1) * per_file
        log.warning(
            "queue %s: a consume queue file is missing, continuing at offset %d instead of %d",
            queue.key,
            following,
            offset,
            extra={"queue": queue.key, "offset": offset, "next": following},
        )
        return GetResult(GetStatus.OFFSET_FOUND_NULL, following, minimum, end, [])
    entries = list(ENTRY.iter_unpack(index[: len(index) - len(index) % ENTRY_BYTES]))
    status, messages, walked = _collect(queue, store, entries, offset, min(count, options.batch_messages_disk), options)
    far = reading.is_far_behind(store_end, entries[walked - 1][0], options.machine_bytes, options.memory_ratio)
    return GetResult(status, offset + walked, minimum, end, messages, far)


def _collect(
    queue: LocalConsumeQueue,
    store: Partitions,
    entries: list[tuple[int, int]],
    offset: int,
    count: int,
    options: LocalOptions,
) -> tuple[GetStatus, list[Message], int]:
    """Reads until the batch is full: status, messages, entries read (LQ-65 to LQ-68)."""
    status, messages = GetStatus.NO_MATCHED_MESSAGE, list[Message]()
    skip_before, room = 0, options.batch_bytes_disk
    span, span_offset = b"", 0
    for walked, (store_offset, size) in enumerate(entries):
        if store_offset < skip_before:
            continue
        if messages and (len(messages) >= count or size > room):
            return status, messages, walked
        if not span_offset <= store_offset <= store_offset + size <= span_offset + len(span):
            data = store.read(store_offset, _span(entries, walked, store.file_bytes))
            if data is None:
                if not 0 <= store_offset < store.end or (
                    store_offset < store.starts[0] and offset + walked >= queue.min
                ):
                    raise _misled(queue, offset + walked)
                if not messages:
                    status = GetStatus.MESSAGE_WAS_REMOVING
                skip_before = store.start_of(store_offset) + store.file_bytes
                continue
            span, span_offset = data, store_offset
        message = _decode(queue, store, span, store_offset - span_offset, (store_offset, size), offset + walked)
        status, skip_before = GetStatus.FOUND, 0
        messages.append(message)
        room -= size
    return status, messages, len(entries)


def _span(entries: list[tuple[int, int]], first: int, file_bytes: int) -> int:
    """Returns the bytes from one message to the end of the last one that follows it closely."""
    start, size = entries[first]
    limit = min(start + SPAN_BYTES, start - start % file_bytes + file_bytes)
    end = start + size
    for store_offset, size in entries[first + 1 :]:
        if not end <= store_offset <= store_offset + size <= limit:
            break
        end = store_offset + size
    return end - start


def _decode(
    queue: LocalConsumeQueue, store: Partitions, data: bytes, position: int, entry: tuple[int, int], offset: int
) -> Message:
    store_offset, size = entry
    left = store.start_of(store_offset) + store.file_bytes - store_offset
    status, found_size, message = read_local(data, position, left, store_offset)
    if message is None:
        raise StoreCorrupted(
            f"{store.describe(store_offset)} (store offset {store_offset}): {status} for message {offset} of "
            f"queue {queue.key}, to which {queue.positions.describe(offset * ENTRY_BYTES)} points: remove the folder "
            f"{FOLDER} and open the queues again; if that does not help, restore the file from a copy"
        )
    if (message.name, message.queue_id) != queue.key or message.offset != offset or found_size != size:
        raise _misled(queue, offset)
    return message


def _misled(queue: LocalConsumeQueue, offset: int) -> StoreCorrupted:
    return StoreCorrupted(
        f"{queue.positions.describe(offset * ENTRY_BYTES)} does not point to message {offset} of queue {queue.key}: "
        f"close the queues, remove the folder {FOLDER} and open them again; it is rebuilt"
    )
