"""Blocking calls on a small pool of threads, or inline for a disk that never blocks.

Inline, a job is done when `run` first returns, so a simulation on one thread gives the same history twice.
"""

from __future__ import annotations

import asyncio
import contextlib
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
        """Returns the result of the job. If the caller is cancelled, a running job continues and its outcome is lost;
        one that has not begun never runs.
        """
        if self._pool is None:
            return job()
        future = self._pool.submit(job)
        self.running += 1
        try:
            result = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancel():
                self.running -= 1
            else:
                loop = asyncio.get_running_loop()
                future.add_done_callback(lambda _: self._ended_unattended(loop))
            raise
        except BaseException:
            self.running -= 1
            raise
        self.running -= 1
        return result

    def _ended_unattended(self, loop: asyncio.AbstractEventLoop) -> None:
        """Counts the end of a job whose caller is gone. On its thread, or on the loop if it had ended."""

        def ended() -> None:
            self.running -= 1

        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the store
            loop.call_soon_threadsafe(ended)

    def close(self) -> None:
        """Waits for running jobs and ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
