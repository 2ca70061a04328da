"""Verify: reads everything in a data folder and reports what does not agree. Never writes.

A stopped store is judged as a whole; of a running one only the part before its checkpoint, which no longer changes. A
hole in the log is damage, as in recovery, if anything says that the log was on disk beyond it. The files of the message
index and the timers are derived from the log, so a start builds a damaged one again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from crc32c import crc32c

from evenq.errors import StoreCorrupted, StoreError
from evenq.store.index import index_file
from evenq.store.index.index_file import PAGE, PAGE_BYTES, PAGE_CRC_END, PAGE_ENTRIES
from evenq.store.inspection.findings import Findings, Harm, StoreFinding
from evenq.store.inspection.folder import (
    BESIDE,
    INDEX,
    TIMERS,
    Folder,
    foreign,
    left_over,
    load_snapshot,
    place_of,
    read_folder,
)
from evenq.store.inspection.log_walk import Header, Hole, LogWalk, Piece
from evenq.store.inspection.queues import LostRange, QueueCheck
from evenq.store.io.disk import Disk, File
from evenq.store.log.record import FLAG_MORE, HEADER_BYTES, KINDS, MESSAGE, PADDING, struct_of
from evenq.store.opening.checkpoint import Checkpoint
from evenq.store.timers import manifest, runs
from evenq.store.timers.manifest import TIMERS_UNKNOWN

OnProgress = Callable[[int, int], None]
"""Called with (bytes read, bytes in total) after each piece."""
Owner = Callable[[], str | None]
"""Returns the pid of the process that has the folder open, None if there is none."""
BREAKS: Final = frozenset({"offset-gap", "offset-repeated"})  # a start that reads the whole log stops at them
RESTORE: Final = (
    "restore the folder from a copy. Without one: `evenq store dump DIR` saves what can be read, "
    "`evenq store repair DIR --accept-loss` shows what cutting the log there would cost"
)
ENTRY: Final = struct_of(index_file.ENTRY_FIELDS)
PAGES_READ: Final = 256
ADVICE: Final = "start the broker: it makes the file again; or `evenq store repair DIR --apply` to take it out now"


@dataclass(slots=True)
class FolderVerdict:
    """Result of verify."""

    folder: Folder
    log_end: int
    """Log offset at which a start would continue to write, or the end of the judged part."""
    torn_bytes: int = 0
    """Bytes after `log_end` that a start would cut."""
    damage: list[Hole] = field(default_factory=list)
    """Holes that no start accepts."""
    cut_at: int | None = None
    """Where a cut would make the log whole: the first damage, or the append call that it breaks."""
    lost: list[LostRange] = field(default_factory=list)
    frames: dict[int, int] = field(default_factory=dict)
    queues: int = 0
    entries_checked: int = 0
    bytes_read: int = 0

    @property
    def findings(self) -> Findings:
        return self.folder.findings

    @property
    def clean(self) -> bool:
        return self.findings.clean


def verify(disk: Disk, *, owner: Owner, on_progress: OnProgress | None = None) -> FolderVerdict:
    """Checks a whole folder. Raises StoreError if it cannot be read or judged."""
    owned_by = owner()
    folder = read_folder(disk, owner=owned_by)
    try:
        judge_index(disk, folder)
        judge_timers(disk, folder)
        verdict = _Verification(disk, folder, on_progress).run()
    except OSError as error:
        raise StoreError(f"the data folder {disk.describe('')} cannot be read: {error}") from error
    now = owner()
    if now != owned_by and now is not None:
        raise StoreError(
            f"process {now} opened the data folder while it was read, so the result is not valid: verify again"
        )
    return verdict


class _Verification:
    def __init__(self, disk: Disk, folder: Folder, on_progress: OnProgress | None) -> None:
        self._disk = disk
        self._folder = folder
        self._findings = folder.findings
        self._on_progress = on_progress
        self._bytes = folder.identity.segment_bytes
        self._end = folder.judged_end
        saved = folder.checkpoint or Checkpoint()
        kept = load_snapshot(disk, folder)
        self._checks = QueueCheck(
            disk,
            self._bytes,
            saved,
            folder.log_start,
            folder.findings,
            folder.running,
            saved=kept.queues if kept is not None else {},
        )
        self._holes: list[Hole] = []
        self._broken_groups: dict[int, int] = {}
        """Start of a hole to the start of the append call that it breaks."""
        self._frames: Counter[int] = Counter()
        self._synced = 0
        self._last_ms = 0
        self._group: int | None = None
        """Start of the append call whose end has not come yet."""
        self._marks = {mark: name for mark, name in self._vouched() if folder.log_start <= mark < self._end}

    def run(self) -> FolderVerdict:
        walk = LogWalk(self._disk, self._bytes, self._folder.starts, end=self._end, gone=self._gone)
        for step in walk.steps():
            if isinstance(step, Piece):
                self._piece(step)
            else:
                self._hole(step)
            if self._on_progress is not None:
                self._on_progress(walk.bytes_read, walk.bytes_total)
        self._checks.finish()
        verdict = FolderVerdict(
            self._folder,
            self._end,
            frames=self._frames,
            lost=self._checks.lost,
            queues=self._checks.queues,
            entries_checked=self._checks.entries_checked,
            bytes_read=walk.bytes_read,
        )
        self._judge(verdict)
        return verdict

    def _gone(self, _start: int) -> bool:
        """Whether a file may be missing that existed before."""
        self._checks.files_went = self._folder.running
        return self._folder.running

    def _vouched(self) -> list[tuple[int, str]]:
        """Returns log offsets up to which a file says that the log is on disk, with the file."""
        snapshots = [(file.log_offset, file.path) for file in self._folder.snapshots if file.good]
        if self._folder.checkpoint is not None:
            snapshots.append((self._folder.checkpoint.log_offset, "checkpoint"))
        return snapshots

    def _piece(self, piece: Piece) -> None:
        headers = piece.headers
        kinds = Counter([header[4] for header in headers])
        self._frames.update(kinds)
        self._synced = max(self._synced, *[header[11] for header in headers])
        if any(kind not in KINDS for kind in kinds):
            self._unknown_kinds(headers)
        last_ms, group = self._last_ms, self._group
        for header in headers:
            if header[12] < last_ms:
                self._time_fell(header[10], header[12], last_ms)
            last_ms = header[12]
            if header[5] & FLAG_MORE:
                if group is None:
                    group = header[10]
            elif group is not None and header[4] != PADDING:
                group = None
        self._last_ms, self._group = last_ms, group
        self._checks.take(headers if len(kinds) == 1 and MESSAGE in kinds else [h for h in headers if h[4] == MESSAGE])
        if self._marks:
            self._check_marks(piece)

    def _check_marks(self, piece: Piece) -> None:
        first, last = piece.headers[0], piece.headers[-1]
        end = last[10] + (last[0] if last[4] != PADDING else HEADER_BYTES)
        near = [mark for mark in self._marks if first[10] <= mark < end]
        if near:
            places = {header[10] for header in piece.headers}
            for mark in near:
                if mark not in places:
                    self._off_the_mark(mark)

    def _hole(self, hole: Hole) -> None:
        self._holes.append(hole)
        self._checks.holes += 1
        if self._group is not None:
            self._broken_groups[hole.start] = self._group
            self._group = None

    def _judge(self, verdict: FolderVerdict) -> None:
        sure, says = max(self._vouched(), default=(0, ""))
        if self._synced > sure:
            sure, says = self._synced, "a later record"
        torn: Hole | None = None
        for hole in self._holes:
            if hole.start < sure or self._ended_clean(hole.start):
                if verdict.cut_at is None:
                    verdict.cut_at = self._broken_groups.get(hole.start, hole.start)
                verdict.damage.append(hole)
                self._damaged(hole, f"{says} says that the log was on disk up to {sure}")
            elif torn is None:
                torn = hole
        if torn is not None:
            self._torn(verdict, self._broken_groups.get(torn.start, torn.start), torn.why)
        elif self._group is not None and not self._folder.running:
            self._open_group(verdict, self._group, sure)
        if sure > self._end and not self._folder.running:
            self._log_short(verdict, sure, says)
        gaps = [finding.log_offset for finding in self._findings.listed if finding.kind in BREAKS]
        verdict.cut_at = min((at for at in (*gaps, verdict.cut_at) if at is not None), default=None)

    def _ended_clean(self, log_offset: int) -> bool:
        """Whether the store was closed in order with the log ending there: then nothing can be torn."""
        saved = self._folder.checkpoint
        return self._folder.clean_stop and saved is not None and saved.log_offset == log_offset

    def _damaged(self, hole: Hole, why: str) -> None:
        if self._ended_clean(hole.start):
            why = "the store was closed in order"
        length = hole.end - hole.start
        rest = "no whole record follows" if hole.last else f"the next whole record is at log offset {hole.end}"
        lost = "; ".join(map(str, self._checks.lost[:8])) or "which messages is not known"
        more = len(self._checks.lost) - 8
        self._add(
            hole.start,
            "log-damaged",
            Harm.LOST,
            f"{hole.why}; {length} bytes of the log cannot be read, {rest}. It is not a torn tail, because {why}. "
            f"Missing in the log: {lost}{f' and {more} more stretches' if more > 0 else ''}.",
            RESTORE,
        )

    def _torn(self, verdict: FolderVerdict, start: int, why: str) -> None:
        verdict.log_end = start
        verdict.torn_bytes = self._end - start
        self._add(
            start,
            "torn-tail",
            Harm.NOTE,
            f"{why}: a write was cut short when the process or the machine ended. No sender received an answer that "
            f"these {verdict.torn_bytes} bytes are on disk; a start cuts them off.",
            "start the broker, or `evenq store repair DIR --apply` to cut them now",
        )

    def _open_group(self, verdict: FolderVerdict, start: int, sure: int) -> None:
        if sure <= start and not self._ended_clean(start):
            self._torn(verdict, start, "the log ends within the records of one append call")
            return
        verdict.cut_at = min(start, verdict.cut_at if verdict.cut_at is not None else start)
        self._add(
            start,
            "call-unfinished",
            Harm.LOST,
            "the log ends within the records of one append call that was confirmed: its end is missing.",
            RESTORE,
        )

    def _log_short(self, verdict: FolderVerdict, sure: int, says: str) -> None:
        if verdict.cut_at is None:
            verdict.cut_at = self._end
        self._add(
            self._end,
            "log-short",
            Harm.LOST,
            f"the log ends there, but {says} says that it was on disk up to {sure}: at least {sure - self._end} bytes "
            "of confirmed records are missing.",
            RESTORE,
        )

    def _time_fell(self, log_offset: int, store_ms: int, before_ms: int) -> None:
        self._add(
            log_offset,
            "time-fell",
            Harm.WRONG,
            f"the record was stored at {store_ms} ms, the one before it at {before_ms}: times never fall along the "
            "log, so looking up by time may miss messages here.",
            "report it with this output",
        )

    def _unknown_kinds(self, headers: list[Header]) -> None:
        for header in headers:
            if header[4] not in KINDS:
                self._add(
                    header[10],
                    "kind-unknown",
                    Harm.WRONG,
                    f"the record is of kind {header[4]}, which this program does not support; it was passed over.",
                    "use the tool of a newer evenq",
                )

    def _off_the_mark(self, mark: int) -> None:
        file = self._marks[mark]
        self._findings.add(
            StoreFinding(
                kind="off-the-mark",
                harm=Harm.REBUILT,
                file=file,
                log_offset=mark,
                what="no record begins at the log offset that the file stands for: it belongs to another log.",
                advice="`evenq store repair DIR --apply` takes the file out",
            )
        )

    def _add(self, log_offset: int, kind: str, harm: Harm, what: str, advice: str) -> None:
        file, byte = place_of(log_offset, self._bytes)
        self._findings.add(
            StoreFinding(kind=kind, harm=harm, file=file, byte=byte, log_offset=log_offset, what=what, advice=advice)
        )


def judge_index(disk: Disk, folder: Folder) -> None:
    for name in disk.list(INDEX):
        path = f"{INDEX}/{name}"
        if name.endswith(BESIDE):
            if not folder.running:
                folder.findings.add(left_over(path))
        elif len(name) != index_file.NAME_DIGITS or not name.isdecimal():
            folder.findings.add(foreign(path))
        else:
            try:
                file = disk.open(path)
            except FileNotFoundError:
                continue  # deleted by retention
            try:
                wrong = _wrong_in_index(file, int(name))
            finally:
                file.close()
            if wrong is not None:
                folder.findings.add(_damaged("index-damaged", path, *wrong))


def _wrong_in_index(file: File, block_start: int) -> tuple[int, str] | None:
    """Returns byte and reason of the first damage of an index file; None if it is whole."""
    data = file.pread(index_file.HEADER.size, 0)
    if len(data) < index_file.HEADER.size:
        return len(data), "the file ends in its header"
    magic, crc, version, count, start, *_ = index_file.HEADER.unpack(data)
    if magic != index_file.MAGIC or crc32c(data[index_file.HEADER_CRC_END :]) != crc:
        return 0, "the header does not fit its CRC"
    if version != index_file.VERSION:
        return 8, f"the file has format version {version}, this program reads {index_file.VERSION}"
    if start != block_start:
        return 16, f"the header says that its block begins at {start}"
    pages = -(-count // PAGE_ENTRIES)
    if file.size() != PAGE_BYTES * (1 + pages):
        return min(file.size(), PAGE_BYTES * (1 + pages)), f"{pages} pages should follow the header"
    last = (-1, -1)
    for first in range(0, pages, PAGES_READ):
        data = file.pread(PAGES_READ * PAGE_BYTES, (1 + first) * PAGE_BYTES)
        for position in range(0, len(data), PAGE_BYTES):
            page = data[position : position + PAGE_BYTES]
            number = first + position // PAGE_BYTES
            due = min(PAGE_ENTRIES, count - number * PAGE_ENTRIES)
            crc, held, start = PAGE.unpack_from(page)
            if crc32c(page[PAGE_CRC_END:]) != crc or (held, start) != (due, block_start):
                return (1 + number) * PAGE_BYTES, f"page {number} does not fit its CRC or its place"
            entries = [last, *ENTRY.iter_unpack(page[PAGE.size :])][: due + 1]
            if any(before > after for before, after in pairwise(entries)):
                return (1 + number) * PAGE_BYTES, f"page {number} is not in order"
            last = entries[-1]
    return None


def judge_timers(disk: Disk, folder: Folder) -> None:
    """Judges the runs that the newest snapshot's manifest names, and other files beside them."""
    section = load_snapshot(disk, folder)
    named: dict[int, int] = {}
    if section is not None and section.timers == TIMERS_UNKNOWN and folder.snapshot is not None:
        folder.findings.add(
            StoreFinding(
                kind="timers-unread",
                harm=Harm.NOTE,
                file=folder.snapshot.path,
                what="the snapshot names no files of timers. That is normal for a folder that was restored from a "
                "backup, or filled by another copy; a start reads the timers from the log. Nothing is lost.",
                advice="nothing: the first snapshot after a start names them",
            )
        )
    elif section is not None and section.timers and folder.snapshot is not None:
        try:
            named = {use.number: use.count for use in manifest.unpack(section.timers).runs}
        except StoreCorrupted as error:
            folder.findings.add(_damaged("manifest-damaged", folder.snapshot.path, None, str(error)))
    for number, count in sorted(named.items()):
        try:
            runs.verify(disk, number, count=count)
        except StoreCorrupted as error:
            if not folder.running:  # a newer snapshot may have released the run
                folder.findings.add(_damaged("run-damaged", runs.path_of(number), None, str(error)))
    for name in disk.list(TIMERS):
        path = f"{TIMERS}/{name}"
        if len(name) != runs.NAME_DIGITS or not name.isdecimal():
            folder.findings.add(foreign(path))
        elif int(name) not in named and not folder.running and len(folder.snapshots) < 2:
            folder.findings.add(left_over(path))  # with two snapshots the older one may name it


def _damaged(kind: str, path: str, byte: int | None, why: str) -> StoreFinding:
    return StoreFinding(
        kind=kind,
        harm=Harm.REBUILT,
        file=path,
        byte=byte,
        what=f"{why}. Its content comes from the log, so nothing is lost.",
        advice=ADVICE,
    )
