"""Who says that its disk has room, and what a leader does whose disk is full."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from evenq_broker.core.replication.rules import NOTHING
from evenq_broker.loops.replication.relief import has_room, watch_room

from evenq.errors import PreconditionFailed
from evenq.runtime.clock import FakeClock
from evenq.store import StoreOptions
from evenq.store.io.disk import Usage

MIB, RELIEF_MS = 1 << 20, 5_000
OPTIONS = StoreOptions(disk_free_min_bytes=4 * MIB, disk_used_max_ratio=1.0)


@pytest.mark.parametrize(
    ("free_mib", "options", "blocks", "room"),
    [
        (8, OPTIONS, True, True),
        (7, OPTIONS, True, False),
        (2, StoreOptions(disk_free_min_bytes=0, disk_used_max_ratio=1.0), True, True),
        (1, StoreOptions(disk_free_min_bytes=0, disk_used_max_ratio=1.0), True, False),
        (40, StoreOptions(disk_free_min_bytes=4 * MIB, disk_used_max_ratio=0.8), True, True),
        (39, StoreOptions(disk_free_min_bytes=4 * MIB, disk_used_max_ratio=0.8), True, False),
        (2, OPTIONS, False, True),
    ],
)
def test_room_is_the_reserve_once_more_or_a_log_file(
    free_mib: int, options: StoreOptions, blocks: bool, room: bool
) -> None:
    assert has_room(Usage(100 * MIB, free_mib * MIB), options, segment_bytes=2 * MIB, blocks=blocks) is room


class Stage:
    """A copy of which the test says what its disk and the core say."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.measured: list[bool] = []
        self.config: Any = SimpleNamespace(timing=SimpleNamespace(relief_ms=RELIEF_MS))
        self.leader, self.to = self, NOTHING
        self.nominees: list[int] = []
        self.log: Any = SimpleNamespace(full=False, disk=SimpleNamespace(usage=None, problem=""))
        self.driver: Any = SimpleNamespace(replica=self, tell=lambda actions: None)

    def disk_measured(self, *, has_room: bool) -> list[Any]:
        self.measured.append(has_room)
        return []

    def relief(self, _now_ms: int) -> int:
        return self.to

    async def hand_over(self, to: int | None) -> None:
        assert to is not None
        self.nominees.append(to)
        if len(self.nominees) == 1:
            raise PreconditionFailed("copy 1 did not take over")

    async def looks(self, count: int = 1) -> None:
        before = len(self.measured)
        await self.clock.until(lambda: len(self.measured) >= before + count)
        await asyncio.sleep(0)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    running = asyncio.ensure_future(
        watch_room(
            stage.driver, stage.log, stage, OPTIONS, segment_bytes=MIB, blocks=True, clock=stage.clock, group="b",  # type: ignore[arg-type]
        )
    )  # fmt: skip
    try:
        yield stage
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_copy_says_that_it_has_room_as_soon_as_its_disk_was_looked_at_and_takes_what_comes(
    stage: Stage,
) -> None:
    await stage.looks()
    assert stage.measured[-1] is False
    stage.log.disk.usage = Usage(100 * MIB, 50 * MIB)
    await stage.looks()
    assert stage.measured[-1] is True
    stage.log.disk.problem = "no space left"
    await stage.looks()
    assert stage.measured[-1] is False


async def test_a_full_leader_asks_who_the_core_names_and_goes_on_when_it_does_not_take_over(
    stage: Stage,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage.to = 1
    await stage.looks(3)
    assert stage.nominees == [], "its disk has room"
    stage.log.full = True
    await stage.looks(RELIEF_MS // 1_000)
    assert stage.nominees == [1], "once in this time, although it was refused"
    first, second = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert first == "replica b: this leader's disk has no space for messages, copy 1 has some: it is nominated to lead"
    assert second == "replica b: copy 1 did not take over"
    stage.to = 2
    await stage.looks(2)
    assert stage.nominees == [1, 2]
