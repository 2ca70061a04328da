"""Commit-log files: their names, and which file holds a log offset (CL-2, CL-4).

All files of a folder have one size, fixed when the folder was made. A frame never crosses the end of its file: the
rest is padding.
"""

from __future__ import annotations

import itertools
from typing import Final

from evenq.errors import StoreCorrupted
from evenq.runtime.failpoints import passing
from evenq.store.io.disk import Disk

FOLDER: Final = "commitlog"
NAME_DIGITS: Final = 20


def path_of(start: int) -> str:
    """Returns the file whose first byte has log offset `start`: 20 digits, zero-padded (CL-2)."""
    return f"{FOLDER}/{start:0{NAME_DIGITS}d}"


def segment_of(log_offset: int, segment_bytes: int) -> tuple[int, int]:
    """Returns the start of the file that holds `log_offset`, and the position in it (CL-4)."""
    position = log_offset % segment_bytes
    return log_offset - position, position


def drop_before(disk: Disk, log_start: int) -> list[str]:
    """Removes the files before `log_start`, oldest first; returns their paths."""
    old = [path_of(int(name)) for name in disk.list(FOLDER) if name.isdecimal() and int(name) < log_start]
    for path in old:
        passing("retention.deleting")
        disk.remove(path)
    if old:
        passing("retention.deleted")
        disk.sync_folder(FOLDER)
        passing("retention.linked")
    return old


def starts(disk: Disk, segment_bytes: int) -> list[int]:
    """Returns the starts of the files, ascending. Raises StoreCorrupted for a foreign name or a missing file."""
    starts: list[int] = []
    for name in disk.list(FOLDER):
        if len(name) != NAME_DIGITS or not name.isdecimal() or int(name) % segment_bytes:
            raise StoreCorrupted(
                f"{disk.describe(f'{FOLDER}/{name}')} is not a commit-log file: its name is not a multiple of "
                f"{segment_bytes} in {NAME_DIGITS} digits; move it elsewhere"
            )
        starts.append(int(name))
    for before, after in itertools.pairwise(starts):
        if after != before + segment_bytes:
            missing = disk.describe(path_of(before + segment_bytes))
            raise StoreCorrupted(f"{missing} is missing in the middle of the log; restore it from a copy")
    return starts
