"""Inspect: the content of a data folder, without judgement. Counts frames by their headers and skips CRCs.

`survey` reads the whole log once; with `quick`, only the first frame of each file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from evenq.errors import StoreError
from evenq.store.inspection.folder import INDEX, TIMERS, Folder, read_folder, size_of
from evenq.store.inspection.log_walk import LogWalk, Piece
from evenq.store.inspection.verify import OnProgress, Owner
from evenq.store.io.disk import Disk
from evenq.store.log import consume_queue, segment
from evenq.store.log.consume_queue import ENTRY_BYTES, FILE_BYTES
from evenq.store.log.record import HEADER, HEADER_BYTES, MAGIC, MESSAGE, PADDING, STATE, TIMER, TIMER_END

KIND_NAMES: Final = {MESSAGE: "messages", STATE: "states", PADDING: "padding", TIMER: "timers", TIMER_END: "timer ends"}


@dataclass(slots=True)
class SegmentRow:
    """One file of the log."""

    start: int
    size: int
    frames: Counter[int] = field(default_factory=Counter)
    """Number by kind; empty if the file was not read."""
    first_ms: int = 0
    last_ms: int = 0
    """0 if the file was not read."""
    epoch: int = 0
    """Epoch of the newest frame that was read."""


@dataclass(slots=True)
class QueueRow:
    """One queue as the checkpoint lists it, and its files."""

    topic_id: int
    queue_id: int
    min_offset: int = 0
    max_offset: int = 0
    filed: int = 0
    """Entries in files, including those after the checkpoint."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """One file whose content only its owner reads."""

    path: str
    size: int


@dataclass(slots=True)
class FolderSurvey:
    """Content of a data folder."""

    folder: Folder
    segments: list[SegmentRow]
    queues: list[QueueRow]
    indexes: list[FileRow]
    timers: list[FileRow]

    @property
    def scan_from(self) -> int:
        """Log offset from which a start reads."""
        folder = self.folder
        entries_from = folder.checkpoint.log_offset if folder.checkpoint is not None else folder.log_start
        states_from = folder.snapshot.log_offset if folder.snapshot is not None else folder.log_start
        return max(folder.log_start, min(entries_from, states_from))

    @property
    def scan_bytes(self) -> int:
        """Number of log bytes that a start reads."""
        return max(0, self.folder.log_end - self.scan_from)


def survey(disk: Disk, *, owner: Owner, quick: bool = False, on_progress: OnProgress | None = None) -> FolderSurvey:
    """Returns the content of a folder. Raises StoreError if it is not a data folder or cannot be read."""
    folder = read_folder(disk, owner=owner())
    try:
        segments = {start: SegmentRow(start, size_of(disk, segment.path_of(start))) for start in folder.starts}
        if quick:
            for row in segments.values():
                _first_frame(disk, row)
        else:
            _count(disk, folder, segments, on_progress)
        return FolderSurvey(
            folder, list(segments.values()), _queues(disk, folder), _below(disk, INDEX), _below(disk, TIMERS)
        )
    except OSError as error:
        raise StoreError(f"the data folder {disk.describe('')} cannot be read: {error}") from error


def _first_frame(disk: Disk, row: SegmentRow) -> None:
    file = disk.open(segment.path_of(row.start))
    try:
        data = file.pread(HEADER_BYTES, 0)
    finally:
        file.close()
    if len(data) == HEADER_BYTES:
        header = HEADER.unpack(data)
        if header[1] == MAGIC:
            row.first_ms, row.epoch = header[12], header[6]


def _count(disk: Disk, folder: Folder, segments: dict[int, SegmentRow], on_progress: OnProgress | None) -> None:
    size = folder.identity.segment_bytes
    walk = LogWalk(disk, size, folder.starts, check=False, gone=lambda _: folder.running)
    for step in walk.steps():
        if isinstance(step, Piece):
            row = segments[step.base - step.base % size]
            row.frames.update(header[4] for header in step.headers)
            row.first_ms = row.first_ms or step.headers[0][12]
            row.last_ms = step.headers[-1][12]
            row.epoch = step.headers[-1][6]
        if on_progress is not None:
            on_progress(walk.bytes_read, walk.bytes_total)


def _queues(disk: Disk, folder: Folder) -> list[QueueRow]:
    rows: dict[tuple[int, int], QueueRow] = {}
    if folder.checkpoint is not None:
        for key, span in folder.checkpoint.queues.items():
            rows[key] = QueueRow(*key, *span)
    for topic in disk.list(consume_queue.FOLDER):
        for queue in disk.list(f"{consume_queue.FOLDER}/{topic}"):
            if not (topic.isdecimal() and queue.isdecimal()):
                continue
            row = rows.setdefault((int(topic), int(queue)), QueueRow(int(topic), int(queue)))
            row.filed = _filed(disk, f"{consume_queue.FOLDER}/{topic}/{queue}")
    return [rows[key] for key in sorted(rows)]


def _filed(disk: Disk, path: str) -> int:
    names = [name for name in disk.list(path) if name.isdecimal()]
    if not names:
        return 0
    return ((len(names) - 1) * FILE_BYTES + size_of(disk, f"{path}/{names[-1]}")) // ENTRY_BYTES


def _below(disk: Disk, path: str) -> list[FileRow]:
    return [FileRow(f"{path}/{name}", size_of(disk, f"{path}/{name}")) for name in disk.list(path)]
