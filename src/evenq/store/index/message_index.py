"""Finds messages by key: an index of key hashes over the log, in memory for its newest part and in files for the rest.

Problem: a user looks for the messages of one key, such as an order number, among days of messages (CL-6, CL-14). The
append path must not pay for that, and a crash must not make the index hide messages or show ones that are gone.

Idea: the index reads the log back, on a thread of its own and in steps of about a millisecond (`index_follower` drives
it from the loop). The log is divided into blocks of 64 MiB. The block that is being read is in memory: pairs of key
hash and log offset. A block that the log has passed is sealed; once the log is synced up to its end, it is written to a
file of sorted pages (`index_file`). Following, catching up after a restart, and rebuilding are the same code.

Example: log files have 1 GiB, and the log ends at log offset 1,210,000,000. Its second file begins at 1,073,741,824 and
has three blocks so far: those at 1,073,741,824 and 1,140,850,688 have index files, the one at 1,207,959,552 is in
memory. `find` looks into the block in memory first and then into the files, newest first, with about one read of
12 KiB per file. It reads each candidate from the log and compares its keys with the wanted one.

Invariants:
- Index files are a pure function of the log (CL-15): a missing or damaged file is built again from its block.
- A file exists only for a block up to whose end the log is synced: no power loss leaves a file of lost messages.
- Blocks are counted from the start of their log file, so retention deletes a log file together with its index files.
- Every block that was read is in exactly one place: a file, `_sealed`, or `_damaged`; `_block` is the one in work.
- Messages before `position` are found, except those after damage in the same log file, and those whose keys the
  owner's function could not read.

References: CL-6, CL-14, CL-15; decision record 11 (the message index reads the log back);
docs/internals/data_files.md.
"""

from __future__ import annotations

import logging
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from evenq.errors import StoreCorrupted, StoreError, TooManyRequests
from evenq.runtime.failpoints import passing
from evenq.store.index import index_file
from evenq.store.index.index_file import PAGE_ENTRIES, Damaged, IndexFile, key_hash, pack_page
from evenq.store.io.descriptors import NO_FILES
from evenq.store.io.disk import Disk
from evenq.store.io.files import ReadFiles
from evenq.store.log import segment
from evenq.store.log.commit_log import shortage
from evenq.store.log.messages import StoredMessage
from evenq.store.log.record import (
    FRAME_FIELDS,
    HEADER_BYTES,
    MAGIC,
    MESSAGE,
    VERSION,
    frame_at,
    kind_at,
    message_of,
    size_at,
)

log = logging.getLogger(__name__)

BLOCK_BYTES: Final = 64 << 20  # of log for one file; the last block of a segment, and a smaller segment, may have less
PIECE_FRAMES: Final = 256  # for one step, about a millisecond
PIECE_BYTES: Final = 512 << 10
GLANCE_BYTES: Final = 4 << 10  # read after a frame that was passed over: the next one is often as large, and not needed
BUCKETS: Final = 256
BUCKETS_A_STEP: Final = 16  # sorted in one step, about a millisecond for a full block of small messages
BUCKET_SHIFT: Final = 56
SEALED_MAX: Final = 4  # blocks that wait in memory for a sync or for space on the disk
MESSAGE_GUESS_BYTES: Final = 4096  # of the first read of a message
_WANTED: Final = frozenset(
    {
        "total size",
        "magic",
        "version",
        "kind",
        "topic id",
        "log offset",
        "store ms",
        "head length",
        "system length",
    }
)
_GLANCE: Final = struct.Struct(
    ">" + "".join(field.letter if field.name in _WANTED else f"{field.size}x" for field in FRAME_FIELDS)
)

KeysOf = Callable[[bytes, bytes], Iterable[bytes]]
"""Returns the keys of a message, given its head and system. Called on the index's thread."""


@dataclass(frozen=True, slots=True)
class Span:
    """The log as the loop sees it: its range, and how much of it is synced."""

    start: int
    end: int
    synced_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexQuery:
    """Parameters of `MessageStore.find`."""

    topic_id: int
    key: bytes
    begin_ms: int
    end_ms: int
    count_max: int
    bytes_max: int


