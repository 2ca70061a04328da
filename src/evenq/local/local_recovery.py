"""What a start of the local engine does: trust the consume queues up to the saved place, walk over the rest of the
store, cut what was never finished, refuse what is damaged.

If any consume queue is missing, short or foreign, all of them are made anew from the store, which has each message's
name, queue and number. A queue whose messages are all gone keeps its numbers by the saved state (LQ-51).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final, Protocol

from evenq.errors import StoreCorrupted
from evenq.local.consume_queue import ENTRY_BYTES, FOLDER, LocalConsumeQueue
from evenq.local.messages import Message
from evenq.local.partitions import Partitions
from evenq.local.records import FILLER, filler
from evenq.local.recovery import Walked, check_end, walk
from evenq.local.tail import QueueTail
from evenq.model.names import topic_problem
from evenq.store.io.disk import Disk, write_whole

__all__ = ["RecoverableEngine", "recover"]

CUT_FOLDER: Final = "cut"
CUT_FILES_MAX: Final = 4
CUT_BYTES_MAX: Final = 16 << 20

log = logging.getLogger(__name__)


class RecoverableEngine(Protocol):
    """What recovery needs of the engine that starts: its files and its consume queues."""

    disk: Disk
    store: Partitions
    indexed: int
    """The consume queues had everything before this store offset on disk; what recovery found of them afterwards."""
    synced: int
    """The store before this offset was surely on disk."""

    def consume_queue(self, name: str, queue_id: int) -> LocalConsumeQueue:
        """The queue, made if it is new; no limit of queues counts for what is on disk already."""

    def consume_queues(self) -> list[LocalConsumeQueue]:
        """All there are, in order."""


def recover(engine: RecoverableEngine, known: dict[str, Any]) -> tuple[Walked, dict[QueueTail, int]]:
    """Bring the engine to the true end of its store: how the walk ended, and the ends of the consume queues that are
    on disk. Raises StoreCorrupted naming file and offset.
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
        # Retention may have taken its first messages: the first one that is left says where it begins.
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
    # The refusal before the cut, which could not be undone.
    check_end(store, walked, engine.synced)
    store.check_lengths(min(engine.synced, walked.end), lambda file_end: _least(store, file_end))
    _keep_cut(engine, walked)
    store.truncate(walked.end)
    store.mark_unsynced(engine.synced)
    for key, offset in newest.items():
        queue = engine.consume_queue(*key)
        # Its messages are gone, its numbers are not: none is given twice.
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
    """Where a full file may end: a crash may leave out the zeros behind its filler, or in a rest too short for it."""
    start = file_end - store.file_bytes
    position = start + store.size_of(start) - FILLER.size
    if position >= start and store.read(position, FILLER.size) == filler(file_end - position):
        return position + FILLER.size
    return file_end - FILLER.size + 1


def _folders(engine: RecoverableEngine) -> Iterator[tuple[str, int]]:
    """Queues that have a folder."""
    for name in engine.disk.list(FOLDER):
        problem = topic_problem(name)
        for queue_id in engine.disk.list(f"{FOLDER}/{name}"):
            if problem or not (queue_id.isascii() and queue_id.isdecimal() and str(int(queue_id)) == queue_id):
                where = engine.disk.describe(f"{FOLDER}/{name}/{queue_id}")
                raise StoreCorrupted(f"{where} is not a consume queue: move it elsewhere")
            yield name, int(queue_id)


def _adopt(engine: RecoverableEngine, newest: dict[tuple[str, int], int]) -> bool:
    """Take the consume queues as they were at the saved place; False if they cannot be that."""
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
    """Forget all consume queues."""
    for queue in engine.consume_queues():
        for start in queue.positions.starts:
            queue.positions.forget(start)
        queue.positions.starts, queue.positions.end = [], 0
        queue.start_at(0, 0)
    engine.disk.remove(FOLDER)


def _keep_cut(engine: RecoverableEngine, walked: Walked) -> None:
    """Put aside what is about to be cut, so that nothing is destroyed in silence (LQ-28 Better)."""
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
