"""Time as an argument: each `__main__` makes a `SystemClock` and passes it on; tests pass a `FakeClock`."""

from __future__ import annotations

import heapq
import math
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

ResultT = TypeVar("ResultT")


class Clock(Protocol):
    """The source of time for all code."""

    def now_ms(self) -> int:
        """Returns the wall time, ms since the epoch. It may jump; only for times that people or other machines read."""
        ...

    def monotonic_ms(self) -> int:
        """Returns a time that never decreases, ms from an arbitrary start. For deadlines and durations."""
        ...

    async def sleep_ms(self, duration_ms: float) -> None:
        """Waits at least `duration_ms`; 0 or less yields to the loop once."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def now_ns(self) -> int:
        """Returns the wall time, ns since the epoch, as traces record it."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep_ms(self, duration_ms: float) -> None:
        import asyncio  # not at the top: programs without a loop import this module too, and it takes 50 ms

        await asyncio.sleep(max(0.0, duration_ms / 1000))


HELD_S = 0.0005  # between two looks at a clock that is held
STEPS_AT_ONCE = 6_000
"""Steps that a waiting `FakeClock` makes without real time; each later step takes 1 ms of real time."""
SETTLE_TURNS = 10


class FakeClock:
    """A clock for tests that moves only when it is advanced. `advance` wakes the sleepers that are due, in order."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall = now_ms
        self._monotonic = 0
        self._count = 0
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []

    @staticmethod
    def held() -> bool:
        """True while no clock may move, because threads work for the loop. Tests replace it."""
        return False

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
        """Moves both clocks forward and wakes each sleeper at its own time."""
        import asyncio

        target = self._monotonic + duration_ms
        while True:
            await self._settle()
            while self.held():
                await asyncio.sleep(HELD_S)
                await self._settle()
            if not self._sleepers or self._sleepers[0][0] > target:
                break
            due, _, future = heapq.heappop(self._sleepers)
            self._wall += max(0, due - self._monotonic)
            self._monotonic = max(due, self._monotonic)
            if not future.done():
                future.set_result(None)
        self._wall += max(0, target - self._monotonic)  # a sleeper may have called `spend` beyond the target
        self._monotonic = max(target, self._monotonic)
        await self._settle()

    async def until(self, state: Callable[[], object], *, step_ms: int = 5, limit_ms: float = 60_000) -> None:
        """Advances by `step_ms` until `state()` is true. Raises AssertionError after `limit_ms`."""
        import asyncio

        end_ms = self._monotonic + limit_ms
        steps = 0
        while not state():
            if self._monotonic >= end_ms:
                raise AssertionError(f"the state was not reached within {limit_ms} ms")
            await self.advance(step_ms)
            steps += 1
            # The state may depend on a thread that waits for a disk: this clock must not run minutes ahead of it.
            if steps > STEPS_AT_ONCE:
                await asyncio.sleep(0.001)

    async def during(self, work: Awaitable[ResultT], *, step_ms: int = 5) -> ResultT:
        """Returns the result of `work`, or raises its error; advances by `step_ms` meanwhile."""
        import asyncio

        task = asyncio.ensure_future(work)
        try:
            await self.until(task.done, step_ms=step_ms, limit_ms=math.inf)
        finally:
            task.cancel()
        return task.result()

    def jump_wall(self, delta_ms: int) -> None:
        """Moves the wall clock forward or back; no time passes."""
        self._wall += delta_ms

    def spend(self, duration_ms: int) -> None:
        """Moves both clocks within one step of the loop; sleepers wake with the next `advance`."""
        self._wall += duration_ms
        self._monotonic += duration_ms

    async def _settle(self) -> None:
        """Runs the loop until it has nothing to do, for `SETTLE_TURNS` turns at most."""
        import asyncio

        loop = asyncio.get_running_loop()
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
            if _rests(loop):
                return


def _rests(loop: asyncio.AbstractEventLoop) -> bool:
    """Returns True if nothing but the caller is ready to run, and only asyncio's own file is watched.

    Most turns of a test are such, and each costs a system call. False where it cannot be known (uvloop).
    """
    ready, selector = getattr(loop, "_ready", None), getattr(loop, "_selector", None)
    return ready is not None and selector is not None and not ready and len(selector.get_map()) <= 1
