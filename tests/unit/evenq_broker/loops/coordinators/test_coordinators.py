"""What replication needs of every place that keeps the group record: one suite for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.core.replication.record import GroupRecord, Pair, Seen, first_record
from evenq_broker.loops.coordinators.coordinator import Coordinator
from evenq_broker.loops.coordinators.file import FileCoordinator
from evenq_proofs.cluster_binaries import BUILD_SECONDS
from evenq_proofs.memory_coordinator import MemoryCoordinator, SharedRecord

from evenq.runtime.clock import SystemClock
from evenq.serving.kubernetes.api import KubernetesApi

FIRST = first_record(Pair(0, "0" * 32), members=(0, 1, 2), min_isr=2)
Make = Callable[[], Coordinator]


PLACES = ["memory", "file", "lease", pytest.param("etcd", marks=pytest.mark.timeout(BUILD_SECONDS + 300))]


@pytest.fixture(params=PLACES)
def make(request: pytest.FixtureRequest, tmp_path: Path, coordinators: Any) -> Make:
    """Makes the coordinator of one more broker of the same group."""
    shared, made = SharedRecord(), []
    etcd = request.getfixturevalue("etcd") if request.param == "etcd" else None
    if request.param == "lease":
        request.getfixturevalue("lease_api")

    def one() -> Any:
        made.append(None)
        match request.param:
            case "memory":
                return MemoryCoordinator(shared)
            case "file":
                mark_path = tmp_path / f"mark-{len(made)}"
                return FileCoordinator(tmp_path / "group", mark_path=mark_path, clock=SystemClock())
            case "lease":
                return coordinators.on_lease(KubernetesApi())
            case _:
                assert etcd is not None
                return coordinators.on_etcd(etcd.endpoints)

    return one


async def written(coordinator: Coordinator, expected: Seen | None, proposed: GroupRecord) -> Seen:
    seen = await coordinator.compare_and_set(expected, proposed)
    assert seen is not None
    return seen


async def test_there_is_no_record_before_the_first_and_then_everybody_reads_it(make: Make) -> None:
    a, b = make(), make()
    assert await a.read() is None
    seen = await written(a, None, FIRST)
    assert seen.record == FIRST
    assert await a.read() == seen
    assert await b.read() == seen


async def test_a_second_first_record_is_not_written(make: Make) -> None:
    a, b = make(), make()
    seen = await written(a, None, FIRST)
    assert await b.compare_and_set(None, FIRST) is None
    assert await b.read() == seen


async def test_of_two_that_saw_the_same_record_one_writes(make: Make) -> None:
    a, b = make(), make()
    seen = await written(a, None, FIRST)
    won = await written(b, seen, FIRST.elected(0))
    assert await a.compare_and_set(seen, FIRST.renewed()) is None
    assert await a.read() == won


async def test_the_same_record_written_again_has_another_token(make: Make) -> None:
    a = make()
    seen = await written(a, None, FIRST)
    again = await written(a, seen, FIRST)
    assert again.token != seen.token
    assert await a.compare_and_set(seen, FIRST) is None


async def test_many_brokers_at_once_lose_no_write(make: Make) -> None:
    async def add(coordinator: Coordinator, times: int) -> None:
        while times:
            seen = await coordinator.read()
            assert seen is not None
            if await coordinator.compare_and_set(seen, seen.record.renewed()) is not None:
                times -= 1
            else:
                await asyncio.sleep(0.001)  # another coordinator was faster

    a = make()
    await written(a, None, FIRST)
    await asyncio.gather(*(add(make(), 5) for _ in range(4)))
    seen = await a.read()
    assert seen is not None
    assert seen.record.version == FIRST.version + 20


async def test_a_watch_tells_the_record_and_then_its_last_change(make: Make) -> None:
    a, b = make(), make()
    seen = await written(a, None, FIRST)
    watch = b.watch()
    assert await anext(watch) == seen
    later = await written(a, seen, FIRST.elected(0))
    assert await asyncio.wait_for(anext(watch), 60) == later
    await watch.aclose()
