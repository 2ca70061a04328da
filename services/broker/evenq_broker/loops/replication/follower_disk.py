"""The disk of a copy while it follows: its free space, and whether it accepts the records of the leader.

A leader rejects messages while a reserve is still free. A follower copies to the last byte, because its leader has
already accepted these records. A rejected write is tried again without a limit, so the log has one line at its begin
and one at its end. Made by `ReplicaLog`; read by metrics and by `/readyz`. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from evenq.errors import StoreFull
from evenq.runtime.clock import Clock
from evenq.store.io.disk import Disk, Usage

log = logging.getLogger(__name__)

LOOK_MS = 10_000
"""Between two measurements of the free space."""
FULL_MS = 1_000
"""Between two tries while the disk is full."""


class FollowerDisk:
    """Disk of one follower."""

    def __init__(self, clock: Clock, *, group: str) -> None:
        """`group`: the broker's name, for log lines."""
        self._clock, self._group = clock, group
        self.usage: Usage | None = None
        """At the last measurement; None: not measured yet."""
        self.problem = ""
        """Why records are not copied now; empty: nothing hinders."""
        self._tries = 0
        """Rejected writes since `problem` began."""
        self._since_ms = 0

    async def watch(self, disk: Disk) -> None:
        """Measures the free space, for ever. Errors show where the disk is used."""
        while True:
            with contextlib.suppress(OSError):
                self.usage = await asyncio.to_thread(disk.usage) if disk.blocks else disk.usage()
            await self._clock.sleep_ms(LOOK_MS)

    async def write(self, start: int, append: Callable[[], Awaitable[int]], *, is_free: Callable[[], bool]) -> int:
        """Writes records from log offset `start` on; returns the log's end. Keeps them while the disk is full and
        `is_free` reports no other work. Raises RecordsDamaged, StoreFull.
        """
        while True:
            try:
                end = await append()
            except StoreFull as error:
                self.refused(start, error.message)
                await self._clock.sleep_ms(FULL_MS)
                if not is_free():
                    raise
            else:
                self.took(start)
                return end

    def refused(self, start: int, problem: str) -> None:
        """Notes that records from log offset `start` on were not written."""
        if not self.problem:
            self._tries, self._since_ms = 0, self._clock.monotonic_ms()
        self._tries += 1
        if problem != self.problem:
            self.problem = problem
            log.warning(
                "replica %s: records from %d on are not copied: %s. This is retried automatically, and this copy is in "
                "sync again when it has everything",
                self._group,
                start,
                problem,
                extra={"start": start, "reason": problem},
            )

    def took(self, start: int) -> None:
        """Notes that records from log offset `start` on were written."""
        if self.problem:
            self.problem = ""
            spent_ms = self._clock.monotonic_ms() - self._since_ms
            log.info(
                "replica %s: records from %d on are copied again, after %d ms and %d tries",
                self._group,
                start,
                spent_ms,
                self._tries,
            )
