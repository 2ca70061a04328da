"""Reads of consume queues: messages from memory, otherwise entries and frames by `pread` (CL-8 to CL-11).

Problem: a consumer reads the messages of one queue by queue offset. In the commit log they lie among those of all
queues, and the log is larger than memory. A read must not block the loop, and must not return a wrong or damaged
message.

Idea: a queue has one entry of 20 bytes per message: log offset, size, tag hash. There are three ways, fastest first:
- `hot`: messages that are still in memory, as the appended objects; on the loop.
- `read_now`, `read_at_now`, `read_block_now`: files that are open and bytes in the page cache; on the loop too, since
  that costs less than a thread's answer. Where they would have to wait, they give up (`_NotNow`).
- `read`, `read_at`, `read_block`: the same on a thread of the read pool, where waiting is allowed. A cold read gets
  from the loop a copy of what only memory has (`Entries`), and then uses files only. So threads share nothing with the
  loop but the table of open files and a few buffers.

Example: 32 messages are read from queue offset 1,000,000 on. A file has 300,000 entries and is named by the place of
its first byte, so entry 1,000,000 is in file 00000000000018000000 at byte 2,000,000. One read of 640 bytes returns the
32 entries. If each frame has 1,112 bytes (a header of 88 and 1 KiB of payload) and they are contiguous, one more read
of 35,584 bytes returns all messages.

Invariants:
- Every message that is returned was checked: CRC, topic, queue, queue offset and log offset. In blocks for readers that
  compare checksums themselves, only the first and the last frame of each contiguous run are (`record_blocks`).
- A frame that does not match its entry fails the read with StoreCorrupted, which has file and log offset.
- The first message is returned even if it exceeds `bytes_max`.
- `_now` reads neither open a file nor wait for the disk.

References: CL-8 to CL-12; decision records 5 (pread, not mmap), 34 (Spark takes stored records), 46.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NoReturn

from evenq.errors import StoreCorrupted, TooManyRequests
from evenq.store.io.descriptors import NO_FILES
from evenq.store.io.disk import Disk, Room
from evenq.store.io.files import ReadFiles
from evenq.store.log.commit_log import shortage
from evenq.store.log.consume_queue import ENTRY, ENTRY_BYTES, ConsumeQueue, file_at, folder_of, spans
from evenq.store.log.messages import ReadResult, StoredMessage, StoredTimer
from evenq.store.log.record import HEADER_BYTES, TIMER, frame_at, size_at, timer_of
from evenq.store.log.segment import path_of, segment_of
from evenq.store.queues.entry_columns import EntryColumns
from evenq.store.queues.read_buffer import BUFFER_BYTES, Place, ReadBuffer
from evenq.store.queues.record_blocks import Kept, RecordBlock

SCAN_MAX: Final = 4_096  # entries that one read examines under a tag filter; next_offset says where to continue
NOW_MAX: Final = 512  # messages that the loop thread reads itself: half a millisecond at most
NOW_BYTES: Final = 640 << 10
NOW_AT_MAX: Final = 64
BLOCK_NOW_BYTES: Final = 4 << 20  # of a block, with what lies between its frames: a millisecond as well
EQUAL_SIZES_MIN: Final = 4  # fewer do not justify the check
ROOM_BYTES: Final = 2_560 << 10  # a block of two mebibytes with its headers
ROOMS_MAX: Final = 8
GAP_MAX: Final = 8 << 10  # bytes whose copy costs as much as a call
SPAN_NEAR: Final = 64 << 10  # timers that lie so near each other share one pread
SPAN_ALONE: Final = 4_096

TagHashes = frozenset[int] | None


@dataclass(frozen=True, slots=True)
class Entries:
    """Data of one queue for a thread: its range, and a copy of the entries that are in memory only."""

    topic_id: int
    queue_id: int
    min_offset: int
    max_offset: int
    """End of what is consumable, as the loop saw it."""
    tail_base: int
    """Queue offset of the first entry in `tail`: earlier ones are read from files."""
    tail: bytes

    @classmethod
    def of(cls, queue: ConsumeQueue, start: int, end: int) -> Entries:
        """Copies the part of start..end that is in memory, on the loop thread."""
        tail_base = max(queue.tail_base, start)
        tail = queue.entries(tail_base, end) if tail_base < end else b""
        return cls(queue.topic_id, queue.queue_id, queue.min_offset, queue.max_offset, tail_base, tail)


def hot(queue: ConsumeQueue, start: int, *, count_max: int, bytes_max: int, tag_hashes: TagHashes) -> ReadResult | None:
    """Returns messages from memory; None if the disk is needed. A first message may be over `bytes_max`."""
    max_offset = queue.max_offset
    start = max(start, queue.min_offset)
    if start >= max_offset:
        return ReadResult([], start, queue.min_offset, max_offset)
    first = start - queue.hot_base
    if first < queue.hot_dead:
        return None
    messages: list[StoredMessage] = []
    space = bytes_max
    if tag_hashes is None:
        for message in queue.hot[first : first + min(count_max, max_offset - start)]:
            assert message is not None
            space -= len(message.head) + len(message.system)
            if space < 0 and messages:
                break
            messages.append(message)
        return ReadResult(messages, start + len(messages), queue.min_offset, max_offset)
    end = start
    for message in queue.hot[first : first + min(SCAN_MAX, max_offset - start)]:
        assert message is not None
        if len(messages) >= count_max:
            break
        if message.tag_hash in tag_hashes:
            space -= len(message.head) + len(message.system)
            if space < 0 and messages:
                break
            messages.append(message)
        end += 1
    return ReadResult(messages, end, queue.min_offset, max_offset)


class _NotNow(Exception):
    """The read would have to wait."""


class LogReader:
    """Reader of files, on any thread."""

    def __init__(self, disk: Disk, files: ReadFiles, segment_bytes: int) -> None:
        self._disk = disk
        self._files = files
        self.segment_bytes = segment_bytes
        self._buffers: list[ReadBuffer] = []
        """Free buffers; at most one for each thread that reads."""
        self._rooms: deque[bytearray] = deque(maxlen=ROOMS_MAX)
        """Free rooms for the frames of blocks; each is in use until its block is given back."""

    def read(
        self, entries: Entries, start: int, *, count_max: int, bytes_max: int, tag_hashes: TagHashes
    ) -> ReadResult:
        """Does the same as `hot`, from files."""
        if tag_hashes is None:
            return self._in_order(entries, start, count_max, bytes_max, wait=True)
        places: list[Place] = []
        offsets: list[int] = []
        space = bytes_max
        end = start
        for entry in self._entries(entries, start, min(entries.max_offset, start + SCAN_MAX)):
            if len(places) >= count_max:
                break
            if entry[2] in tag_hashes:
                space -= entry[1] - HEADER_BYTES
                if space < 0 and places:
                    break
                places.append(entry)
                offsets.append(end)
            end += 1
        return ReadResult(self._messages(entries, offsets, places), end, entries.min_offset, entries.max_offset)

    def read_now(self, entries: Entries, start: int, *, count_max: int, bytes_max: int) -> ReadResult | None:
        """Does the same without a tag filter on the loop thread; None if it would wait, open a file, or take long."""
        try:
            return self._in_order(entries, start, min(count_max, NOW_MAX), bytes_max, wait=False)
        except (_NotNow, OSError):  # the pool reports what is wrong
            return None

    def read_at(self, entries: Entries, offsets: Sequence[int], *, wait: bool = True) -> list[StoredMessage]:
        """Returns exactly these offsets, in the order given; all must be in the queue's range."""
        places = []
        for offset in offsets:
            places += self._entries(entries, offset, offset + 1, wait=wait)
        return self._messages(entries, offsets, places, wait=wait)

    def read_at_now(self, entries: Entries, offsets: Sequence[int]) -> list[StoredMessage] | None:
        """Does the same on the loop thread; None if it would wait for the disk, open a file, or take long."""
        try:
            return self.read_at(entries, offsets, wait=False) if len(offsets) <= NOW_AT_MAX else None
        except (_NotNow, OSError):  # the pool reports what is wrong
            return None

    def read_block(
        self, entries: Entries, start: int, *, count_max: int, bytes_max: int, kept: Kept, wait: bool = True
    ) -> RecordBlock:
        """Returns the frames of messages from `start` on: `bytes_max` of payload in the log, but at least one."""
        data = self._entry_bytes(entries, start, min(entries.max_offset, start + count_max), wait=wait)
        block = RecordBlock(start, entries.min_offset, entries.max_offset)
        if not data:
            return block
        columns = EntryColumns(data)
        columns.keep_fitting(bytes_max)
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = ReadBuffer()
        try:
            done = self._add_runs(block, entries, columns, kept, buffer, wait=wait)
            if done < len(columns):
                self._add_pieces(block, entries, columns.places(done), kept, buffer, wait=wait)
        except BaseException:
            block.give_back()
            raise
        finally:
            self._buffers.append(buffer)
        return block

    def _add_runs(
        self, block: RecordBlock, entries: Entries, columns: EntryColumns, kept: Kept, buffer: ReadBuffer, *, wait: bool
    ) -> int:
        """Adds frames that lie in long contiguous runs, a piece for each run; returns their number."""
        done, count = 0, len(columns)
        while done < count:
            start, _ = segment_of(columns.log_offset(done), self.segment_bytes)
            edges = columns.runs(done, start, start + self.segment_bytes)
            if edges is None:
                break
            begin = columns.ends[done]
            view, shared = self._view(block, buffer, columns.ends[edges[-1]] - begin)
            positions: list[int] = []
            rooms: list[Room] = []
            for low, high in pairwise(edges):
                positions.append(columns.log_offset(low) - start)
                rooms.append((view[columns.ends[low] - begin : columns.ends[high] - begin],))
            if not (
                self._read_each(path_of(start), positions, rooms, wait=wait)
                and block.add_runs(view, columns, edges, entries.topic_id, entries.queue_id, kept, copy=shared)
            ):
                if not wait:
                    raise _NotNow  # the pool reports what is wrong
                self._missing(entries, block.next_offset, columns.place(block.next_offset - block.first_offset))
            done = edges[-1]
        return done

    def _add_pieces(
        self, block: RecordBlock, entries: Entries, places: list[Place], kept: Kept, buffer: ReadBuffer, *, wait: bool
    ) -> None:
        """Adds frames that are not in long runs."""
        first, done = block.next_offset, 0
        while done < len(places):
            if not wait and places[-1][0] - places[done][0] > BLOCK_NOW_BYTES:
                raise _NotNow
            start, _ = segment_of(places[done][0], self.segment_bytes)
            pieces, starts, used = self._pieces(places, done, start)
            view, shared = self._view(block, buffer, used)
            rooms: list[Room] = []
            end = 0
            for _, length in pieces:
                rooms.append((view[end : end + length],))
                end += length
            here = places[done : done + len(starts)]
            done += len(here)
            if not (
                pieces
                and self._read_each(path_of(start), [position for position, _ in pieces], rooms, wait=wait)
                and block.add(view, starts, here, entries.topic_id, entries.queue_id, kept, copy=shared)
            ):
                if not wait:
                    raise _NotNow  # the pool reports what is wrong
                self._missing(entries, block.next_offset, places[block.next_offset - first])

    def _view(self, block: RecordBlock, buffer: ReadBuffer, size: int) -> tuple[memoryview, bool]:
        """Returns memory for `size` bytes, and whether it is the buffer, which is reused."""
        if size <= BUFFER_BYTES:
            return buffer.view[:size], True
        if size > ROOM_BYTES:
            return memoryview(bytearray(size)), False
        room = self._room()
        block.lend(room, self._rooms)
        return memoryview(room)[:size], False

    def _room(self) -> bytearray:
        """Returns a room that is not in use: all that was sent from its last block has left."""
        try:
            room = self._rooms.popleft()
        except IndexError:
            return bytearray(ROOM_BYTES)
        try:
            room.append(0)  # fails while a view of it exists
        except BufferError:
            self._rooms.append(room)
            return bytearray(ROOM_BYTES)
        room.pop()
        return room

    def read_block_now(
        self, entries: Entries, start: int, *, count_max: int, bytes_max: int, kept: Kept
    ) -> RecordBlock | None:
        """Does the same on the loop thread; None if it would wait for the disk, open a file, or take long."""
        try:
            return self.read_block(entries, start, count_max=count_max, bytes_max=bytes_max, kept=kept, wait=False)
        except (_NotNow, OSError):  # the pool reports what is wrong
            return None

    def offset_at(self, entries: Entries, timestamp_ms: int) -> int:
        """Returns the first offset stored at `timestamp_ms` or later, otherwise the end. Store times never fall."""
        low, high = entries.min_offset, entries.max_offset
        while low < high:
            middle = (low + high) // 2
            if self.read_at(entries, [middle])[0].store_ms < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def read_timers(self, timer_ids: Sequence[int], bytes_max: int, log_end: int) -> list[StoredTimer | None]:
        """Returns timers by their log offsets, in the order given, until they have `bytes_max` of payload; the last one
        may exceed it. One result for each timer read: None without a whole timer, and from `log_end` on.
        """
        timers: list[StoredTimer | None] = []
        space = bytes_max
        window, base = b"", 0
        for index, log_offset in enumerate(timer_ids):
            if log_offset >= log_end:
                timers.append(None)
                continue
            frame = frame_at(window, log_offset - base, log_offset) if log_offset >= base else None
            if frame is None:
                near = index + 1 < len(timer_ids) and 0 < timer_ids[index + 1] - log_offset < SPAN_NEAR
                base, window = log_offset, self._frame_bytes(log_offset, SPAN_NEAR if near else SPAN_ALONE)
                frame = frame_at(window, 0, log_offset)
            timer = timer_of(frame) if frame is not None and frame.kind == TIMER else None
            timers.append(timer)
            if timer is not None:
                space -= len(timer.head) + len(timer.system)
                if space <= 0:
                    break
        return timers

    def _frame_bytes(self, log_offset: int, size: int) -> bytes:
        """Returns `size` bytes from `log_offset` on, more if its frame is larger; none without such a file."""
        start, position = segment_of(log_offset, self.segment_bytes)
        try:
            with self._files.using(path_of(start)) as file:
                data = file.pread(size, position)
                claimed = size_at(data, 0)
                if len(data) < claimed <= self.segment_bytes - position:
                    data = file.pread(claimed, position)
                return data
        except FileNotFoundError:
            return b""
        except OSError as error:
            if error.errno in NO_FILES:
                raise TooManyRequests(f"this cannot be read now: {shortage(error)}; read again") from error
            text = f"reading {self._disk.describe(path_of(start))} failed: {error}"
            raise StoreCorrupted(text, log_offset=log_offset) from error

    def _in_order(self, entries: Entries, start: int, count_max: int, bytes_max: int, *, wait: bool) -> ReadResult:
        places = self._entries(entries, start, min(entries.max_offset, start + count_max), wait=wait)
        space = bytes_max + HEADER_BYTES * len(places)
        total = sum([size for _, size, _ in places])
        if total > space:
            del places[_fitting(places, bytes_max) :]
        end = start + len(places)
        messages = self._messages(entries, range(start, end), places, wait=wait)
        return ReadResult(messages, end, entries.min_offset, entries.max_offset)

    def _entries(self, entries: Entries, start: int, end: int, *, wait: bool = True) -> list[Place]:
        return list(ENTRY.iter_unpack(self._entry_bytes(entries, start, end, wait=wait)))

    def _entry_bytes(self, entries: Entries, start: int, end: int, *, wait: bool = True) -> bytes | bytearray:
        """Returns the packed entries, from files and from memory."""
        entry_bytes = bytearray()
        folder = folder_of(entries.topic_id, entries.queue_id)
        for first, stop in spans(start, min(end, entries.tail_base)):
            name, position = file_at(first)
            size = (stop - first) * ENTRY_BYTES
            path = f"{folder}/{name}"
            data = bytearray(size)
            if not self._read_each(path, [position], [(memoryview(data),)], wait=wait):
                self._corrupted(path, f"ends before queue offset {stop}")
            entry_bytes = entry_bytes + data if entry_bytes else data
        low = max(start, entries.tail_base) - entries.tail_base
        high = end - entries.tail_base
        if high <= low:
            return entry_bytes
        tail = entries.tail[low * ENTRY_BYTES : high * ENTRY_BYTES]
        return entry_bytes + tail if entry_bytes else tail

    def _read_each(self, path: str, places: Sequence[int], rooms: Sequence[Room], *, wait: bool) -> bool:
        """Fills the rooms; returns False if the file is too short. Raises _NotNow."""
        if wait:
            with self._files.using(path) as file:
                return file.pread_each(places, rooms)
        opened = self._files.take_if_open(path)
        if opened is None:
            raise _NotNow
        try:
            if not opened.file.pread_each(places, rooms, wait=False):
                raise _NotNow
        finally:
            self._files.give_back(opened)
        return True

    def _messages(
        self, entries: Entries, offsets: Sequence[int], places: list[Place], *, wait: bool = True
    ) -> list[StoredMessage]:
        if not wait and sum([size for _, size, _ in places]) > NOW_BYTES:
            raise _NotNow
        messages: list[StoredMessage] = []
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = ReadBuffer()
        try:
            while len(messages) < len(places):
                self._next_messages(entries, offsets, places, messages, buffer, wait=wait)
        finally:
            self._buffers.append(buffer)
        return messages

    def _next_messages(
        self,
        entries: Entries,
        offsets: Sequence[int],
        places: list[Place],
        messages: list[StoredMessage],
        buffer: ReadBuffer,
        *,
        wait: bool,
    ) -> None:
        """Adds the next messages to `messages`: as many as lie in one file and fit into the buffer, at least one."""
        first = len(messages)
        log_offset, size, _ = places[first]
        start, _ = segment_of(log_offset, self.segment_bytes)
        equal = self._equal_sizes(places, first, start + self.segment_bytes) if isinstance(offsets, range) else []
        if equal:  # case: frames of one size, which one `Struct` parses
            layout = buffer.layout(size)
            if equal[-1][0] - log_offset == (len(equal) - 1) * size:  # one behind the other
                positions, rooms = [log_offset - start], [(buffer.view[: len(equal) * size],)]
            else:
                positions, rooms = [position - start for position, _, _ in equal], layout.rooms[: len(equal)]
            whole = self._read_each(path_of(start), positions, rooms, wait=wait)
            queue = entries.topic_id, entries.queue_id
            if whole and buffer.parse_equal_sizes(layout, *queue, offsets[first], equal, messages):
                return
        else:  # case: frames of any size, read in pieces
            pieces, starts, used = self._pieces(places, first, start)
            view = buffer.view if used <= BUFFER_BYTES else memoryview(bytearray(used))
            rooms, end = [], 0
            for _, length in pieces:
                rooms.append((view[end : end + length],))
                end += length
            stop = first + len(starts)
            if (
                pieces
                and self._read_each(path_of(start), [position for position, _ in pieces], rooms, wait=wait)
                and buffer.parse(
                    view, entries.topic_id, entries.queue_id, offsets[first:stop], places[first:stop], starts, messages
                )
            ):
                return
        if not wait:
            raise _NotNow  # the pool reports what is wrong
        self._missing(entries, offsets[len(messages)], places[len(messages)])

    def _equal_sizes(self, places: list[Place], first: int, limit: int) -> list[Place]:
        """Returns the next places if they have one size, lie in one file, and are contiguous or far apart, or none."""
        log_offset, size, _ = places[first]
        if not HEADER_BYTES <= size <= BUFFER_BYTES // EQUAL_SIZES_MIN:
            return []
        equal = places[first : first + BUFFER_BYTES // size]
        count, last = len(equal), equal[-1][0]
        if count < EQUAL_SIZES_MIN or last > limit - size or [one for _, one, _ in equal].count(size) < count:
            return []
        apart = last - log_offset
        if apart > count * (size + GAP_MAX):
            return equal
        offsets = range(log_offset, log_offset + count * size, size)
        regular = apart == offsets[-1] - log_offset and [position for position, _, _ in equal] == [*offsets]
        return equal if regular else []

    def _pieces(self, places: list[Place], first: int, start: int) -> tuple[list[tuple[int, int]], list[int], int]:
        """Returns what to read together: pieces of the file at `start`, the starts of the frames in them, and their
        size. Frames share a piece if they lie so near each other that reading the gap costs less than a call.
        """
        limit = start + self.segment_bytes
        pieces: list[tuple[int, int]] = []
        starts: list[int] = []
        used = piece = 0
        end = -GAP_MAX  # where the last piece ends in the log; `piece` where it begins
        for log_offset, size, _ in places[first : first + BUFFER_BYTES // HEADER_BYTES] if first else places:
            gap = log_offset - end
            near = 0 <= gap < GAP_MAX
            if not near:
                gap = 0
            if not start <= log_offset <= limit - size or (used + gap + size > BUFFER_BYTES and pieces):
                break
            starts.append(used + gap)
            used += gap + size
            end = log_offset + size
            if near:
                pieces[-1] = (piece - start, end - piece)
            else:
                piece = log_offset
                pieces.append((log_offset - start, size))
        return pieces, starts, used

    def _missing(self, entries: Entries, queue_offset: int, entry: Place) -> NoReturn:
        log_offset, size, _ = entry
        start, position = segment_of(log_offset, self.segment_bytes)
        with self._files.using(path_of(start)) as file:
            if size <= self.segment_bytes - position:
                frame_at(file.pread(size, position), 0, log_offset)  # raises if the version is unknown
        self._corrupted(
            path_of(start),
            f"holds no message {queue_offset} of queue {entries.queue_id} at log offset {log_offset}",
            log_offset,
        )

    def _corrupted(self, path: str, what: str, log_offset: int = -1) -> NoReturn:
        raise StoreCorrupted(
            f"{self._disk.describe(path)} {what}: stop the broker and delete its consumequeue folder to rebuild it "
            "from the log; if it fails again, restore the log from a copy",
            log_offset=log_offset,
        )


def _fitting(places: list[Place], bytes_max: int) -> int:
    """Returns how many of the first ones have at most `bytes_max` of payload; at least one."""
    payloads = accumulate([size - HEADER_BYTES for _, size, _ in places])
    return max(1, bisect_right(list(payloads), bytes_max))
