"""Where a member begins: what its file says in broadcasting, and what it tells a broker in clustering. (Of the rest see
`test_pushing` and RB-43.)
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenq.client.core.calls import QueueRange
from evenq.client.loops.reading.progress import FileStore, GroupProgress
from evenq.client.loops.reading.starting import TOGETHER_MS, StartOffsets
from evenq.model import MessageQueue, QueueOffset, StartFrom, StartPolicy
from evenq.runtime.clock import FakeClock

ONE, TWO = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)


class Scene:
    """A broadcasting member with its file, and a broker with 10 messages in each queue."""

    def __init__(self, folder: Path, *, policy: StartFrom = StartFrom.LAST) -> None:
        self.folder, self.policy = folder, policy
        self.clock = FakeClock()
        self.uid, self.end, self.at_time, self.low = "first", 10, 4, 0
        self.times: list[int] = []
        self.started()

    def started(self) -> None:
        """The member's process starts."""
        self.progress = GroupProgress(FileStore(self.folder, "g"), self.clock, interval_ms=5_000)
        plan: Any = SimpleNamespace(
            group="g", clustering=False, start_policy=lambda: self.policy, start_timestamp_ms=9,
            options=SimpleNamespace(young_from_first=False), table_of=lambda _topic: None,
        )  # fmt: skip
        calls: Any = SimpleNamespace(query_offsets=self.query_offsets)
        routes: Any = SimpleNamespace(was_missing=lambda _topic: False)
        self.starting = StartOffsets(
            plan, calls=calls, progress=self.progress, address=self.address, routes=routes,
            troubles=SimpleNamespace(), generation=lambda _: None, clock=self.clock,  # type: ignore[arg-type,return-value]
        )  # fmt: skip

    async def address(self, queue: MessageQueue) -> str:
        return queue.broker_name

    async def query_offsets(
        self, _address: str, _group: str, _queue: MessageQueue, *, timestamp_ms: int = 0
    ) -> QueueRange:
        self.times.append(timestamp_ms)
        return QueueRange(self.low, self.end, -1, self.at_time if timestamp_ms else -1, uid=self.uid)

    async def begins(self, queue: MessageQueue) -> int:
        """Where it begins on the queue, which is in its file then."""
        offset, first = await self.starting.find(queue)
        assert offset is not None
        self.progress.table.begin(queue, offset, stored=not first)
        await self.progress.now(queue)
        return offset

    async def reads(self, queue: MessageQueue, offset: int) -> None:
        self.progress.table.advance(queue, QueueOffset(offset))
        await self.progress.now(queue)


