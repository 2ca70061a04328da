"""A keeper of timers on a disk that can fail, with a log that is a list."""

from __future__ import annotations

import asyncio

import pytest
from evenq_proofs.fault_disk import FaultDisk

from evenq.runtime.clock import FakeClock
from evenq.store import TimerAppend
from evenq.store.timers.keeper import TimerKeeper
from evenq.store.timers.pending import PendingTimers


class ClientContext:
    """A keeper with a log that is a list."""

    def __init__(self, **sizes):
        self.clock, self.disk, self.log, self.failures = FakeClock(1_000), FaultDisk(), {}, []
        self.end, self.fail = 0, None
        self.keeper = TimerKeeper(
            PendingTimers(**{"table_max": 10, "runs_max": 2, "ahead": 512, **sizes}), self.disk, clock=self.clock,
            read_timers=self.read, append=self.append, on_failure=self.failures.append,
        )  # fmt: skip

    async def read(self, timer_ids, bytes_max):
        return [self.log.get(timer_id) for timer_id in timer_ids]

    def append(self, entries, *, timers, ended):
        future = asyncio.get_running_loop().create_future()
        if self.fail is not None:
            future.set_exception(self.fail)
            return future
        for timer in timers:
            timer.log_offset, self.end = self.end, self.end + 100
            self.log[timer.log_offset] = timer
        self.keeper.apply(timers, ended)
        future.set_result(None)
        return future

    async def put(self, *dues):
        timers = [TimerAppend(1, 0, 0, due_ms=due, kind=1, born_ms=0, head=b"", system=b"") for due in dues]
        await self.append([], timers=timers, ended=[])
        return [timer.log_offset for timer in timers]


@pytest.fixture
def make_ground():
    """Makes a `ClientContext`, of the sizes given; to be called where a loop runs."""
    return ClientContext
