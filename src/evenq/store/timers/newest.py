"""Pending timers in the order in which they were stored, the last one first: a start asks for those of the last minute.

A timer's id is its log offset, so ids in descending order are that order. Memory has most of the newest; a run is
looked through only where it may have one that is newer than the next one of memory, so who stops soon reads little.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from heapq import nlargest
from typing import Final

from evenq.store.io.disk import Disk
from evenq.store.log.messages import StoredTimer
from evenq.store.timers.keys import id_of
from evenq.store.timers.merging import Job, pieces
from evenq.store.timers.pending import PendingTimers
from evenq.store.timers.runs import RunFile

__all__ = ["NEWEST_MAX", "NewestJob", "newest_first"]

NEWEST_MAX: Final = 100_000
"""Of one run: bounds memory."""
BATCH: Final = 256


class NewestJob(Job):
    """Looks through one run for its newest timers."""

    def __init__(self, run: RunFile, used: int, ended: frozenset[int], *, count_max: int = NEWEST_MAX) -> None:
        self._run, self._used, self._ended = run, used, ended
        self._count_max = count_max
        self.found: list[int] = []

    def steps(self, disk: Disk) -> Iterator[None]:
        for keys in pieces(disk, self._run, self._used):
            self.found += [timer_id for key in keys if (timer_id := id_of(key)) not in self._ended]
            if len(self.found) > 2 * self._count_max:
                self.found = nlargest(self._count_max, self.found)
            yield


async def newest_first(
    pending: PendingTimers,
    scan: Callable[[Callable[[], NewestJob]], Awaitable[NewestJob]],
    frames: Callable[[Sequence[int]], Awaitable[list[StoredTimer | None]]],
) -> AsyncGenerator[StoredTimer, None]:
    """Before timers fire, and while no file of a run goes. Those that are damaged are left out. Raises StoreCorrupted,
    StoreFull.
    """
    ids = pending.memory_ids()
    runs = sorted(pending.used_runs(), key=lambda run: run[0].highest_id)
    while ids or runs:
        # Whatever is over this is newer than all that no run has shown yet.
        floor = runs[-1][0].highest_id if runs else -1
        above = sorted((timer_id for timer_id in ids if timer_id > floor), reverse=True)
        ids = [timer_id for timer_id in ids if timer_id <= floor]
        for start in range(0, len(above), BATCH):
            for timer in await frames(above[start : start + BATCH]):
                if timer is not None:
                    yield timer
        if runs:
            run, used = runs.pop()
            ids += (await scan(partial(NewestJob, run, used, pending.ended_ids()))).found
