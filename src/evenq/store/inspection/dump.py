"""Dump: the records of a log in log order, filtered by fields of the store. It continues after damage.

`frames` yields copies of the payloads. Whole files are skipped by their times: store times never fall along the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from evenq.store.inspection.folder import Folder
from evenq.store.inspection.log_walk import Header, Hole, LogWalk, Piece
from evenq.store.inspection.verify import OnProgress
from evenq.store.io.disk import Disk
from evenq.store.log.record import HEADER, HEADER_BYTES, MAGIC, MESSAGE, STATE, TIMER_END, Frame
from evenq.store.log.segment import path_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Filter of records. Topics and queues select among messages and timers."""

    kinds: frozenset[int] = frozenset({MESSAGE})
    topic_ids: frozenset[int] | None = None
    queue_id: int | None = None
    begin_ms: int | None = None
    """Stored at this time or later, ms since the epoch."""
    end_ms: int | None = None
    """Stored before this time, ms since the epoch."""
    begin: int = 0
    """First log offset."""

    def takes(self, header: Header) -> bool:
        """Whether a record passes the filter, apart from its times."""
        kind = header[4]
        if kind not in self.kinds:
            return False
        if kind in {STATE, TIMER_END}:
            return True
        if self.topic_ids is not None and header[7] not in self.topic_ids:
            return False
        return self.queue_id is None or header[8] == self.queue_id


def frames(
    disk: Disk,
    folder: Folder,
    selection: Wanted,
    *,
    on_hole: Callable[[Hole], None] | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[Frame]:
    """Yields wanted records in log order; `on_hole` gets unreadable parts. Raises StoreError for a newer format."""
    size = folder.identity.segment_bytes
    starts = _files_from(disk, folder.starts, selection.begin_ms)
    walk = LogWalk(disk, size, starts, begin=selection.begin, gone=lambda _: folder.running)
    for step in walk.steps():
        if isinstance(step, Hole):
            if on_hole is not None and not (step.last and folder.running):
                on_hole(step)
            continue
        if selection.end_ms is not None and step.headers[0][12] >= selection.end_ms:
            return
        for header in step.headers:
            if selection.takes(header) and _in_time(header[12], selection):
                yield _frame(step, header)
        if on_progress is not None:
            on_progress(walk.bytes_read, walk.bytes_total)


def _in_time(store_ms: int, selection: Wanted) -> bool:
    return (selection.begin_ms is None or store_ms >= selection.begin_ms) and (
        selection.end_ms is None or store_ms < selection.end_ms
    )


def _frame(piece: Piece, header: Header) -> Frame:
    return Frame(header, *piece.payloads(header))


def _files_from(disk: Disk, starts: list[int], begin_ms: int | None) -> list[int]:
    """Returns the files without those whose next file begins before the wanted time."""
    if begin_ms is None:
        return starts
    first = 0
    for index, start in enumerate(starts):
        ms = _first_ms(disk, start)
        if ms is not None and ms < begin_ms:
            first = index
    return starts[first:]


def _first_ms(disk: Disk, start: int) -> int | None:
    try:
        file = disk.open(path_of(start))
    except FileNotFoundError:
        return None
    try:
        data = file.pread(HEADER_BYTES, 0)
    finally:
        file.close()
    header = HEADER.unpack(data) if len(data) == HEADER_BYTES else None
    return header[12] if header is not None and header[1] == MAGIC else None
