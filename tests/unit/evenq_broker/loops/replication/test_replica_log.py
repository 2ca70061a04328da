"""A follower's log: what is written and synced of records that come ahead, and what is reported of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from evenq_broker.core.replication.actions import Action, AppendRecords, PersistEpoch, Reset, Send, Truncate
from evenq_broker.core.replication.config import ReplicationConfig
from evenq_broker.core.replication.epoch_table import EpochStart, EpochTable
from evenq_broker.core.replication.messages import Envelope, EpochsReply, FollowerProgress, LastRecord, Records
from evenq_broker.core.replication.record import GroupRecord, Pair, Seen
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role
from evenq_broker.loops.replication import replica_log
from evenq_broker.loops.replication.follower_disk import FULL_MS
from evenq_broker.loops.replication.replica_log import AT_ONCE_BYTES, ReplicaLog
from evenq_broker.loops.replication.shared_pieces import SharedPieces

from evenq.errors import Error, StoreCorrupted, StoreError, StoreFull
from evenq.runtime.clock import FakeClock
from evenq.store import StoreOptions
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log.log_pieces import LogPieces
from evenq.store.log.segment import path_of
from evenq.wire.status import status_of

STORES = ("a" * 32, "b" * 32)
PAIRS = tuple(Pair(id_, store) for id_, store in enumerate(STORES))
LARGE, SMALL = AT_ONCE_BYTES + 1, 100
SEGMENT_BYTES = 16 << 20


class Identity:
    """A folder that was there before, at epoch 0."""

    epoch, is_new = 0, False


async def no_snapshot(*_: object) -> None:
    return None


class Stage:
    """Broker 1 follows broker 0, whose log has one group for each epoch; the writer does what `settle` lets it do."""

    def __init__(self) -> None:
        self.clock, self.disk = FakeClock(), MemoryDisk(1 << 30)
        config = ReplicationConfig(cluster="c", broker_id=1, members=(0, 1), min_isr=1)
        self.replica = Replica(config, store_id=STORES[1], epoch_seen=9, session=1)
        self.reports: list[FollowerProgress] = []
        self.syncs = 0
        self.pieces: list[Records] = []
        self.log = ReplicaLog(
            self.replica, Identity(), open_copy=self._open, pieces=None, term=None, clock=self.clock,  # type: ignore[arg-type]
            tell=self.tell, fetch=no_snapshot, growth_bytes=1 << 30, group="b",
        )  # fmt: skip

    async def _open(self) -> LogCopy:
        copy = self.copy = await LogCopy.open(
            None,
            StoreOptions(),
            disk=self.disk,
            clock=self.clock,
            broker_name="b",
            segment_bytes=SEGMENT_BYTES,
        )
        sync = copy._sync

        def counted() -> int:
            self.syncs += copy.synced_end < copy.end
            return sync()

        copy._sync = counted  # type: ignore[method-assign]
        return copy

    def tell(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, AppendRecords | Reset):
                self.log.do(action)
            elif isinstance(action, Send) and isinstance(action.envelope.body, FollowerProgress):
                self.reports.append(action.envelope.body)

    async def begin(self, *sizes: int) -> None:
        """Follow a log of groups of these sizes."""
        leader = await LogCopy.open(
            None,
            StoreOptions(),
            disk=MemoryDisk(1 << 30),
            clock=self.clock,
            broker_name="b",
            segment_bytes=SEGMENT_BYTES,
        )
        for epoch, size in enumerate(sizes, start=1):
            start = leader.end
            end = await leader.append_epoch_start(epoch, bytes(size), 1)
            data = await leader.read(start, end, size)
            self.pieces.append(Records(start, end, epoch - 1, (EpochStart(epoch, start),), 0, 0, data))
        await leader.close()
        await self.log.open()
        record = GroupRecord(version=1, epoch=9, leader=0, isr=PAIRS, min_isr=1, members=(0, 1))
        self.tell(self.replica.observed(Seen(record, "1"), 0))
        table = EpochTable(0, tuple(EpochStart(*entry) for one in self.pieces for entry in one.epochs))
        self.receive(EpochsReply(self.replica.follower.request, 1, table, self.pieces[-1].end))

    def receive(self, body: Any) -> None:
        self.tell(self.replica.receive(Envelope("c", 0, STORES[0], 1, 9, body), 0))

    async def settle(self) -> None:
        """The writer does all that it has."""
        running = asyncio.ensure_future(self.log.run())
        await self.clock.until(lambda: not self.log._entries)
        for _ in range(20):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    try:
        yield stage
    finally:
        await stage.copy.close()


async def test_records_that_came_ahead_are_written_one_by_one_and_synced_together(stage: Stage) -> None:
    await stage.begin(LARGE, LARGE, LARGE)
    await stage.settle()
    stage.reports.clear()
    for piece in stage.pieces:
        stage.receive(piece)
    await stage.settle()
    ends = [piece.end for piece in stage.pieces]
    assert [(report.end, report.confirmed) for report in stage.reports] == [
        (ends[2], 0), (ends[2], ends[2]),
    ], "R5: nothing is confirmed before its sync"  # fmt: skip
    assert stage.syncs == 1
    assert (stage.copy.end, stage.copy.synced_end) == (ends[2], ends[2])


async def test_no_more_than_a_bound_is_written_without_a_sync(stage: Stage, monkeypatch: Any) -> None:
    monkeypatch.setattr(replica_log, "UNSYNCED_BYTES", 2 * LARGE)
    await stage.begin(*[LARGE] * 5)
    await stage.settle()
    for piece in stage.pieces:
        stage.receive(piece)
    await stage.settle()
    assert stage.copy.synced_end == stage.copy.end == stage.pieces[-1].end
    assert stage.syncs == 3


async def test_a_small_group_is_written_synced_and_reported_in_one_step_and_those_that_came_meanwhile_in_the_next(
    stage: Stage,
) -> None:
    await stage.begin(SMALL, SMALL, SMALL, SMALL)
    await stage.settle()
    stage.reports.clear()
    first, *others, last = stage.pieces
    stage.receive(first)
    await stage.settle()
    assert [(one.end, one.confirmed) for one in stage.reports] == [(first.end, first.end)]
    stage.reports.clear()
    syncs = stage.syncs
    for piece in (*others, last):
        stage.receive(piece)
    await stage.settle()
    assert [(one.end, one.confirmed) for one in stage.reports] == [(last.end, last.end)]
    assert stage.syncs == syncs + 1


async def test_what_was_written_is_synced_although_the_records_behind_it_are_damaged(stage: Stage) -> None:
    await stage.begin(LARGE, LARGE)
    await stage.settle()
    first, second = stage.pieces
    assert isinstance(second.payload, bytes)
    broken = second.payload[:-1] + b"\x01"
    stage.receive(first)
    stage.receive(Records(second.start, second.end, 1, second.epochs, 0, 0, broken))
    await stage.settle()
    assert stage.copy.synced_end == stage.copy.end == first.end
    assert (stage.reports[-1].end, stage.reports[-1].confirmed) == (first.end, first.end)
    stage.tell(stage.replica.tick(10_000))
    assert stage.reports[-1].again
    stage.receive(second)
    await stage.settle()
    assert stage.copy.synced_end == second.end


async def test_a_full_disk_is_waited_for_and_nothing_is_asked_for_meanwhile(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """D9: one line at the begin, one at the end, however often it is tried."""
    with caplog.at_level(logging.INFO):
        await stage.begin(SMALL)
        await stage.settle()
        append, tries = stage.copy.append, 0

        async def full(*_: Any, **__: Any) -> int:
            nonlocal tries
            tries += 1
            raise StoreFull("no record can be copied: no space left")

        stage.copy.append = full  # type: ignore[method-assign]
        running = asyncio.ensure_future(stage.log.run())
        stage.receive(stage.pieces[0])
        for _ in range(5):
            await stage.clock.advance(FULL_MS)
        assert tries >= 5
        assert "no space left" in stage.log.disk.problem
        stage.reports.clear()
        stage.tell(stage.replica.tick(10_000))
        assert [report.again for report in stage.reports] == [False], "what came is kept"
        stage.copy.append = append  # type: ignore[method-assign]
        await stage.clock.advance(FULL_MS)
        assert stage.copy.synced_end == stage.pieces[0].end
        assert not stage.log.disk.problem
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert caplog.text.count("are not copied") == 1
    assert caplog.text.count("are copied again") == 1


async def test_a_new_epoch_does_not_wait_for_room(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    await stage.begin(SMALL)
    await stage.settle()

    async def full(*_: Any, **__: Any) -> int:
        raise StoreFull("no record can be copied: no space left")

    stage.copy.append = full  # type: ignore[method-assign]
    running = asyncio.ensure_future(stage.log.run())
    stage.receive(stage.pieces[0])
    await stage.clock.advance(FULL_MS)
    assert stage.replica.follower.writing is not None
    record = GroupRecord(version=2, epoch=10, leader=0, isr=PAIRS, min_isr=1, members=(0, 1))
    stage.tell(stage.replica.observed(Seen(record, "2"), 0))
    assert stage.replica.role is Role.FENCED
    await stage.clock.advance(FULL_MS)
    assert stage.replica.follower.writing is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert caplog.text.count("are not copied") == 1


async def test_an_empty_log_that_begins_where_it_did_is_no_warning(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """So each new group and each new copy begins."""
    await stage.begin(SMALL)
    stage.tell([Reset(0, 0)])
    await stage.settle()
    assert "begun anew" not in caplog.text


async def test_a_later_term_reads_the_files_of_its_own_log_and_not_those_that_a_cut_removed(stage: Stage) -> None:
    class Term:
        async def begin(self, epoch: int, attach: object) -> None:
            pass

        async def end(self) -> None:
            pass

    await stage.begin(SMALL, SMALL)
    await stage.settle()
    pieces = SharedPieces(LogPieces(stage.disk, SEGMENT_BYTES))
    stage.log._pieces, stage.log._term = pieces, Term()
    first, _ = stage.pieces
    stage.receive(first)
    await stage.settle()
    stage.log.serve(9)
    await stage.settle()
    assert await stage.log.read(0, first.end, 1 << 20) == first.payload
    stage.log.stop_serving("another copy leads")
    stage.tell([Reset(0, 0)])
    await stage.settle()
    other = await LogCopy.open(
        None, StoreOptions(), disk=MemoryDisk(1 << 30), clock=stage.clock, broker_name="b",
        segment_bytes=SEGMENT_BYTES,
    )  # fmt: skip
    end = await other.append_epoch_start(7, bytes(SMALL), 1)
    data = await other.read(0, end, 1 << 20)
    await other.close()
    stage.receive(Records(0, end, 0, (EpochStart(7, 0),), 0, 0, data))
    await stage.settle()
    assert stage.copy.end == end
    stage.log.serve(9)
    await stage.settle()
    assert await stage.log.read(0, end, 1 << 20) == data
    await stage.log.close(clean=False)
    pieces.close()


async def test_who_sends_to_a_leader_that_was_just_deposed_is_told_that_nothing_was_taken(stage: Stage) -> None:
    """HA-6: 50401, which leaves it open whether the message is kept, is for those who waited; others would send twice."""

    class Given:
        def give_up(self, error: Error, *, later: Error) -> None:
            self.errors = error, later

    await stage.log.open()
    store = stage.log._store = Given()  # type: ignore[assignment]
    stage.log.stop_serving("epoch 2 began, led by broker 1")
    waiting, later = store.errors
    assert [status_of(error, "JAVA").code for error in (waiting, later)] == [50401, 50002]
    for error in (waiting, later):
        assert "epoch 2 began, led by broker 1" in error.message


class SlowTerm:
    """A term that needs `TURNS` turns of the loop to begin, and as many to take back what it began."""

    def __init__(self) -> None:
        self.cancelled = 0
        """How often its begin was."""
        self.is_open = False
        """Something of it is there."""

    async def begin(self, epoch: int, attach: Callable[[Any], None]) -> None:
        self.is_open = True
        try:
            await turns(TURNS)
        except asyncio.CancelledError:
            self.cancelled += 1
            try:
                await turns(TURNS)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            self.is_open = False
            raise

    async def end(self) -> None:
        await turns(TURNS)
        self.is_open = False


TURNS = 12


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("deposed_after", [0, 1, TURNS // 2, TURNS + 5, None])
def test_a_stop_at_any_moment_of_a_term_that_begins_or_ends_is_over_soon(deposed_after: int | None) -> None:
    """The copy is elected, deposed so many turns later or not at all, and stopped at each turn of all that."""

    async def story(after: int) -> None:
        stage, term = Stage(), SlowTerm()
        pieces = stage.log._pieces = SharedPieces(LogPieces(stage.disk, SEGMENT_BYTES))
        stage.log._term = term
        await stage.log.open()
        running = asyncio.ensure_future(stage.log.run())
        stage.log.serve(9)
        for turn in range(after):
            if turn == deposed_after:
                stage.log.stop_serving("epoch 10 began, led by broker 0")
            await turns(1)
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=20)
        assert done, f"the log's loop goes on, stopped {after} turns after the election"
        assert running.cancelled(), running
        async with asyncio.timeout(20):
            await stage.log.close(clean=False)
        assert not term.is_open
        assert term.cancelled <= 1, "what the begin had to take back was broken off"
        if not stage.copy._closing:
            await stage.copy.close()
        pieces.close()

    for after in range(5 * TURNS):
        asyncio.run(story(after))


async def test_a_log_of_another_history_is_refused_before_anything_of_it_is_cut(stage: Stage) -> None:
    """Decision 93: the writer compares the last record below the place with the leader's."""

    class Pieces:
        async def record_before(self, end: int) -> tuple[int, int] | None:
            return (0, 5) if end == stage_ends[0] else None

    stage_ends: list[int] = []
    await stage.begin(SMALL, SMALL)
    await stage.settle()
    for one in stage.pieces:
        stage.receive(one)
    await stage.settle()
    stage_ends.extend(one.end for one in stage.pieces)
    stage.log._pieces = Pieces()  # type: ignore[assignment]
    first, second = stage_ends
    assert stage.copy.end == second
    with pytest.raises(StoreError, match="with an empty folder"):
        await stage.log._do(Truncate(first, 0, 0, LastRecord(0, first, 6)))
    assert stage.copy.end == second
    await stage.log._do(Truncate(second, 0, 0, LastRecord(first, second, 6)))
    assert stage.copy.end == second, "what cannot be read here is not compared"
    await stage.log._do(Truncate(first, 0, 0, LastRecord(0, first, 5)))
    assert stage.copy.end == first


