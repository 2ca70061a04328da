"""The reads of one open store: from memory, from the page cache on the loop, else on the read pool.

`MessageStore` calls this on the loop. What runs on the pool is `LogReader`'s, over a copy of what it needs of a queue.
A file that retention took meanwhile is no error: the read begins again, from the queue's new minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from evenq.errors import StoreCorrupted, TooManyRequests
from evenq.store import reader
from evenq.store.commit_log import shortage
from evenq.store.consume_queue import ConsumeQueue
from evenq.store.descriptors import NO_FILES
from evenq.store.disk import Disk
from evenq.store.jobs import Jobs
from evenq.store.messages import ReadResult, StoredMessage, StoredTimer
from evenq.store.options import StoreStats
from evenq.store.reader import Entries, LogReader, TagHashes
from evenq.store.record_blocks import Kept, RecordBlock

__all__ = ["QueueReads"]

T = TypeVar("T")


class QueueReads:
    """By topic id, queue id and queue offset; what the methods promise stands in `MessageStore`."""

    def __init__(
        self, disk: Disk, read_by: LogReader, queues: dict[tuple[int, int], ConsumeQueue], stats: StoreStats, *,
        threads: int,
    ) -> None:  # fmt: skip
        self._disk = disk
        self._reader = read_by
        self._queues = queues
        self._stats = stats
        self.jobs = Jobs(threads=threads, name="evenq-store-read", threaded=disk.blocks)

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
            result = await self._cold(queue, partial(read, entries, first))
            if result is not None:
                return result

    async def block(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int, kept: Kept
    ) -> RecordBlock:
        """From files also where the messages are in memory: what is consumable has been written, and there it is in one
        piece.
        """
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
            result = await self._cold(queue, read)
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
                    messages = await self._cold(queue, partial(self._reader.read_at, entries, cold))
            if messages is not None:
                by_offset.update((message.queue_offset, message) for message in messages)
                return [message for message in map(by_offset.get, held) if message is not None]

    async def offset_at(self, topic_id: int, queue_id: int, timestamp_ms: int) -> int:
        queue = self._queues.get((topic_id, queue_id))
        while queue is not None and queue.min_offset < queue.max_offset:
            entries = Entries.of(queue, queue.min_offset, queue.max_offset)
            offset = await self._cold(queue, partial(self._reader.offset_at, entries, timestamp_ms))
            if offset is not None:
                return offset
        return queue.max_offset if queue is not None else 0

    async def timers(self, timer_ids: Sequence[int], bytes_max: int) -> list[StoredTimer | None]:
        log_end = self._stats.log_end  # behind it nothing is safe, even if the file has it
        return await self.jobs.run(lambda: self._reader.read_timers(timer_ids, bytes_max, log_end))

    async def _cold(self, queue: ConsumeQueue, job: Callable[[], T]) -> T | None:
        """Read on the pool; None if retention took what was asked for meanwhile: ask from the new minimum."""
        self._stats.cold_reads += 1
        minimum = queue.min_offset
        try:
            return await self.jobs.run(job)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and queue.min_offset > minimum:
                return None
            if error.errno in NO_FILES:
                raise TooManyRequests(f"this cannot be read now: {shortage(error)}; read again") from error
            where = self._disk.describe(str(error.filename or ""))
            raise StoreCorrupted(
                f"{where} cannot be read ({error.strerror}): stop the broker and delete its consumequeue folder to "
                "rebuild it from the log; if it fails again, restore the log from a copy"
            ) from error
