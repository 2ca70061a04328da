"""A view of a follower's copied log up to a committed place, for reads by offset.

`FollowerReads` of the broker opens a view beside the `LogCopy` that owns the folder, and advances it. A view begins at
the folder's checkpoint and newest snapshot, reads the log from there as a start would, and keeps the consume queue
entries of that part in memory. It writes nothing but repaired entries, so replays and the copy continue beside it.
State records go to their owner in the log's order.

On the loop; file work goes to a thread. Always true: nothing at or after `end` is shown, and `end` never falls. A view
ends (`is_current` is False) when the log is cut, trimmed or emptied, or its folder is closed; then open another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from evenq.errors import HaNotAvailable, StoreCorrupted, StoreError
from evenq.store.copies.copy_replay import Replays
from evenq.store.io.disk import Disk
from evenq.store.io.files import ReadFiles
from evenq.store.io.jobs import Jobs
from evenq.store.log import consume_queue, snapshot
from evenq.store.log.consume_queue import ENTRY, ConsumeQueue, Filing
from evenq.store.log.log_damage import Repairs
from evenq.store.log.log_pieces import LogPieces
from evenq.store.log.messages import ReadResult
from evenq.store.log.options import StoreStats
from evenq.store.log.record import HEADER, HEADER_BYTES, PADDING, STATE, Header, frame_at, is_message
from evenq.store.log.snapshot import Snapshot
from evenq.store.opening import checkpoint as checkpoint_file
from evenq.store.opening.checkpoint import Checkpoint
from evenq.store.queues.queue_reads import QueueReads
from evenq.store.queues.reader import LogReader
from evenq.store.queues.record_blocks import Kept, RecordBlock

PIECE_BYTES: Final = 256 << 10
"""Log bytes in one step: more would keep the interpreter from the loop, which confirms records to the leader."""
OPEN_FILES: Final = 32

TagHashes = frozenset[int] | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Base:
    """State in the folder's files, without the last part of the log."""

    checkpoint: Checkpoint
    """Empty if the files lack entries before its place."""
    saved: Snapshot
    log_start: int

    @property
    def position(self) -> int:
        """Log offset from which the log is read."""
        return max(self.log_start, min(self.checkpoint.log_offset, self.saved.log_offset))

    @property
    def known_end(self) -> int:
        """Log offset up to which the files cover the log."""
        return max(self.log_start, self.checkpoint.log_offset, self.saved.log_offset)


@dataclass(slots=True)
class _WalkedPart:
    """Messages and wanted state records of a part of the log."""

    end: int
    messages: list[Header] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)