class IndexBlock:
    """Entries of one block of the log in memory: hash, log offset, hash, log offset, ... in buckets by hash."""

    __slots__ = ("block_start", "buckets", "end", "first_store_ms", "last_store_ms", "log_end", "log_start")

    def __init__(self, block_start: int, end: int, log_start: int) -> None:
        self.block_start = block_start
        self.end = end
        self.log_start = self.log_end = log_start
        self.first_store_ms = self.last_store_ms = -1
        self.buckets = [array("Q") for _ in range(BUCKETS)]

    def header(self) -> IndexFile:
        count = sum(map(len, self.buckets)) // 2
        times = (self.first_store_ms, self.last_store_ms)
        return IndexFile(count, self.block_start, self.log_start, self.log_end, *times)

    def lookup(self, key: int) -> Iterator[int]:
        bucket = self.buckets[key >> BUCKET_SHIFT]
        for index in range(len(bucket) - 2, -1, -2):
            if bucket[index] == key:
                yield bucket[index + 1]

    def pack(self, pages: list[bytes]) -> Iterator[None]:
        """Fills `pages`, a few buckets at a time: sorting a whole block would hold the interpreter for too long."""
        rest: array[int] = array("Q")
        page_numbers = 2 * PAGE_ENTRIES
        for number, bucket in enumerate(self.buckets):
            hashes, offsets = bucket[::2], bucket[1::2]
            for index in sorted(range(len(hashes)), key=hashes.__getitem__):  # stable, and offsets rise already
                rest.append(hashes[index])
                rest.append(offsets[index])
            whole = len(rest) - len(rest) % page_numbers
            cuts = range(0, whole, page_numbers)
            pages += [pack_page(self.block_start, rest[first : first + page_numbers]) for first in cuts]
            del rest[:whole]
            if number % BUCKETS_A_STEP == BUCKETS_A_STEP - 1:
                yield
        if rest:
            pages.append(pack_page(self.block_start, rest))


