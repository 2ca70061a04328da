"""Checks queue offsets and consume queue files while the log is walked: offsets are dense, and each filed entry is byte
for byte what the log says.

Expected entries are gathered per queue and compared in blocks, so memory stays bounded for any number of queues. Only
entries that the checkpoint vouches for are judged: a start writes later ones again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from evenq.store.inspection.findings import Findings, Harm, StoreFinding
from evenq.store.inspection.folder import place_of
from evenq.store.inspection.log_walk import Header
from evenq.store.io.disk import Disk
from evenq.store.log.consume_queue import ENTRY, ENTRY_BYTES, file_at, folder_of, spans
from evenq.store.log.snapshot import Ranges
from evenq.store.opening.checkpoint import Checkpoint

Key = tuple[int, int]
BLOCK_BYTES: Final = 64 << 10
GATHERED_MAX: Final = 16 << 20
ADVICE: Final = "`evenq store repair DIR --apply` takes the file out; the next start builds the consume queues again"


@dataclass(frozen=True, slots=True)
class LostRange:
    """Messages that the log no longer holds."""

    topic_id: int
    queue_id: int
    start: int
    end: int
    """First offset that is not lost."""

    def __str__(self) -> str:
        count = self.end - self.start
        which = f"message {self.start}" if count == 1 else f"messages {self.start} to {self.end - 1}"
        return f"{which} of queue {self.queue_id} of topic {self.topic_id}"


class _Queue:
    __slots__ = ("base", "due", "entries", "filed", "first", "holes", "low")

    def __init__(self, first: int, listed: tuple[int, int] | None, holes: int) -> None:
        self.first = first
        self.due = first
        self.entries = bytearray()
        self.base = first
        """Queue offset of the first of `entries`."""
        self.low, self.filed = listed or (0, 0)
        self.holes = holes
        """Holes of the log that were passed before the queue's last message."""


