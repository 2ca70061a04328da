"""What a store does when it opens: read the log from the last sure place, check every frame, cut a torn tail, refuse
damage.

A hole at p is damage if anything says that the log was synced beyond p: the checkpoint, or a whole frame behind p
whose `synced offset` is over p. Else the bytes behind p were never confirmed to be on disk (a power loss writes them
in any order): they are cut. The records of one append call come back all or not at all. `steps` yields between
pieces, so that the loop stays alive and state records reach their owner on it. With a `stop` the same pass ends at a
place in the middle of the log and leaves what lies behind it alone: what the copy of a follower does (`copy_replay`).
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Final

from evenq.errors import StoreCorrupted, StoreError
from evenq.runtime.failpoints import passing
from evenq.store.io.disk import Disk, File
from evenq.store.log import consume_queue, log_damage, log_tail, segment, snapshot
from evenq.store.log.consume_queue import ENTRY, ConsumeQueue
from evenq.store.log.record import (
    FLAG_MORE,
    HEADER,
    HEADER_BYTES,
    KINDS,
    PADDING,
    STATE,
    Frame,
    Header,
    is_message,
    size_at,
)
from evenq.store.log.snapshot import Snapshot
from evenq.store.opening.checkpoint import Checkpoint
from evenq.store.timers.loading import TimerLoader

__all__ = ["Recovery"]

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 4 << 20
# A start after the loss of all queue files reads the whole log, and its entries (20 bytes each) must not fill the
# memory.
FILING_ENTRIES: Final = 500_000  # rebuilt entries kept in memory before they go to files

State = tuple[int, bytes]


class Recovery:
    """One pass over the log. Results are attributes, valid when `steps` is over."""

    def __init__(
        self, disk: Disk, segment_bytes: int, checkpoint: Checkpoint | None, saved: Snapshot | None = None, *,
        copied_end: int = 0, stop: int | None = None, piece_bytes: int = PIECE_BYTES,
    ) -> None:  # fmt: skip
        """`copied_end`: what the folder's last follower phase had on disk. `stop`: where a group of records ends, on
        disk; nothing from there on is read. None: the log's end is to be found.
        """
        self._disk = disk
        self._stop = stop
        self._piece_bytes = piece_bytes
        self._segment_bytes = segment_bytes
        self.checkpoint = checkpoint or Checkpoint()
        self._saved = saved or Snapshot(0, b"")
        # Retention writes both, one after the other: after a crash in between, one of them is behind.
        self.log_start = max(self.checkpoint.log_start, self._saved.log_start)
        segment.drop_before(disk, self.log_start)  # a crash may have stopped the deletion in its middle
        self._starts = segment.starts(disk, segment_bytes)
        self._check_start(saved)
        self.queues: dict[tuple[int, int], ConsumeQueue] = {}
        self.log_end = self.log_start
        self.last_store_ms = max(self.checkpoint.last_store_ms, self._saved.last_store_ms)
        self.last_message_ms = self.last_store_ms
        """Of the last message or timer, as far as the log is read: a leader's first record has its own time."""
        self.records = 0
        self.cut_bytes = 0
        self.rebuilt = False
        """True if the consume queues came from the whole log."""
        self._entries_from = self.log_start
        self._states_from = 0
        self.newest_snapshot = saved.log_offset if saved is not None and saved.version > 1 else 0
        """Log offset of the snapshot that the owner began from, if it has all sections."""
        self.timers: TimerLoader | None = None
        """Takes the timers and their ends out of the log."""
        self._group: list[Frame | Header] = []
        self._scanned_end = self.log_start
        """Where the scan ended: damage is here, and the group that it hit may begin earlier, in another file even."""
        self._unfiled = 0
        self._copied_end = copied_end
        self._synced = max(self.checkpoint.log_offset, self.log_start)
        """The log was on disk up to here, as frames say."""

    def steps(self, states_from: int) -> Generator[list[State], None, None]:
        """Recover; yields after each piece of the log its state records at `states_from` or behind it, in log order.
        Blocks on the disk between yields.
        """
        self._states_from = states_from
        self._open_queues()
        position = min(self._entries_from, max(states_from, self.log_start))
        if self.timers is not None:
            position = min(position, self.timers.start)
        # Before anything is read: a log that ends below what the checkpoint vouches for has lost acknowledged records.
        if position > self._end_of_files():
            self._lost(self._end_of_files())
        self.log_end = position  # stays so if the last file is full to its last byte
        while True:
            start, _ = segment.segment_of(position, self._segment_bytes)
            if start not in self._starts:
                break  # the last file is full to its end, or there is none
            file = self._disk.open(segment.path_of(start))
            try:
                ended = yield from self._scan(file, start, position)
            finally:
                file.close()
            position = self.log_end
            if ended:
                break
        self._scanned_end = self.log_end
        if self._group:
            # The last record of the call is not there, so nobody was told that it was taken: all of it goes (all or
            # nothing).
            first = self._group[0]
            self.log_end = first.log_offset if isinstance(first, Frame) else first[10]
            self._group.clear()
        if self._stop is None:
            self._check_end()
        elif self.log_end < self._stop:
            self._damaged(self.log_end, f"there is no whole record, and the log was on disk up to {self._stop}")
        self._take_ranges()

    def file_entries(self) -> None:
        """Write all rebuilt entries to their files."""
        filings = [filing for filing in map(ConsumeQueue.filing, self.queues.values()) if filing is not None]
        consume_queue.write_all(self._disk, filings)
        for filing in filings:
            self.queues[filing.topic_id, filing.queue_id].filed_up_to(filing.end)
        self._unfiled = 0

    # -- the consume queues' files ------------------------------------------------------------------------------------

    def _open_queues(self) -> None:
        """Take what the checkpoint vouches for; if a file lacks anything, rebuild all of them from the log."""
        known = {key: self._risen(key, span) for key, span in self.checkpoint.queues.items()}
        # 1: a checkpoint that vouches for nothing, as a new folder has, must not pass for one that vouches for empty
        # queues.
        whole = self.checkpoint.log_offset >= max(1, self.log_start) and all(
            consume_queue.check_files(self._disk, *key, *span) for key, span in known.items()
        )
        if whole:
            self._entries_from = self.checkpoint.log_offset
            self.queues = {key: ConsumeQueue(*key, *span) for key, span in known.items()}
            self._remove_unknown_queues()
        else:
            self.rebuilt = bool(self._starts)
            if self.rebuilt:
                # A folder whose checkpoint vouches for no queue never had files of them: a copy that only followed.
                log.log(
                    logging.WARNING if known else logging.INFO,
                    "rebuilding the consume queues from the log, from offset %d on", self.log_start,
                    extra={"log_start": self.log_start},
                )  # fmt: skip
            # All or none: entries are written for all queues in one step, so a file that lacks some makes its
            # neighbours suspect.
            self._disk.remove(consume_queue.FOLDER)
            passing("recovery.rebuilding")
            self._disk.make_folder(consume_queue.FOLDER)

    def _risen(self, key: tuple[int, int], span: tuple[int, int]) -> tuple[int, int]:
        """The range that a checkpoint gives, without what was deleted since."""
        low, high = span
        return min(max(low, self._saved.queues.get(key, span)[0]), high), high

    def _first_of(self, key: tuple[int, int], queue_offset: int, log_offset: int) -> int:
        """Offset that a queue's first message must have: what was before it is gone, or there was nothing."""
        span = self._saved.queues.get(key)
        # Before `_saved` the log may begin in the middle of a queue; without a trimmed log, and behind `_saved`, the
        # number that is due is known, and any other is damage (D5).
        if span is None:
            return 0
        if log_offset >= self._saved.log_offset:
            return span[1]
        return queue_offset if self.log_start else 0

    def _take_ranges(self) -> None:
        """Queues whose messages are all gone keep their numbers, and minima never fall."""
        for key, (low, high) in self._saved.queues.items():
            queue = self.queues.get(key)
            if queue is None:
                queue = self.queues[key] = ConsumeQueue(*key, high, high)
            queue.min_offset = min(max(queue.min_offset, low), queue.max_offset)

    def _remove_unknown_queues(self) -> None:
        # Queues that are newer than the checkpoint: the log behind it has their messages, and old files would be
        # appended to.
        for topic in self._disk.list(consume_queue.FOLDER):
            for queue in self._disk.list(f"{consume_queue.FOLDER}/{topic}"):
                if not (topic.isdecimal() and queue.isdecimal() and (int(topic), int(queue)) in self.queues):
                    self._disk.remove(f"{consume_queue.FOLDER}/{topic}/{queue}")

    # -- the log ------------------------------------------------------------------------------------------------------

    def _scan(self, file: File, start: int, position: int) -> Generator[list[State], None, bool]:
        """Take the frames of one file from `position` on. True if the log ends in it."""
        file_end = start + min(file.size(), self._segment_bytes)
        if self._stop is not None:
            file_end = min(file_end, max(start, self._stop))
        segment_end = start + self._segment_bytes
        piece_bytes = self._piece_bytes
        while segment_end - position >= HEADER_BYTES:
            size = min(piece_bytes, file_end - position)
            readable, failure = log_damage.read_readable(file, size, position - start)
            data = memoryview(readable)
            taken, states, sealed = self._take(data, position)
            yield states
            if self._unfiled >= FILING_ENTRIES:
                self.file_entries()
            position += taken
            self.log_end = position
            if sealed:
                break
            if taken:
                piece_bytes = self._piece_bytes
                continue
            # Whether it was torn is not known, so it is not cut; another copy may repair it.
            if failure is not None:
                raise log_damage.unreadable(self._disk, self._segment_bytes, position, failure) from failure
            claimed = size_at(data, 0)
            if len(data) < claimed <= file_end - position:
                piece_bytes = claimed  # one frame larger than a piece
                continue
            return True
        self.log_end = segment_end
        return False

    def _take(self, data: memoryview, base: int) -> tuple[int, list[State], bool]:
        """Frames from the start of `data`: bytes taken, state records, and whether padding ends the file."""
        position = 0
        states: list[State] = []
        unpack, last = HEADER.unpack_from, len(data) - HEADER_BYTES
        while True:
            if position <= last:
                header = unpack(data, position)
                if is_message(header, data, position, base):
                    position += header[0]
                    if self._group or header[5] & FLAG_MORE:
                        self._gather(header, header[5], states)
                    else:
                        self._message(header)
                    continue
            frame = self._frame(data, position, base + position)
            if frame is None:
                return position, states, False
            if frame.kind == PADDING:
                return position, states, True
            position += frame.size
            if self._group or frame.flags & FLAG_MORE:
                self._gather(frame, frame.flags, states)
            else:
                self._apply(frame, states)

    def _gather(self, member: Frame | Header, flags: int, states: list[State]) -> None:
        """The next record of a group; all are taken in when the last one is there."""
        self._group.append(member)
        if flags & FLAG_MORE:
            return
        # Only now: applying a part of a call would show its records although the rest is cut.
        for one in self._group:
            if isinstance(one, Frame):
                self._apply(one, states)
            else:
                self._message(one)
        self._group.clear()

    def _frame(self, data: bytes | memoryview, position: int, log_offset: int) -> Frame | None:
        return log_tail.frame_in(self._disk, self._segment_bytes, data, position, log_offset)

    def _apply(self, frame: Frame, states: list[State]) -> None:
        if frame.kind not in KINDS:
            raise StoreError(
                f"{self._place(frame.log_offset)} holds a record of kind {frame.kind}, which this program does not "
                "know: start a newer program on this folder"
            )
        self.records += 1
        self.last_store_ms = max(self.last_store_ms, frame.store_ms)
        self._synced = max(self._synced, frame.synced_offset)
        log_offset = frame.log_offset
        if frame.kind != STATE:
            self.last_message_ms = self.last_store_ms
        else:
            if log_offset >= self._states_from:
                states.append((log_offset, frame.head))
            return
        if self.timers is not None:
            self.timers.apply(frame)

    def _message(self, header: Header) -> None:
        """Take in a message by its header: a start reads mostly these, and needs nothing else of them."""
        size, _, _, _, _, _, _, topic_id, queue_id, queue_offset, log_offset, synced, store_ms, _, tag_hash, _, _ = (
            header
        )
        self.records += 1
        self.last_message_ms = self.last_store_ms = max(self.last_store_ms, store_ms)
        self._synced = max(self._synced, synced)
        if log_offset < self._entries_from:
            return
        key = (topic_id, queue_id)
        queue = self.queues.get(key)
        if queue is None:
            first = self._first_of(key, queue_offset, log_offset)
            queue = self.queues[key] = ConsumeQueue(*key, first, first)
        if queue_offset != queue.next_offset:
            raise StoreCorrupted(
                f"{self._place(log_offset)} holds message {queue_offset} of queue {queue_id} of topic {topic_id} where "
                f"{queue.next_offset} is due: restore the folder from a copy"
            )
        queue.tail += ENTRY.pack(log_offset, size, tag_hash)
        queue.next_offset = queue.max_offset = queue.hot_base = queue_offset + 1
        self._unfiled += 1

    # -- the end of the log -------------------------------------------------------------------------------------------

    def _check_start(self, saved: Snapshot | None) -> None:
        """Is all there that was not given up?"""
        first = self._starts[0] if self._starts else self.log_start
        if first > self.log_start:
            raise StoreCorrupted(
                f"{self._disk.describe(segment.path_of(self.log_start))} is missing at the beginning of the log: "
                "restore it from a copy"
            )
        if self.log_start and saved is None:
            raise StoreCorrupted(
                f"{self._disk.describe(snapshot.FOLDER)} holds no snapshot and the log before offset "
                f"{self.log_start} is gone: restore the folder from a copy"
            )

    def _check_end(self) -> None:
        """Everything is taken up to `log_end`: is what lies behind it a torn tail, or damage?"""
        end = self.log_end
        # The refusal first: a cut could not be undone, and what is missing may still be on another copy or in a backup.
        if self._vouched_end() > end:
            self._lost(end)
        if self._end_of_files() > end:
            self._cut_tail(end)
        self._write_again(end)
        log_tail.fill_last(self._disk, self._segment_bytes, self._starts, end)

    def _cut_tail(self, end: int) -> None:
        behind = self._end_of_files() - end
        # After a clean close every byte was synced: what does not fit was changed since, by hand or by the disk.
        if self.checkpoint.clean and self.checkpoint.log_offset == end:
            self._damaged(end, "the store was closed in order, so nothing could be torn there")
        for frame in log_tail.frames_behind(self._disk, self._segment_bytes, self._starts, end):
            if frame.synced_offset > end:
                self._damaged(
                    end, f"the record at {frame.log_offset} says that the log was on disk up to {frame.synced_offset}"
                )
        passing("recovery.cutting")
        log_tail.cut(self._disk, self._segment_bytes, self._starts, end)
        passing("recovery.cut")
        self.cut_bytes = behind
        log.warning(
            "cut a torn tail of %d bytes off the log at %d", behind, end, extra={"log_end": end, "cut_bytes": behind}
        )

    def _write_again(self, end: int) -> None:
        """Write what nothing says was synced once more, before it is served."""
        sure = max(self._synced, self._states_from)
        log_tail.write_again(self._disk, self._segment_bytes, self._starts, sure, end)

    def _vouched_end(self) -> int:
        return max(self.checkpoint.log_offset, self._states_from, self._copied_end)

    def _lost(self, end: int) -> None:
        raise StoreCorrupted(
            f"{self._place(end)} has no whole record, but the checkpoint, a snapshot or the mark of a copy says that "
            f"the log was on disk up to {self._vouched_end()}: acknowledged messages are missing, restore the folder "
            "from a copy",
            log_offset=max(end, self._scanned_end),
        )

    def _damaged(self, end: int, why: str) -> None:
        raise StoreCorrupted(
            f"{self._place(end)} is damaged: {why}; restore the folder from a copy",
            log_offset=max(end, self._scanned_end),
        )

    def _place(self, log_offset: int) -> str:
        return log_tail.name_of_place(self._disk, self._segment_bytes, log_offset)

    def _end_of_files(self) -> int:
        return log_tail.end_of_files(self._disk, self._starts)
