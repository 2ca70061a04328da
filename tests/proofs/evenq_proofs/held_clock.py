"""Holds a `FakeClock` while threads work for the loop: its time does not pass during a read or a sync of a real disk.

Otherwise a step of the clock costs nothing, and minutes of it pass while a busy machine writes a file: whatever is due
in these minutes then happens before the file is written. User code in threads may wait for the clock, so it does not
hold it.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import time
from collections.abc import Callable
from typing import Any

from evenq.client.loops.clients import user_code
from evenq.runtime.clock import FakeClock
from evenq.store.log.writer import WriteBatch, Writer

HELD_S = 5.0
"""Longest time that one job holds the clocks: a test may block a thread until the clock moves on."""

_begun: dict[object, float] = {}
"""Begin of each job that a thread has not finished, by the machine's clock."""


def working() -> bool:
    """True while a thread works for a loop. Forgets jobs whose time is over."""
    for job, begun in list(_begun.items()):
        if time.monotonic() - begun < HELD_S:
            return True
        _begun.pop(job, None)
    return False


def hold_clocks() -> None:
    """Applies to all clocks of this process; the second call changes nothing."""
    if FakeClock.held is working:
        return
    run_in_executor = asyncio.base_events.BaseEventLoop.run_in_executor
    begin = Writer.__init__
    submit = Writer.submit

    def counted(loop: Any, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        future = run_in_executor(loop, executor, function, *arguments)
        if getattr(function, "__module__", "") != user_code.__name__:
            _begun[future] = time.monotonic()
            future.add_done_callback(lambda done: _begun.pop(done, None))
        return future

    def begun(writer: Writer, *of: Any, done: Callable[..., None], **more: Any) -> None:
        def finished(batch: WriteBatch, error: Exception | None) -> None:
            _begun.pop(batch, None)
            done(batch, error)

        begin(writer, *of, done=finished, **more)

    def submitted(writer: Writer, batch: WriteBatch) -> None:
        _begun[batch] = time.monotonic()
        submit(writer, batch)

    clock_class: Any = FakeClock
    clock_class.held = staticmethod(working)
    patched: Any = asyncio.base_events.BaseEventLoop
    patched.run_in_executor = counted
    writer_class: Any = Writer
    writer_class.__init__, writer_class.submit = begun, submitted
