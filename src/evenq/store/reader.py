"""Reads: synchronously from memory, else consume queue entries and frames by pread on the read pool (CL-11).

`hot` runs on the loop thread. A cold read takes from the loop a copy of what is only in memory (`Entries`) and then
touches files only, so threads share nothing with the loop but the table of open files. A frame that does not fit its
entry fails that read, loudly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from evenq.errors import StoreCorrupted
from evenq.store.consume_queue import ENTRY, ENTRY_BYTES, ConsumeQueue, file_at, folder_of, spans
from evenq.store.disk import Disk, File
from evenq.store.files import ReadFiles
from evenq.store.messages import ReadResult, StoredMessage, StoredTimer
from evenq.store.record import HEADER_BYTES, TIMER, frame_at, message_at, size_at, timer_of
from evenq.store.segment import path_of, segment_of

__all__ = ["Entries", "Reader", "hot"]

SCAN_MAX: Final = 4_096  # entries that one read looks at under a tag filter; next_offset says where to go on
SPAN_WASTE: Final = 2  # one pread for neighbouring frames while at most this many times their bytes are read
SPAN_MAX: Final = 8 << 20
SPAN_NEAR: Final = 64 << 10  # one pread for timers that lie so near each other
SPAN_ALONE: Final = 4_096

TagHashes = frozenset[int] | None


@dataclass(frozen=True, slots=True)
class Entries:
    """What a thread needs to know about one queue: its range, and a copy of the entries that are in memory only."""

    topic_id: int
    queue_id: int
    min_offset: int
    max_offset: int
    tail_base: int
    tail: bytes

    @classmethod
    def of(cls, queue: ConsumeQueue, start: int, end: int) -> Entries:
        """On the loop thread: copy the part of start..end that is in memory."""
        tail_base = max(queue.tail_base, start)
        tail = queue.entries(tail_base, end) if tail_base < end else b""
        return cls(queue.topic_id, queue.queue_id, queue.min_offset, queue.max_offset, tail_base, tail)


def hot(queue: ConsumeQueue, start: int, *, count_max: int, bytes_max: int, tag_hashes: TagHashes) -> ReadResult | None:
    """Messages from memory; None if the disk is needed. At least one message is returned even if it is over
    `bytes_max`.
    """
    max_offset = queue.max_offset
    start = max(start, queue.min_offset)
    if start >= max_offset:
        return ReadResult([], start, queue.min_offset, max_offset)
    first = start - queue.hot_base
    if first < queue.hot_dead:
        return None
    found: list[StoredMessage] = []
    space = bytes_max
    if tag_hashes is None:
        for message in queue.hot[first : first + min(count_max, max_offset - start)]:
            assert message is not None
            space -= len(message.head) + len(message.system)
            if space < 0 and found:
                break
            found.append(message)
        return ReadResult(found, start + len(found), queue.min_offset, max_offset)
    end = start
    for message in queue.hot[first : first + min(SCAN_MAX, max_offset - start)]:
        assert message is not None
        if len(found) >= count_max:
            break
        if message.tag_hash in tag_hashes:
            space -= len(message.head) + len(message.system)
            if space < 0 and found:
                break
            found.append(message)
        end += 1
    return ReadResult(found, end, queue.min_offset, max_offset)


class Reader:
    """Reads from files, on any thread."""

    def __init__(self, disk: Disk, files: ReadFiles, segment_bytes: int) -> None:
        self._disk = disk
        self._files = files
        self._segment_bytes = segment_bytes

    def read(
        self, entries: Entries, start: int, *, count_max: int, bytes_max: int, tag_hashes: TagHashes
    ) -> ReadResult:
        """The same as `hot`, from files."""
        look = count_max if tag_hashes is None else SCAN_MAX
        wanted: list[tuple[int, int, int]] = []  # queue offset, log offset, size
        space = bytes_max
        end = start
        for log_offset, size, tag_hash in self._entries(entries, start, min(entries.max_offset, start + look)):
            if len(wanted) >= count_max:
                break
            if tag_hashes is None or tag_hash in tag_hashes:
                space -= size - HEADER_BYTES
                if space < 0 and wanted:
                    break
                wanted.append((end, log_offset, size))
            end += 1
        return ReadResult(self._messages(entries, wanted), end, entries.min_offset, entries.max_offset)

    def read_at(self, entries: Entries, offsets: Sequence[int]) -> list[StoredMessage]:
        """Exactly these offsets, in the order given; all must be in the queue's range."""
        wanted = []
        for offset in offsets:
            ((log_offset, size, _),) = self._entries(entries, offset, offset + 1)
            wanted.append((offset, log_offset, size))
        return self._messages(entries, wanted)

    def offset_at(self, entries: Entries, timestamp_ms: int) -> int:
        """First offset stored at `timestamp_ms` or later; the queue's end if none is. Store times never fall."""
        low, high = entries.min_offset, entries.max_offset
        while low < high:
            middle = (low + high) // 2
            if self.read_at(entries, [middle])[0].store_ms < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def read_timers(self, timer_ids: Sequence[int], bytes_max: int) -> list[StoredTimer | None]:
        """Timers by their log offsets, in the order given, until `bytes_max` of payload (but at least one): as many
        results as were read. None where no whole timer is.
        """
        found: list[StoredTimer | None] = []
        space = bytes_max
        window, base = b"", 0
        for place, log_offset in enumerate(timer_ids):
            frame = frame_at(window, log_offset - base, log_offset) if log_offset >= base else None
            if frame is None:
                near = place + 1 < len(timer_ids) and 0 < timer_ids[place + 1] - log_offset < SPAN_NEAR
                base, window = log_offset, self._frame_bytes(log_offset, SPAN_NEAR if near else SPAN_ALONE)
                frame = frame_at(window, 0, log_offset)
            timer = timer_of(frame) if frame is not None and frame.kind == TIMER else None
            if timer is not None:
                space -= len(timer.head) + len(timer.system)
                if space < 0 and found:
                    break
            found.append(timer)
        return found

    def _frame_bytes(self, log_offset: int, size: int) -> bytes:
        """`size` bytes from `log_offset` on, more if its frame is larger; none if there is no such file."""
        start, position = segment_of(log_offset, self._segment_bytes)
        try:
            with self._files.using(path_of(start)) as file:
                data = file.pread(size, position)
                claimed = size_at(data, 0)
                if len(data) < claimed <= self._segment_bytes - position:
                    data = file.pread(claimed, position)
                return data
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreCorrupted(f"reading {self._disk.describe(path_of(start))} failed: {error}") from error

    def _entries(self, entries: Entries, start: int, end: int) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        folder = folder_of(entries.topic_id, entries.queue_id)
        for first, stop in spans(start, min(end, entries.tail_base)):
            name, position = file_at(first)
            size = (stop - first) * ENTRY_BYTES
            with self._files.using(f"{folder}/{name}") as file:
                data = file.pread(size, position)
            if len(data) != size:
                self._corrupted(f"{folder}/{name}", f"ends before queue offset {stop}")
            found.extend(ENTRY.iter_unpack(data))
        low = max(start, entries.tail_base) - entries.tail_base
        high = end - entries.tail_base
        if high > low:
            found.extend(ENTRY.iter_unpack(entries.tail[low * ENTRY_BYTES : high * ENTRY_BYTES]))
        return found

    def _messages(self, entries: Entries, wanted: list[tuple[int, int, int]]) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while len(found) < len(wanted):
            start, _ = segment_of(wanted[len(found)][1], self._segment_bytes)
            with self._files.using(path_of(start)) as file:
                self._from_file(file, start, entries, wanted, found)
        return found

    def _from_file(
        self, file: File, start: int, entries: Entries, wanted: list[tuple[int, int, int]], found: list[StoredMessage]
    ) -> None:
        """Add to `found` the next ones of `wanted` as long as they lie in this file."""
        end = start + self._segment_bytes
        first = len(found)
        while first < len(wanted):
            queue_offset, log_offset, size = wanted[first]
            if not start <= log_offset < end:
                return
            near = first + 1 < len(wanted) and 0 < wanted[first + 1][1] - log_offset <= SPAN_WASTE * size + SPAN_NEAR
            stop = self._span_end(wanted, first) if near else first + 1
            if stop == first + 1:
                data = file.pread(size, log_offset - start)
                found.append(self._message(entries, data, 0, log_offset, queue_offset))
            else:
                _, last_offset, last_size = wanted[stop - 1]
                data = file.pread(last_offset + last_size - log_offset, log_offset - start)
                for queue_offset, place, _ in wanted[first:stop]:
                    found.append(self._message(entries, data, place - log_offset, place, queue_offset))
            first = stop

    def _span_end(self, wanted: list[tuple[int, int, int]], first: int) -> int:
        """How many entries from `first` on are worth one pread: near each other, in one file."""
        base = wanted[first][1]
        limit = segment_of(base, self._segment_bytes)[0] + self._segment_bytes
        useful = wanted[first][2]
        stop = first + 1
        while stop < len(wanted):
            _, log_offset, size = wanted[stop]
            span = log_offset + size - base
            if not base < log_offset < limit or span > min(SPAN_MAX, SPAN_WASTE * (useful + size) + 65_536):
                break
            useful += size
            stop += 1
        return stop

    def _message(
        self, entries: Entries, data: bytes, position: int, log_offset: int, queue_offset: int
    ) -> StoredMessage:
        message = message_at(data, position, log_offset)
        if (
            message is None
            or message.queue_offset != queue_offset
            or message.queue_id != entries.queue_id
            or message.topic_id != entries.topic_id
        ):
            frame_at(data, position, log_offset)  # says so if the version is unknown
            path = path_of(segment_of(log_offset, self._segment_bytes)[0])
            self._corrupted(
                path, f"holds no message {queue_offset} of queue {entries.queue_id} at log offset {log_offset}"
            )
        return message

    def _corrupted(self, path: str, what: str) -> NoReturn:
        raise StoreCorrupted(
            f"{self._disk.describe(path)} {what}: stop the broker and delete its consumequeue folder to rebuild it "
            "from the log; if it fails again, restore the log from a copy"
        )
