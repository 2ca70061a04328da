"""Blocking calls on a small pool of threads, or inline for a disk that never blocks.

Inline, a job is done when `run` first returns, so a simulation on one thread gives the same history twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Jobs:
    """A queue of jobs, of which at most `threads` run at a time, in the order of their calls."""

    def __init__(self, *, threads: int, name: str, threaded: bool) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name) if threaded else None
        self.running = 0
        """Jobs that wait for a thread or run on one."""

    async def run(self, job: Callable[[], T]) -> T:
        if self._pool is None:
            return job()
        future = asyncio.get_running_loop().run_in_executor(self._pool, job)
        self.running += 1
        try:
            return await future
        finally:
            self.running -= 1

    def close(self) -> None:
        """Waits for running jobs and ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
