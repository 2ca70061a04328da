"""Start of the local engine: trusts the consume queues up to the saved position, reads the rest of the store, cuts an
unfinished write and refuses damage.

If a consume queue is missing, short or foreign, all of them are rebuilt from the store, which has each message's name,
queue and offset. A queue whose messages are all gone keeps its numbering through the saved state (LQ-51).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from evenq.errors import StoreCorrupted
from evenq.local.consume_queue import ENTRY_BYTES, FOLDER, LocalConsumeQueue
from evenq.local.messages import Message
from evenq.local.partitions import Partitions
from evenq.local.records import FILLER, filler, read_local
from evenq.local.statuses import ReadStatus
from evenq.local.tail import QueueTail
from evenq.model.names import topic_problem
from evenq.store.io.disk import Disk, write_whole

CUT_FOLDER: Final = "cut"
CUT_FILES_MAX: Final = 4
CUT_BYTES_MAX: Final = 16 << 20
log = logging.getLogger(__name__)
CHUNK_BYTES: Final = 4 << 20


class RecoverableEngine(Protocol):
    """The part of the starting engine that recovery uses: files and consume queues."""

    disk: Disk
    store: Partitions
    indexed: int
    """Store offset before which the consume queues had everything on disk; recovery sets it to what it found."""
    synced: int
    """The store before this offset was surely on disk."""

    def consume_queue(self, name: str, queue_id: int) -> LocalConsumeQueue:
        """Returns the queue, created if new; the limit of queues does not apply to those on disk."""

    def consume_queues(self) -> list[LocalConsumeQueue]:
        """Returns all consume queues, sorted."""


def recover(engine: RecoverableEngine, known: dict[str, Any]) -> tuple[Walked, dict[QueueTail, int]]:
    """Brings the engine to its true end; returns the walk, and the ends of the queues on disk. Raises
    StoreCorrupted.
    """
    store = engine.store
    store.load()
    first = store.starts[0] if store.starts else 0
    newest = {
        (name, int(queue_id)): int(offset)
        for name, queues in known.get("inner", {}).items()
        for queue_id, offset in queues.items()
    }
    known_newest = dict(newest)
    start = engine.indexed
    anew = start < first or not _adopt(engine, newest)
    if anew:
        start = first
        _start_over(engine)
        log.warning("rebuilding the consume queues from the store, from offset %d on", first, extra={"from": first})
    begun: set[LocalConsumeQueue] = set()

    def put_position(message: Message, size: int) -> None:
        queue = engine.consume_queue(message.name, message.queue_id)
        # Retention may have removed its first messages: it begins at the first one that is left.
        if anew and queue not in begun:
            begun.add(queue)
            queue.start_at(message.offset, message.offset)
        if message.offset != queue.next:
            raise StoreCorrupted(
                f"{store.describe(message.store_offset)}: message {message.offset} of queue {queue.key} follows number "
                f"{queue.next - 1}: restore the files from a copy"
            )
        queue.next = queue.end = message.offset + 1
        queue.add([message], [size])

    walked = walk(store, start, put_position)
    # Refuse before the cut, which cannot be undone.
    check_end(store, walked, engine.synced)
    store.check_lengths(min(engine.synced, walked.end), lambda file_end: _least(store, file_end))
    _keep_cut(engine, walked)
    store.truncate(walked.end)
    store.mark_unsynced(engine.synced)
    for key, offset in newest.items():
        queue = engine.consume_queue(*key)
        # Its messages are gone; its offsets are not used again.
        if queue.end <= offset:
            queue.start_at(offset + 1, offset + 1)
    for queue in engine.consume_queues():
        minimum = queue.first_at(first) if first else queue.min
        waiting, flushed = bytes(queue.waiting), queue.flushed
        queue.start_at(minimum, queue.end)
        queue.flushed, queue.waiting = flushed, bytearray(waiting)
    engine.indexed = start
    return walked, {} if anew else {engine.consume_queue(*key): offset + 1 for key, offset in known_newest.items()}


def _least(store: Partitions, file_end: int) -> int:
    """Returns the smallest size of a full file: a crash may leave out the zeros after its filler."""
    start = file_end - store.file_bytes
    position = start + store.size_of(start) - FILLER.size
    if position >= start and store.read(position, FILLER.size) == filler(file_end - position):
        return position + FILLER.size
    return file_end - FILLER.size + 1


def _folders(engine: RecoverableEngine) -> Iterator[tuple[str, int]]:
    for name in engine.disk.list(FOLDER):
        problem = topic_problem(name)
        for queue_id in engine.disk.list(f"{FOLDER}/{name}"):
            if problem or not (queue_id.isascii() and queue_id.isdecimal() and str(int(queue_id)) == queue_id):
                where = engine.disk.describe(f"{FOLDER}/{name}/{queue_id}")
                raise StoreCorrupted(f"{where} is not a consume queue: move it elsewhere")
            yield name, int(queue_id)


def _adopt(engine: RecoverableEngine, newest: dict[tuple[str, int], int]) -> bool:
    """Restores the consume queues as of the saved position; False if that is not possible."""
    for key in _folders(engine):
        newest.setdefault(key, -1)
    for key, offset in newest.items():
        queue = engine.consume_queue(*key)
        try:
            queue.positions.load()
        except StoreCorrupted as error:
            log.warning("consume queue %s is damaged: %s", key, error, extra={"queue": key, "reason": str(error)})
            return False
        positions = queue.positions
        whole = all(positions.size_of(start) == positions.file_bytes for start in positions.starts[:-1])
        if not whole or positions.end < (offset + 1) * ENTRY_BYTES:
            return False
        queue.positions.truncate((offset + 1) * ENTRY_BYTES)
        minimum = queue.positions.starts[0] // ENTRY_BYTES if queue.positions.starts else offset + 1
        queue.start_at(minimum, offset + 1)
    return True


def _start_over(engine: RecoverableEngine) -> None:
    for queue in engine.consume_queues():
        for start in queue.positions.starts:
            queue.positions.forget(start)
        queue.positions.starts, queue.positions.end = [], 0
        queue.start_at(0, 0)
    engine.disk.remove(FOLDER)


def _keep_cut(engine: RecoverableEngine, walked: Walked) -> None:
    """Saves a copy of the bytes that will be cut, so that nothing is destroyed silently (LQ-28 Better)."""
    store = engine.store
    size = store.end - walked.end
    data = (store.read(walked.end, min(size, CUT_BYTES_MAX)) or b"") if size > 0 else b""
    if not data.strip(b"\0"):
        return
    path = f"{CUT_FOLDER}/{walked.end:020d}"
    log.warning(
        "cut an unfinished write of %d bytes at %d; its bytes are kept in %s",
        size,
        walked.end,
        path,
        extra={"at": walked.end, "bytes": size, "status": walked.status, "kept": path},
    )
    engine.disk.make_folder(CUT_FOLDER)
    write_whole(engine.disk, path, data)
    for name in engine.disk.list(CUT_FOLDER)[:-CUT_FILES_MAX]:
        engine.disk.remove(f"{CUT_FOLDER}/{name}")


@dataclass(frozen=True, slots=True)
class Walked:
    """The outcome of `walk`."""

    end: int
    """The true end: everything before it is whole."""
    status: ReadStatus
    """EMPTY or CUT at a normal end; otherwise the damage."""
    count: int
    """Messages read."""


def walk(store: Partitions, store_offset: int, on_message: Callable[[Message, int], None]) -> Walked:
    """Calls `on_message(message, size)` for each record from `store_offset` on, in order: the post-put loop of LQ-46.

    Each position has a record, filler, or nothing. The first one without either is the true end if nothing that was
    surely on disk follows; otherwise it is damage, and the start is refused with file and offset.
    """
    count = 0
    want = CHUNK_BYTES
    while store.starts and store_offset < store.starts[-1] + store.file_bytes:
        file_end = store.start_of(store_offset) + store.file_bytes
        data = store.read(store_offset, want) or b""
        all_there_is = len(data) < want
        status, size, position = ReadStatus.EMPTY, 0, 0
        while position < len(data):
            status, size, message = read_local(data, position, file_end - store_offset, store_offset)
            if message is None:
                break
            on_message(message, size)
            count += 1
            position += size
            store_offset += size
        if status is ReadStatus.END:
            store_offset = file_end  # the reference's size 0: continue at the next file
        elif status is ReadStatus.CUT and not all_there_is:
            want = max(CHUNK_BYTES, size)
        elif status is ReadStatus.RECORD and (store_offset == file_end or not all_there_is):
            want = CHUNK_BYTES
        else:
            return Walked(store_offset, ReadStatus.EMPTY if status is ReadStatus.RECORD else status, count)
    return Walked(store_offset, ReadStatus.EMPTY, count)


def check_end(store: Partitions, walked: Walked, synced: int) -> None:
    """Raises StoreCorrupted if the walk ended before `synced`: that is damage, not an unfinished write."""
    if walked.end < synced:
        raise StoreCorrupted(
            f"{store.describe(walked.end)} (store offset {walked.end}): {walked.status} where a record must be; the "
            f"store was on disk up to {synced}: restore the file from a copy"
        )
