"""The embedded engine (LQ-15 to LQ-38): each queue has its own logical file, so producers never wait for each other.

`buckets/<name>/<queue id>/<20-digit offset>` holds only records. `bucketIndex/...` holds an entry of 16 bytes for each
message: position, size, CRC-32. It allows reading by offset (LQ-38 Better) and has the checksum, for which the record
has no space (LQ-19, LQ-35). A message is stored when its entry is.
"""

from __future__ import annotations

import bisect
import logging
import threading
import zlib
from typing import Any, Final

from evenq.errors import StoreCorrupted
from evenq.local.engine import CLOSED, Engine
from evenq.local.messages import Message
from evenq.local.options import Flush, LocalOptions
from evenq.local.partitions import Partitions
from evenq.local.reading import GetResult
from evenq.local.records import INDEX_ENTRY, check_size, filler, pack_embedded, read_embedded
from evenq.local.statuses import AppendStatus, GetStatus, ReadStatus
from evenq.local.tail import QueueTail, Topic
from evenq.model.names import topic_problem
from evenq.runtime.clock import Clock
from evenq.store.io.disk import Disk
from evenq.store.io.files import ReadFiles

FOLDER: Final = "buckets"
INDEX_FOLDER: Final = "bucketIndex"
ENTRY_BYTES: Final = INDEX_ENTRY.size
CHECK_ENTRIES: Final = 4_096

log = logging.getLogger(__name__)


def append_batch(sizes: list[int], left: int) -> tuple[AppendStatus, int, int]:
    """Returns how much of a batch fits into `left` bytes of a file: status, number, their bytes (LQ-21, LQ-24)."""
    taken = 0
    for count, size in enumerate(sizes):
        if taken + size > left:
            return AppendStatus.END_OF_FILE, count, taken
        taken += size
    return AppendStatus.PUT_OK, len(sizes), taken


class _BucketQueue(QueueTail):
    __slots__ = ("index", "lock", "records", "synced")

    def __init__(self, topic: Topic, queue_id: int, records: Partitions, index: Partitions) -> None:
        super().__init__(topic, queue_id)
        self.records = records
        self.index = index
        self.lock = threading.Lock()
        self.synced = 0
        """Messages that are surely on disk."""


