"""Finds messages by key: follows the log, keeps the newest block in memory, files each block that the log has passed
(CL-6, CL-14).

All of it runs on one thread, the index's own, in short steps; `index_follower` drives it from the loop. It reads the
log back, so the append path knows nothing of it, and following, catching up after a restart and rebuilding are one
code: the files are a pure function of the log (CL-15). A block is filed when the log is synced behind it, so no power
loss leaves a file of messages that are gone. A file that is missing or damaged is built again from its block.
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

__all__ = ["BLOCK_BYTES", "IndexQuery", "KeysOf", "MessageIndex", "Span"]

log = logging.getLogger(__name__)

BLOCK_BYTES: Final = 64 << 20  # of log for one file; the last block of a segment, and a smaller segment, may have less
PIECE_FRAMES: Final = 256  # for one step, about a millisecond
PIECE_BYTES: Final = 512 << 10
GLANCE_BYTES: Final = 4 << 10  # behind a frame that was passed over: the next one is often as large, and of no use
BUCKETS: Final = 256
BUCKETS_A_STEP: Final = 16  # sorted in one step, about a millisecond for a full block of small messages
BUCKET_SHIFT: Final = 56
SEALED_MAX: Final = 4  # blocks that wait in memory for a sync or for room on the disk
MESSAGE_GUESS_BYTES: Final = 4096  # read at once for one message
_WANTED: Final = frozenset({
    "total size", "magic", "version", "kind", "topic id", "log offset", "store ms", "head length", "system length",
})  # fmt: skip
_GLANCE: Final = struct.Struct(
    ">" + "".join(field.letter if field.name in _WANTED else f"{field.size}x" for field in FRAME_FIELDS)
)

KeysOf = Callable[[bytes, bytes], Iterable[bytes]]
"""Head and system of a message to the keys it is found by. Called on the index's thread."""


@dataclass(frozen=True, slots=True)
class Span:
    """The log as the loop knows it: what there is, and what of it is synced."""

    start: int
    end: int
    synced_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexQuery:
    """What `MessageStore.find` was asked."""

    topic_id: int
    key: bytes
    begin_ms: int
    end_ms: int
    count_max: int
    bytes_max: int


