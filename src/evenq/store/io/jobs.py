"""Blocking calls on a small pool of threads, or inline for a disk that never blocks.

Inline, a job is done when `run` first returns, so a simulation on one thread gives the same history twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class _JobState:
    """State of a job; its thread sets all but `left`."""

    def __init__(self) -> None:
        self.begun = self.ended = self.left = False
        self._ends = deque([True])

    def is_first(self) -> bool:
        """True for one of the two: the job ended while its caller left, and both see that."""
        try:
            return self._ends.pop()
        except IndexError:
            return False


class Jobs:
    """A queue of jobs, of which at most `threads` run at a time, in the order of their calls."""

    def __init__(self, *, threads: int, name: str, threaded: bool) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name) if threaded else None
        self.running = 0
        """Jobs that wait for a thread or run on one."""

    async def run(self, job: Callable[[], T]) -> T:
        """Returns the result of the job. If the caller is cancelled, a running job continues and its outcome is lost;
        one that has not begun never runs.
        """
        if self._pool is None:
            return job()
        loop = asyncio.get_running_loop()
        state = _JobState()

        def work() -> T:
            state.begun = True
            try:
                return job()
            finally:
                state.ended = True
                if state.left and state.is_first():
                    with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the store
                        loop.call_soon_threadsafe(self._end)

        future = loop.run_in_executor(self._pool, work)
        self.running += 1
        goes_on = False
        try:
            return await future
        except asyncio.CancelledError:
            state.left = True
            goes_on = state.begun and not (state.ended and state.is_first())
            raise
        finally:
            if not goes_on:
                self._end()

    def _end(self) -> None:
        self.running -= 1

    def close(self) -> None:
        """Waits for running jobs and ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
