"""Waiting for "something changed" with a limit, on the program's own clock.

A `Signal` counts changes; a loop remembers the count it has seen and waits for a greater one. Many changes between two
looks are one wake-up, so a loop that is slow never gets a backlog.
"""

from __future__ import annotations

import asyncio
from typing import Any

from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

__all__ = ["Signal", "done_within"]


class Signal:
    """A counter that loops can wait on."""

    def __init__(self) -> None:
        self.count = 0
        """Grows with each change."""
        self._event = asyncio.Event()

    def notify(self) -> None:
        """Something changed: wake all who wait."""
        self.count += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, *, clock: Clock, timeout_ms: float | None = None) -> bool:
        """Wait for a count beyond `seen`; False after `timeout_ms`."""
        if self.count > seen:
            return True
        event = self._event
        if timeout_ms is None:
            await event.wait()
            return True
        await done_within(asyncio.ensure_future(event.wait()), timeout_ms, clock=clock)
        return self.count > seen


async def done_within(future: asyncio.Future[Any], timeout_ms: float, *, clock: Clock) -> bool:
    """Wait for the future; cancel it and say False after `timeout_ms`."""
    if future.done():
        return True
    sleeper = spawn(clock.sleep_ms(timeout_ms), name="a limit")
    try:
        await asyncio.wait({future, sleeper}, return_when=asyncio.FIRST_COMPLETED)
        return future.done()
    finally:
        sleeper.cancel()
        if not future.done():
            future.cancel()
