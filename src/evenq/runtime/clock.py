"""Time as an argument. Each `__main__` makes a `SystemClock` and hands it down; tests hand in a `FakeClock`."""

from __future__ import annotations

import heapq
import math
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

__all__ = ["Clock", "FakeClock", "SystemClock"]

ResultT = TypeVar("ResultT")


class Clock(Protocol):
    """What code may know about time."""

    def now_ms(self) -> int:
        """Wall time, ms since the epoch. May jump; only for what people and other machines read."""
        ...

    def monotonic_ms(self) -> int:
        """Time that never goes back, ms from an arbitrary start. For deadlines and durations."""
        ...

    async def sleep_ms(self, duration_ms: float) -> None:
        """Wait at least `duration_ms`; 0 or less yields to the loop once."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        import asyncio  # not above: programs without a loop import this module too, and it costs them 50 ms

        await asyncio.sleep(max(0.0, duration_ms / 1000))


STEPS_AT_ONCE = 6_000
"""Of a FakeClock that waits; after them each takes a millisecond of real time."""


class FakeClock:
    """A clock that moves only when it is advanced, for tests. `advance` wakes what is due, in order of time."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall = now_ms
        self._monotonic = 0
        self._count = 0
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    def now_ms(self) -> int:
        return self._wall

    def monotonic_ms(self) -> int:
        return self._monotonic

    async def sleep_ms(self, duration_ms: float) -> None:
        import asyncio

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._monotonic + max(0, int(duration_ms)), self._count, future))
        await future

    async def advance(self, duration_ms: int) -> None:
        """Move both clocks on, waking each sleeper at its own time."""
        target = self._monotonic + duration_ms
        while True:
            await self._settle()
            if not self._sleepers or self._sleepers[0][0] > target:
                break
            due, _, future = heapq.heappop(self._sleepers)
            self._wall += max(0, due - self._monotonic)
            self._monotonic = max(due, self._monotonic)
            if not future.done():
                future.set_result(None)
        self._wall += max(0, target - self._monotonic)  # more than that may have been spent
        self._monotonic = max(target, self._monotonic)
        await self._settle()

    async def until(self, state: Callable[[], object], *, step_ms: int = 5, limit_ms: float = 60_000) -> None:
        """Let time pass, `step_ms` after `step_ms`, until `state()` is true. Raises AssertionError if it was not within
        `limit_ms`.
        """
        import asyncio

        end_ms = self._monotonic + limit_ms
        steps = 0
        while not state():
            if self._monotonic >= end_ms:
                raise AssertionError(f"the state did not come within {limit_ms} ms")
            await self.advance(step_ms)
            steps += 1
            # What takes so long may be a thread that waits for a disk: minutes of this clock must not pass meanwhile.
            if steps > STEPS_AT_ONCE:
                await asyncio.sleep(0.001)

    async def during(self, work: Awaitable[ResultT], *, step_ms: int = 5) -> ResultT:
        """The result of `work`, or its error, while time passes, `step_ms` after `step_ms`."""
        import asyncio

        task = asyncio.ensure_future(work)
        try:
            await self.until(task.done, step_ms=step_ms, limit_ms=math.inf)
        finally:
            task.cancel()
        return task.result()

    def jump_wall(self, delta_ms: int) -> None:
        """Set the wall clock forward or back without any time passing."""
        self._wall += delta_ms

    def spend(self, duration_ms: int) -> None:
        """Let time pass within a step of the loop: who sleeps wakes with the next `advance`."""
        self._wall += duration_ms
        self._monotonic += duration_ms

    async def _settle(self) -> None:
        import asyncio

        for _ in range(10):
            await asyncio.sleep(0)
