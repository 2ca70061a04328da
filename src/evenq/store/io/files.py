"""A bounded table of files open for reading: the least recently used one is closed first.

The loop's thread and the read pool share it behind one lock, under which no file is opened: a thread that needs an open
file never waits for the disk. A file in use is not closed, only dropped from the table; its last user closes it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from evenq.store.io.disk import Disk, File


class Opened:
    """An open file and its users."""

    __slots__ = ("file", "kept", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.kept = True


class ReadFiles:
    """Open files by path, at most a given number."""

    def __init__(self, disk: Disk, files_max: int) -> None:
        self._disk = disk
        self._files_max = files_max
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, Opened] = OrderedDict()
        self._forgotten = 0

    @contextmanager
    def using(self, path: str) -> Iterator[File]:
        """Yields the open file, which stays open for the block."""
        opened = self._take(path)
        try:
            yield opened.file
        finally:
            self.give_back(opened)

    def take_if_open(self, path: str) -> Opened | None:
        """Returns a file for `give_back` if it is open already, otherwise None; waits for nothing."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            opened = self._opened.get(path)
            if opened is not None:
                self._opened.move_to_end(path)
                opened.users += 1
            return opened
        finally:
            self._lock.release()

    def give_back(self, opened: Opened) -> None:
        with self._lock:
            opened.users -= 1
            over = not opened.kept and opened.users == 0
        if over:
            opened.file.close()

    def forget(self, path: str) -> None:
        """Closes a file that is about to be removed; its last user does so if it is in use."""
        with self._lock:
            self._forgotten += 1
            opened = self._opened.pop(path, None)
            if opened is None:
                return
            opened.kept = False
            over = opened.users == 0
        if over:
            opened.file.close()

    def close(self) -> None:
        """Closes all files. No read may follow."""
        with self._lock:
            for opened in self._opened.values():
                opened.file.close()
            self._opened.clear()

    def __len__(self) -> int:
        return len(self._opened)

    def _take(self, path: str) -> Opened:
        with self._lock:
            opened, forgotten = self._opened.get(path), self._forgotten
            if opened is not None:
                self._opened.move_to_end(path)
                opened.users += 1
                return opened
        return self._open(path, forgotten)

    def _open(self, path: str, forgotten: int) -> Opened:
        """Opens without the lock: the loop's thread takes that lock, and a slow disk must not delay it."""
        file = self._disk.open(path)
        closing = []
        with self._lock:
            opened = self._opened.get(path)
            if opened is not None:  # another thread was faster
                closing.append(file)
            else:
                opened = Opened(file)
                opened.kept = forgotten == self._forgotten  # otherwise it may be a file that was removed
                if opened.kept:
                    self._opened[path] = opened
                    closing += self._over()
            opened.users += 1
        for one in closing:
            one.close()
        return opened

    def _over(self) -> list[File]:
        """Drops the least recently used files from the table; returns those to close."""
        closing = []
        while len(self._opened) > self._files_max:
            _, oldest = self._opened.popitem(last=False)
            oldest.kept = False
            if oldest.users == 0:
                closing.append(oldest.file)
        return closing
