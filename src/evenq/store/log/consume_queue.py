"""Consume queues: for each message of a queue 20 bytes with its place in the commit log (CL-7 to CL-12).

`ConsumeQueue` belongs to the loop thread: counters, the newest entries as one bytearray, the newest messages for hot
reads. The flush thread writes files from the bytes of a `Filing`, and the read pool reads them. Files are a pure
function of the log: if they are deleted, they are rebuilt byte for byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from evenq.runtime.failpoints import passing
from evenq.store.io.disk import Disk, File
from evenq.store.log.messages import StoredMessage
from evenq.store.log.record import ByteField, struct_of

FOLDER: Final = "consumequeue"
ENTRY_FIELDS: Final = (
    ByteField("log offset", "Q"),
    ByteField("size", "I"),
    ByteField("tag hash", "q"),
)  # CL-8, big-endian
ENTRY: Final[struct.Struct] = struct_of(ENTRY_FIELDS)
ENTRY_BYTES: Final = ENTRY.size
FILE_ENTRIES: Final = 300_000  # CL-9
FILE_BYTES: Final = FILE_ENTRIES * ENTRY_BYTES
SYNC_EACH_MAX: Final = 64  # over this number of files one sync of the file system is cheaper
TAIL_KEPT: Final = 128  # filed entries that stay in memory, so that a near read needs no file


class ConsumeQueue:
    """One queue on the loop thread. Offsets: min <= filed <= max <= next; entries from `tail_base` on are in `tail`."""

    __slots__ = (
        "filed",
        "hot",
        "hot_base",
        "hot_dead",
        "last_stem",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "stem",
        "tail",
        "tail_base",
        "topic_id",
    )

    def __init__(self, topic_id: int, queue_id: int, min_offset: int = 0, max_offset: int = 0) -> None:
        self.topic_id = topic_id
        self.queue_id = queue_id
        self.min_offset = min_offset
        self.max_offset = max_offset
        """End of what is consumable (CL-12)."""
        self.next_offset = max_offset
        """Offset of the next message; messages from max_offset on wait for the writer."""
        self.filed = max_offset
        """Entries before this are in files and synced."""
        self.tail = bytearray()
        self.tail_base = max_offset
        self.hot: list[StoredMessage | None] = []
        self.hot_base = max_offset
        self.hot_dead = 0
        """Places at the start of `hot` whose message was dropped."""
        self.stem = b""
        """Cache of the packer: the common part of the frames of its messages. Empty until it is needed."""
        self.last_stem = b""
        """The same for the last message of a call."""

    @property
    def hot_start(self) -> int:
        """First offset whose message is in memory."""
        return self.hot_base + self.hot_dead

    def drop_before(self, offset: int) -> None:
        """Drops the messages before `offset` from memory."""
        dead = offset - self.hot_base
        if dead <= self.hot_dead:  # dropped already
            return
        if dead > 32 and dead * 2 > len(self.hot):  # rarely, so that it costs O(1) a message
            del self.hot[:dead]
            self.hot_base = offset
            self.hot_dead = 0
        else:
            self.hot[self.hot_dead : dead] = [None] * (dead - self.hot_dead)
            self.hot_dead = dead

    def take_back(self, offset: int) -> None:
        """Frees the places from `offset` on."""
        self.next_offset = offset
        del self.tail[(offset - self.tail_base) * ENTRY_BYTES :]
        if offset > self.hot_base:
            del self.hot[offset - self.hot_base :]
        else:
            self.go_on_cold(offset)

    def go_on_cold(self, offset: int) -> None:
        """Drops all messages from memory; the one with `offset` is the next that may be kept."""
        self.hot.clear()
        self.hot_base = offset
        self.hot_dead = 0

    def ahead(self, start: int, *, count_max: int, bytes_max: int) -> list[StoredMessage]:
        """Returns consecutive messages in memory from `start` that are not consumable; one may exceed `bytes_max`."""
        first = start - self.hot_base
        if start < self.max_offset or first < self.hot_dead:
            return []
        messages: list[StoredMessage] = []
        for message in self.hot[first : first + count_max]:
            assert message is not None, "what is not consumable yet is not dropped"
            bytes_max -= len(message.head) + len(message.system)
            if bytes_max < 0 and messages:
                break
            messages.append(message)
        return messages

    def entries(self, start: int, end: int) -> bytes:
        """Returns a copy of the entries start..end, which must be in memory."""
        base = self.tail_base
        return bytes(self.tail[(start - base) * ENTRY_BYTES : (end - base) * ENTRY_BYTES])

    def filing(self) -> Filing | None:
        """Returns the entries that the flush thread has to write; None without any."""
        if self.filed == self.max_offset:
            return None
        entries = self.entries(self.filed, self.max_offset)
        return Filing(self.topic_id, self.queue_id, self.min_offset, self.filed, self.max_offset, entries)

    def filed_up_to(self, offset: int) -> None:
        """Records that the entries before `offset` are in files; keeps only a few of them in memory."""
        self.filed = offset
        drop = max(0, offset - TAIL_KEPT - self.tail_base)
        del self.tail[: drop * ENTRY_BYTES]
        self.tail_base += drop


@dataclass(frozen=True, slots=True)
class Filing:
    """Entries that are to be written to files."""

    topic_id: int
    queue_id: int
    min_offset: int
    start: int
    end: int
    entries: bytes


def folder_of(topic_id: int, queue_id: int) -> str:
    """Returns the folder of a queue: topic, then queue (CL-7)."""
    return f"{FOLDER}/{topic_id}/{queue_id}"


def file_at(queue_offset: int) -> tuple[str, int]:
    """Returns the file of one queue offset's entry and the position in it (CL-10)."""
    position = queue_offset % FILE_ENTRIES
    return f"{(queue_offset - position) * ENTRY_BYTES:020d}", position * ENTRY_BYTES