class CommittedView:
    """View of one copy's committed log, created by `open`; belongs to one loop."""

    def __init__(
        self, replays: Replays, base: _Base, *, on_state: Callable[[bytes], None], wanted: Callable[[bytes], bool]
    ) -> None:
        self._replays, self._disk, self._segment_bytes = replays, replays.disk, replays.segment_bytes
        self._changes = replays.changes
        self._base, self._on_state, self._wanted = base, on_state, wanted
        self._queues = {
            key: ConsumeQueue(*key, *_risen(span, base.saved.queues.get(key)))
            for key, span in base.checkpoint.queues.items()
        }
        self._walked = base.position
        self._ranges_taken = False
        self._jobs = Jobs(threads=1, name="evenq-committed-walk", threaded=self._disk.blocks)
        self._pieces = LogPieces(self._disk, self._segment_bytes)
        self._files = ReadFiles(self._disk, OPEN_FILES)
        self._reads = QueueReads(
            self._disk, LogReader(self._disk, self._files, self._segment_bytes), self._queues, StoreStats(), threads=1
        )
        self._walking = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(
        cls,
        replays: Replays,
        *,
        until: int,
        log_bytes_max: int,
        on_snapshot: Callable[[bytes], None],
        on_state: Callable[[bytes], None],
        wanted: Callable[[bytes], bool] = lambda _: True,
        repairs: Repairs | None = None,
    ) -> CommittedView:
        """Returns a view of the copy with these `replays` that ends at `until`, a committed place between groups.
        `on_snapshot` gets the owner's state, if there is one, on a thread. Then `on_state` gets, on the loop, each
        later state record for which `wanted` is true; `wanted` runs on a thread, because most records concern no
        reader.

        `repairs` repairs damage. Raises HaNotAvailable if `until` lies before what the folder's files cover, or over
        `log_bytes_max` bytes after the place where reading begins; StoreCorrupted, StoreError.
        """
        # First: any later change makes this a view of another log.
        changes = replays.changes
        jobs = Jobs(threads=1, name="evenq-committed-open", threaded=replays.disk.blocks)
        try:
            base = await jobs.run(lambda: replays.waiting(lambda: _base_of(replays.disk)))
            # After a start the files cover more than a leader has reported as committed so far.
            if until < base.known_end:
                raise HaNotAvailable("this copy has no committed offset yet; read from another copy")
            if until - base.position > log_bytes_max:
                raise HaNotAvailable("this copy must first read too much of its log; read from another copy")
            if base.saved.payload:
                await jobs.run(lambda: on_snapshot(base.saved.payload))
        finally:
            jobs.close()
        view = cls(replays, base, on_state=on_state, wanted=wanted)
        view._changes = changes
        view._reads.repairs, view._reads.write_entries = repairs, view._write_entries
        try:
            await view.advance(until)
        except BaseException:
            view.close()
            raise
        return view

    @property
    def end(self) -> int:
        """Log offset up to which messages are shown."""
        return self._walked

    @property
    def is_current(self) -> bool:
        """False if the folder holds another log by now, or the view is closed."""
        return not self._closed and self._changes == self._replays.changes

    async def advance(self, until: int) -> None:
        """Shows messages before `until` too, a committed place between groups of records. Raises as `open`."""
        async with self._walking:
            while self._walked < until:
                walk = partial(self._walk, self._walked, until)
                piece = await self._reading(partial(self._reads.repairing, partial(self._jobs.run, walk)))
                self._check_current()
                self._take(piece)
            if not self._ranges_taken:
                self._ranges_taken = True
                self._take_ranges()

    async def let_filed_go(self) -> None:
        """Drops from memory the entries that a replay wrote to files. Raises StoreError, HaNotAvailable."""
        self._check_current()
        saved = await self._jobs.run(lambda: checkpoint_file.load(self._disk))
        self._check_current()
        for key, (_, end) in saved.queues.items() if saved is not None else ():
            queue = self._queues.get(key)
            if queue is not None and queue.filed < min(end, queue.max_offset):
                queue.filed_up_to(min(end, queue.max_offset))

    def queue_range(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        """Returns the first offset, and the one after the last shown message; (0, 0) for an unknown queue."""
        queue = self._queues.get((topic_id, queue_id))
        return (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)

    def read_hot(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int, tag_hashes: TagHashes
    ) -> ReadResult | None:
        """Returns None except for an empty answer: no message is in memory."""
        return self._reads.hot(
            topic_id, queue_id, start, count_max=count_max, bytes_max=bytes_max, tag_hashes=tag_hashes
        )

    async def read(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int, tag_hashes: TagHashes
    ) -> ReadResult:
        """See `MessageStore.read`. Raises HaNotAvailable if the view has ended."""
        return await self._reading(
            lambda: self._reads.read(
                topic_id, queue_id, start, count_max=count_max, bytes_max=bytes_max, tag_hashes=tag_hashes
            )
        )

    async def read_block(
        self, topic_id: int, queue_id: int, start: int, *, count_max: int, bytes_max: int, kept: Kept
    ) -> RecordBlock:
        """See `MessageStore.read_block`. Raises HaNotAvailable if the view has ended."""
        return await self._reading(
            lambda: self._reads.block(topic_id, queue_id, start, count_max=count_max, bytes_max=bytes_max, kept=kept)
        )

    async def offset_at(self, topic_id: int, queue_id: int, timestamp_ms: int) -> int:
        """See `MessageStore.offset_at`. Raises HaNotAvailable if the view has ended."""
        return await self._reading(lambda: self._reads.offset_at(topic_id, queue_id, timestamp_ms))

    def close(self) -> None:
        """Closes the files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._jobs.close()
        self._reads.jobs.close()
        self._pieces.close()
        self._files.close()

    def _walk(self, start: int, until: int) -> _WalkedPart:
        """Reads and checks the next whole groups, on the thread."""
        data = self._pieces.read(start, until, PIECE_BYTES)
        piece, position, unpack, view = _WalkedPart(start + len(data)), 0, HEADER.unpack_from, memoryview(data)
        messages = piece.messages
        while position < len(data):
            rest = -(start + position) % self._segment_bytes or self._segment_bytes
            # The rest of a file that is too short even for padding is zeros.
            if rest < HEADER_BYTES:
                position += rest
                continue
            header = unpack(data, position)
            if is_message(header, view, position, start):
                messages.append(header)
                position += header[0]
                continue
            frame = frame_at(data, position, start + position)
            if frame is None:
                text = f"the copied log holds no whole record at log offset {start + position}"
                raise StoreCorrupted(text, log_offset=start + position)
            is_new = frame.kind == STATE and start + position >= self._base.saved.log_offset
            if is_new and self._wanted(frame.head):
                piece.states.append(frame.head)
            position += rest if frame.kind == PADDING else frame.size
        return piece

    def _take(self, piece: _WalkedPart) -> None:
        entries_from = self._base.checkpoint.log_offset
        for header in piece.messages:
            if header[10] >= entries_from:
                self._message(header)
        for state in piece.states:
            self._on_state(state)
        self._walked = piece.end

    def _message(self, header: Header) -> None:
        size, _, _, _, _, _, _, topic_id, queue_id, queue_offset, log_offset, _, _, _, tag_hash, _, _ = header
        key = (topic_id, queue_id)
        queue = self._queues.get(key)
        if queue is None:
            first = self._first_of(key, queue_offset, log_offset)
            queue = self._queues[key] = ConsumeQueue(*key, first, first)
        if queue_offset != queue.next_offset:
            raise StoreCorrupted(
                f"the copied log holds message {queue_offset} of queue {queue_id} of topic {topic_id} at log offset "
                f"{log_offset}, where {queue.next_offset} is due"
            )
        queue.tail += ENTRY.pack(log_offset, size, tag_hash)
        queue.next_offset = queue.max_offset = queue.hot_base = queue_offset + 1

    def _first_of(self, key: tuple[int, int], queue_offset: int, log_offset: int) -> int:
        """Returns the offset that a queue's first message must have, as in `Recovery`."""
        saved = self._base.saved
        span = saved.queues.get(key)
        if span is None:
            return 0
        # The snapshot's count is exact up to its place, so the first message after it has the next number.
        if log_offset >= saved.log_offset:
            return span[1]
        return queue_offset if self._base.log_start else 0

    def _take_ranges(self) -> None:
        """Keeps the numbers of queues whose messages are all gone, and lets minima only rise."""
        for key, (low, high) in self._base.saved.queues.items():
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = ConsumeQueue(*key, high, high)
            queue.min_offset = min(max(queue.min_offset, low), queue.max_offset)

    async def _write_entries(self, right: Filing) -> None:
        await self._jobs.run(lambda: self._replays.waiting(lambda: consume_queue.write_files(self._disk, right)))

    async def _reading(self, read: Callable[[], Awaitable[T]]) -> T:
        self._check_current()
        try:
            return await read()
        except (StoreError, RuntimeError):  # deleted files, ended threads
            # The view may have ended: files that the copy cut or trimmed are not damage to report to a client.
            self._check_current()
            raise

    def _check_current(self) -> None:
        if not self.is_current:
            raise HaNotAvailable("the log of this copy changed; read again, or from another copy")


def _base_of(disk: Disk) -> _Base:
    """Returns the state in the folder's files. Raises StoreCorrupted, StoreError."""
    checkpoint = checkpoint_file.load(disk) or Checkpoint()
    saved = snapshot.load(disk, log_start=checkpoint.log_start) or Snapshot(0, b"")
    log_start = max(checkpoint.log_start, saved.log_start)
    spans = {key: _risen(span, saved.queues.get(key)) for key, span in checkpoint.queues.items()}
    # Without all entries of the checkpoint, deleted or never on disk, the log is read from its start.
    whole = checkpoint.log_offset >= max(1, log_start) and all(
        consume_queue.holds_entries(disk, *key, *span) for key, span in spans.items()
    )
    return _Base(checkpoint if whole else Checkpoint(log_start), saved, log_start)


def _risen(span: tuple[int, int], saved: tuple[int, int] | None) -> tuple[int, int]:
    """Returns the range of a checkpoint without the entries deleted since."""
    low, high = span
    return (low, high) if saved is None else (min(max(low, saved[0]), high), high)
