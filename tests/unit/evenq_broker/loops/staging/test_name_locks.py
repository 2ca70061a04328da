"""Locks by name leave nothing behind."""

from __future__ import annotations

import asyncio

from evenq_broker.loops.staging.name_locks import NameLocks


async def test_one_name_goes_one_after_another_others_go_on_and_nothing_stays() -> None:
    locks, seen = NameLocks(), []

    async def work(name: str, number: int) -> None:
        async with locks.of(name):
            seen.append((name, number, "in"))
            await asyncio.sleep(0)
            seen.append((name, number, "out"))

    cancelled = asyncio.ensure_future(work("a", 9))
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(work("a", number))
            group.create_task(work("b", number))
        cancelled.cancel()
    for name in ("a", "b"):
        own = [(number, what) for other, number, what in seen if other == name]
        assert own == [(number, what) for number in range(3) for what in ("in", "out")]
    assert len(locks) == 0
