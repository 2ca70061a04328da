"""The one writer of a replica's log: what is done in which order, what the core hears, and how a term begins and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from evenq_broker.core.replication.actions import AppendEpochStart, AppendRecords, PersistEpoch, Reset, Truncate
from evenq_broker.core.replication.epoch_table import EpochTable
from evenq_broker.core.replication.messages import Records
from evenq_broker.core.replication.rules import Mode, Role
from evenq_broker.loops.replication.identity import ReplicaIdentity
from evenq_broker.loops.replication.replica_log import AT_ONCE_BYTES, EMPTY_BATCH, SYNC_MS, ReplicaLog
from evenq_broker.loops.replication.snapshots import FetchedSnapshot

from evenq.errors import Error, HaNotAvailable, PersistenceTimeout, StoreError
from evenq.runtime.clock import FakeClock, SystemClock
from evenq.store import StoreOptions
from evenq.store.log_copy import LogCopy
from evenq.store.memory_disk import MemoryDisk

SEGMENT = 1 << 20


async def until(state: Callable[[], object]) -> None:
    """A thread syncs the identity, so the state comes at a time of its own."""
    async with asyncio.timeout(60):
        while not state():  # noqa: ASYNC110  # no event tells it
            await asyncio.sleep(0.001)


class Replica:
    """The core as a list of its events; answers with nothing to do."""

    def __init__(self, mode: Mode, **config: Any) -> None:
        usual = {"mode": mode, "restored_epoch": 0, "founds": False, "adopts": False, "members": (0, 1, 2)}
        self.config = SimpleNamespace(**{**usual, **config})
        self.events: list[tuple[str, Any]] = []
        self.table, self.end, self.hw, self.max_epoch = EpochTable(0, ()), 0, 0, 0
        self.role = Role.FETCHING
        self.record = SimpleNamespace(min_isr=2)
        self.appends = True

    def _event(self, name: str, value: Any = None) -> list[Any]:
        self.events.append((name, value))
        return []

    def recovered(self, table: EpochTable, end: int, now_ms: int) -> list[Any]:
        self.table, self.end = table, end
        return self._event("recovered", end)

    def epoch_persisted(self, epoch: int) -> list[Any]:
        self.max_epoch = epoch
        return self._event("epoch", epoch)

    def appended(self, epoch: int, end: int) -> list[Any]:
        self.end = end
        return self._event("appended", (epoch, end))

    def copied(self, end: int, *, synced: bool = False) -> list[Any]:
        self.end = end
        return self._event("copied and synced" if synced else "copied", end)

    def not_copied(self) -> list[Any]:
        return self._event("not copied")

    def synced(self, end: int) -> list[Any]:
        return self._event("synced", end)

    def truncated(self, end: int) -> list[Any]:
        self.end = end
        return self._event("truncated", end)

    def emptied(self, start: int) -> list[Any]:
        self.end = start
        return self._event("emptied", start)

    def may_append(self) -> bool:
        return self.appends

    def copies(self) -> int:
        return 1


class Store:
    """As much of a store as a term needs."""

    def __init__(self, end: int) -> None:
        self.stats = SimpleNamespace(written_end=end, recovered_records=0, log_end=end, log_bytes=end)
        self.committed = -1
        self.refusals: list[Error | None] = []
        self.given_up: Error | None = None
        self.on_written: Callable[[int], None]
        self.on_synced: Callable[[int], None]

    def commit(self, end: int) -> None:
        self.committed = end

    def refuse(self, error: Error | None) -> None:
        self.refusals.append(error)

    def give_up(self, error: Error) -> None:
        self.given_up = error

    def recent(self, start: int, end: int) -> bytes:
        return b"recent"


class Term:
    """The broker while it leads."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.hangs = False
        self.story: list[str] = []

    async def begin(self, epoch: int, attach: Callable[[Any], None]) -> None:
        self.story.append(f"begin {epoch}")
        try:
            if self.hangs:
                await asyncio.Event().wait()
            self._stage.store = Store(self._stage.replica.end)
            attach(self._stage.store)
        except asyncio.CancelledError:
            self.story.append("cancelled")
            raise

    async def end(self) -> None:
        self.story.append("end")


class Stage:
    def __init__(self, mode: Mode, **config: Any) -> None:
        self.disk, self.clock = MemoryDisk(), FakeClock()
        self.replica, self.term = Replica(mode, **config), Term(self)
        self.identity = ReplicaIdentity.load(self.disk, cluster="c", broker_id=0, mode=mode, boot_id="b")
        self.store: Store | None = None
        self.snapshot: FetchedSnapshot | None = None
        self.actions: list[Any] = []
        replica: Any = self.replica
        self.log = ReplicaLog(
            replica, self.identity, open_copy=self.open_copy, pieces=self, term=self.term, clock=self.clock,
            tell=self.actions.extend, fetch=self.fetch, growth_bytes=1 << 20,
        )  # fmt: skip

    async def open_copy(self) -> LogCopy:
        return await LogCopy.open(
            None, StoreOptions(), clock=SystemClock(), disk=self.disk, broker_name="a", segment_bytes=SEGMENT
        )

    async def read(self, start: int, end: int, bytes_max: int) -> bytes:
        return b"from the files"

    async def fetch(self, after: int, until: int) -> FetchedSnapshot | None:
        return self.snapshot

    @property
    def events(self) -> list[tuple[str, Any]]:
        return self.replica.events

    async def until(self, *last: tuple[str, Any]) -> None:
        """The newest events are these."""
        await until(lambda: tuple(self.events[-len(last) :]) == last)

    async def until_story(self, *last: str) -> None:
        await until(lambda: tuple(self.term.story[-len(last) :]) == last)


