"""Threads of a virtual world: what a program gives to a thread is done later, at a moment of the world, on the loop.

A disk with `blocks` makes the store use a writer, pools and the loop's own threads. Here each of these is a queue whose
jobs take virtual time, so that much else happens between the order and the deed, as it does on a machine; and the same
seed has it happen at the same places. Jobs of a process that is paused wait, those of a killed one are never done.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evenq.store import message_store
from evenq.store.io import jobs
from evenq.store.log.writer import WriteBatch, Writer
from evenq_proofs.sim.loop import VirtualLoop

QUICK_MS = 1.0
"""A write that would take less than this may be done on the loop."""


class ThreadedLoop(VirtualLoop):
    """`busy_ms` says how long the next job takes."""

    def __init__(self, busy_ms: Callable[[], float]) -> None:
        super().__init__()
        self.busy_ms = busy_ms

    def later(self, done: Callable[..., Any], *args: Any) -> None:
        """Call it when a job that begins now has had its time, as the process that runs now."""
        self.call_later(self.busy_ms() / 1000, self.call_soon, done, *args)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Of a pool, or of the loop's own threads, which are never all busy."""
        return (executor or VirtualPool(1)).run(self, lambda: func(*args))


@dataclass(eq=False, slots=True)
class _Job:
    future: asyncio.Future[Any]
    work: Callable[[], Any]

    def do(self) -> None:
        try:
            result = self.work()
        except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to who waits
            if not self.future.done():
                self.future.set_exception(error)
        else:
            if not self.future.done():
                self.future.set_result(result)


class VirtualPool:
    """What `ThreadPoolExecutor` is to `Jobs`."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        self._workers, self._name = max_workers, thread_name_prefix
        self._waiting: deque[_Job] = deque()
        self._begun: dict[_Job, None] = {}

    def run(self, loop: ThreadedLoop, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Behind what was given before."""
        job = _Job(loop.create_future(), work)
        self._waiting.append(job)
        self._begin(loop)
        return job.future

    def shutdown(self, *, wait: bool = True) -> None:
        """Everything that was given is done, then nothing more."""
        assert wait, self._name
        for job in [*self._begun, *self._waiting]:
            if job in self._begun or not job.future.cancelled():
                job.do()
        self._begun.clear()
        self._waiting.clear()

    def _begin(self, loop: ThreadedLoop) -> None:
        while self._waiting and len(self._begun) < self._workers:
            job = self._waiting.popleft()
            if not job.future.cancelled():
                self._begun[job] = None
                loop.later(self._end, loop, job)

    def _end(self, loop: ThreadedLoop, job: _Job) -> None:
        if self._begun.pop(job, job) is None:  # else it was done by `shutdown`
            job.do()
        self._begin(loop)


class VirtualWriter(Writer):
    """The store's writer: a group is written some time after it was handed over, and synced some time after that. In
    between the copies may have confirmed it.
    """

    def __init__(self, *args: Any, threaded: bool, **kwargs: Any) -> None:
        super().__init__(*args, threaded=False, **kwargs)
        assert threaded, "the disk blocks"
        self._next: Callable[[], None] | None = None
        """What is left to do with the group that is under way."""

    def writes_here(self, batch: WriteBatch) -> bool:
        """Of small groups those whose write would be quick, so that a run has both kinds in turn."""
        assert isinstance(self._loop, ThreadedLoop)
        return super().writes_here(batch) and self._loop.busy_ms() < QUICK_MS

    def submit(self, batch: WriteBatch) -> None:
        self._later(lambda: self._begin(batch))

    def close(self) -> None:
        """What was submitted is written and synced, and answered after this."""
        super().close()
        while self._next is not None:
            step, self._next = self._next, None
            step()

    def _later(self, step: Callable[[], None]) -> None:
        self._next = step
        assert isinstance(self._loop, ThreadedLoop)
        self._loop.later(self._do, step)

    def _do(self, step: Callable[[], None]) -> None:
        if self._next is step:  # else `close` did it
            self._next = None
            step()

    def _begin(self, batch: WriteBatch) -> None:
        error = self._write(batch)
        if error is not None or not self._sync_each:
            self._tell(batch, error or self._sync())
        elif self._closed:
            self._tell(batch, self._sync())
        else:
            self._later(lambda: self._tell(batch, self._sync()))

    def _tell(self, batch: WriteBatch, error: Exception | None) -> None:
        if self._closed:
            self._loop.call_soon(self._done, batch, error)
        else:
            self._done(batch, error)


def thread_stand_ins() -> list[tuple[Any, str, Any]]:
    """What to replace (owner, name, value) so that the store starts no thread."""
    return [(jobs, "ThreadPoolExecutor", VirtualPool), (message_store, "Writer", VirtualWriter)]
