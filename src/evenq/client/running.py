"""`consumer.run()`: a push consumer as the whole of a program, until the process is asked to end.

A container or service manager ends a process with SIGTERM, a terminal with SIGINT. Python ends at once on the first and
raises KeyboardInterrupt anywhere on the second; a consumer should finish its listener calls, commit, and release its
queues. Always true: the handlers that stood before are back after the first signal, so a second one ends the process
as it would have without `run`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from queue import SimpleQueue
from types import FrameType

from evenq.runtime.closing import AsyncClosing, Closing

__all__ = ["AsyncRun", "SyncRun"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SyncRun(Closing):
    """Of a consumer that calls a listener in threads."""

    @cached_property
    def _ends(self) -> SimpleQueue[None]:
        # Put to by a signal handler, which may run while this thread holds the lock of an Event.
        return SimpleQueue()

    def run(self) -> None:
        """Start, unless that was done, and consume until the process receives SIGTERM or SIGINT (Ctrl-C), or another
        thread calls `close`. Then close: wait for running listeners (at most `options.drain_ms`), commit, release the
        queues. A second signal ends the process at once. Signals are noticed only if this is the main thread.
        """
        with _signals(lambda: self._ends.put(None)), self:
            self._ends.get()

    def _ended(self) -> None:
        """Called by `close`: a thread in `run` returns."""
        self._ends.put(None)


class AsyncRun(AsyncClosing):
    """Of a consumer that awaits a listener."""

    @cached_property
    def _ends(self) -> asyncio.Event:
        return asyncio.Event()

    async def run(self) -> None:
        """As `run` of the sync consumer; another task may call `close`, or cancel this one."""
        loop, ends = asyncio.get_running_loop(), self._ends
        with _signals(lambda: loop.call_soon_threadsafe(ends.set)):
            async with self:
                await ends.wait()

    def _ended(self) -> None:
        self._ends.set()


@contextmanager
def _signals(end: Callable[[], object]) -> Iterator[None]:
    """Call `end` at the first signal."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def first(_number: int, _frame: FrameType | None) -> None:
        restore()
        end()

    try:
        for number in SIGNALS:
            signal.signal(number, first)
    except ValueError:  # this is not the main thread
        yield
        return
    try:
        yield
    finally:
        restore()