def run(story: Callable[[Stage], Awaitable[None]], mode: Mode = Mode.REPL_SYNC) -> None:
    async def body() -> None:
        stage = Stage(mode)
        await stage.log.open()
        task = asyncio.ensure_future(stage.log.run())
        try:
            await story(stage)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await stage.log.close(clean=False)

    asyncio.run(body())


async def leaders_log(count: int, size: int = 100) -> bytes:
    """What leaders of this number of epochs wrote."""
    async with asyncio.timeout(60):
        leader = await LogCopy.open(
            None, StoreOptions(), clock=SystemClock(), disk=MemoryDisk(), broker_name="a", segment_bytes=SEGMENT
        )
        for epoch in range(1, count + 1):
            await leader.append_epoch_start(epoch, EMPTY_BATCH * size, 1_700_000_000_000)
        data = await leader.read(0, leader.end, SEGMENT)
        await leader.close()
        return data


def came(start: int, data: bytes) -> AppendRecords:
    return AppendRecords(Records(start, start + len(data), 0, (), 0, 0, data))


def test_an_empty_folder_begins_at_zero_and_an_epoch_is_persisted_before_it_begins() -> None:
    async def story(stage: Stage) -> None:
        assert stage.events == [("recovered", 0)]
        stage.log.do(PersistEpoch(3))
        stage.log.do(AppendEpochStart(3))
        await until(lambda: len(stage.events) == 4)
        end = stage.replica.end
        assert end > 0
        assert stage.events[1:] == [("epoch", 3), ("appended", (3, end)), ("synced", end)]
        assert stage.identity.epoch == 3

    run(story)


def test_little_is_reported_once_after_its_sync_and_much_twice() -> None:
    async def story(stage: Stage) -> None:
        little, much = await leaders_log(1), await leaders_log(1, AT_ONCE_BYTES)
        stage.log.do(came(0, little))
        await stage.until(("copied and synced", len(little)))
        stage.log.do(Reset(0))
        await stage.until(("emptied", 0))
        stage.log.do(came(0, much))
        await stage.until(("copied", len(much)), ("synced", len(much)))

    run(story)


def test_a_group_in_memory_reports_what_is_written_and_syncs_it_now_and_then() -> None:
    async def story(stage: Stage) -> None:
        data = await leaders_log(2)
        stage.log.do(came(0, data))
        await stage.until(("copied", len(data)))
        often = asyncio.ensure_future(stage.log.sync_often())
        await stage.clock.advance(SYNC_MS - 1)
        assert stage.events[-1] == ("copied", len(data))
        await stage.clock.advance(2)
        await stage.until(("synced", len(data)))
        count = len(stage.events)
        await stage.clock.advance(5 * SYNC_MS)
        assert len(stage.events) == count, "nothing new was written"
        often.cancel()

    run(story, Mode.REPL_MEMORY)


def test_damaged_records_are_not_copied_and_the_log_stays_as_it_was() -> None:
    async def story(stage: Stage) -> None:
        data = await leaders_log(2)
        stage.log.do(came(0, data[:-1] + bytes([data[-1] ^ 1])))
        await stage.until(("not copied", None))
        assert stage.replica.end == 0
        stage.log.do(came(0, data))
        await stage.until(("copied and synced", len(data)))

    run(story)


def test_a_cut_is_done_in_its_turn() -> None:
    async def story(stage: Stage) -> None:
        one, two = await leaders_log(1), await leaders_log(2)
        stage.log.do(came(0, two))
        stage.log.do(Truncate(len(one)))
        await stage.until(("copied and synced", len(two)), ("truncated", len(one)))
        assert await stage.log.read(0, len(two), SEGMENT) == one

    run(story)


def test_a_log_that_begins_later_needs_a_snapshot_of_the_leader() -> None:
    async def story(stage: Stage) -> None:
        stage.log.do(Reset(SEGMENT))
        with pytest.raises(StoreError, match="the leader has no snapshot for a log that begins at 1048576"):
            await stage.log.run()

    async def body() -> None:
        stage = Stage(Mode.REPL_SYNC)
        await stage.log.open()
        await story(stage)
        await stage.log.close(clean=False)

    asyncio.run(body())


