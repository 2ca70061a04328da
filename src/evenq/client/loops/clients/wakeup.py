"""A wait with a timeout and a wake-up (CS-3). A wake-up before the wait ends that wait immediately."""

from __future__ import annotations

import asyncio

from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn


class Wakeup:
    """A wait for one waiter, which any number of callers in the same loop may wake."""

    def __init__(self, clock: Clock, event: asyncio.Event | None = None) -> None:
        self._clock = clock
        self._event = event or asyncio.Event()

    def wake(self) -> None:
        """Ends the present wait, or the next one."""
        self._event.set()

    async def wait(self, timeout_ms: int) -> None:
        """Waits for a wake-up, for at most `timeout_ms`."""
        if not self._event.is_set():
            waiter = spawn(self._event.wait(), name="evenq-wakeup")
            timer = spawn(self._clock.sleep_ms(timeout_ms), name="evenq-wakeup-timer")
            try:
                await asyncio.wait({waiter, timer}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiter.cancel()
                timer.cancel()
        self._event.clear()