async def test_rb_42_the_policy_counts_for_what_is_found_together_and_later_queues_are_read_from_the_start_on(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    assert await scene.begins(ONE) == 10
    await scene.clock.advance(TOGETHER_MS)
    assert await scene.begins(TWO) == 10
    await scene.clock.advance(1)
    began_ms = scene.clock.now_ms() - TOGETHER_MS - 1
    assert await scene.begins(MessageQueue("t", "c", 0)) == 4
    assert scene.times[-1] == began_ms - 60_000, "clocks of machines differ"


@pytest.mark.parametrize("policy", list(StartFrom))
async def test_a_queue_that_came_between_two_runs_is_read_whole(tmp_path: Path, policy: StartFrom) -> None:
    scene = Scene(tmp_path, policy=policy)
    await scene.begins(ONE)
    await scene.reads(ONE, 10)
    scene.started()
    assert await scene.begins(ONE) == 10
    assert await scene.begins(TWO) == 0


@pytest.mark.parametrize("after_ms", [0, TOGETHER_MS + 1])
@pytest.mark.parametrize("runs", [False, True])
async def test_an_offset_of_a_deleted_topic_does_not_count_for_the_one_of_its_name(
    tmp_path: Path, *, runs: bool, after_ms: int
) -> None:
    """Even if the new one has more messages; in the run that read the old one, and in the next."""
    scene = Scene(tmp_path)
    await scene.begins(ONE)
    if not runs:
        scene.started()
    await scene.clock.advance(after_ms)
    scene.uid, scene.end, scene.at_time = "second", 30, 0
    assert await scene.begins(ONE) == 0
    await scene.reads(ONE, 5)
    scene.started()
    assert await scene.begins(ONE) == 5


@pytest.mark.parametrize(("end", "expected"), [(10, 7), (6, 0)])
async def test_an_offset_of_an_older_file_counts_if_the_queue_has_it(tmp_path: Path, end: int, expected: int) -> None:
    scene = Scene(tmp_path)
    scene.uid = ""
    await scene.begins(ONE)
    await FileStore(tmp_path, "g").save({ONE: QueueOffset(7)}, {})
    scene.started()
    scene.uid, scene.end = "any", end
    assert await scene.begins(ONE) == expected


class Brokers:
    """A clustering member, and brokers that say whether the group has begun there."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.begun: set[str] = set()
        self.told: list[int] = []
        plan: Any = SimpleNamespace(
            group="g", start_policy=lambda: StartFrom.LAST, start_timestamp_ms=0,
            options=SimpleNamespace(young_from_first=False), table_of=lambda _topic: None,
        )  # fmt: skip
        store, table = SimpleNamespace(at_brokers=True), SimpleNamespace(identify=lambda *_: None)
        self.starting = StartOffsets(
            plan, calls=self, progress=SimpleNamespace(store=store, table=table), address=self.address,  # type: ignore[arg-type]
            routes=SimpleNamespace(was_missing=lambda _: False), troubles=SimpleNamespace(),  # type: ignore[arg-type]
            generation=lambda _: None, clock=self.clock,  # type: ignore[arg-type,return-value]
        )  # fmt: skip

    async def address(self, queue: MessageQueue) -> str:
        return queue.broker_name

    async def query_offsets(self, address: str, *_: object, **__: object) -> QueueRange:
        return QueueRange(0, 10, 5 if address in self.begun else -1, -1, uid="u")

    async def begin(self, address: str, _group: str, _queue: MessageQueue, start: StartPolicy, **_: object) -> None:
        self.told.append(start.begun_ms)
        self.begun.add(address)


async def test_rb_42_a_member_tells_a_broker_since_when_it_saw_the_group_read_the_topic() -> None:
    """The brokers that know may all be stopping when another one joins."""
    brokers = Brokers()
    await brokers.starting.find(MessageQueue("t", "a", 0))
    await brokers.clock.advance(7_000)
    await brokers.starting.find(MessageQueue("t", "a", 1))
    await brokers.starting.find(MessageQueue("t", "b", 0))
    assert brokers.told == [0, 7_000]


async def test_rb_42_a_member_that_came_later_says_that_the_group_has_begun() -> None:
    brokers = Brokers()
    brokers.begun.add("a")
    await brokers.starting.find(MessageQueue("t", "a", 0))
    await brokers.starting.find(MessageQueue("t", "b", 0))
    assert brokers.told == [-1]


async def test_rb_42_a_queue_that_is_granted_with_its_offset_shows_that_the_group_has_begun() -> None:
    brokers = Brokers()
    brokers.starting.has_begun(MessageQueue("t", "a", 0))
    await brokers.starting.find(MessageQueue("t", "b", 0))
    assert brokers.told == [-1]


async def test_rb_42_what_a_member_saw_of_a_deleted_group_does_not_count_for_the_next_one_of_its_name() -> None:
    brokers = Brokers()
    await brokers.starting.find(MessageQueue("t", "a", 0))
    await brokers.starting.find(MessageQueue("t", "b", 0))
    await brokers.clock.advance(60_000)
    brokers.begun.clear()
    await brokers.starting.find(MessageQueue("t", "a", 0))
    await brokers.clock.advance(10)
    await brokers.starting.find(MessageQueue("t", "b", 0))
    assert brokers.told == [0, 1, 0, 10]


class Table:
    """Files with offsets from 3 to 6; offset 5 is the first one of the start time."""

    async def first(self, _queue: MessageQueue, uid: str, end: int) -> QueueOffset:
        assert uid
        return QueueOffset(min(3, end))

    async def offset_at(self, _queue: MessageQueue, uid: str, timestamp_ms: int, end: int) -> QueueOffset:
        assert (uid, timestamp_ms) == ("first", 9)
        return QueueOffset(min(5, end))


@pytest.mark.parametrize(("at_time", "expected"), [(6, 5), (8, 8)])
async def test_a_start_time_before_the_log_is_found_in_the_table_without_brokers(
    tmp_path: Path, at_time: int, expected: int
) -> None:
    scene = Scene(tmp_path, policy=StartFrom.TIMESTAMP)
    scene.low, scene.at_time = 6, at_time
    scene.starting._read_plan.table_of = lambda _topic: Table()  # type: ignore[method-assign]
    assert await scene.begins(ONE) == expected


@pytest.mark.parametrize(("low", "start"), [(6, 3), (0, 0)])
async def test_first_is_the_start_of_the_table_and_each_owner_stores_that_of_its_queue(low: int, start: int) -> None:
    committed: dict[MessageQueue, int] = {}

    class Broker(Brokers):
        async def query_offsets(self, *_: Any, **__: Any) -> QueueRange:
            return QueueRange(low, 10, -1, -1, uid="u1-b1")

        async def begin(self, *_: Any, **__: Any) -> None:
            raise AssertionError("it would begin all queues of the topic in the log")

        async def commit(self, _address: str, _group: str, offsets: dict[MessageQueue, int], **options: Any) -> None:
            assert options["uids"] == dict.fromkeys(offsets, "u1-b1")
            committed.update(offsets)

    broker = Broker()
    plan: Any = broker.starting._read_plan
    plan.table_of, plan.start_policy = lambda _topic: Table(), lambda: StartFrom.FIRST
    assert await broker.starting.find(ONE) == (start, False)
    assert committed == {ONE: start}
