"""Pending timers in the reverse order of their storing, for a start that needs those of the last minute.

A timer's id is its log offset, so descending ids are that order. Memory has most of the newest. A run is searched only
where it may have a timer newer than the next one of memory, so a caller that stops early reads little.
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

NEWEST_MAX: Final = 100_000
"""Timers kept of one run: bounds memory."""
BATCH: Final = 256


class NewestJob(Job):
    """A search of one run for its newest timers."""

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
    *,
    batch: int = BATCH,
) -> AsyncGenerator[StoredTimer, None]:
    """Yields timers, while no run file is removed; one that fires meanwhile may be among them. `batch`: most frames in
    memory at a time. Raises StoreCorrupted, StoreFull.
    """
    ids = pending.memory_ids()
    runs = sorted(pending.used_runs(), key=lambda run: run[0].highest_id)
    while ids or runs:
        # Timers over this are newer than all that is left in the runs.
        floor = runs[-1][0].highest_id if runs else -1
        above = sorted((timer_id for timer_id in ids if timer_id > floor), reverse=True)
        ids = [timer_id for timer_id in ids if timer_id <= floor]
        for start in range(0, len(above), batch):
            for timer in await frames(above[start : start + batch]):
                if timer is not None:
                    yield timer
        if runs:
            run, used = runs.pop()
            ids += (await scan(partial(NewestJob, run, used, pending.ended_ids()))).found
