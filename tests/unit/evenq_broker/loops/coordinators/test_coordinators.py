"""What replication needs of every place that keeps the group record: one suite for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from evenq_broker.core.replication.record import GroupRecord, Pair, Seen, first_record
from evenq_broker.loops.coordinators.coordinator import Coordinator
from evenq_broker.loops.coordinators.file import FileCoordinator
from evenq_broker.loops.coordinators.memory import MemoryCoordinator, SharedRecord

from evenq.runtime.clock import SystemClock

FIRST = first_record(Pair(0, "0" * 32), members=(0, 1, 2), min_isr=2)
Make = Callable[[], Coordinator]


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes the coordinator of one more broker of the same group."""
    shared, made = SharedRecord(), []

    def one() -> Coordinator:
        made.append(None)
        if request.param == "memory":
            return MemoryCoordinator(shared)
        return FileCoordinator(tmp_path / "group", mark_path=tmp_path / f"mark-{len(made)}", clock=SystemClock())

    return one


async def written(coordinator: Coordinator, expected: Seen | None, proposed: GroupRecord) -> Seen:
    seen = await coordinator.compare_and_set(expected, proposed)
    assert seen is not None
    return seen


def test_there_is_no_record_before_the_first_and_then_everybody_reads_it(make: Make) -> None:
    async def scenario() -> None:
        a, b = make(), make()
        assert await a.read() is None
        seen = await written(a, None, FIRST)
        assert seen.record == FIRST
        assert await a.read() == seen
        assert await b.read() == seen

    asyncio.run(scenario())


def test_a_second_first_record_is_not_written(make: Make) -> None:
    async def scenario() -> None:
        a, b = make(), make()
        seen = await written(a, None, FIRST)
        assert await b.compare_and_set(None, FIRST) is None
        assert await b.read() == seen

    asyncio.run(scenario())


def test_of_two_that_saw_the_same_record_one_writes(make: Make) -> None:
    async def scenario() -> None:
        a, b = make(), make()
        seen = await written(a, None, FIRST)
        won = await written(b, seen, FIRST.elected(0))
        assert await a.compare_and_set(seen, FIRST.renewed()) is None
        assert await a.read() == won

    asyncio.run(scenario())


def test_the_same_record_written_again_has_another_token(make: Make) -> None:
    async def scenario() -> None:
        a = make()
        seen = await written(a, None, FIRST)
        again = await written(a, seen, FIRST)
        assert again.token != seen.token
        assert await a.compare_and_set(seen, FIRST) is None

    asyncio.run(scenario())


def test_many_brokers_at_once_lose_no_write(make: Make) -> None:
    async def add(coordinator: Coordinator, times: int) -> None:
        while times:
            seen = await coordinator.read()
            assert seen is not None
            if await coordinator.compare_and_set(seen, seen.record.renewed()) is not None:
                times -= 1
            else:
                await asyncio.sleep(0.001)  # somebody was faster

    async def scenario() -> None:
        a = make()
        await written(a, None, FIRST)
        await asyncio.gather(*(add(make(), 5) for _ in range(4)))
        seen = await a.read()
        assert seen is not None
        assert seen.record.version == FIRST.version + 20

    asyncio.run(scenario())


def test_a_watch_tells_the_record_and_then_its_last_change(make: Make) -> None:
    async def scenario() -> None:
        a, b = make(), make()
        seen = await written(a, None, FIRST)
        watch = b.watch()
        assert await anext(watch) == seen
        later = await written(a, seen, FIRST.elected(0))
        assert await asyncio.wait_for(anext(watch), 20) == later

    asyncio.run(scenario())
