"""A group record in memory, for simulations and tests: coordinators of one `SharedRecord` are brokers of one group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from evenq_broker.core.replication.record import GroupRecord, Seen


class SharedRecord:
    """What they share. Used on one loop."""

    def __init__(self) -> None:
        self.seen: Seen | None = None
        self.changed = asyncio.Event()
        """Set, and replaced, at each change."""


class MemoryCoordinator:
    """See the module."""

    def __init__(self, shared: SharedRecord) -> None:
        self._shared = shared

    async def read(self) -> Seen | None:
        return self._shared.seen

    async def compare_and_set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        shared = self._shared
        token = "" if shared.seen is None else shared.seen.token
        if token != ("" if expected is None else expected.token):
            return None
        shared.seen = Seen(proposed, str(int(token or 0) + 1))
        # A new event for each change: who waits on the old one cannot miss a change between waking and looking.
        before, shared.changed = shared.changed, asyncio.Event()
        before.set()
        return shared.seen

    async def watch(self) -> AsyncIterator[Seen]:
        last = None
        while True:
            changed, seen = self._shared.changed, self._shared.seen
            if seen is not None and seen is not last:
                last = seen
                yield seen
                continue
            await changed.wait()
