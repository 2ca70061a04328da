"""What a copy says of its disk while it follows."""

from __future__ import annotations

import asyncio
import logging

import pytest
from evenq_broker.loops.replication.follower_disk import LOOK_MS, FollowerDisk

from evenq.runtime.clock import FakeClock
from evenq.store.io.disk import Usage
from evenq.store.io.memory_disk import MemoryDisk


def test_an_outage_is_one_line_at_its_begin_and_one_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    disk = FollowerDisk(FakeClock(), group="b")
    with caplog.at_level(logging.INFO):
        disk.took(0)
        for _ in range(50):
            disk.refused(700, "no space left: free space")
        assert disk.problem == "no space left: free space"
        disk.took(700)
        disk.took(800)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "replica b: records from 700 on are not copied: no space left: free space." in caplog.messages[0]
    assert "50 tries" in caplog.messages[1]
    assert not disk.problem


def test_another_reason_is_another_line(caplog: pytest.LogCaptureFixture) -> None:
    disk = FollowerDisk(FakeClock(), group="b")
    for problem in ("no space left", "damaged", "damaged"):
        disk.refused(0, problem)
    assert len(caplog.records) == 2


async def test_what_is_free_is_measured_again_and_again_also_after_a_failure() -> None:
    clock, memory = FakeClock(), MemoryDisk(1_000)
    disk, usages = FollowerDisk(clock, group="b"), [Usage(1_000, 600), OSError(5, "broken"), Usage(1_000, 0)]

    def usage() -> Usage:
        one = usages.pop(0)
        if isinstance(one, OSError):
            raise one
        return one

    memory.usage = usage  # type: ignore[method-assign]
    watching = asyncio.ensure_future(disk.watch(memory))
    await clock.advance(1)
    assert disk.usage == Usage(1_000, 600)
    await clock.advance(LOOK_MS)
    assert disk.usage == Usage(1_000, 600)
    await clock.advance(LOOK_MS)
    assert disk.usage == Usage(1_000, 0)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
