"""Recovery of a store when it opens: reads the log from the last certain place, cuts a torn tail, and refuses damage.

Problem: after a kill or a power loss the end of the log may be incomplete, and the files derived from it (consume
queues, timers, the owner's state) are older than the log. A start must bring back all that was confirmed to be on disk,
must not show a part of an append call, and must not mistake damage of such records for a torn tail.

Idea: the checkpoint says up to where log and consume queues are on disk, the newest snapshot holds the owner's state
and the timers. `steps` reads the log from the lowest of these places, checks the CRC of every frame, and applies it.
Where no whole frame follows, at log offset p, it decides:
- Damage, if anything says that the log was on disk beyond p: the checkpoint, a snapshot, the mark of a copy, or a whole
  frame after p whose `synced offset` exceeds p. Also if the store was closed in order at p. It raises StoreCorrupted
  and cuts nothing.
- A torn tail otherwise: the bytes after p were never confirmed to be on disk, and a power loss writes them in any
  order. They are cut.

Example: the checkpoint is at log offset 5,000,000, the files end at 9,000,000, and the frame at 8,400,000 does not
match its CRC. If the only whole frame after it has `synced offset` 8,300,000, the log is cut at 8,400,000. If its
`synced offset` is 8,450,000, the start fails and names file and byte. If the last whole record before 8,400,000
announces a further record of its call (`FLAG_MORE`), and the call began at 8,399,000, the cut is there.

Invariants:
- The records of one append call are applied together or not at all.
- Nothing is cut before everything that vouches for the log was examined.
- What nothing confirms to be synced is written and synced again before it is served (`log_tail.write_again`).
- Queue offsets are dense: a message with another offset than the due one is damage.
- Files of consume queues are used only if they have all entries that the checkpoint lists; otherwise all are rebuilt.

`steps` yields between pieces, so that the loop stays responsive and state records reach their owner on it. With a
`stop` the same pass ends in the middle of the log and leaves the rest alone: a follower's replay
(`copies.copy_replay`).

References: D1, D5; docs/internals/data_files.md; redo from a checkpoint as in Mohan et al., "ARIES", ACM TODS 17(1),
1992, without undo, because a call that is not whole is cut.
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

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 4 << 20
# A start without any queue files reads the whole log, and its entries (20 bytes each) must not fill the memory.
FILING_ENTRIES: Final = 500_000  # rebuilt entries kept in memory before they go to files

State = tuple[int, bytes]


class Recovery:
    """One pass over the log. Results are attributes, valid after `steps`."""

    def __init__(
        self,
        disk: Disk,
        segment_bytes: int,
        checkpoint: Checkpoint | None,
        saved: Snapshot | None = None,
        *,
        copied_end: int = 0,
        stop: int | None = None,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        """`copied_end`: log offset up to which the folder's last follower phase had the log on disk. `stop`: a group
        boundary on disk, from which on nothing is read; None to find the log's end.
        """
        self._disk = disk
        self._stop = stop
        self._piece_bytes = piece_bytes
        self._segment_bytes = segment_bytes
        self.checkpoint = checkpoint or Checkpoint()
        self._saved = saved or Snapshot(0, b"")
        # Retention writes both, one after the other: after a crash in between, one of them is behind.
        self.log_start = max(self.checkpoint.log_start, self._saved.log_start)
        """First log offset that the log still has."""
        segment.drop_before(disk, self.log_start)  # completes a deletion that a crash interrupted
        self._starts = segment.starts(disk, segment_bytes)
        """Starts of the log files, ascending, without a gap."""
        self._check_start(saved)
        self.queues: dict[tuple[int, int], ConsumeQueue] = {}
        """Entries up to `_entries_from` are in files, later ones in memory until `file_entries`."""
        self.log_end = self.log_start
        """Log offset after the last frame that was taken; in the end, of the log."""
        self.last_store_ms = max(self.checkpoint.last_store_ms, self._saved.last_store_ms)
        """Highest store time so far: later records do not get a lower one."""
        self.last_message_ms = self.last_store_ms
        """Of the last message or timer, as far as the log is read: a leader's first record has its own time."""
        self.records = 0
        self.cut_bytes = 0
        """Bytes of the torn tail that was cut."""
        self.rebuilt = False
        """Whether the consume queues came from the whole log."""
        self._entries_from = self.log_start
        """Messages from this log offset on get new entries."""
        self._states_from = 0
        """State records from this log offset on are passed to the owner: the snapshot holds earlier ones."""
        self.newest_snapshot = saved.log_offset if saved is not None and saved.version > 1 else 0
        """Log offset of the snapshot from which the owner began, if it has all sections; otherwise 0."""
        self.timers: TimerLoader | None = None
        """Takes the timers and their ends out of the log; set by the caller."""
        self._group: list[Frame | Header] = []
        """Records of one append call whose last record has not come yet: none of them is applied."""
        self._scanned_end = self.log_start
        """Log offset at which the scan ended: damage is here, and its group may begin earlier, in another file even."""
        self._unfiled = 0
        """Entries in memory that are in no file yet."""
        self._copied_end = copied_end
        self._synced = max(self.checkpoint.log_offset, self.log_start)
        """The log was on disk up to here, according to checkpoint and frames."""

    def steps(self, states_from: int) -> Generator[list[State], None, None]:
        """Yields after each piece of the log its state records from `states_from` on. Blocks on the disk in between."""
        self._states_from = states_from
        self._open_queues()
        position = min(self._entries_from, max(states_from, self.log_start))
        if self.timers is not None:
            position = min(position, self.timers.start)
        # Case: the log ends before the place where reading begins, so confirmed records are lost.
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
            # Case: the last record of a call is missing, and nothing vouches for it: the whole call is cut.
            first = self._group[0]
            self.log_end = first.log_offset if isinstance(first, Frame) else first[10]
            self._group.clear()
        if self._stop is None:  # case: a start, which must find the end
            self._check_end()
        elif self.log_end < self._stop:  # case: a replay, whose part of the log must be whole
            self._damaged(self.log_end, f"there is no whole record, and the log was on disk up to {self._stop}")
        self._take_ranges()

    def file_entries(self) -> None:
        filings = [filing for filing in map(ConsumeQueue.filing, self.queues.values()) if filing is not None]
        consume_queue.write_all(self._disk, filings)
        for filing in filings:
            self.queues[filing.topic_id, filing.queue_id].filed_up_to(filing.end)
        self._unfiled = 0

    def _open_queues(self) -> None:
        """Takes the entries that the checkpoint vouches for; if a file lacks any, rebuilds all of them from the log."""
        known = {key: self._risen(key, span) for key, span in self.checkpoint.queues.items()}
        # At least 1: a new folder's checkpoint, which vouches for nothing, must not pass for one of empty queues.
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
                # A checkpoint without queues never had files of them: it is of a copy that only followed.
                log.log(
                    logging.WARNING if known else logging.INFO,
                    "rebuilding the consume queues from the log, from offset %d on",
                    self.log_start,
                    extra={"log_start": self.log_start},
                )
            # All or none: all queues are filed in one step, so a file that lacks entries makes the others suspect.
            self._disk.remove(consume_queue.FOLDER)
            passing("recovery.rebuilding")
            self._disk.make_folder(consume_queue.FOLDER)

    def _risen(self, key: tuple[int, int], span: tuple[int, int]) -> tuple[int, int]:
        """Returns the range of a checkpoint without what was deleted since."""
        low, high = span
        return min(max(low, self._saved.queues.get(key, span)[0]), high), high

    def _first_of(self, key: tuple[int, int], queue_offset: int, log_offset: int) -> int:
        """Returns the offset that a queue's first message must have. Any other one is damage (D5)."""
        span = self._saved.queues.get(key)
        if span is None:  # case: a new queue
            return 0
        if log_offset >= self._saved.log_offset:  # case: after the snapshot, whose count is exact
            return span[1]
        return queue_offset if self.log_start else 0  # case: a trimmed log may begin in the middle of a queue

    def _take_ranges(self) -> None:
        """Keeps the numbers of queues whose messages are all gone, and lets minima only rise."""
        for key, (low, high) in self._saved.queues.items():
            queue = self.queues.get(key)
            if queue is None:
                queue = self.queues[key] = ConsumeQueue(*key, high, high)
            queue.min_offset = min(max(queue.min_offset, low), queue.max_offset)

    def _remove_unknown_queues(self) -> None:
        # Queues newer than the checkpoint: the log after it has their messages, and old files would be appended to.
        for topic in self._disk.list(consume_queue.FOLDER):
            for queue in self._disk.list(f"{consume_queue.FOLDER}/{topic}"):
                if not (topic.isdecimal() and queue.isdecimal() and (int(topic), int(queue)) in self.queues):
                    self._disk.remove(f"{consume_queue.FOLDER}/{topic}/{queue}")

    def _scan(self, file: File, start: int, position: int) -> Generator[list[State], None, bool]:
        """Takes the frames of one file from `position` on. Returns True if the log ends in it."""
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
            if sealed:  # case: padding, so the file is full
                break
            if taken:  # case: further frames may follow
                piece_bytes = self._piece_bytes
                continue
            # Case: an unreadable sector. It is not known whether it was torn, so it is not cut; a copy may repair it.
            if failure is not None:
                raise log_damage.unreadable(self._disk, self._segment_bytes, position, failure) from failure
            claimed = size_at(data, 0)
            if len(data) < claimed <= file_end - position:
                piece_bytes = claimed  # case: one frame larger than a piece
                continue
            return True  # case: a hole; `_check_end` decides what it is
        self.log_end = segment_end
        return False

    def _take(self, data: memoryview, base: int) -> tuple[int, list[State], bool]:
        """Takes frames from the start of `data`; returns bytes taken, states, and whether padding ends the file."""
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
        """Adds the next record of a group; applies all of them when the last one is there."""
        self._group.append(member)
        if flags & FLAG_MORE:
            return
        # Only now: a part of a call would show its records although the rest is cut.
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
                "support: start a newer program on this folder"
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
        """Applies a message by its header: a start reads mostly messages, and needs nothing else of them."""
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

    def _check_start(self, saved: Snapshot | None) -> None:
        """Checks that everything is there that was not given up."""
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
        """Judges what lies after `log_end`, and makes the rest durable."""
        end = self.log_end
        # The refusal first: a cut cannot be undone, and what is missing may still be on another copy or in a backup.
        if self._vouched_end() > end:
            self._lost(end)
        if self._end_of_files() > end:
            self._cut_tail(end)
        self._write_again(end)
        log_tail.fill_last(self._disk, self._segment_bytes, self._starts, end)

    def _cut_tail(self, end: int) -> None:
        behind = self._end_of_files() - end
        # Case: a clean close synced every byte, so what does not fit was changed later, by hand or by the disk.
        if self.checkpoint.clean and self.checkpoint.log_offset == end:
            self._damaged(end, "the store was closed in order, so nothing could be torn there")
        # Case: a later record shows that the log was on disk beyond the hole.
        for frame in log_tail.frames_behind(self._disk, self._segment_bytes, self._starts, end):
            if frame.synced_offset > end:
                self._damaged(
                    end, f"the record at {frame.log_offset} says that the log was on disk up to {frame.synced_offset}"
                )
        # Case: a torn tail, for which nothing vouches.
        passing("recovery.cutting")
        log_tail.cut(self._disk, self._segment_bytes, self._starts, end)
        passing("recovery.cut")
        self.cut_bytes = behind
        log.warning(
            "cut a torn tail of %d bytes off the log at %d", behind, end, extra={"log_end": end, "cut_bytes": behind}
        )

    def _write_again(self, end: int) -> None:
        """Writes again what nothing says to be synced, before it is served."""
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
