"""Two processes of pytest-xdist on one cluster: most of what a test does there is waiting, so two files run at a time.

The first process that needs the cluster starts it, the last one ends it. Each test holds the room as one of several; one
that takes away what all of them use, as the API server, has it alone.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def shared(folder: Path, *, begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """`begin` runs before the first process is in here, `end` after the last one. `folder` is the run's own."""
    lock, users = folder / "cluster.lock", folder / "cluster.users"
    with _locked(lock):
        inside = int(users.read_text()) if users.exists() else 0
        if not inside:
            try:
                begin()
            except BaseException:
                end()
                raise
        users.write_text(str(inside + 1))
    try:
        yield
    finally:
        with _locked(lock):
            inside = int(users.read_text()) - 1
            users.write_text(str(inside))
            if not inside:
                end()


class Room:
    """Who is on the cluster: many at once, or one. Who wants it alone keeps newcomers at the door, so it gets its turn."""

    def __init__(self, folder: Path) -> None:
        self._door = folder / "room.door"
        self._room = (folder / "room").open("a")

    @contextmanager
    def among_others(self) -> Iterator[None]:
        with _locked(self._door):
            fcntl.flock(self._room, fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For who is in already."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        with _locked(self._door):
            fcntl.flock(self._room, fcntl.LOCK_EX)
            yield
            fcntl.flock(self._room, fcntl.LOCK_SH)

    def close(self) -> None:
        self._room.close()
