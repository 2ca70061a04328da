"""The local engine (LQ-39 to LQ-70): one message store for all queues, and consume queues that point into it.

Problem: many producers share a disk, and one fsync for each message would limit them all. The order of each queue must
hold, and after a crash no entry of a consume queue may point to a message that is missing.

Idea: the store is one append-only log. Consume queues are an index that can be rebuilt from it. `put` has three steps:

- In the caller's thread, without a lock: pack the payload and compute its CRC-32 (LQ-73).
- Under `_lock`, briefly: assign store offset and queue offset, and append the bytes to the waiting chunks.
- Under `_write_lock`: the first producer that gets it writes the waiting bytes of all producers, syncs them in SYNC
  mode, and makes the messages readable. The others find their bytes written and return (LQ-72).

Example, SYNC: records of 155 bytes (49 fixed, name `orders` 6, body 100). While producer 1 writes bytes 0 to 155,
producers 2 and 3 place theirs at 155 and 310 and wait. Producer 2 then writes 155 to 465 with one write and one fsync.
Producer 3 finds `_written` at 465, the end of its record, and returns without a write.

Invariants:

- `indexed` <= `synced` <= `_written` <= `_next_position` after each flush: the store is synced before the consume
  queues.
- Messages become readable in the order of the store, after they are written.
- After a failed write no more messages are accepted: the content of the disk is unknown until the next start.
- Files are removed only below the `indexed` of the saved state, from which the next start reads.

A start reads the store from `indexed` on (`local_recovery`, LQ-46). An unfinished write after `synced` is cut; damage
before it is refused. References: decision 10; group commit: DeWitt et al., SIGMOD 1984.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from evenq.local import consume_queue, local_recovery
from evenq.local.consume_queue import LocalConsumeQueue
from evenq.local.engine import CLOSED, Engine
from evenq.local.messages import Message
from evenq.local.options import Flush, LocalOptions
from evenq.local.partitions import Partitions
from evenq.local.reading import GetResult
from evenq.local.records import HEADER_BYTES, check_size, filler, pack_local, pack_payload
from evenq.local.tail import QueueTail, Topic
from evenq.runtime.clock import Clock
from evenq.store.io.disk import Disk
from evenq.store.io.files import ReadFiles

STORE_FOLDER: Final = "messageStore"  # LQ-9


@dataclass(slots=True)
class _Chunk:
    """Bytes that wait to be written to one file."""

    position: int
    file_end: int
    parts: list[bytes] = field(default_factory=list)
    data_end: int = -1
    """End of the file's data, once the next file has begun."""


