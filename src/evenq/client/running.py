"""`consumer.run()`: a push consumer as the whole of a program, until a signal ends the process.

A container or service manager ends a process with SIGTERM, a terminal with SIGINT. By default, Python ends immediately
on the first and raises KeyboardInterrupt anywhere on the second. A consumer should finish its listener calls, commit
and release its queues. Invariant: after the first signal the previous handlers are restored, so a second signal ends
the process as it would without `run`.
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

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SyncRun(Closing):
    """`run` of a consumer that calls a listener in threads."""

    @cached_property
    def _ends(self) -> SimpleQueue[None]:
        # Not an Event: a signal handler may run while this thread holds the lock of an Event.
        return SimpleQueue()

    def run(self) -> None:
        """Starts the consumer if needed, and consumes until SIGTERM, SIGINT (Ctrl-C), or a `close` in another thread.
        Then closes it: waits for running listeners (at most `options.drain_ms`), commits, releases the queues.

        A second signal ends the process immediately. Signals are noticed only in the main thread.
        """
        with _signals(lambda: self._ends.put(None)), self:
            self._ends.get()

    def _ended(self) -> None:
        """Called by `close`: lets a thread return from `run`."""
        self._ends.put(None)


class AsyncRun(AsyncClosing):
    """`run` of a consumer that awaits a listener."""

    @cached_property
    def _ends(self) -> asyncio.Event:
        return asyncio.Event()

    async def run(self) -> None:
        """Runs as the sync consumer does; another task may call `close`, or cancel this one."""
        loop, ends = asyncio.get_running_loop(), self._ends
        with _signals(lambda: loop.call_soon_threadsafe(ends.set)):
            async with self:
                await ends.wait()

    def _ended(self) -> None:
        self._ends.set()


@contextmanager
def _signals(end: Callable[[], object]) -> Iterator[None]:
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