@pytest.mark.parametrize("mended", [True, False])
async def test_damage_below_a_cut_is_repaired_before_it(stage: Stage, mended: bool) -> None:
    """Decision 94: where a record ends is looked for from the begin of the file, further back than a start looks."""
    await stage.begin(SMALL, SMALL, SMALL)
    await stage.settle()
    for one in stage.pieces:
        stage.receive(one)
    await stage.settle()
    ends = [one.end for one in stage.pieces]
    stage.copy._epochs = stage.copy._epochs.begun(ends[1])  # no epoch begins where the log is cut
    data = stage.disk.files[path_of(0)].data
    magic = data[4]
    data[4] ^= 1
    seen: list[tuple[int, int]] = []

    class Repairing:
        version = 0

        async def repair(self, error: StoreCorrupted, _: int) -> bool:
            seen.append((error.log_offset, stage.log.matched_end))
            data[4] = magic if mended else data[4]
            return mended

    stage.log.repair_by(Repairing())
    if mended:
        await stage.log._do(Truncate(ends[0], 0, 0, None))
        assert stage.copy.end == ends[0]
    else:
        with pytest.raises(StoreCorrupted, match="is damaged"):
            await stage.log._do(Truncate(ends[0], 0, 0, None))
        assert stage.copy.end == ends[2]
    assert seen == [(0, ends[0])]
    assert stage.log.matched_end == 0


