"""The group record of simulations: one compare-and-set of all coordinators, and watches that see each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from evenq_broker.core.replication.record import Pair, Seen, first_record
from evenq_proofs.memory_coordinator import MemoryCoordinator, SharedRecord

FIRST = first_record(Pair(0, "0" * 32), members=(0, 1, 2), min_isr=2)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[MemoryCoordinator, MemoryCoordinator]]:
    shared = SharedRecord()
    async with asyncio.timeout(60):
        yield MemoryCoordinator(shared), MemoryCoordinator(shared)


async def test_tokens_count_the_writes_of_all_coordinators() -> None:
    async with running() as (a, b):
        assert await a.read() is None
        first = await a.compare_and_set(None, FIRST)
        assert first == Seen(FIRST, "1") == await b.read()
        second = await b.compare_and_set(first, FIRST.elected(0))
        assert second == Seen(FIRST.elected(0), "2") == await a.read()


async def test_a_write_that_expects_another_record_changes_nothing_and_wakes_no_watch() -> None:
    async with running() as (a, b):
        first = await a.compare_and_set(None, FIRST)
        assert await b.compare_and_set(None, FIRST) is None
        assert await b.compare_and_set(Seen(FIRST, "7"), FIRST.elected(1)) is None
        watch = b.watch()
        assert await anext(watch) == first == await a.read()
        waiting = asyncio.ensure_future(anext(watch))
        assert await a.compare_and_set(None, FIRST) is None
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()


async def test_a_watch_begins_with_the_record_and_then_waits_for_each_change() -> None:
    async with running() as (a, b):
        watch = b.watch()
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        assert not waiting.done(), "there is no record yet"
        seen = await a.compare_and_set(None, FIRST)
        assert await waiting == seen
        for broker_id in (0, 1, 2):
            assert seen is not None
            seen = await a.compare_and_set(seen, seen.record.elected(broker_id))
            assert await anext(watch) == seen


async def test_a_slow_watch_gets_the_last_of_several_changes_once() -> None:
    async with running() as (a, b):
        seen = await a.compare_and_set(None, FIRST)
        watch = b.watch()
        await anext(watch)
        for broker_id in (0, 1):
            assert seen is not None
            seen = await a.compare_and_set(seen, seen.record.elected(broker_id))
        assert await anext(watch) == seen
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 0.01)