class EmbeddedEngine(Engine):
    def __init__(self, disk: Disk, options: LocalOptions, clock: Clock, known: dict[str, Any]) -> None:
        super().__init__(options, clock)
        self._disk = disk
        self._files = ReadFiles(disk, options.files_open_max)
        self._recover(known)

    def _make_queue(self, topic: Topic, queue_id: int) -> QueueTail:
        folder = f"{topic.name}/{queue_id}"
        return _BucketQueue(
            topic,
            queue_id,
            Partitions(self._disk, f"{FOLDER}/{folder}", self.options.file_bytes, self._files),
            Partitions(
                self._disk, f"{INDEX_FOLDER}/{folder}", self.options.entries_per_file * ENTRY_BYTES, self._files
            ),
        )

    def put(self, queue: QueueTail, messages: list[Message], wait_ms: int = 0) -> None:  # noqa: ARG002  # never waits
        """Appends to the bucket's newest file, and to as many new ones as the batch needs (LQ-22 Better)."""
        assert isinstance(queue, _BucketQueue)
        packed = [pack_embedded(message) for message in messages]
        for record in packed:
            check_size(len(record), min(self.options.message_bytes_max, self.options.file_bytes))
        sums = [zlib.crc32(record) for record in packed]
        with queue.lock:
            self.check()
            now = self.clock.now_ms()
            try:
                entries = self._write_records(queue, messages, packed, sums, now)
                # After the records: an entry never points to an unwritten one.
                self._write_index(queue, queue.next, entries)
                if self.options.flush is Flush.SYNC:
                    self._sync(queue)
                queue.next += len(messages)
                self.cache.publish(queue, messages)
            except OSError as error:
                raise self.fail(error, self._disk.describe("")) from error
            except BaseException as error:
                self.interrupted(error)
                raise

    def _write_records(
        self, queue: _BucketQueue, messages: list[Message], packed: list[bytes], sums: list[int], now: int
    ) -> list[bytes]:
        sizes = [len(record) for record in packed]
        file_bytes = self.options.file_bytes
        entries = []
        done = 0
        position = queue.records.end
        while done < len(sizes):
            left = file_bytes - position % file_bytes
            status, count, size = append_batch(sizes[done:] if done else sizes, left)
            if count:
                queue.records.write(position, packed[done : done + count], size)
            for index in range(done, done + count):
                message = messages[index]
                message.offset, message.store_offset, message.stored_ms = queue.next + index, position, now
                entries.append(INDEX_ENTRY.pack(position, sizes[index], sums[index]))
                position += sizes[index]
            done += count
            if status is AppendStatus.END_OF_FILE and position % file_bytes:
                left = file_bytes - position % file_bytes
                queue.records.fill(position, [filler(left)])
                position += left
        return entries

    def _write_index(self, queue: _BucketQueue, offset: int, entries: list[bytes]) -> None:
        per_file = self.options.entries_per_file
        while entries:
            room = per_file - offset % per_file
            part, entries = entries[:room], entries[room:]
            queue.index.write(offset * ENTRY_BYTES, part, len(part) * ENTRY_BYTES)
            offset += len(part)

    def _sync(self, queue: _BucketQueue) -> None:
        queue.records.sync(queue.records.take_unsynced())
        queue.index.sync(queue.index.take_unsynced())

    def _read_files(self, queue: QueueTail, offset: int, count: int, minimum: int, end: int) -> GetResult:
        assert isinstance(queue, _BucketQueue)
        options = self.options
        count = min(count, options.batch_messages_disk, end - offset)
        messages: list[Message] = []
        room = options.batch_bytes_disk
        for at, (position, size, crc) in enumerate(self._entries(queue, offset, count), offset):
            if messages and size > room:
                break
            room -= size
            messages.append(self._message(queue, at, position, size, crc))
        return GetResult(GetStatus.FOUND, offset + len(messages), minimum, end, messages)

    def _entries(self, queue: _BucketQueue, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Returns entries from `offset` on, of one index file."""
        entries = self._entries_there(queue, offset, count)
        if not entries:
            raise StoreCorrupted(f"{queue.index.describe(offset * ENTRY_BYTES)} is missing: restore it from a copy")
        return entries

    @staticmethod
    def _entries_there(queue: _BucketQueue, offset: int, count: int) -> list[tuple[int, int, int]]:
        data = queue.index.read(offset * ENTRY_BYTES, count * ENTRY_BYTES) or b""
        return list(INDEX_ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_BYTES]))

    def _message(self, queue: _BucketQueue, offset: int, position: int, size: int, crc: int) -> Message:
        status, message = self._read_record(queue, position, size, crc)
        if message is None:
            raise StoreCorrupted(
                f"{queue.records.describe(position)}: {status} for message {offset} of queue {queue.key}, to which "
                f"{queue.index.describe(offset * ENTRY_BYTES)} points: restore both files from a copy"
            )
        message.offset, message.store_offset = offset, position
        return message

    def _read_record(
        self, queue: _BucketQueue, position: int, size: int, crc: int
    ) -> tuple[ReadStatus, Message | None]:
        """Reads a record and checks it against its entry (LQ-19)."""
        if position < 0:
            return ReadStatus.BAD_CHECKSUM, None
        data = queue.records.read(position, size)
        if data is None or len(data) < size:
            return ReadStatus.CUT, None
        left = self.options.file_bytes - position % self.options.file_bytes
        status, found_size, message = read_embedded(data, 0, left, *queue.key)
        if status is ReadStatus.RECORD and (found_size != size or zlib.crc32(data) != crc):
            return ReadStatus.BAD_CHECKSUM, None
        return status, message

    def flush(self, *, everything: bool = False) -> None:  # noqa: ARG002  # it always syncs everything
        """Syncs every bucket that changed, one after the other (LQ-36 Better, LQ-72)."""
        self.check()
        for queue in self.queues():
            assert isinstance(queue, _BucketQueue)
            if queue.synced == queue.end:
                continue
            with queue.lock:
                # Only this under the lock: puts continue during the syncs, and the next flush syncs what they write.
                end = queue.end
                records, index = queue.records.take_unsynced(), queue.index.take_unsynced()
            try:
                queue.records.sync(records)
                queue.index.sync(index)
            except OSError as error:
                raise self.fail(error, self._disk.describe("")) from error
            queue.synced = end

    def state(self) -> dict[str, Any]:
        queues: dict[str, dict[str, int]] = {}
        for queue in self.queues():
            assert isinstance(queue, _BucketQueue)
            queues.setdefault(queue.key[0], {})[str(queue.key[1])] = queue.synced - 1
        return {"inner": queues}

    def close(self) -> None:
        for queue in self.queues():
            assert isinstance(queue, _BucketQueue)
            with queue.lock:
                self.failure = self.failure or CLOSED
        self.failure = self.failure or CLOSED
        self._files.close()

    def _recover(self, known: dict[str, Any]) -> None:
        inner = known.get("inner", {})
        for name in sorted({*self._disk.list(FOLDER), *self._disk.list(INDEX_FOLDER), *inner}):
            problem = topic_problem(name)
            if problem:
                raise StoreCorrupted(f"{self._disk.describe(f'{FOLDER}/{name}')} does not belong there: {problem}")
            ids = {*self._disk.list(f"{FOLDER}/{name}"), *self._disk.list(f"{INDEX_FOLDER}/{name}")}
            for queue_id in sorted({*ids, *inner.get(name, {})}):
                if not (queue_id.isascii() and queue_id.isdecimal() and str(int(queue_id)) == queue_id):
                    raise StoreCorrupted(
                        f"{self._disk.describe(f'{FOLDER}/{name}/{queue_id}')} does not belong there: move it elsewhere"
                    )
                queue = self._found_queue(name, int(queue_id))
                assert isinstance(queue, _BucketQueue)
                self._recover_queue(queue, int(inner.get(name, {}).get(queue_id, -1)) + 1)

    def _recover_queue(self, queue: _BucketQueue, synced: int) -> None:
        """Finds the true end (LQ-28 Better): the last entry of an unbroken sequence whose record matches it."""
        queue.index.load()
        queue.records.load()
        count = queue.index.end // ENTRY_BYTES
        if count < synced:
            raise StoreCorrupted(
                f"{queue.index.describe(count * ENTRY_BYTES)} ends there, but {synced} messages of queue {queue.key} "
                "were on disk: restore it from a copy"
            )
        end_position = self._end_of(queue, synced)
        queue.index.check_lengths(synced * ENTRY_BYTES, lambda file_end: file_end)
        queue.records.check_lengths(end_position, lambda file_end: self._data_end(queue, file_end, synced))
        offset = synced
        while offset < count:
            entries = self._entries_there(queue, offset, min(CHECK_ENTRIES, count - offset))
            if not entries:
                count = offset
            for position, size, crc in entries:
                expected = end_position
                if position != expected:  # or the next file's start
                    expected = queue.records.start_of(end_position) + self.options.file_bytes
                if position != expected or self._read_record(queue, position, size, crc)[1] is None:
                    count = offset
                    break
                end_position = position + size
                offset += 1
        cut = queue.records.end - end_position
        if cut > 0:
            extra = {"queue": queue.key, "place": end_position, "bytes": cut}
            log.warning(
                "queue %s: cut an unfinished write of %d bytes at %d", queue.key, cut, end_position, extra=extra
            )
        queue.index.truncate(count * ENTRY_BYTES)
        queue.records.truncate(end_position)
        queue.index.mark_unsynced(synced * ENTRY_BYTES)
        queue.records.mark_unsynced(self._end_of(queue, synced))
        queue.start_at(0, count)
        queue.synced = synced

    def _data_end(self, queue: _BucketQueue, file_end: int, count: int) -> int:
        """Returns the end of the last record before `file_end`; a crash may have left out the filler after it."""
        behind = bisect.bisect_left(range(count), file_end, key=lambda offset: self._entries(queue, offset, 1)[0][0])
        position, size, _ = self._entries(queue, behind - 1, 1)[0] if behind else (0, 0, 0)
        return position + size

    def _end_of(self, queue: _BucketQueue, count: int) -> int:
        """Returns the end of the first `count` records."""
        if count == 0:
            return 0
        ((position, size, crc),) = self._entries(queue, count - 1, 1)
        self._message(queue, count - 1, position, size, crc)
        return position + size
