"""File descriptors reserved for the store, so that many connections cannot take the one that it needs.

A process has one limit for everything that is open. `io.disk` calls this around each call that opens something: if no
descriptor is left, a spare is closed for it. A file that the store closes becomes a spare in the same system call, so
no connection can take it in between. Any thread. Always true: a lack of descriptors is not a fault of the disk, so a
call waits for one, and what still fails may be tried again later.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from typing import Final, TypeVar

NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors for too many open files, of the process or of the system."""
WAIT_S: Final = 5.0
PAUSE_S: Final = 0.02

T = TypeVar("T")


class SpareFiles:
    """Spare descriptors of one store."""

    def __init__(self, count: int) -> None:
        """`count`: number of spares to keep; none are taken before `fill`."""
        self._count = count
        self._lock = threading.Lock()
        self._spares: list[int] = []
        self._null = -1
        """Source of the spares; open between `fill` and `close`."""

    def __len__(self) -> int:
        return len(self._spares)

    def fill(self) -> None:
        """Takes the missing spares, as far as descriptors are left."""
        with self._lock, contextlib.suppress(OSError):
            if self._null < 0:
                self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            while len(self._spares) < self._count:
                self._spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def ensured(self, call: Callable[[], T]) -> T:
        """Returns what `call` returns, which opens something; releases a spare or waits some seconds if it must."""
        waited_s = 0.0
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in NO_FILES:
                    raise
                if self._free_one():
                    continue
                if waited_s >= WAIT_S:
                    raise
                threading.Event().wait(PAUSE_S)
                waited_s += PAUSE_S

    def close_file(self, descriptor: int) -> None:
        """Closes a file of the store; its descriptor becomes a spare if one is missing."""
        with self._lock:
            if self._null >= 0 and len(self._spares) < self._count:
                os.dup2(self._null, descriptor, inheritable=False)
                self._spares.append(descriptor)
                return
        os.close(descriptor)

    def close(self) -> None:
        with self._lock:
            while self._spares:
                os.close(self._spares.pop())
            if self._null >= 0:
                os.close(self._null)
                self._null = -1

    def _free_one(self) -> bool:
        with self._lock:
            if not self._spares:
                return False
            os.close(self._spares.pop())
            return True
