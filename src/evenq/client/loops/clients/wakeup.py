"""Wait for a time or a wake-up, whichever is first (CS-3). A wake-up given before the wait makes it return at once
and is used up.
"""

from __future__ import annotations

import asyncio

from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

__all__ = ["Wakeup"]


class Wakeup:
    """One waiter, any number of wakers in the same loop."""

    def __init__(self, clock: Clock, event: asyncio.Event | None = None) -> None:
        self._clock = clock
        self._event = event or asyncio.Event()

    def wake(self) -> None:
        """End the present wait, or the next one."""
        self._event.set()

    async def wait(self, timeout_ms: int) -> None:
        """Returns after `timeout_ms` at the latest."""
        if not self._event.is_set():
            waiter = spawn(self._event.wait(), name="evenq-wakeup")
            timer = spawn(self._clock.sleep_ms(timeout_ms), name="evenq-wakeup-timer")
            try:
                await asyncio.wait({waiter, timer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiter.cancel()
                timer.cancel()
        self._event.clear()
