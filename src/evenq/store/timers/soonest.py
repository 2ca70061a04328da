"""The pending timers that are due next, for a list that people read.

Runs are sorted by due time, so the search of a run ends after the wanted number of keys, however long the run is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from heapq import nsmallest

from evenq.store.io.disk import Disk
from evenq.store.log.messages import StoredTimer
from evenq.store.timers.keys import id_of
from evenq.store.timers.merging import Job, pieces
from evenq.store.timers.pending import PendingTimers
from evenq.store.timers.runs import RunFile


class SoonestJob(Job):
    """A search of one run for its timers that are due next."""

    def __init__(self, run: RunFile, used: int, ended: frozenset[int], *, count_max: int) -> None:
        self._run, self._used, self._ended, self._count_max = run, used, ended, count_max
        self.found: list[bytes] = []

    def steps(self, disk: Disk) -> Iterator[None]:
        for keys in pieces(disk, self._run, self._used):
            self.found += [key for key in keys if id_of(key) not in self._ended]
            if len(self.found) >= self._count_max:
                break
            yield


async def soonest_first(
    pending: PendingTimers,
    scan: Callable[[Callable[[], SoonestJob]], Awaitable[SoonestJob]],
    frames: Callable[[Sequence[int]], Awaitable[list[StoredTimer | None]]],
    *,
    count_max: int,
    batch: int,
) -> AsyncGenerator[StoredTimer, None]:
    """Yields timers, at most `count_max`, while no run file is removed; one that fires meanwhile may be among them.
    `batch`: most frames in memory at a time. Raises StoreCorrupted, StoreFull.
    """
    keys = nsmallest(count_max, pending.memory_keys())
    for run, used in pending.used_runs():
        job = await scan(partial(SoonestJob, run, used, pending.ended_ids(), count_max=count_max))
        keys = nsmallest(count_max, {*keys, *job.found})  # a timer that moves to a run meanwhile is in both
    ids = [id_of(key) for key in keys]
    for start in range(0, len(ids), batch):
        for timer in await frames(ids[start : start + batch]):
            if timer is not None:
                yield timer