@dataclass(slots=True)
class QueueCheck:
    """Check of all queues, fed with the headers of messages in log order; `finish` reports the rest."""

    disk: Disk
    segment_bytes: int
    checkpoint: Checkpoint
    log_start: int
    findings: Findings
    running: bool = False
    saved: Ranges = field(default_factory=dict)
    """Ranges of the snapshot that a start uses: a minimum there may be newer than the checkpoint's."""
    holes: int = 0
    """Holes of the log so far: each explains what is missing after it."""
    files_went: bool = False
    """Retention deleted log files of a running store during the walk: missing messages mean nothing then."""
    lost: list[LostRange] = field(default_factory=list)
    entries_checked: int = 0
    _queues: dict[Key, _Queue] = field(default_factory=dict)
    _gathered: int = 0
    _short: set[str] = field(default_factory=set)
    """Files that were reported as too short, so that each is reported once."""

    def take(self, headers: Iterable[Header]) -> None:
        queues, holes, pack = self._queues, self.holes, ENTRY.pack
        gathered = 0
        for header in headers:
            key = (header[7], header[8])
            offset = header[9]
            queue = queues.get(key)
            if queue is None:
                queue = queues[key] = self._first_of(key, header)
            if offset != queue.due:
                self._skip(key, queue, header)
            queue.due = offset + 1
            queue.holes = holes
            if offset < queue.filed:
                entries = queue.entries
                entries += pack(header[10], header[0], header[14])
                gathered += ENTRY_BYTES
                if len(entries) >= BLOCK_BYTES:
                    self._compare(key, queue)
        self._gathered += gathered
        if self._gathered >= GATHERED_MAX:
            self._compare_all()

    def finish(self) -> None:
        """Ends the check after the last record."""
        self._compare_all()
        for key in sorted(self.checkpoint.queues):
            low, high = self._listed(key) or (0, 0)
            queue = self._queues.get(key)
            due = queue.due if queue is not None else low
            if due < high:
                self._missing(LostRange(*key, due, high), queue.holes if queue is not None else 0)

    @property
    def queues(self) -> int:
        """Number of queues that have messages in the log."""
        return len(self._queues)

    def _listed(self, key: Key) -> tuple[int, int] | None:
        """Returns the range that the checkpoint vouches for, without what was deleted since."""
        span = self.checkpoint.queues.get(key)
        if span is None:
            return None
        low, high = span
        return min(max(low, self.saved.get(key, span)[0]), high), high

    def _first_of(self, key: Key, header: Header) -> _Queue:
        listed = self._listed(key)
        offset = header[9]
        queue = _Queue(offset, listed, self.holes)
        low = listed[0] if listed is not None else self.saved.get(key, (0, 0))[0]
        if offset > low and (listed is not None or self.log_start == 0):
            self._missing(LostRange(*key, low, offset), 0)
        if listed is None and self.checkpoint.log_offset > 0 and header[10] < self.checkpoint.log_offset:
            self._add_at(
                header,
                "queue-unlisted",
                Harm.WRONG,
                f"the message belongs to queue {key[1]} of topic {key[0]}, which the checkpoint behind it does not "
                "list: a start would not show the queue.",
                "`evenq store repair DIR --apply` takes the checkpoint out; the next start reads the whole log",
            )
        return queue

    def _skip(self, key: Key, queue: _Queue, header: Header) -> None:
        """Handles a message whose offset is not the due one."""
        self._compare(key, queue)
        queue.base = header[9]
        if header[9] < queue.due:
            self._add_at(
                header,
                "offset-repeated",
                Harm.WRONG,
                f"the message says that it is {header[9]} of queue {key[1]} of topic {key[0]}, where {queue.due} is "
                "due: two messages share an offset.",
                "report it with this output: it is a fault of evenq or of a program that changed the file",
            )
        elif self.files_went:
            return
        elif queue.holes == self.holes:
            gone = LostRange(*key, queue.due, header[9])
            self.lost.append(gone)
            self._add_at(
                header,
                "offset-gap",
                Harm.LOST,
                f"{gone} should lie before this record and do not: the log was changed.",
                "restore the folder from a copy; `evenq store dump DIR` saves what can be read",
            )
        else:
            self.lost.append(LostRange(*key, queue.due, header[9]))

    def _missing(self, gone: LostRange, holes_then: int) -> None:
        if self.files_went:
            return
        self.lost.append(gone)
        if holes_then < self.holes:
            return  # the hole is a finding already
        self.findings.add(
            StoreFinding(
                kind="messages-missing",
                harm=Harm.LOST,
                file="checkpoint",
                what=f"the checkpoint vouches for {gone}, which the log does not hold.",
                advice="restore the folder from a copy; `evenq store dump DIR` saves what can be read",
            )
        )

    def _add_at(self, header: Header, kind: str, harm: Harm, what: str, advice: str) -> None:
        file, byte = place_of(header[10], self.segment_bytes)
        self.findings.add(
            StoreFinding(kind=kind, harm=harm, file=file, byte=byte, log_offset=header[10], what=what, advice=advice)
        )

    def _compare_all(self) -> None:
        for key, queue in self._queues.items():
            if queue.entries:
                self._compare(key, queue)
        self._gathered = 0

    def _compare(self, key: Key, queue: _Queue) -> None:
        expected, base = bytes(queue.entries), queue.base
        queue.entries.clear()
        queue.base = end = base + len(expected) // ENTRY_BYTES
        first = max(base, queue.low)
        if first < end:
            self.entries_checked += end - first
        for start, stop in spans(first, end):
            due = expected[(start - base) * ENTRY_BYTES : (stop - base) * ENTRY_BYTES]
            name, position = file_at(start)
            path = f"{folder_of(*key)}/{name}"
            try:
                file = self.disk.open(path)
            except FileNotFoundError:
                if not self.running:  # otherwise retention may have deleted it
                    self._add_entry(path, None, "entries-missing", start, stop, "the file is missing")
                continue
            try:
                actual = file.pread(len(due), position)
            finally:
                file.close()
            if actual != due:
                self._differ(path, position, start, actual, due)

    def _differ(self, path: str, position: int, start: int, actual: bytes, due_entries: bytes) -> None:
        for position_in in range(0, len(due_entries), ENTRY_BYTES):
            entry = actual[position_in : position_in + ENTRY_BYTES]
            due = due_entries[position_in : position_in + ENTRY_BYTES]
            if entry == due:
                continue
            offset = start + position_in // ENTRY_BYTES
            log_offset, size, tag_hash = ENTRY.unpack(due)
            due_text = f"due is log offset {log_offset}, {size} bytes, tag hash {tag_hash}"
            if len(entry) < ENTRY_BYTES:
                end = start + len(due_entries) // ENTRY_BYTES
                why = f"the file ends there; {due_text}"
                self._add_entry(path, position + position_in, "entries-missing", offset, end, why)
                return
            there, its_size, its_tag = ENTRY.unpack(entry)
            why = f"it says log offset {there}, {its_size} bytes, tag hash {its_tag}; {due_text}"
            self._add_entry(path, position + position_in, "entry-differs", offset, offset + 1, why)

    def _add_entry(self, path: str, byte: int | None, kind: str, start: int, end: int, why: str) -> None:
        if kind == "entries-missing":
            if path in self._short:
                return
            self._short.add(path)
        which = f"entry {start}" if end == start + 1 else f"entries {start} to {end - 1}"
        self.findings.add(
            StoreFinding(
                kind=kind,
                harm=Harm.REBUILT,
                file=path,
                byte=byte,
                what=f"{which} of the consume queue: {why}. The messages themselves are in the log.",
                advice=ADVICE,
            )
        )
