"""Several files of one size as one logical file (LQ-20, LQ-26): mapped partitions of the reference, accessed by pread
and pwrite instead of a mapping (decision 10).

A file is named by the global offset of its first byte in 20 digits (LQ-8). One thread at a time writes, under its
owner's lock; any thread reads. `end` is the true end, which recovery finds: the length of a file does not show it
(LQ-28).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Final

from evenq.errors import StoreCorrupted
from evenq.store.io.disk import Disk, File
from evenq.store.io.files import ReadFiles

NAME_DIGITS: Final = 20

log = logging.getLogger(__name__)


class CreateFailed(OSError):
    """A new file could not be made (LQ-21, LQ-30)."""


class Partitions:
    """One logical file. `files` is the shared table of open files."""

    __slots__ = (
        "_disk",
        "_files",
        "_held",
        "_hold",
        "_unsynced",
        "_unsynced_names",
        "end",
        "file_bytes",
        "folder",
        "starts",
    )

    def __init__(self, disk: Disk, folder: str, file_bytes: int, files: ReadFiles, *, hold: bool = False) -> None:
        self._disk = disk
        self._files = files
        self.folder = folder
        self.file_bytes = file_bytes
        self.starts: list[int] = []
        self.end = 0
        self._unsynced: dict[int, None] = {}
        self._unsynced_names = False
        self._hold = hold
        self._held: tuple[int, File] | None = None
        """The newest file, kept open for writing if `hold`."""

    def path_of(self, start: int) -> str:
        return f"{self.folder}/{start:0{NAME_DIGITS}d}"

    def start_of(self, position: int) -> int:
        return position - position % self.file_bytes

    def describe(self, position: int) -> str:
        """Returns a position for people: file and byte."""
        start = self.start_of(position)
        return f"{self._disk.describe(self.path_of(start))} at byte {position - start}"

    def load(self) -> None:
        """Lists the files, sorted by name (LQ-27), and sets `end` to the end of the last one. Raises StoreCorrupted for
        a foreign name or a missing file (LQ-28 Better: nothing is hidden). `check_lengths` checks the sizes.
        """
        self.starts = []
        for name in self._disk.list(self.folder):
            if len(name) != NAME_DIGITS or not (name.isascii() and name.isdecimal()) or int(name) % self.file_bytes:
                raise StoreCorrupted(
                    f"{self._disk.describe(f'{self.folder}/{name}')} does not belong there: its name is not a multiple "
                    f"of {self.file_bytes} in {NAME_DIGITS} digits; move it elsewhere"
                )
            self.starts.append(int(name))
        for before, after in itertools.pairwise(self.starts):
            if after != before + self.file_bytes:
                missing = self._disk.describe(self.path_of(before + self.file_bytes))
                raise StoreCorrupted(f"{missing} is missing between its neighbours: restore it from a copy")
        self.end = self.starts[-1] + min(self.size_of(self.starts[-1]), self.file_bytes) if self.starts else 0

    def check_lengths(self, sure: int, least: Callable[[int], int]) -> None:
        """Raises StoreCorrupted for a file above the fixed size, or shorter than `least(its end)` although it was full
        and synced (it ends at or before `sure`; LQ-28 Better). A short file after `sure` is an unfinished write that
        recovery cuts.
        """
        for start in self.starts:
            size, file_end = self.size_of(start), start + self.file_bytes
            short = size < self.file_bytes and file_end <= sure and start + size < least(file_end)
            if short or size > self.file_bytes:
                raise StoreCorrupted(
                    f"{self._disk.describe(self.path_of(start))} has {size} bytes where a full file has "
                    f"{self.file_bytes}: restore it from a copy"
                )

    def size_of(self, start: int) -> int:
        with self._files.using(self.path_of(start)) as file:
            return file.size()

    def write(self, position: int, parts: Sequence[bytes], size: int) -> None:
        """Writes inside one file, which is created if new (LQ-29)."""
        start = position - position % self.file_bytes
        if start not in self._unsynced and (not self.starts or start > self.starts[-1]):
            self._create(start)
        if self._hold:
            if self._held is None or self._held[0] != start:
                self.let_go()
                self._held = (start, self._disk.open(self.path_of(start)))
            self._held[1].pwrite(parts, position - start)
        else:
            with self._files.using(self.path_of(start)) as file:
                file.pwrite(parts, position - start)
        self._unsynced[start] = None
        self.end = max(self.end, position + size)

    def let_go(self) -> None:
        """Closes the file that is kept open. Under the writers' lock."""
        if self._held is not None:
            self._held[1].close()
            self._held = None

    def _create(self, start: int) -> None:
        try:
            if not self.starts:
                self._disk.make_folder(self.folder)
            self._disk.open(self.path_of(start), create=True).close()
        except OSError as error:
            raise CreateFailed(*error.args) from error
        self.starts.append(start)
        self._unsynced_names = True

    def fill(self, position: int, parts: Sequence[bytes]) -> None:
        """Ends the file at `position` with filler, at its full size."""
        start = self.start_of(position)
        self.write(position, parts, 0)
        with self._files.using(self.path_of(start)) as file:
            file.truncate(self.file_bytes)
        self.end = start + self.file_bytes

    def read(self, position: int, size: int) -> bytes | None:
        """Returns up to `size` bytes, at most to the end of their file; None if that file is gone (LQ-67)."""
        start = position - position % self.file_bytes
        try:
            with self._files.using(self.path_of(start)) as file:
                return file.pread(min(size, start + self.file_bytes - position), position - start)
        except FileNotFoundError:
            return None

    def mark_unsynced(self, position: int) -> None:
        """Marks everything from `position` on as not synced: a killed process may have left it."""
        self._unsynced.update(dict.fromkeys(start for start in self.starts if start + self.file_bytes > position))
        self._unsynced_names = bool(self.starts)

    def take_unsynced(self) -> tuple[list[int], bool]:
        """Returns the work of the next `sync`. Under the writers' lock."""
        taken = (list(self._unsynced), self._unsynced_names)
        # Before the sync, so that the next sync includes what is written during this one.
        self._unsynced = {}
        self._unsynced_names = False
        return taken

    def sync(self, unsynced: tuple[list[int], bool]) -> None:
        """Calls fdatasync on the files, and syncs the folders up to the root if a file is new."""
        starts, names = unsynced
        for start in starts:
            try:
                with self._files.using(self.path_of(start)) as file:
                    file.sync()
            except FileNotFoundError:  # retention removed it meanwhile
                continue
        if names:
            folder = self.folder
            while True:
                self._disk.sync_folder(folder)
                if not folder:
                    break
                folder = folder.rpartition("/")[0]

    def truncate(self, end: int) -> None:
        """Cuts everything from `end` on, newest file first, and syncs the cut."""
        removed = False
        while self.starts and self.starts[-1] >= end:
            self.forget(self.starts[-1])
            self._disk.remove(self.path_of(self.starts.pop()))
            removed = True
        if removed:
            self._disk.sync_folder(self.folder)
        if (
            self.starts
            and self.size_of(self.starts[-1]) > end - self.starts[-1]
            and end < self.starts[-1] + self.file_bytes
        ):
            with self._files.using(self.path_of(self.starts[-1])) as file:
                file.truncate(end - self.starts[-1])
                file.sync()
        self.end = end

    def remove_before(self, position: int) -> None:
        """Removes whole files that end at or before `position`, oldest first; never the newest one."""
        removed = False
        while len(self.starts) > 1 and self.starts[0] + self.file_bytes <= position:
            start = self.starts.pop(0)
            self.forget(start)
            self._disk.remove(self.path_of(start))
            removed = True
        if removed:
            self._disk.sync_folder(self.folder)

    def remove(self) -> None:
        for start in self.starts:
            self.forget(start)
        self._disk.remove(self.folder)
        self.starts, self.end = [], 0

    def forget(self, start: int) -> None:
        """Closes the file before it is removed."""
        self._files.forget(self.path_of(start))
