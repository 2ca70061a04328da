"""The reads of one open store: from memory, from the page cache on the loop, otherwise on the read pool.

`MessageStore` calls this on the loop. `LogReader` runs on the pool, over a copy of what it needs of a queue. A file
that retention deleted in the meantime is not an error: the read begins again, from the queue's new minimum. So does a
read that met damage which `repairs` repaired, or whose entries were derived again from the log.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from evenq.errors import StoreCorrupted, StoreError, TooManyRequests
from evenq.store.io.descriptors import NO_FILES
from evenq.store.io.disk import Disk
from evenq.store.io.jobs import Jobs
from evenq.store.log import segment
from evenq.store.log.commit_log import shortage
from evenq.store.log.consume_queue import ENTRY, ENTRY_BYTES, ConsumeQueue, Filing, file_at, folder_of
from evenq.store.log.log_damage import Repairs, read_tolerant
from evenq.store.log.messages import ReadResult, StoredMessage, StoredTimer
from evenq.store.log.options import StoreStats
from evenq.store.log.record import HEADER, HEADER_BYTES, MAGIC, MESSAGE, Header
from evenq.store.log.segment import path_of, segment_of
from evenq.store.queues import reader
from evenq.store.queues.reader import Entries, LogReader, TagHashes
from evenq.store.queues.record_blocks import Kept, RecordBlock

log = logging.getLogger(__name__)
T = TypeVar("T")
NEAR_MAX: Final = 4_096  # entries of one run
SPAN_MAX: Final = 1 << 30  # bytes of the log that are walked for one run
PIECE_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryCheck:
    """Finds consume queue entries in files that point at no message of their queue, and derives them from the log.

    Entries are a pure function of the log, so no copy is needed. Each entry is compared with the record that it points
    at; a run of wrong ones is derived from the records between its nearest good neighbours. Blocks on the disk; the
    caller has the result written (`consume_queue.write_files`) by the thread that owns these files.

    Entries `start` .. `stop` of one queue, of which those from `low` to `high` are in files.
    """

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


class QueueReads:
    """Reads by topic id, queue id and queue offset; `MessageStore` documents the methods."""

    def __init__(
        self,
        disk: Disk,
        read_by: LogReader,
        queues: dict[tuple[int, int], ConsumeQueue],
        stats: StoreStats,
        *,
        threads: int,
    ) -> None:
        self._disk = disk
        self._reader = read_by
        self._queues = queues
        self._stats = stats
        self.jobs = Jobs(threads=threads, name="evenq-store-read", threaded=disk.blocks)
        self.repairs: Repairs | None = None
        """Repairs of a log with copies; None: the reader gets the error of damage."""
        self.write_entries: Callable[[Filing], Awaitable[None]] | None = None
        """Writes entries to their files, by the thread that owns these. Raises Error, OSError."""
        self.damaged = 0
        """Reads that failed because bytes are damaged or cannot be read."""

    def hot(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int, tag_hashes: TagHashes
    ) -> ReadResult | None:
        queue = self._queues.get((topic_id, queue_id))
        if queue is None:
            return ReadResult([], start, 0, 0)
        return reader.hot(queue, start, count_max=count_max, bytes_max=bytes_max, tag_hashes=tag_hashes)

    async def read(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int, tag_hashes: TagHashes
    ) -> ReadResult:
        while True:
            result = self.hot(
                topic_id, queue_id, start, count_max=count_max, bytes_max=bytes_max, tag_hashes=tag_hashes
            )
            if result is not None:
                return result
            queue = self._queues[topic_id, queue_id]
            first = max(start, queue.min_offset)
            look = count_max if tag_hashes is None else reader.SCAN_MAX
            entries = Entries.of(queue, first, min(queue.max_offset, first + look))
            if self._disk.blocks and tag_hashes is None:
                result = self._reader.read_now(entries, first, count_max=count_max, bytes_max=bytes_max)
                if result is not None:
                    self._stats.cold_reads += 1
                    return result
            read = partial(self._reader.read, count_max=count_max, bytes_max=bytes_max, tag_hashes=tag_hashes)
            result = await self._cold(queue, partial(read, entries, first), first, first + look)
            if result is not None:
                return result

    async def block(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int, kept: Kept
    ) -> RecordBlock:
        """Reads from files even if the messages are in memory: what is consumable is written, and contiguous there."""
        while True:
            queue = self._queues.get((topic_id, queue_id))
            if queue is None:
                return RecordBlock(start, 0, 0)
            first = max(start, queue.min_offset)
            if first >= queue.max_offset:
                return RecordBlock(first, queue.min_offset, queue.max_offset)
            entries = Entries.of(queue, first, min(queue.max_offset, first + count_max))
            read = partial(self._reader.read_block, entries, first, count_max=count_max, bytes_max=bytes_max, kept=kept)
            if self._disk.blocks:
                now = self._reader.read_block_now(entries, first, count_max=count_max, bytes_max=bytes_max, kept=kept)
                if now is not None:
                    self._stats.cold_reads += 1
                    return now
            result = await self._cold(queue, read, first, first + count_max)
            if result is not None:
                return result

    async def at(self, topic_id: int, queue_id: int, offsets: Sequence[int]) -> list[StoredMessage]:
        queue = self._queues.get((topic_id, queue_id))
        if queue is None:
            return []
        while True:
            held = [offset for offset in offsets if queue.min_offset <= offset < queue.max_offset]
            by_offset = {offset: queue.hot[offset - queue.hot_base] for offset in held if offset >= queue.hot_start}
            cold = [offset for offset in held if offset not in by_offset]
            messages: list[StoredMessage] | None = []
            if cold:
                entries = Entries.of(queue, min(cold), max(cold) + 1)
                messages = self._reader.read_at_now(entries, cold) if self._disk.blocks else None
                if messages is not None:
                    self._stats.cold_reads += 1
                else:
                    read = partial(self._reader.read_at, entries, cold)
                    messages = await self._cold(queue, read, min(cold), max(cold) + 1)
            if messages is not None:
                by_offset.update((message.queue_offset, message) for message in messages)
                return [message for message in map(by_offset.get, held) if message is not None]

    async def offset_at(self, topic_id: int, queue_id: int, timestamp_ms: int) -> int:
        queue = self._queues.get((topic_id, queue_id))
        while queue is not None and queue.min_offset < queue.max_offset:
            entries = Entries.of(queue, queue.min_offset, queue.max_offset)
            look = partial(self._reader.offset_at, entries, timestamp_ms)
            offset = await self._cold(queue, look, queue.min_offset, queue.max_offset)
            if offset is not None:
                return offset
        return queue.max_offset if queue is not None else 0

    async def timers(self, timer_ids: Sequence[int], bytes_max: int) -> list[StoredTimer | None]:
        log_end = self._stats.log_end  # nothing after it is safe, even if the file has it
        seen = self.repairs.version if self.repairs is not None else 0
        read = partial(self._reader.read_timers, timer_ids, bytes_max, log_end)
        timers = await self.repairing(partial(self.jobs.run, read))
        for timer_id, timer in zip(timer_ids, timers, strict=False):
            if timer is None and timer_id < log_end and await self._is_repaired(timer_id, seen):
                return await self.jobs.run(read)
        return timers

    async def _is_repaired(self, timer_id: int, seen: int) -> bool:
        """Whether a timer was repaired. Where none is, there may never have been one, and nothing is damaged."""
        if self.repairs is None:
            return False
        error = StoreCorrupted(f"there is no whole timer at log offset {timer_id}", log_offset=timer_id)
        try:
            return await self.repairs.repair(error, seen)
        except StoreCorrupted as failure:
            log.warning("%s", failure.message)
            return False

    async def repairing(self, read: Callable[[], Awaitable[T]]) -> T:
        """Reads, and reads again each time that the damage was repaired. Raises StoreCorrupted."""
        while True:
            repairs = self.repairs
            seen = repairs.version if repairs is not None else 0
            try:
                return await read()
            except StoreCorrupted as error:
                if repairs is None or not await repairs.repair(error, seen):
                    raise

    async def _cold(self, queue: ConsumeQueue, job: Callable[[], T], start: int, stop: int) -> T | None:
        """Reads entries `start` .. `stop` and their messages on the pool. None means read again: retention deleted them
        in the meantime, so there is a new minimum, or damage was repaired.
        """
        self._stats.cold_reads += 1
        minimum = queue.min_offset
        seen = self.repairs.version if self.repairs is not None else 0
        try:
            return await self.jobs.run(job)
        except StoreCorrupted as error:
            damage = error
        except OSError as error:
            if isinstance(error, FileNotFoundError) and queue.min_offset > minimum:
                return None
            # Case: no file descriptor is left. Nothing is wrong with the log, so nothing is repaired or counted.
            if error.errno in NO_FILES:
                raise TooManyRequests(f"this cannot be read now: {shortage(error)}; read again") from error
            where = self._disk.describe(str(error.filename or ""))
            damage = StoreCorrupted(
                f"{where} cannot be read ({error.strerror}): stop the broker and delete its consumequeue folder to "
                "rebuild it from the log; if it fails again, restore the log from a copy"
            )
            damage.__cause__ = error
        try:
            if self.repairs is not None and await self._is_whole_now(self.repairs, damage, seen, queue, start, stop):
                return None
        except StoreCorrupted as error:
            damage = error
        self.damaged += 1
        raise damage

    async def _is_whole_now(
        self, repairs: Repairs, damage: StoreCorrupted, seen: int, queue: ConsumeQueue, start: int, stop: int
    ) -> bool:
        """Repairs the log first, since entries are derived from it. Raises StoreCorrupted."""
        check = EntryCheck(
            disk=self._disk,
            segment_bytes=self._reader.segment_bytes,
            topic_id=queue.topic_id,
            queue_id=queue.queue_id,
            start=start,
            stop=min(stop, start + reader.SCAN_MAX),
            low=queue.min_offset,
            high=queue.filed,
        )
        try:
            places = [damage.log_offset] if damage.log_offset >= 0 else await self.jobs.run(check.log_files)
            for place in places:
                if await repairs.repair(StoreCorrupted(damage.message, log_offset=place), seen):
                    return True
            wrong = await self.jobs.run(check.wrong) if self.write_entries is not None else []
            for right in wrong:
                assert self.write_entries is not None
                await self.write_entries(right)
        except StoreCorrupted:
            raise
        except (StoreError, OSError) as error:
            log.warning("entries of queue %d of topic %d stay damaged: %s", queue.queue_id, queue.topic_id, error)
            return False
        for right in wrong:
            log.warning(
                "entries of queue %d of topic %d from %d on were damaged and are derived again from the log",
                right.queue_id,
                right.topic_id,
                right.start,
                extra={"queue_offset": right.start},
            )
        return bool(wrong)
