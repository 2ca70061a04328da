"""Where the brokers of a simulated group keep their record: one step for all, but late, away, or with lost answers.

A write whose outcome is not known to its caller may still come about seconds later, as the interface of coordinators
allows; its token keeps it harmless. Every election is noted with the moment at which it was written.
"""

from __future__ import annotations

import contextvars
import random
from collections import deque
from collections.abc import AsyncIterator, Callable

from evenq_broker.core.replication.record import NO_LEADER, GroupRecord, Pair, Seen
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown
from evenq_proofs.memory_coordinator import MemoryCoordinator, SharedRecord
from evenq_proofs.sim import ProcessClock, SimProcess, VirtualLoop

GIVES_UP_MS = 1_000
LATE_MS_MAX = 3_000
STALE_MAX = 16
"""A read is late by less than this number of versions, as a cache of the place may be."""


class GroupPlace:
    """The record, and how well it can be reached."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.shared = SharedRecord()
        self.loop, self.rng = loop, rng
        self.away = False
        """For everybody."""
        self.unclear = 0.0
        """Part of the writes whose answer is lost, or that come late, of reads that fail, and of watches that are late."""
        self.stale = 0.0
        """Part of the reads, and of what watches tell, that give the record as it was some versions before."""
        self.on_set: list[Callable[[GroupRecord, tuple[Pair, ...]], None]] = []
        """Called when a record is written, with the in-sync set of the one before."""
        self.history: deque[Seen] = deque(maxlen=STALE_MAX)
        self.elections: list[tuple[int, int, int]] = []
        """Epoch, leader, world time in ms."""
        self.sets = 0
        """Writes that changed the in-sync set."""
        self._in_sync: tuple[Pair, ...] = ()

    @property
    def record(self) -> GroupRecord | None:
        """As it is now."""
        return None if self.shared.seen is None else self.shared.seen.record

    def note(self, seen: Seen) -> None:
        """A record was written."""
        record = seen.record
        self.history.append(seen)
        for call in self.on_set:
            call(record, self._in_sync)
        self.sets += record.isr != self._in_sync
        self._in_sync = record.isr
        if record.leader != NO_LEADER and (not self.elections or record.epoch > self.elections[-1][0]):
            self.elections.append((record.epoch, record.leader, int(self.loop.now_ms)))


class SimCoordinator:
    """One broker's way to the place."""

    def __init__(self, place: GroupPlace, process: SimProcess, clock: ProcessClock, cut: Callable[[], bool]) -> None:
        self._place, self._process, self._clock, self._cut = place, process, clock, cut
        self._inner = MemoryCoordinator(place.shared)

    async def read(self) -> Seen | None:
        """See Coordinator."""
        await self._way()
        if self._is_unclear():
            raise CoordinatorUnknown("the record was not read")
        seen = await self._inner.read()
        await self._way()
        return self._perhaps_stale(seen)

    async def compare_and_set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        """See Coordinator."""
        await self._way()
        place = self._place
        if self._is_unclear():
            if place.rng.random() < 0.5:
                late_ms = place.rng.uniform(0, LATE_MS_MAX)
                late = self._late(late_ms, expected, proposed)  # also if its process ends meanwhile
                place.loop.create_task(late, name="late write of the record", context=contextvars.Context())
            else:
                await self._set(expected, proposed)
            await self._clock.sleep_ms(place.rng.choice((20, GIVES_UP_MS)))
            raise CoordinatorUnknown("nobody knows whether the record was written")
        seen = await self._set(expected, proposed)
        await self._way()
        return seen

    async def watch(self) -> AsyncIterator[Seen]:
        """See Coordinator."""
        await self._way()
        async for seen in self._inner.watch():
            await self._way()
            if self._is_unclear():
                await self._clock.sleep_ms(self._place.rng.uniform(0, LATE_MS_MAX))
            yield self._perhaps_stale(seen) or seen

    def _perhaps_stale(self, seen: Seen | None) -> Seen | None:
        place = self._place
        return place.rng.choice(place.history) if place.history and place.rng.random() < place.stale else seen

    def _is_unclear(self) -> bool:
        return self._place.rng.random() < self._place.unclear

    async def _set(self, expected: Seen | None, proposed: GroupRecord) -> Seen | None:
        seen = await self._inner.compare_and_set(expected, proposed)
        if seen is not None:
            self._place.note(seen)
        return seen

    async def _late(self, late_ms: float, expected: Seen | None, proposed: GroupRecord) -> None:
        await ProcessClock(self._place.loop).sleep_ms(late_ms)
        await self._set(expected, proposed)

    async def _way(self) -> None:
        await self._clock.sleep_ms(self._place.rng.uniform(0.5, 4))
        if self._place.away or self._cut():
            await self._clock.sleep_ms(GIVES_UP_MS)
            raise CoordinatorUnknown("the record cannot be reached")
