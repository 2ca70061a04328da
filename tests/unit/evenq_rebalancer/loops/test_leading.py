"""A candidate at work, on a lease in memory and a clock that moves when the test says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from evenq_rebalancer.core.election import LeaseTiming, Record, SeenRecord
from evenq_rebalancer.loops.leading import UNKNOWN, LeaseCandidate, identity_of

from evenq.errors import ConnectionFailed
from evenq.runtime.clock import FakeClock


class MemoryLease:
    """The edge: a lease that can be out of reach, or hang."""

    def __init__(self) -> None:
        self.seen: SeenRecord | None = None
        self.away = False
        self.hang: asyncio.Event | None = None

    async def read(self) -> SeenRecord | None:
        await self._way()
        return self.seen

    async def write(self, record: Record, version: str) -> str | None:
        await self._way()
        if version != (self.seen.version if self.seen else ""):
            return None
        self.seen = SeenRecord(record=record, version=str(int(version or 0) + 1))
        return self.seen.version

    async def _way(self) -> None:
        if self.hang is not None:
            await self.hang.wait()
        if self.away:
            raise ConnectionFailed("no server there")


class Stage:
    """Candidates with their loops."""

    def __init__(self) -> None:
        self.clock, self.lease = FakeClock(), MemoryLease()
        self.story: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def candidate(self, name: str) -> LeaseCandidate:
        leading = LeaseCandidate(
            self.lease,
            identity=identity_of(f"{name}:1", "n"),
            timing=LeaseTiming(duration_ms=6_000, renew_ms=4_000, retry_ms=1_000),
            clock=self.clock,
            began=lambda epoch: self.story.append(f"{name} began {epoch}"),
            ended=lambda: self.story.append(f"{name} ended"),
        )
        self.tasks += [asyncio.ensure_future(leading.run()), asyncio.ensure_future(leading.watch())]
        return leading

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    try:
        yield stage
    finally:
        await stage.end()


async def test_the_first_leads_the_second_knows_where_and_follows_at_once_when_it_resigns(stage: Stage) -> None:
    a = stage.candidate("a")
    await stage.clock.advance(100)
    b = stage.candidate("b")
    await stage.clock.advance(10_000)
    assert (a.leads(), b.leads()) == (True, False)
    assert a.leader() == b.leader() == "a:1"
    await a.resign()
    assert stage.story[1:] == ["a ended"]
    assert a.leader() == UNKNOWN
    await stage.clock.advance(2_000)
    assert b.leads()
    assert a.leader() == b.leader() == "b:1"
    await stage.clock.advance(20_000)
    assert len(stage.story) == 3
    assert a.transitions == b.transitions == 1


async def test_a_leader_that_cannot_reach_the_lease_ends_says_so_once_and_comes_back(stage: Stage, caplog) -> None:
    with caplog.at_level(logging.INFO):
        a = stage.candidate("a")
        await stage.clock.advance(100)
        stage.lease.away = True
        await stage.clock.advance(3_500)
        assert a.leads()
        await stage.clock.advance(1_500)
        assert not a.leads()
        assert stage.story[-1] == "a ended"
        stage.lease.away = False
        await stage.clock.advance(1_500)
        assert a.leads()
        first, second = (int(line.split()[-1]) for line in stage.story if "began" in line)
        assert second > first
    assert sum(record.message.startswith("the lease cannot be read or written: ") for record in caplog.records) == 1
    assert [record.message for record in caplog.records].count("the lease can be read and written again") == 1


async def test_a_call_that_hangs_does_not_keep_a_leader_leading_nor_does_its_late_success(stage: Stage) -> None:
    a = stage.candidate("a")
    await stage.clock.advance(100)
    stage.lease.hang = asyncio.Event()
    await stage.clock.advance(5_000)
    assert stage.story[-1] == "a ended"
    stage.lease.hang.set()
    await stage.clock.advance(10)
    assert not a.leads()
    await stage.clock.advance(2_000)
    assert a.leads()
    assert len(stage.story) == 3


async def test_nobody_is_named_while_nobody_leads(stage: Stage) -> None:
    stage.lease.away = True
    a = stage.candidate("a")
    await stage.clock.advance(3_000)
    assert a.leader() == UNKNOWN
    await a.resign()
    assert stage.story == []
