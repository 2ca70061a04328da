"""The end of a log's files: what lies after a place, how it is cut off, and how the rest becomes durable.

Called when a folder is opened, after its log was scanned (`Recovery` for a store, `copy_opening` for a follower's
copy), and by `LogCopy` for a cut. Blocks on the disk. Always true: a crash during a cut leaves a log without a gap,
because the newest files are removed first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from evenq.errors import StoreError
from evenq.store.io.disk import Disk, File
from evenq.store.log import segment
from evenq.store.log.commit_log import FULL
from evenq.store.log.record import HEADER_BYTES, MAGIC_BYTES, Frame, frame_at, size_at

log = logging.getLogger(__name__)

SEARCH_BYTES: Final = 256 << 10  # per read in a search for whole frames after a hole
WRITE_BYTES: Final = 4 << 20
MAGIC_PLACE: Final = 4  # bytes from a frame's start to its magic


def name_of_place(disk: Disk, segment_bytes: int, log_offset: int) -> str:
    """Returns file, byte and log offset as a text for users."""
    start, position = segment.segment_of(log_offset, segment_bytes)
    return f"{disk.describe(segment.path_of(start))} at byte {position} (log offset {log_offset})"


def frame_in(disk: Disk, segment_bytes: int, data: bytes | memoryview, position: int, log_offset: int) -> Frame | None:
    """Does the same as `record.frame_at`, with the place in the error."""
    try:
        return frame_at(data, position, log_offset)
    except StoreError as error:
        raise StoreError(f"{name_of_place(disk, segment_bytes, log_offset)}: {error}") from error


def end_of_files(disk: Disk, starts: list[int]) -> int:
    """Returns the log offset after the last byte of any file; 0 without files."""
    if not starts:
        return 0
    file = disk.open(segment.path_of(starts[-1]))
    try:
        return starts[-1] + file.size()
    finally:
        file.close()


def frames_behind(disk: Disk, segment_bytes: int, starts: list[int], end: int) -> Iterator[Frame]:
    """Yields whole frames anywhere after `end`, in their right place."""
    for start in [start for start in starts if start + segment_bytes > end]:
        file = disk.open(segment.path_of(start))
        try:
            yield from _frames_in(disk, segment_bytes, file, start, max(end, start))
        finally:
            file.close()


def _frames_in(disk: Disk, segment_bytes: int, file: File, start: int, position: int) -> Iterator[Frame]:
    file_end = start + file.size()
    while file_end - position >= HEADER_BYTES:
        data = file.pread(min(SEARCH_BYTES, file_end - position), position - start)
        magic_at = data.find(MAGIC_BYTES, MAGIC_PLACE)
        if magic_at < 0:
            position += max(1, len(data) - len(MAGIC_BYTES) - MAGIC_PLACE)
            continue
        position += magic_at - MAGIC_PLACE
        claimed = size_at(data, magic_at - MAGIC_PLACE) or size_at(file.pread(HEADER_BYTES, position - start), 0)
        frame = None
        if claimed <= segment_bytes:
            frame = frame_in(disk, segment_bytes, file.pread(claimed, position - start), 0, position)
        if frame is not None:
            yield frame
        position += frame.size if frame is not None else 1


def cut(disk: Disk, segment_bytes: int, starts: list[int], end: int) -> None:
    """Removes everything from `end` on, durably; `starts` loses the removed files."""
    start, position = segment.segment_of(end, segment_bytes)
    for other in [other for other in reversed(starts) if other > start or (other == start and position == 0)]:
        disk.remove(segment.path_of(other))
        starts.remove(other)
    if position and start in starts:
        file = disk.open(segment.path_of(start))
        try:
            file.truncate(position)
            file.sync()
        finally:
            file.close()
    disk.sync_folder(segment.FOLDER)


def write_again(disk: Disk, segment_bytes: int, starts: list[int], sure: int, end: int) -> None:
    """Writes and syncs the log from `sure` to `end` again, whose sync nothing confirms, before a reader sees it. If the
    last process ended due to a failed sync, the system may show these bytes, take them for written and never write
    them: then a sync alone would bring nothing to disk.
    """
    for start in [start for start in starts if start < end and start + segment_bytes > sure]:
        file = disk.open(segment.path_of(start))
        position = max(0, sure - start)
        try:
            while data := file.pread(min(WRITE_BYTES, min(end - start, segment_bytes) - position), position):
                file.pwrite([data], position)
                position += len(data)
            file.sync()
        except OSError as error:
            if error.errno not in FULL:
                raise
            log.warning(
                "no space to rewrite the end of the log at offset %d",
                start + position,
                extra={"log_offset": start + position},
            )
        finally:
            file.close()


def fill_last(disk: Disk, segment_bytes: int, starts: list[int], end: int) -> None:
    """Completes a full last file, which a kill may leave short and unsynced, before anything vouches for it."""
    last = end - segment_bytes
    if end % segment_bytes or last not in starts:
        return
    file = disk.open(segment.path_of(last))
    try:
        if file.size() < segment_bytes:
            file.truncate(segment_bytes)
        file.sync()
    finally:
        file.close()
