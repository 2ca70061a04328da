"""A follower asks for its leader's snapshots when they are due, and replays what is of use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from evenq_broker.core.replication.config import Mode
from evenq_broker.core.replication.epoch_table import EpochTable
from evenq_broker.core.replication.rules import LogView, Role
from evenq_broker.core.replication.snapshot_files import SnapshotFile, SnapshotListing
from evenq_broker.loops.replication.follower_replay import DAMAGED_REST_MS, LOOK_MS, REST_MS, FollowerReplay
from evenq_broker.loops.replication.snapshots import FetchedSnapshot, IncomingSnapshot

from evenq.errors import ConnectionFailed, NotFound, StoreCorrupted, StoreFull, StorePoisoned
from evenq.runtime.clock import FakeClock


class Replica:
    """What is committed, as far as a follower knows."""

    def __init__(self) -> None:
        self.role, self.log = Role.FETCHING, LogView(Mode.REPL_SYNC)


class Copy:
    """A log and how far it was replayed."""

    def __init__(self) -> None:
        self.end = self.synced_end = 1_000
        self.replayed_end = 0
        self.failure: Exception | None = None
        self.trouble: Exception | None = None
        self.replays: list[tuple[bytes, int]] = []

    async def replay(self, data: bytes, *, committed: int, origin: str) -> bool:
        assert origin == "leader:1"
        self.replays.append((data, committed))
        if self.trouble is not None:
            raise self.trouble
        self.replayed_end = int(data)
        return True


class Stage:
    """One follower, and a leader whose newest snapshot may be set."""

    def __init__(self) -> None:
        self.clock, self.replica, self.log = FakeClock(), Replica(), Copy()
        self.copy: Copy | None = self.log
        self.newest: FetchedSnapshot | None = None
        self.trouble: Exception | None = None
        self.takes_ms = 0
        """How long an answer takes."""
        self.asked: list[tuple[int, int]] = []
        self.trimmed: list[int] = []
        self.replay = FollowerReplay(
            self.replica, copy=lambda: self.copy, fetch=self.fetch, trim=self.trimmed.append, clock=self.clock,  # type: ignore[arg-type]
            growth_bytes=300, group="b",
        )  # fmt: skip

    def has(self, log_offset: int, *, log_start: int = 0) -> None:
        self.newest = FetchedSnapshot(
            log_offset=log_offset, log_start=log_start, origin="leader:1", data=b"%d" % log_offset
        )

    async def fetch(self, after: int, until: int) -> FetchedSnapshot | None:
        self.asked.append((after, until))
        self.clock.spend(self.takes_ms)
        if self.trouble is not None:
            raise self.trouble
        newest = self.newest
        if newest is not None and not after < newest.log_offset <= until:
            return FetchedSnapshot(log_offset=newest.log_offset, log_start=newest.log_start, origin="leader:1")
        return newest


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    task = asyncio.ensure_future(stage.replay.run())
    await stage.clock.advance(1)
    try:
        yield stage
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_asks_at_once_then_seldom_and_often_when_the_log_has_grown(stage: Stage) -> None:
    stage.replica.log.hw = 100
    await stage.clock.advance(LOOK_MS)
    assert stage.asked == [(0, 100)]
    await stage.clock.advance(REST_MS - 2 * LOOK_MS)
    assert len(stage.asked) == 1
    await stage.clock.advance(2 * LOOK_MS)
    assert len(stage.asked) == 2
    stage.replica.log.hw = 300
    await stage.clock.advance(3 * LOOK_MS)
    assert stage.asked[2:] == [(0, 300)] * 3
    stage.has(250)
    await stage.clock.advance(LOOK_MS)
    assert stage.log.replays == [(b"250", 300)]
    assert stage.replay.lag == 50
    await stage.clock.advance(3 * LOOK_MS)
    assert len(stage.log.replays) == 1


async def test_a_leader_whose_answer_takes_long_is_asked_seldom(stage: Stage) -> None:
    stage.replica.log.hw, stage.takes_ms = 900, 40
    await stage.clock.advance(12 * LOOK_MS + LOOK_MS // 2)
    assert len(stage.asked) == 3


async def test_only_what_is_committed_and_on_disk_is_asked_for(stage: Stage) -> None:
    stage.replica.log.hw, stage.log.synced_end = 900, 700
    await stage.clock.advance(LOOK_MS)
    stage.replica.log.hw = 600
    await stage.clock.advance(LOOK_MS)
    assert [until for _, until in stage.asked] == [700, 600]


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.FETCHING])
async def test_who_does_not_follow_asks_nobody(stage: Stage, role: Role) -> None:
    stage.replica.role, stage.replica.log.hw = role, 900
    await stage.clock.advance(2 * REST_MS)
    stage.replica.role, stage.copy = Role.FETCHING, None
    await stage.clock.advance(2 * REST_MS)
    assert (stage.asked, stage.replay.lag) == ([], 0)


async def test_what_the_leader_let_go_goes_once_the_copy_is_replayed_that_far(stage: Stage) -> None:
    stage.replica.log.hw = 900
    stage.has(1_500, log_start=400)
    await stage.clock.advance(LOOK_MS)
    assert stage.trimmed == [], "a store could not go on from there"
    stage.has(800, log_start=400)
    await stage.clock.advance(LOOK_MS)
    assert stage.trimmed == [400]
    stage.replica.log.table = EpochTable(400, ())
    await stage.clock.advance(2 * REST_MS)
    assert stage.trimmed == [400]


async def test_damage_is_told_once_and_trouble_is_tried_again(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        stage.replica.log.hw = 900
        stage.trouble = ConnectionFailed("the leader is away")
        await stage.clock.advance(LOOK_MS)
        stage.trouble = None
        stage.has(800)
        stage.log.trouble = StoreFull("no space")
        await stage.clock.advance(LOOK_MS)
        stage.log.trouble = StoreCorrupted("commitlog/00 is damaged")
        await stage.clock.advance(5 * LOOK_MS)
        assert len(stage.log.replays) == 2
        stage.log.trouble = None
        await stage.clock.advance(2 * REST_MS)
        assert len(stage.log.replays) == 2, "until the folder is opened anew"
        stage.copy = Copy()
        await stage.clock.advance(REST_MS)
        assert stage.copy.replayed_end == 800
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]
    assert "commitlog/00 is damaged" in caplog.text


async def test_a_leader_that_is_away_for_long_is_one_line(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.trouble = ConnectionFailed("the leader is away")
    await stage.clock.advance(5 * REST_MS)
    assert len(stage.asked) >= 4
    stage.trouble = None
    await stage.clock.advance(REST_MS)
    stage.trouble = ConnectionFailed("the leader is away")
    await stage.clock.advance(REST_MS)
    assert [record.message for record in caplog.records] == [
        "replica b: the leader's snapshot is not taken over now: the leader is away"
    ] * 2, "once for each time that it went away"


class Repairs:
    """Who repairs, or cannot."""

    def __init__(self) -> None:
        self.version = 0
        self.helps = True
        self.asked: list[int] = []

    async def repair(self, error: StoreCorrupted, seen: int) -> bool:
        self.asked.append(error.log_offset)
        if not self.helps:
            raise StoreCorrupted(f"{error.message}; copy 1 was asked")
        self.version += 1
        return True


async def test_damage_that_a_replay_meets_is_repaired_and_the_replay_goes_on(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        stage.replica.log.hw = 900
        stage.has(800)
        repairs = stage.replay.repairs = Repairs()
        stage.log.trouble = StoreCorrupted("commitlog/00 is damaged", log_offset=70)
        await stage.clock.advance(LOOK_MS)
        assert repairs.asked == [70]
        stage.log.trouble = None
        await stage.clock.advance(LOOK_MS)
        assert stage.log.replayed_end == 800, "at once"
    assert caplog.records == []


async def test_what_nobody_can_repair_is_told_once_and_tried_again_after_a_repair_or_a_long_time(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        stage.replica.log.hw = 900
        stage.has(800)
        repairs = stage.replay.repairs = Repairs()
        repairs.helps = False
        stage.log.trouble = StoreCorrupted("commitlog/00 is damaged", log_offset=70)
        for _ in range(30):
            await stage.clock.advance(LOOK_MS)
        assert len(stage.log.replays) == 1
        repairs.version += 1
        for _ in range(11):
            await stage.clock.advance(LOOK_MS)
        assert len(stage.log.replays) == 2, "something was repaired meanwhile"
        for _ in range(DAMAGED_REST_MS // REST_MS + 1):
            await stage.clock.advance(REST_MS)
        assert len(stage.log.replays) == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "copy 1 was asked" in caplog.text


async def test_a_failed_disk_ends_the_loop() -> None:
    stage = Stage()
    stage.replica.log.hw = 900
    stage.has(800)
    stage.log.trouble = stage.log.failure = StorePoisoned("the disk failed")
    task = asyncio.ensure_future(stage.replay.run())
    await stage.clock.advance(LOOK_MS)
    with pytest.raises(StorePoisoned, match="the disk failed"):
        await task


def test_a_snapshot_out_of_place_is_not_transferred_but_known() -> None:
    async def report(log_offset: int) -> tuple[bool, Any]:
        sink = IncomingSnapshot(origin="leader:1", after=100, until=200)
        assert sink.known is None
        try:
            await sink.begin(SnapshotListing(log_offset, 50, (SnapshotFile("snapshot/1", 4),)))
        except NotFound:
            return False, sink.known
        await sink.write("snapshot/1", 0, b"ab")
        assert sink.known is not None
        assert sink.known.data == b"", "half of it"
        await sink.write("snapshot/1", 2, b"cd")
        return True, sink.known

    for log_offset, wanted in ((100, False), (101, True), (200, True), (201, False)):
        taken, known = asyncio.run(report(log_offset))
        assert (taken, known.log_offset, known.log_start) == (wanted, log_offset, 50)
        assert known.data == (b"abcd" if wanted else b"")


async def test_the_message_index_is_built_behind_each_replay_until_all_of_it_is_there(stage: Stage) -> None:
    """A few blocks at a time, so that the next replay comes between; not while the broker leads."""

    class Index:
        left = 0
        calls: ClassVar[list[object]] = []

        async def follow(self, copy: object) -> bool:
            self.calls.append(copy)
            self.left -= 1
            return self.left <= 0

    index = stage.replay._index = Index()  # type: ignore[assignment]  # what is called of it
    stage.replica.log.hw = 100
    await stage.clock.advance(3 * LOOK_MS)
    assert index.calls == [stage.log], "once for what was replayed before this start"
    stage.has(90)
    index.left = 3
    await stage.clock.advance(REST_MS)
    assert stage.log.replays == [(b"90", 100)]
    await stage.clock.advance(5 * LOOK_MS)
    assert len(index.calls) == 4
    stage.copy = None
    stage.replay._is_indexed = False
    await stage.clock.advance(5 * LOOK_MS)
    assert len(index.calls) == 4