class MessageIndex:
    """The index of one store, on its own thread."""

    def __init__(
        self,
        disk: Disk,
        files: ReadFiles,
        *,
        segment_bytes: int,
        keys_of: KeysOf,
        min_offset: Callable[[int, int], int],
    ) -> None:
        """`min_offset` maps (topic id, queue id) to the first offset shown. Called on the index's thread."""
        self._disk = disk
        self._files = files
        self._segment_bytes = segment_bytes
        self._keys_of = keys_of
        self._min_offset = min_offset
        self._filed: dict[int, IndexFile] = {}
        """Block start to the header of its file."""
        self._sealed: list[IndexBlock] = []
        """Blocks that the log has passed and that have no file yet, oldest first; at most SEALED_MAX + 1."""
        self._damaged: list[IndexBlock] = []
        """Parts of blocks before a damaged place; they get no file while the log is damaged there."""
        self._block = IndexBlock(0, 0, 0)
        """The block that is being read: `position` lies in it."""
        self._packing: Iterator[None] | None = None
        """Remaining steps that file `_sealed[0]`; None between two blocks."""
        self._held = False
        """A file could not be written: none is written before `retry`."""
        self._said = ""
        """The last failure that was logged, so that its repetitions are not."""
        self._keys_failed = False
        """The owner's function failed before, which was logged."""
        self._rebuilt: set[int] = set()
        """Starts of blocks that a `find` had rebuilt: if one fails again, the log is damaged and not the file."""
        self._passed_over = False
        """The frame before `position` was larger than what was read of it."""
        self._log_start = 0
        """Start of the log: no block lies before it."""
        self.position = 0
        """Log offset up to which the log is indexed."""
        self.failures = 0
        """Number of files and parts of the log that could not be read or written."""

    @property
    def file_count(self) -> int:
        return len(self._filed)

    def load(self, log_start: int, log_end: int) -> None:
        """Loads the existing files. Raises StoreError for an unknown version."""
        for header in index_file.load_all(self._disk, log_start=log_start, log_end=log_end):
            self._filed[header.block_start] = header
        self._log_start = log_start
        self._begin(log_start, log_start)

    def step(self, span: Span) -> bool:
        """Does about a millisecond of work; returns False if there is none now. The caller logs errors."""
        if span.start > self._log_start:
            self.drop_before(span.start)
        sealed = self._sealed
        # Case: the oldest sealed block is synced, so its file is packed or written.
        if sealed and not self._held and sealed[0].log_end <= span.synced_end:
            self._file_piece(sealed[0])
            return True
        # Case: too many blocks wait for a sync or a write, so nothing more is read.
        if len(sealed) > SEALED_MAX:
            return False
        if self.position >= self._block.end:
            self._seal()
        elif self.position >= span.end:
            return False
        else:
            self._read_piece(span)
        return True

    def file_whole_blocks(self, span: Span, files: ReadFiles, *, blocks_max: int) -> Iterator[None]:
        """Yields after each step that files the next blocks that end in `span`, all synced, with the log of `files`."""
        self._files = files
        self.retry()
        most = len(self._filed) + blocks_max
        while (self._sealed or (self.has_whole_block(span) and len(self._filed) < most)) and not self._held:
            if not self.step(span):
                return
            yield

    def has_whole_block(self, span: Span) -> bool:
        """Whether the block that is being read ends in `span`."""
        return self._block.end <= span.end

    @property
    def is_held(self) -> bool:
        """Whether the last file could not be written."""
        return self._held

    def retry(self) -> None:
        """Allows writing files again after a failure."""
        self._held = False

    def drop_before(self, log_offset: int) -> None:
        """Drops all blocks before `log_offset`, the start of a segment: the log before it is gone."""
        self._log_start = log_offset
        gone = [start for start in self._filed if start < log_offset]
        for start in gone:
            self._remove(self._filed[start])
        if gone:
            self._disk.sync_folder(index_file.FOLDER)
        self._sealed = [block for block in self._sealed if block.block_start >= log_offset]
        self._damaged = [block for block in self._damaged if block.block_start >= log_offset]
        self._packing = None
        if self._block.block_start < log_offset:
            self._begin(log_offset, log_offset)

    def _begin(self, start: int, position: int) -> None:
        """Continues with the block at `start`, whose first frame is at `position`; skips blocks that have files."""
        while (header := self._filed.get(start)) is not None:
            if header.log_start != position:  # case: a file of another log, since files were exchanged
                self._forget(header, "it is not of this log")
                break
            position = header.log_end
            start = self._block_end(start)
        self.position = position
        self._block = IndexBlock(start, self._block_end(start), position)

    def _block_end(self, start: int) -> int:
        """Returns the end of a block. Blocks are counted from the start of their segment and deleted with it."""
        _, position = segment.segment_of(start, self._segment_bytes)
        return start + min(BLOCK_BYTES, self._segment_bytes - position)

    def _seal(self) -> None:
        block = self._block
        block.log_end = self.position
        self._sealed.append(block)
        self._begin(block.end, self.position)

    def _read_piece(self, span: Span) -> None:
        """Takes some frames at `position`, all of one block."""
        start, position = segment.segment_of(self.position, self._segment_bytes)
        segment_end = start + self._segment_bytes
        if segment_end - self.position < HEADER_BYTES:  # case: a rest of the segment that is too short for a header
            self.position = segment_end
            return
        size = min(GLANCE_BYTES if self._passed_over else PIECE_BYTES, min(span.end, segment_end) - self.position)
        with self._files.using(segment.path_of(start)) as file:
            data = file.pread(size, position)
            claimed = size_at(data, 0)
            if len(data) < claimed <= self._segment_bytes and kind_at(data) == MESSAGE:
                data = file.pread(claimed, position)
        taken = self._take(data, self.position)
        self._passed_over = taken > len(data)
        if taken == 0:
            self._skip_damage(segment_end)
        self.position += taken

    def _take(self, data: bytes, base: int) -> int:
        """Enters whole frames from the start of `data`; returns the bytes passed, 0 without a whole frame."""
        block = self._block
        buckets = block.buckets
        keys_of = self._keys_of
        glance = _GLANCE.unpack_from
        store_ms = -1
        at = 0
        end = min(len(data) - HEADER_BYTES, block.end - base - 1)
        for _ in range(PIECE_FRAMES):
            if at > end:
                break
            size, magic, version, kind, topic_id, log_offset, stored, head_length, system_length = glance(data, at)
            if magic != MAGIC or log_offset != base + at or version != VERSION or size < HEADER_BYTES:
                break
            if kind == MESSAGE:
                head_end = at + HEADER_BYTES + head_length
                if at + size > len(data) or head_end + system_length != at + size:
                    break
                store_ms = stored
                if block.first_store_ms < 0:
                    block.first_store_ms = stored
                try:
                    for key in keys_of(data[head_end - head_length : head_end], data[head_end : at + size]):
                        number = key_hash(topic_id, key)
                        bucket = buckets[number >> BUCKET_SHIFT]
                        bucket.append(number)
                        bucket.append(log_offset)
                except Exception as error:  # noqa: BLE001  # the owner's code: better one message without keys than no index
                    self._keyless(log_offset, error)
            at += size  # also of a padding: then this is the end of the segment
        block.last_store_ms = max(store_ms, block.last_store_ms)
        return at

    def _keyless(self, log_offset: int, error: Exception) -> None:
        if self._keys_failed:
            self.failures += 1
        else:  # logged once: a mistake there would fill the log
            self._failed(f"the keys of messages cannot be read, first at log offset {log_offset}: {error!r}")
        self._keys_failed = True

    def _skip_damage(self, segment_end: int) -> None:
        """Continues at the next segment: frames give the place of the next one, so the rest of this one is lost."""
        self._failed(
            f"{self._disk.describe(segment.path_of(segment_end - self._segment_bytes))} is damaged at log offset "
            f"{self.position}: the messages behind it in this file are not found by key; restore it from a copy"
        )
        self._damaged.append(self._block)
        self._begin(segment_end, segment_end)

    def _file_piece(self, block: IndexBlock) -> None:
        """Packs a part of a block, or writes it when it is packed."""
        if self._packing is None:
            self._packing = self._filing(block)
        if next(self._packing, self) is self:
            self._packing = None

    def _filing(self, block: IndexBlock) -> Iterator[None]:
        pages: list[bytes] = []
        yield from block.pack(pages)
        header = block.header()
        try:
            index_file.write(self._disk, header, pages)
        except OSError as error:
            self._held = True
            self._failed(f"{self._disk.describe(header.path)} cannot be written, trying again later: {error}")
            return
        self._filed[block.block_start] = header
        self._sealed.remove(block)

    def _forget(self, header: IndexFile, why: str) -> None:
        """Removes a useless file; its block is built again from the log."""
        self._failed(f"{self._disk.describe(header.path)} is rebuilt: {why}")
        self._remove(header)

    def _remove(self, header: IndexFile) -> None:
        self._filed.pop(header.block_start, None)
        self._files.forget(header.path)
        passing("index.removing")
        self._disk.remove(header.path)

    def _failed(self, what: str) -> None:
        """Logs each reason once: writes are tried again twice a second, and a disk may be full for days."""
        self.failures += 1
        if what != self._said:
            self._said = what
            log.warning("message index: %s", what)

    def find(self, query: IndexQuery, span: Span) -> list[StoredMessage] | None:
        """See `MessageStore.find`; None if `span` is not all indexed (any more): follow, then try again."""
        if self.position < span.end:
            return None
        messages: list[StoredMessage] = []
        space = query.bytes_max
        key = key_hash(query.topic_id, query.key)
        before = -1
        for part in self._parts(query):
            try:
                for log_offset in self._offsets(part, key):
                    if log_offset == before or not span.start <= log_offset < span.end:
                        continue  # one message may name a key twice
                    before = log_offset
                    message = self._message(log_offset, span)
                    if message is None or message.store_ms > query.end_ms:
                        continue
                    if message.store_ms < query.begin_ms:  # store times never fall along the log
                        return messages
                    if not self._fits(message, query):
                        continue
                    space -= len(message.head) + len(message.system)
                    if space < 0 and messages:
                        return messages
                    messages.append(message)
                    if len(messages) >= query.count_max:
                        return messages
            except (Damaged, OSError, StoreCorrupted) as error:
                if isinstance(error, OSError) and error.errno in NO_FILES:
                    raise TooManyRequests(f"messages cannot be looked up now: {shortage(error)}; try again") from error
                # The file or the log may be at fault: once the file was rebuilt, it is the log.
                again = isinstance(error, StoreCorrupted) and part.block_start in self._rebuilt
                if again or not isinstance(part, IndexFile):
                    raise
                self._rebuild(part, str(error))
                return None
        return messages

    def _parts(self, query: IndexQuery) -> list[IndexBlock | IndexFile]:
        """Returns the parts that may hold messages of that time, the newest first."""
        filed = [
            header
            for header in self._filed.values()
            if header.entry_count and header.first_store_ms <= query.end_ms and header.last_store_ms >= query.begin_ms
        ]
        parts: list[IndexBlock | IndexFile] = [self._block, *self._sealed, *self._damaged, *filed]
        return sorted(parts, key=lambda part: part.block_start, reverse=True)

    def _offsets(self, part: IndexBlock | IndexFile, key: int) -> Iterator[int]:
        if isinstance(part, IndexBlock):
            yield from part.lookup(key)
            return
        with self._files.using(part.path) as file:
            yield from index_file.lookup(file, part, key)

    def _rebuild(self, header: IndexFile, why: str) -> None:
        """Goes back to that block. Blocks in memory are read again too, which is rare."""
        self._forget(header, why)
        self._rebuilt.add(header.block_start)
        self._sealed.clear()
        self._damaged = [block for block in self._damaged if block.block_start < header.block_start]
        self._packing = None
        self._begin(header.block_start, header.log_start)

    def _message(self, log_offset: int, span: Span) -> StoredMessage | None:
        start, position = segment.segment_of(log_offset, self._segment_bytes)
        path = segment.path_of(start)
        try:
            with self._files.using(path) as file:
                data = file.pread(min(MESSAGE_GUESS_BYTES, span.end - log_offset), position)
                size = size_at(data, 0)
                if len(data) < size <= self._segment_bytes:
                    data = file.pread(size, position)
        except FileNotFoundError:
            return None  # retention deleted it in the meantime
        except OSError as error:
            if error.errno in NO_FILES:
                raise TooManyRequests(f"messages cannot be looked up now: {shortage(error)}; try again") from error
            text = f"reading {self._disk.describe(path)} at {log_offset} failed: {error}"
            raise StoreCorrupted(text, log_offset=log_offset) from error
        frame = frame_at(data, 0, log_offset)
        if frame is None or frame.kind != MESSAGE:
            raise StoreCorrupted(
                f"{self._disk.describe(path)} holds no message at log offset {log_offset}, where the message index has "
                "one: stop the broker and delete its index folder to have it built again; if it fails again, restore "
                "the log from a copy",
                log_offset=log_offset,
            )
        return message_of(frame)

    def _fits(self, message: StoredMessage, query: IndexQuery) -> bool:
        """Whether a message has the wanted key: another key may have the same hash."""
        if message.topic_id != query.topic_id or message.queue_offset < self._min_offset(
            message.topic_id, message.queue_id
        ):
            return False
        try:
            return query.key in self._keys_of(message.head, message.system)
        except Exception as error:  # the owner's code
            raise StoreError(f"the keys of the message at log offset {message.log_offset} cannot be read") from error
