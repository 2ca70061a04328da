"""An asyncio loop whose time is a number: when nothing is left to do at this moment, it jumps to the next timer.

Every callback belongs to a `SimProcess`, reported by the context it runs in, so one process of the world can be paused
(its callbacks wait) or killed (they never run) while the others go on. Always true: no threads, no sockets, no real
waiting, and callbacks of the same moment run in the order in which they were scheduled.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import base_events
from collections.abc import Callable
from typing import Any

ROUNDS_MAX = 30
"""In which the tasks that are left at the end of a world end, one that waits for another one after it."""
EPOCH_MS = 1_700_000_000_000
"""Wall time at the start of every world, ms."""


class SimProcess:
    """One start of one program: what it runs, and whether it may."""

    def __init__(self, name: str, loop: VirtualLoop, *, host: str = "") -> None:
        self.name = name
        """Unique per start, for the story: `broker-a#2`."""
        self.host = host or name
        self.loop = loop
        self.alive = True
        self.paused = False
        self.waiting: list[asyncio.Handle] = []
        """Callbacks that came while it did not run."""
        loop.processes.append(self)
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    @property
    def running(self) -> bool:
        """True if its callbacks run now."""
        return self.alive and not self.paused

    def pause(self) -> None:
        """Stop it, as SIGSTOP does: time goes on without it."""
        if self.running:
            self.paused = True
            self.waiting += self.loop.taken_from(self)

    def resume(self) -> None:
        """Let it go on with everything that came meanwhile."""
        if self.alive and self.paused:
            self.paused = False
            waiting, self.waiting = self.waiting, []
            self.loop.put_back(waiting)

    def kill(self) -> None:
        """End it without a word, as SIGKILL does."""
        self.alive = False
        self.waiting += self.loop.taken_from(self)

    def spawn(self, coroutine: Any, *, name: str) -> asyncio.Task[Any]:
        """Run a coroutine as this process."""
        return self.loop.create_task(coroutine, name=name, context=self.context.copy())


PROCESS: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar("PROCESS", default=None)
"""Whose code runs now; None: the world's own."""
CALLER: contextvars.ContextVar[str] = contextvars.ContextVar("CALLER", default="")
"""Inside a handler: the client id of who called."""


class _NoSockets:
    """What the loop asks for events: there are none, so the time until the next timer has passed at once."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.jump(timeout)
        return []


class VirtualLoop(base_events.BaseEventLoop):
    """See the module. `time()` begins at 0 s."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._clock_resolution = 1e-9
        self._selector = _NoSockets(self)
        self.processes: list[SimProcess] = []
        self.finishing = False
        """True at the end of the world: paused and killed processes get their cancellation as well."""

    def time(self) -> float:
        return self._now

    @property
    def now_ms(self) -> float:
        """The world's time, ms since its start."""
        return self._now * 1000

    def jump(self, timeout: float | None) -> None:
        """Nothing to do now: on to the next timer."""
        if timeout is None:
            raise RuntimeError(f"the world is stuck at {self.now_ms:.0f} ms: nobody waits for a time")
        if timeout > 0:
            when = self._scheduled[0]._when  # type: ignore[attr-defined]
            self._now = max(self._now, when)

    def call_soon(  # type: ignore[override]  # the stub's variadic types say no more than this
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = asyncio.Handle(callback, args, self, context)
        process = context.get(PROCESS)
        if process is None or process.running or self.finishing:
            self._ready.append(handle)  # type: ignore[attr-defined]  # as above
        else:
            process.waiting.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # as above

    def taken_from(self, process: SimProcess) -> list[asyncio.Handle]:
        """Take the callbacks of a process out of the queue.

        What does nothing stands in for each of them: asyncio has counted what it runs in this turn before it begins.
        """
        ready = self._ready  # type: ignore[attr-defined]  # as above
        taken = [handle for handle in ready if _process_of(handle) is process]
        if taken:
            nothing = asyncio.Handle(lambda: None, (), self)
            nothing.cancel()
            kept = [nothing if _process_of(handle) is process else handle for handle in ready]
            ready.clear()
            ready.extend(kept)
        return taken

    def put_back(self, handles: list[asyncio.Handle]) -> None:
        """Run these callbacks now, in their order."""
        self._ready.extend(handles)  # type: ignore[attr-defined]  # as above

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Refused: a thread would make two runs of one seed differ."""
        raise RuntimeError(f"{func} wants a thread; in a simulation everything runs on the loop")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What was not caught; the end of the world leaves some of it behind."""
        if not self.finishing:
            super().call_exception_handler(context)

    def finish(self) -> None:
        """End every task that is left, then close."""
        self.finishing = True
        for process in self.processes:
            self.put_back(process.waiting)
        self.processes.clear()
        for turn in range(ROUNDS_MAX):
            tasks = [task for task in asyncio.all_tasks(self) if not task.done()]
            if not tasks:
                break
            for task in tasks:
                task.cancel()
                waiter = getattr(task, "_fut_waiter", None)
                if turn > ROUNDS_MAX // 2 and waiter is not None:  # one that does not let itself be cancelled
                    asyncio.Future.cancel(waiter)
            for _ in range(5):  # some wait for others while they end
                self.call_soon(self.stop)
                self.run_forever()
        self._scheduled.clear()  # type: ignore[attr-defined]  # as above
        self.close()

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _check_closed(self) -> None:
        """Callable to its end: what is collected later may still want to say goodbye to a server."""

    def _write_to_self(self) -> None:
        """Nothing sleeps."""


def _process_of(handle: asyncio.Handle) -> SimProcess | None:
    return handle._context.get(PROCESS)  # type: ignore[attr-defined,no-any-return]


class ProcessClock:
    """A process's own idea of time: set wrongly by `skew_ms`, running at `rate` (1.0 = right)."""

    def __init__(self, loop: VirtualLoop, *, skew_ms: int = 0, rate: float = 1.0, since_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms
        self._rate = rate
        self._since_ms = since_ms

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + self._passed_ms()

    def monotonic_ms(self) -> int:
        return self._since_ms + self._passed_ms()

    async def sleep_ms(self, duration_ms: float) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        if duration_ms <= 0:
            self._loop.call_soon(_wake, future)
            await future
            return
        timer = self._loop.call_later(duration_ms / 1000 / self._rate, _wake, future)
        try:
            await future
        finally:
            timer.cancel()

    def _passed_ms(self) -> int:
        return int(self._loop.time() * 1000 * self._rate + 1e-6)


async def ended(work: asyncio.Task[Any], clock: ProcessClock, *, within_ms: int = 10_000) -> None:
    """Wait until a process has done something, or until the limit: a task of a killed process never ends."""
    limit = asyncio.get_running_loop().create_task(clock.sleep_ms(within_ms), name="limit")
    await asyncio.wait([work, limit], return_when=asyncio.FIRST_COMPLETED)
    limit.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
