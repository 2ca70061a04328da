"""Files open for reading, at most a given number: the least recently used one is closed first.

Shared by the loop's thread and those of the read pool, behind one lock under which no file is opened: no thread that
wants an open file waits for the disk. A file in use is never closed: it is only forgotten, and closed by its last user.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from evenq.store.io.disk import Disk, File

__all__ = ["Opened", "ReadFiles"]


class Opened:
    """An open file and its users."""

    __slots__ = ("file", "kept", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.kept = True


class ReadFiles:
    """A bounded table of open files by path."""

    def __init__(self, disk: Disk, files_max: int) -> None:
        self._disk = disk
        self._files_max = files_max
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, Opened] = OrderedDict()
        self._forgotten = 0
        """How many calls of `forget` there were."""

    @contextmanager
    def using(self, path: str) -> Iterator[File]:
        """The open file, which stays open for the length of the block."""
        opened = self._take(path)
        try:
            yield opened.file
        finally:
            self.give_back(opened)

    def take_if_open(self, path: str) -> Opened | None:
        """For `give_back`, and without waiting for anything: None unless the file is open already."""
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
        """Its user has done."""
        with self._lock:
            opened.users -= 1
            over = not opened.kept and opened.users == 0
        if over:
            opened.file.close()

    def forget(self, path: str) -> None:
        """Close a file that is about to be removed; its last user does it if it is in use."""
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
        """Close all. Nobody may read any more."""
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
        """Open it without the lock: the loop's thread takes that lock, and a slow disk must not hold it up."""
        file = self._disk.open(path)
        closing = []
        with self._lock:
            opened = self._opened.get(path)
            if opened is not None:  # another thread was faster
                closing.append(file)
            else:
                opened = Opened(file)
                opened.kept = forgotten == self._forgotten  # else it may be the one that was removed meanwhile
                if opened.kept:
                    self._opened[path] = opened
                    closing += self._over()
            opened.users += 1
        for one in closing:
            one.close()
        return opened

    def _over(self) -> list[File]:
        """Forget the least recently used; returns those to close."""
        closing = []
        while len(self._opened) > self._files_max:
            _, oldest = self._opened.popitem(last=False)
            oldest.kept = False
            if oldest.users == 0:
                closing.append(oldest.file)
        return closing