def test_a_leader_commits_up_to_what_is_written_and_says_what_it_writes() -> None:
    async def story(stage: Stage) -> None:
        data = await leaders_log(1)
        stage.log.do(came(0, data))
        stage.log.serve(1)
        await stage.until_story("begin 1")
        await until(lambda: stage.store is not None and stage.store.refusals)
        assert stage.store is not None
        store, end = stage.store, len(data)
        assert store.committed == 0
        assert store.refusals == [None]
        stage.log.committed(end + 1_000)
        assert store.committed == end
        stage.replica.max_epoch = 1
        store.on_written(end + 50)
        assert stage.events[-1][0] == "appended"
        store.on_synced(end + 90)
        assert stage.events[-1] == ("synced", end + 50), "not more than was written"
        assert await stage.log.read(0, end, SEGMENT) == b"from the files"
        assert stage.log.at_hand(0, end) == b"recent"
        with pytest.raises(StoreError, match="Truncate while the broker leads"):
            await stage.log._do(Truncate(0))  # the core never asks for it: what stands between it and the store

    run(story)


def test_appends_are_refused_while_too_few_copies_are_in_sync() -> None:
    async def story(stage: Stage) -> None:
        stage.log.serve(1)
        await until(lambda: stage.store is not None and stage.store.refusals)
        assert stage.store is not None
        stage.replica.appends = False
        stage.log.look()
        refusal = stage.store.refusals[-1]
        assert isinstance(refusal, HaNotAvailable)
        assert "1 of 2 copies are in sync" in refusal.message
        stage.replica.record.min_isr = 1
        stage.log.look()
        last = stage.store.refusals[-1]
        assert last is not None
        assert "hands over" in last.message
        stage.replica.appends = True
        stage.log.look()
        assert stage.store.refusals[-1] is None

    run(story)


def test_a_deposed_leader_is_cut_off_at_once_and_then_follows_from_where_it_wrote() -> None:
    async def story(stage: Stage) -> None:
        data = await leaders_log(1)
        stage.log.do(came(0, data))
        stage.log.serve(1)
        await until(lambda: stage.store is not None and stage.store.refusals)
        store = stage.store
        assert store is not None
        stage.log.stop_serving("broker 2 leads epoch 2")
        assert isinstance(store.given_up, PersistenceTimeout)
        assert store.given_up.message.startswith("broker 2 leads epoch 2")
        assert stage.log.at_hand(0, 1) is None
        stage.log.committed(5)
        assert store.committed == 0
        await stage.until(("synced", len(data)))
        assert stage.term.story == ["begin 1", "end"]
        assert await stage.log.read(0, len(data), SEGMENT) == data

    run(story)


def test_a_term_that_is_over_before_its_turn_is_not_begun_and_one_that_opens_is_broken_off() -> None:
    async def story(stage: Stage) -> None:
        stage.log.serve(1)
        stage.log.stop_serving("it is over")
        await stage.until(("recovered", 0))
        await asyncio.sleep(0.01)
        assert stage.term.story == []
        stage.term.hangs = True
        stage.log.serve(2)
        await stage.until_story("begin 2")
        stage.log.stop_serving("it is over")
        await stage.until_story("begin 2", "cancelled", "end")
        await stage.until(("synced", 0))

    run(story)


def test_a_clean_end_is_written_down_and_another_is_not() -> None:
    async def body(*, clean: bool) -> bool:
        stage = Stage(Mode.REPL_MEMORY)
        await stage.log.open()
        stage.identity.persist_epoch(1)
        before = stage.identity.store_id
        await stage.log.close(clean=clean)
        again = ReplicaIdentity.load(stage.disk, cluster="c", broker_id=0, mode=Mode.REPL_MEMORY, boot_id="another")
        return again.store_id == before

    assert asyncio.run(body(clean=True)), "all was synced: it is the same store"
    assert not asyncio.run(body(clean=False)), "the page cache may be gone: it counts as another one"


@pytest.mark.parametrize(
    ("config", "words"),
    [({}, "messages of a broker that was alone"), ({"restored_epoch": 5}, "messages of a backup")],
)
def test_a_folder_with_messages_of_another_kind_of_broker_is_refused(config: dict[str, Any], words: str) -> None:
    async def body() -> None:
        stage = Stage(Mode.REPL_SYNC, **config)
        copy = await stage.open_copy()
        await copy.append(await leaders_log(1), start=0)
        await copy.close()
        with pytest.raises(StoreError, match=words):
            await stage.log.open()
        assert stage.events == []

    asyncio.run(body())


def test_the_first_copy_of_a_new_group_takes_the_messages_of_a_broker_that_was_alone() -> None:
    async def body() -> None:
        stage = Stage(Mode.REPL_SYNC, adopts=True)
        data = await leaders_log(1)
        copy = await stage.open_copy()
        await copy.append(data, start=0)
        await copy.close()
        await stage.log.open()
        assert stage.events == [("recovered", len(data))]
        assert stage.log.holds_records
        await stage.log.close(clean=False)

    asyncio.run(body())