class LocalEngine(Engine):
    def __init__(self, disk: Disk, options: LocalOptions, clock: Clock, known: dict[str, Any]) -> None:
        super().__init__(options, clock)
        self.disk = disk
        self.files = ReadFiles(disk, options.files_open_max)
        self.store = Partitions(disk, STORE_FOLDER, options.file_bytes, self.files, hold=True)
        self.synced = int(known.get("synced", 0))
        """The store before this offset is surely on disk."""
        self.indexed = int(known.get("indexed", 0))
        """The consume queues have all messages before this store offset on disk."""
        self._removable = self.indexed
        """`indexed` of the saved state: older files are not needed for a start."""
        self._lock = threading.Lock()
        """Guards `_next_position`, `_chunks`, `_units` and the offsets of the queues. Held only briefly."""
        self._write_lock = threading.Lock()
        """Guards the writing and `_written`. Taken before `_lock`."""
        self.recovered, self._newest_indexed = local_recovery.recover(self, known)
        self._next_position = self._written = self.recovered.end
        self._chunks = [_Chunk(self._next_position, self.store.start_of(self._next_position) + options.file_bytes)]
        """Placed and unwritten bytes, one chunk per file; the last one ends at `_next_position`."""
        self._units: list[tuple[LocalConsumeQueue, list[Message], list[int]]] = []
        """Batches to make readable after the write, in the order of the store."""
        self._next_index_ms = clock.monotonic_ms()  # the first flush syncs all consume queues

    def _make_queue(self, topic: Topic, queue_id: int) -> LocalConsumeQueue:
        return LocalConsumeQueue(topic, queue_id, self.disk, self.options.entries_per_file, self.files)

    def put(self, queue: QueueTail, messages: list[Message], wait_ms: int = 0) -> None:  # noqa: ARG002  # never waits
        """Stores a batch without messages of other producers in between."""
        assert isinstance(queue, LocalConsumeQueue)
        payloads = [pack_payload(message) for message in messages]
        sizes = [HEADER_BYTES + len(payload) for payload in payloads]
        check_size(max(sizes), min(self.options.message_bytes_max, self.options.file_bytes))
        sums = [zlib.crc32(payload) for payload in payloads]
        with self._lock:
            self.check()
            try:
                end = self._place_all(queue, messages, payloads, sizes, sums)
                self._units.append((queue, messages, sizes))
            except BaseException as error:
                self.interrupted(error)
                raise
        with self._write_lock:
            if self._written < end:  # otherwise another producer wrote these bytes with its own
                self._write()

    def _place_all(
        self,
        queue: LocalConsumeQueue,
        messages: list[Message],
        payloads: list[bytes],
        sizes: list[int],
        sums: list[int],
    ) -> int:
        """Assigns offsets and adds the bytes to the waiting ones. Under the short lock."""
        position, offset, now = self._next_position, queue.next, self.clock.now_ms()
        chunk = self._chunks[-1]
        for message, payload, size, crc in zip(messages, payloads, sizes, sums, strict=True):
            if position + size > chunk.file_end:  # no record crosses the end of a file
                chunk.data_end = position
                position = chunk.file_end
                chunk = _Chunk(position, position + self.options.file_bytes)
                self._chunks.append(chunk)
            parts = chunk.parts
            message.offset, message.store_offset, message.stored_ms = offset, position, now
            parts.append(pack_local(message, payload, crc))
            parts.append(payload)
            offset += 1
            position += size
        queue.next = offset
        self._next_position = position
        return position

    def _write(self) -> None:
        """Writes the waiting bytes of all producers and makes the messages readable. Under the write lock."""
        self.check()
        try:
            with self._lock:
                chunks, units, target = self._chunks, self._units, self._next_position
                self._chunks, self._units = [_Chunk(target, chunks[-1].file_end)], []
            for chunk in chunks:
                if chunk.parts:
                    end = chunk.data_end if chunk.data_end >= 0 else target
                    self.store.write(chunk.position, chunk.parts, end - chunk.position)
                if 0 <= chunk.data_end < chunk.file_end:  # the file is full: filler up to its fixed size
                    self.store.fill(chunk.data_end, [filler(chunk.file_end - chunk.data_end)])
            if self.options.flush is Flush.SYNC:
                self.store.sync(self.store.take_unsynced())
                self.synced = target
            self._written = target
            for queue, messages, sizes in units:
                queue.add(messages, sizes)
                self.cache.publish(queue, messages)
        except OSError as error:
            raise self.fail(error, self.disk.describe("")) from error
        except BaseException as error:
            self.interrupted(error)
            raise

    def _read_files(self, queue: QueueTail, offset: int, count: int, minimum: int, end: int) -> GetResult:
        assert isinstance(queue, LocalConsumeQueue)
        return consume_queue.read(queue, self.store, self.options, offset, count, (minimum, end), self._written)

    def flush(self, *, everything: bool = False) -> None:
        """Syncs the store, and the consume queues at the end of their interval; removes old files."""
        self.check()
        now = self.clock.monotonic_ms()
        with self._write_lock:
            target = self._written
            unsynced = self.store.take_unsynced()
            index = target > self.indexed and (everything or now >= self._next_index_ms)
            queues = self.consume_queues() if index else []
            newest: dict[QueueTail, int] = {queue: queue.end for queue in queues}
        try:
            # The store first: an entry on disk must not point to a message that is not on disk.
            self.store.sync(unsynced)
            self.synced = max(self.synced, target)
            if index:
                for queue in queues:
                    queue.flush()
                for queue in queues:
                    queue.sync()
                self.indexed = target
                self._newest_indexed = newest
                self._next_index_ms = now + self.options.index_interval_ms
            if self.options.store_bytes_max:
                self._let_go(target - self.options.store_bytes_max)
        except OSError as error:
            raise self.fail(error, self.disk.describe("")) from error

    def consume_queue(self, name: str, queue_id: int) -> LocalConsumeQueue:
        queue = self._found_queue(name, queue_id)
        assert isinstance(queue, LocalConsumeQueue)
        return queue

    def consume_queues(self) -> list[LocalConsumeQueue]:
        return [queue for queue in self.queues() if isinstance(queue, LocalConsumeQueue)]

    def _let_go(self, before: int) -> None:
        """Removes the oldest files that the saved state does not need."""
        before = min(self.store.start_of(max(0, before)), self.store.start_of(self._removable))
        if not self.store.starts or before <= self.store.starts[0]:
            return
        for queue in self.consume_queues():
            # Before the files are removed, so that no read begins in them.
            queue.min = queue.first_at(before)
        self.store.remove_before(before)
        for queue in self.consume_queues():
            queue.positions.remove_before(queue.min * consume_queue.ENTRY_BYTES)

    def state(self) -> dict[str, Any]:
        inner: dict[str, dict[str, int]] = {}
        for queue, end in self._newest_indexed.items():
            inner.setdefault(queue.key[0], {})[str(queue.key[1])] = end - 1
        self._removable = self.indexed
        return {"inner": inner, "synced": self.synced, "indexed": self.indexed}

    def close(self) -> None:
        with self._write_lock, self._lock:
            self.failure = self.failure or CLOSED
            self.store.let_go()
        self.files.close()
