"""Finds consume queue entries in files that point at no message of their queue, and derives them from the log again.

Entries are a pure function of the log, so no copy is needed. Each entry of a range is compared with the record that it
points at; a run of wrong ones is derived from the records between its nearest good neighbours. Blocks on the disk; the
caller has the result written (`consume_queue.write_files`) by the thread that owns these files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from evenq.errors import StoreError
from evenq.store.io.disk import Disk
from evenq.store.log import segment
from evenq.store.log.consume_queue import ENTRY, ENTRY_BYTES, Filing, file_at, folder_of
from evenq.store.log.log_damage import read_tolerant
from evenq.store.log.record import HEADER, HEADER_BYTES, MAGIC, MESSAGE, Header
from evenq.store.log.segment import path_of, segment_of

NEAR_MAX: Final = 4_096  # entries of one run
SPAN_MAX: Final = 1 << 30  # bytes of the log that are walked for one run
PIECE_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryCheck:
    """Entries `start` .. `stop` of one queue, of which those from `low` to `high` are in files."""

    disk: Disk
    segment_bytes: int
    topic_id: int
    queue_id: int
    start: int
    stop: int
    low: int
    high: int

    def wrong(self) -> list[Filing]:
        """Returns the runs of wrong entries, as they should be. Raises StoreError if the log lacks them, OSError."""
        start, stop = max(self.start, self.low), min(self.stop, self.high)
        found: list[Filing] = []
        offset = start
        while offset < stop:
            if self._points_right(offset):
                offset += 1
                continue
            end = offset + 1
            while end < min(self.high, offset + NEAR_MAX) and not self._points_right(end):
                end += 1
            found.append(Filing(self.topic_id, self.queue_id, offset, offset, end, self._derived(offset, end)))
            offset = end
        return found

    def _derived(self, start: int, end: int) -> bytes:
        """Returns the entries of the messages `start` .. `end`, from the log between their neighbours."""
        starts = segment.starts(self.disk, self.segment_bytes)
        log_offset = self._entry(start - 1)[0] if start > self.low else starts[0]
        until = self._entry(end)[0] if end < self.high else starts[-1] + self.segment_bytes
        until = min(until, log_offset + SPAN_MAX)
        entries, due = bytearray(), start
        while log_offset < until and due < end:
            file_start, _ = segment_of(log_offset, self.segment_bytes)
            file_end = file_start + self.segment_bytes
            for header in self._headers(file_start, log_offset, min(until, file_end)):
                if header[4] == MESSAGE and header[7:10] == (self.topic_id, self.queue_id, due):
                    entries += ENTRY.pack(header[10], header[0], header[14])
                    due += 1
                    if due == end:
                        break
            log_offset = file_end
        if due < end:
            raise StoreError(
                f"the entries {start} to {end} of queue {self.queue_id} of topic {self.topic_id} are damaged, and "
                f"message {due} was not found up to log offset {until}: stop the broker and delete its consumequeue "
                "folder to rebuild it from the log"
            )
        return bytes(entries)

    def log_files(self) -> list[int]:
        """Returns the starts of the log files that the entries point into, ascending."""
        start, stop = max(self.start, self.low), min(self.stop, self.high)
        places = {segment_of(self._entry(offset)[0], self.segment_bytes)[0] for offset in range(start, stop)}
        return sorted(places.intersection(segment.starts(self.disk, self.segment_bytes)))

    def _headers(self, file_start: int, position: int, until: int) -> Iterator[Header]:
        """Yields the headers of one file's records from `position`, where one begins, up to `until`."""
        data, base = b"", position
        file = self.disk.open(path_of(file_start))
        try:
            while until - position >= HEADER_BYTES:
                if position - base + HEADER_BYTES > len(data):
                    base = position
                    data = read_tolerant(file, min(PIECE_BYTES, until - position), position - file_start)
                header = HEADER.unpack_from(data, position - base)
                if header[1] != MAGIC or header[10] != position or header[0] < HEADER_BYTES:
                    raise StoreError(f"{self.disk.describe(path_of(file_start))}: no record begins at {position}")
                yield header
                position += header[0]
        finally:
            file.close()

    def _points_right(self, offset: int) -> bool:
        """Whether the entry matches the message that it points at."""
        log_offset, size, tag_hash = self._entry(offset)
        file_start, position = segment_of(log_offset, self.segment_bytes)
        if position + HEADER_BYTES > self.segment_bytes:
            return False
        try:
            file = self.disk.open(path_of(file_start))
        except FileNotFoundError:
            return False
        try:
            header = HEADER.unpack(read_tolerant(file, HEADER_BYTES, position))
        finally:
            file.close()
        fields = (header[0], header[1], header[4], header[14])
        place = (self.topic_id, self.queue_id, offset, log_offset)
        return fields == (size, MAGIC, MESSAGE, tag_hash) and header[7:11] == place

    def _entry(self, offset: int) -> tuple[int, int, int]:
        name, position = file_at(offset)
        try:
            file = self.disk.open(f"{folder_of(self.topic_id, self.queue_id)}/{name}")
        except FileNotFoundError:
            return 0, 0, 0
        try:
            return ENTRY.unpack(read_tolerant(file, ENTRY_BYTES, position))
        finally:
            file.close()