class HeldIdentity(Identity):
    """Its disk answers when it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.seen: list[tuple[int, GroupRecord | None]] = []
        self.fails = False

    def persist_epoch(self, epoch: int, record: GroupRecord | None = None) -> None:
        self.seen.append((epoch, record))
        assert self.let.wait(60)
        if self.fails:
            raise StoreError("the disk is gone")


@pytest.mark.parametrize("fails", [False, True])
async def test_an_epoch_is_entered_when_it_is_on_disk_and_not_before(stage: Stage, fails: bool) -> None:
    """R3: who answers in an epoch that a power loss takes back can act in an older one."""
    disk = stage.log._identity = HeldIdentity()  # type: ignore[assignment]
    disk.fails = fails
    await stage.log.open()
    record = GroupRecord(version=2, epoch=10, leader=0, isr=PAIRS, min_isr=1, members=(0, 1))
    actions = stage.replica.observed(Seen(record, "2"), 0)
    assert PersistEpoch(10) in actions
    assert not any(isinstance(action, Send) for action in actions), "nothing is said in it"
    before = stage.replica.max_epoch
    entered = asyncio.ensure_future(stage.log._do(PersistEpoch(10)))
    await stage.clock.until(lambda: bool(disk.seen))
    await turns(20)
    assert not entered.done()
    assert stage.replica.max_epoch == before < 10
    disk.let.set()
    if fails:
        with pytest.raises(StoreError, match="the disk is gone"):
            await entered
        assert stage.replica.max_epoch == before
    else:
        await entered
        assert stage.replica.max_epoch == 10
    assert disk.seen == [(10, record)]