def spans(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields start..end, split at the ends of files."""
    while start < end:
        stop = min(end, start - start % FILE_ENTRIES + FILE_ENTRIES)
        yield start, stop
        start = stop


def write_all(disk: Disk, filings: Sequence[Filing]) -> None:
    """Writes and syncs the entries of many queues, on the flush thread."""
    each = len(filings) <= SYNC_EACH_MAX
    for filing in filings:
        write_files(disk, filing, sync=each)
    if not each:
        disk.sync_all()
        passing("queue.synced")


def write_files(disk: Disk, filing: Filing, *, sync: bool = True) -> None:
    """Writes the entries of one queue; syncs them if `sync`."""
    folder = folder_of(filing.topic_id, filing.queue_id)
    for start, stop in spans(filing.start, filing.end):
        name, position = file_at(start)
        file, fresh = _opened(disk, folder, name)
        passing("queue.created")
        try:
            first = (start - filing.start) * ENTRY_BYTES
            file.pwrite([filing.entries[first : first + (stop - start) * ENTRY_BYTES]], position)
            passing("queue.written")
            if sync:
                file.sync()
        finally:
            file.close()
        if not sync:
            continue
        passing("queue.synced")
        # The queue's first entries, too: an earlier try that failed, or a killed process, may have made the file.
        if fresh or position == 0 or start == filing.min_offset:
            # A synced file can still be lost with its name, and so can a folder that was made for it.
            for parent in (folder, folder.rpartition("/")[0], FOLDER):
                disk.sync_folder(parent)
            passing("queue.linked")


def _opened(disk: Disk, folder: str, name: str) -> tuple[File, bool]:
    """Returns the file, and whether it is new. A queue whose start was deleted begins in the middle of a file."""
    path = f"{folder}/{name}"
    try:
        return disk.open(path), False
    except FileNotFoundError:
        disk.make_folder(folder)
        return disk.open(path, create=True), True


def drop_before(disk: Disk, topic_id: int, queue_id: int, min_offset: int) -> list[str]:
    """Removes the files wholly before `min_offset`; returns their paths."""
    folder = folder_of(topic_id, queue_id)
    first, _ = file_at(min_offset)
    old = [f"{folder}/{name}" for name in disk.list(folder) if name < first]
    for path in old:
        disk.remove(path)
    return old


def drop_all(disk: Disk, topic_id: int, queue_id: int) -> list[str]:
    """Removes an empty queue's folder, and an empty folder of the topic; returns the paths of the files."""
    folder = folder_of(topic_id, queue_id)
    old = [f"{folder}/{name}" for name in disk.list(folder)]
    disk.remove(folder)
    topic = folder.rpartition("/")[0]
    if not disk.list(topic):
        disk.remove(topic)
    return old


def holds_entries(disk: Disk, topic_id: int, queue_id: int, min_offset: int, max_offset: int) -> bool:
    """Whether the files hold all entries min..max; changes nothing."""
    folder = folder_of(topic_id, queue_id)
    names = disk.list(folder)
    for start, stop in spans(min_offset, max_offset):
        name, _ = file_at(start)
        if name not in names:
            return False
        file = disk.open(f"{folder}/{name}")
        try:
            if file.size() < file_at(stop - 1)[1] + ENTRY_BYTES:
                return False
        finally:
            file.close()
    return True


def check_files(disk: Disk, topic_id: int, queue_id: int, min_offset: int, max_offset: int) -> bool:
    """Whether the files hold all entries min..max; cuts what they hold behind max. On recovery's thread."""
    folder = folder_of(topic_id, queue_id)
    names = disk.list(folder)
    for start, stop in spans(min_offset, max_offset):
        name, _ = file_at(start)
        if name not in names:
            return False
        _, last = file_at(stop - 1)
        file = disk.open(f"{folder}/{name}")
        try:
            size = file.size()
            if size < last + ENTRY_BYTES:
                return False
            # An unfinished checkpoint wrote it: the log after the last checkpoint has these entries again.
            if stop == max_offset and size > last + ENTRY_BYTES:
                file.truncate(last + ENTRY_BYTES)
        finally:
            file.close()
    last_name = file_at(max_offset - 1)[0] if max_offset else ""
    first_name = file_at(min_offset)[0]
    for name in names:
        if name > last_name or name < first_name:
            disk.remove(f"{folder}/{name}")
    return True
