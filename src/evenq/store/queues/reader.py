"""Reads: synchronously from memory, else consume queue entries and frames by pread (CL-11).

`hot` runs on the loop thread. So does a short read whose files are open and whose bytes are in the page cache
(`read_now`): that costs less than a thread's answer. All others run on the read pool. A cold read takes from the loop a
copy of what is only in memory (`Entries`) and then touches files only, so threads share nothing with the loop but the
table of open files and a few buffers. A frame that does not fit its entry fails that read, loudly.
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

__all__ = ["Entries", "LogReader", "hot"]

SCAN_MAX: Final = 4_096  # entries that one read looks at under a tag filter; next_offset says where to go on
NOW_MAX: Final = 512  # what the loop thread reads itself takes half a millisecond at most
NOW_BYTES: Final = 640 << 10
NOW_AT_MAX: Final = 64
BLOCK_NOW_BYTES: Final = 4 << 20  # of a block, with what lies between its frames: a millisecond as well
EQUAL_SIZES_MIN: Final = 4  # fewer are not worth a look
ROOM_BYTES: Final = 2_560 << 10  # a block of two mebibytes with its headers
ROOMS_MAX: Final = 8
GAP_MAX: Final = 8 << 10  # what copying costs as much as a call
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
    """It would have to wait."""


class LogReader:
    """Reads from files, on any thread."""

    def __init__(self, disk: Disk, files: ReadFiles, segment_bytes: int) -> None:
        self._disk = disk
        self._files = files
        self.segment_bytes = segment_bytes
        self._buffers: list[ReadBuffer] = []
        """Those that are free; at most one for each thread that reads."""
        self._rooms: deque[bytearray] = deque(maxlen=ROOMS_MAX)
        """The same for frames of blocks, which are there until the block is given back."""

    def read(
        self, entries: Entries, start: int, *, count_max: int, bytes_max: int, tag_hashes: TagHashes
    ) -> ReadResult:
        """The same as `hot`, from files."""
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
        """The same without a tag filter, on the loop thread: None if it would have to wait for the disk, open a file,
        or take long.
        """
        try:
            return self._in_order(entries, start, min(count_max, NOW_MAX), bytes_max, wait=False)
        except (_NotNow, OSError):  # the pool tells what is wrong
            return None

    def read_at(self, entries: Entries, offsets: Sequence[int], *, wait: bool = True) -> list[StoredMessage]:
        """Exactly these offsets, in the order given; all must be in the queue's range."""
        places = []
        for offset in offsets:
            places += self._entries(entries, offset, offset + 1, wait=wait)
        return self._messages(entries, offsets, places, wait=wait)

    def read_at_now(self, entries: Entries, offsets: Sequence[int]) -> list[StoredMessage] | None:
        """The same on the loop thread: None if it would have to wait for the disk, open a file, or take long."""
        try:
            return self.read_at(entries, offsets, wait=False) if len(offsets) <= NOW_AT_MAX else None
        except (_NotNow, OSError):  # the pool tells what is wrong
            return None

    def read_block(
        self, entries: Entries, start: int, *, count_max: int, bytes_max: int, kept: Kept, wait: bool = True
    ) -> RecordBlock:
        """Frames of the messages from `start` on, of at most `bytes_max` of payload in the log but at least one."""
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
        """Frames that lie in long runs, a piece for each run. How many that were."""
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
                    raise _NotNow  # the pool tells what is wrong
                self._missing(entries, block.next_offset, columns.place(block.next_offset - block.first_offset))
            done = edges[-1]
        return done

    def _add_pieces(
        self, block: RecordBlock, entries: Entries, places: list[Place], kept: Kept, buffer: ReadBuffer, *, wait: bool
    ) -> None:
        """Frames that lie each by itself."""
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
                    raise _NotNow  # the pool tells what is wrong
                self._missing(entries, block.next_offset, places[block.next_offset - first])

    def _view(self, block: RecordBlock, buffer: ReadBuffer, size: int) -> tuple[memoryview, bool]:
        """Memory for `size` bytes, and whether it is the buffer, which is used again."""
        if size <= BUFFER_BYTES:
            return buffer.view[:size], True
        if size > ROOM_BYTES:
            return memoryview(bytearray(size)), False
        room = self._room()
        block.lend(room, self._rooms)
        return memoryview(room)[:size], False

    def _room(self) -> bytearray:
        """One that is not in use: what was sent of the block that was in it has left."""
        try:
            room = self._rooms.popleft()
        except IndexError:
            return bytearray(ROOM_BYTES)
        try:
            room.append(0)  # refused while anybody does
        except BufferError:
            self._rooms.append(room)
            return bytearray(ROOM_BYTES)
        room.pop()
        return room

    def read_block_now(
        self, entries: Entries, start: int, *, count_max: int, bytes_max: int, kept: Kept
    ) -> RecordBlock | None:
        """The same on the loop thread: None if it would have to wait for the disk, open a file, or take long."""
        try:
            return self.read_block(entries, start, count_max=count_max, bytes_max=bytes_max, kept=kept, wait=False)
        except (_NotNow, OSError):  # the pool tells what is wrong
            return None

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

    def read_timers(self, timer_ids: Sequence[int], bytes_max: int, log_end: int) -> list[StoredTimer | None]:
        """Timers by their log offsets, in the order given, until they have `bytes_max` of payload; the last one may
        pass it. As many results as were read; None where no whole timer is, and from `log_end` on.
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
        """`size` bytes from `log_offset` on, more if its frame is larger; none if there is no such file."""
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

    def _in_order(
        self, entries: Entries, start: int, count_max: int, bytes_max: int, *, wait: bool
    ) -> ReadResult:  # fmt: skip
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
        """The entries as they are kept, from files and from memory."""
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
        """False if the file is too short. Raises _NotNow."""
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
        self, entries: Entries, offsets: Sequence[int], places: list[Place], messages: list[StoredMessage],
        buffer: ReadBuffer, *, wait: bool,
    ) -> None:  # fmt: skip
        """Add to `messages` the next ones: as many as lie in one file and fit into the buffer, at least one."""
        first = len(messages)
        log_offset, size, _ = places[first]
        start, _ = segment_of(log_offset, self.segment_bytes)
        equal = self._equal_sizes(places, first, start + self.segment_bytes) if isinstance(offsets, range) else []
        if equal:
            layout = buffer.layout(size)
            if equal[-1][0] - log_offset == (len(equal) - 1) * size:  # one behind the other
                positions, rooms = [log_offset - start], [(buffer.view[: len(equal) * size],)]
            else:
                positions, rooms = [position - start for position, _, _ in equal], layout.rooms[: len(equal)]
            whole = self._read_each(path_of(start), positions, rooms, wait=wait)
            queue = entries.topic_id, entries.queue_id
            if whole and buffer.parse_equal_sizes(layout, *queue, offsets[first], equal, messages):
                return
        else:
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
            raise _NotNow  # the pool tells what is wrong
        self._missing(entries, offsets[len(messages)], places[len(messages)])

    def _equal_sizes(self, places: list[Place], first: int, limit: int) -> list[Place]:
        """The next ones if they have one size, lie in one file, and either one behind the other or far apart."""
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
        """What to read in one go: pieces of the file at `start`, where in them the frames begin, and their size. One
        piece for frames that lie so near each other that reading what is between them costs less than a call.
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
                frame_at(file.pread(size, position), 0, log_offset)  # says so if the version is unknown
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
    """How many of the first ones have at most `bytes_max` of payload; at least one."""
    payloads = accumulate([size - HEADER_BYTES for _, size, _ in places])
    return max(1, bisect_right(list(payloads), bytes_max))