class IndexBlock:
    """The entries of one block of the log, in memory: hash, log offset, hash, log offset, ... in buckets by hash."""

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
        """Like `index_file.lookup`."""
        bucket = self.buckets[key >> BUCKET_SHIFT]
        for index in range(len(bucket) - 2, -1, -2):
            if bucket[index] == key:
                yield bucket[index + 1]

    def pack(self, pages: list[bytes]) -> Iterator[None]:
        """Fill `pages`, a few buckets at a time: sorting a whole block at once would hold the interpreter for long."""
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
        """`min_offset`: of (topic id, queue id); older messages are not shown. Called on the index's thread."""
        self._disk = disk
        self._files = files
        self._segment_bytes = segment_bytes
        self._keys_of = keys_of
        self._min_offset = min_offset
        self._filed: dict[int, IndexFile] = {}
        self._sealed: list[IndexBlock] = []
        self._damaged: list[IndexBlock] = []
        """What was read before a damaged place, of blocks that get no file while the log is damaged there."""
        self._block = IndexBlock(0, 0, 0)
        self._packing: Iterator[None] | None = None
        self._held = False
        self._said = ""
        self._keys_failed = False
        self._rebuilt: set[int] = set()
        self._passed_over = False
        """The frame before `position` was larger than what was read of it."""
        self._log_start = 0
        self.position = 0
        """The messages before this log offset are found."""
        self.failures = 0
        """Files and parts of the log that could not be read or written."""

    @property
    def file_count(self) -> int:
        return len(self._filed)

    def load(self, log_start: int, log_end: int) -> None:
        """Take the files there are. Raises StoreError for a version that this program does not know."""
        for header in index_file.load_all(self._disk, log_start=log_start, log_end=log_end):
            self._filed[header.block_start] = header
        self._log_start = log_start
        self._begin(log_start, log_start)

    # -- following ----------------------------------------------------------------------------------------------------

    def step(self, span: Span) -> bool:
        """Do about a millisecond's work; False if there is none for now. Errors are for the caller to log."""
        if span.start > self._log_start:
            self.drop_before(span.start)
        sealed = self._sealed
        if sealed and not self._held and sealed[0].log_end <= span.synced_end:
            self._file_piece(sealed[0])
            return True
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
        """Steps that file the next blocks which end in `span`, all of it synced, and read nothing of the one behind.
        `files` is what the log is read through.
        """
        self._files = files
        self.retry()
        most = len(self._filed) + blocks_max
        while (self._sealed or (self.has_whole_block(span) and len(self._filed) < most)) and not self._held:
            if not self.step(span):
                return
            yield

    def has_whole_block(self, span: Span) -> bool:
        """Whether the block that is read next ends there."""
        return self._block.end <= span.end

    @property
    def is_held(self) -> bool:
        """Whether the last file could not be written."""
        return self._held

    def retry(self) -> None:
        """Try again to write files if it failed before."""
        self._held = False

    @property
    def waits_for_sync(self) -> bool:
        """It cannot go on before the log is synced further, or a failed write is tried again."""
        return len(self._sealed) > SEALED_MAX

    def drop_before(self, log_offset: int) -> None:
        """The log before `log_offset`, the start of a segment, is gone."""
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
        """Go on with the block at `start`, whose first frame is at `position`; pass the blocks that have files."""
        while (header := self._filed.get(start)) is not None:
            if header.log_start != position:  # of another log: files were exchanged
                self._forget(header, "it is not of this log")
                break
            position = header.log_end
            start = self._block_end(start)
        self.position = position
        self._block = IndexBlock(start, self._block_end(start), position)

    def _block_end(self, start: int) -> int:
        """Blocks are counted from the start of their segment, so that a segment goes with its blocks."""
        _, position = segment.segment_of(start, self._segment_bytes)
        return start + min(BLOCK_BYTES, self._segment_bytes - position)

    def _seal(self) -> None:
        block = self._block
        block.log_end = self.position
        self._sealed.append(block)
        self._begin(block.end, self.position)

    def _read_piece(self, span: Span) -> None:
        """Take some frames at `position`, all of one block."""
        start, position = segment.segment_of(self.position, self._segment_bytes)
        segment_end = start + self._segment_bytes
        if segment_end - self.position < HEADER_BYTES:
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
        """Enter whole frames from the start of `data`; bytes passed, 0 if there is none."""
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
                except Exception as error:  # noqa: BLE001  # the owner's code: rather one message without keys than no index
                    self._keyless(log_offset, error)
            at += size  # of padding too: then this is the end of the segment
        block.last_store_ms = max(store_ms, block.last_store_ms)
        return at

    def _keyless(self, log_offset: int, error: Exception) -> None:
        if self._keys_failed:
            self.failures += 1
        else:  # said once: a mistake there would fill the log
            self._failed(f"the keys of messages cannot be read, first at log offset {log_offset}: {error!r}")
        self._keys_failed = True

    def _skip_damage(self, segment_end: int) -> None:
        """Frames name the next one's place, so what follows in this segment is not found; the next one begins anew."""
        self._failed(
            f"{self._disk.describe(segment.path_of(segment_end - self._segment_bytes))} is damaged at log offset "
            f"{self.position}: the messages behind it in this file are not found by key; restore it from a copy"
        )
        self._damaged.append(self._block)
        self._begin(segment_end, segment_end)

    # -- files --------------------------------------------------------------------------------------------------------

    def _file_piece(self, block: IndexBlock) -> None:
        """Pack a part of a block, or write it when it is packed."""
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
        """A file is of no use: build it again from the log."""
        self._failed(f"{self._disk.describe(header.path)} is built anew: {why}")
        self._remove(header)

    def _remove(self, header: IndexFile) -> None:
        self._filed.pop(header.block_start, None)
        self._files.forget(header.path)
        passing("index.removing")
        self._disk.remove(header.path)

    def _failed(self, what: str) -> None:
        """Once for each reason: it is tried again twice a second, and a disk may be full for days."""
        self.failures += 1
        if what != self._said:
            self._said = what
            log.warning("message index: %s", what)

    # -- lookup -------------------------------------------------------------------------------------------------------

    def find(self, query: IndexQuery, span: Span) -> list[StoredMessage] | None:
        """See `MessageStore.find`. None: not all of `span` is indexed (any more); follow, then try again.

        Raises StoreCorrupted if a message that was found is damaged.
        """
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
                    raise TooManyRequests(f"messages cannot be looked up now: {shortage(error)}; ask again") from error
                # A file that points at no message may be at fault, or the log: once built anew, it is the log.
                again = isinstance(error, StoreCorrupted) and part.block_start in self._rebuilt
                if again or not isinstance(part, IndexFile):
                    raise
                self._rebuild(part, str(error))
                return None
        return messages

    def _parts(self, query: IndexQuery) -> list[IndexBlock | IndexFile]:
        """What may hold messages of that time, the newest first."""
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
        """Go back to that block. Blocks in memory are read again too: this is rare."""
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
            return None  # retention took it meanwhile
        except OSError as error:
            if error.errno in NO_FILES:
                raise TooManyRequests(f"messages cannot be looked up now: {shortage(error)}; ask again") from error
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
        """Whether it is really what was asked for: the hash of another key may be the same."""
        if message.topic_id != query.topic_id or message.queue_offset < self._min_offset(
            message.topic_id, message.queue_id
        ):
            return False
        try:
            return query.key in self._keys_of(message.head, message.system)
        except Exception as error:  # the owner's code
            raise StoreError(f"the keys of the message at log offset {message.log_offset} cannot be read") from error
