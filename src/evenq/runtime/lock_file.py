"""A lock of the system (flock) in a file, for the processes of one machine.

The lock ends with its process in any case. The file contains the number of the process that holds it, or held it last,
for people. A file that is replaced by a rename needs its lock in a separate file: a lock stays with the old file.
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

HOW_TO_FREE = "if it is stopped or hangs, continue it (kill -CONT) or end it (kill -9)"
"""Instruction of errors for the process that a LockHeld names."""

RETRY_MS = 5

_T = TypeVar("_T")


class LockHeld(Exception):
    """Another process holds the lock; the text names it: `process 4711`, or `another process` if it is not known."""


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Holds the lock during the block; does not wait for it. Creates the folder. Raises LockHeld, OSError."""
    make_private(path.parent)
    # Not "w": the file must keep the number of the process that holds the lock.
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
    """Returns the result of `action`, which a worker thread runs with the lock.

    Raises LockHeld after `wait_ms`, OSError if the file cannot be used, and the errors of `action`.
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
    except ValueError:  # not text, so not written by evenq
        text = ""
    return f"process {text}" if text.isdigit() else "another process"
