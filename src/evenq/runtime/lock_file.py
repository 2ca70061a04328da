"""A lock of the system (flock) in a file, for the processes of one machine.

It ends with its process, however that ends. The number of the process that has it, or had it last, stands in the file,
for people. What is replaced by a rename needs its lock in a file beside it: a lock stays with the file that was there
before.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from evenq.runtime.clock import Clock
from evenq.runtime.private_files import make_private, open_private

__all__ = ["HOW_TO_FREE", "LockHeld", "lock_file", "run_locked"]

HOW_TO_FREE = "if it is stopped or hangs, let it go on (kill -CONT) or end it (kill -9)"
"""What to do about the process that a LockHeld names, for errors."""

RETRY_MS = 5

_T = TypeVar("_T")


class LockHeld(Exception):
    """Another process has the lock. Its text names it: `process 4711`, or `another process` if that is not known."""


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Have the lock for the time of the block, or do not wait for it. Makes the folder. Blocks on the disk.

    Raises LockHeld, and OSError if the file cannot be used.
    """
    make_private(path.parent)
    # Not "w": the file of a process that has the lock must keep its number.
    with open_private(path, "a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld(_process(file)) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


async def run_locked(path: Path, action: Callable[[], _T], *, clock: Clock, wait_ms: int) -> _T:
    """The outcome of `action`, which a worker thread runs while it has the lock. Waits `wait_ms` for the lock at most.

    Raises LockHeld after that, OSError if the file cannot be used, and what `action` raises.
    """
    deadline_ms = clock.monotonic_ms() + wait_ms
    while True:
        try:
            return await asyncio.to_thread(_run, path, action)
        except LockHeld:
            if clock.monotonic_ms() >= deadline_ms:
                raise
        await clock.sleep_ms(RETRY_MS)


def _run(path: Path, action: Callable[[], _T]) -> _T:
    with lock_file(path):
        return action()


def _process(file: IO[str]) -> str:
    file.seek(0)
    try:
        text = file.read(20).strip()
    except ValueError:  # not text: not ours
        text = ""
    return f"process {text}" if text.isdigit() else "another process"
