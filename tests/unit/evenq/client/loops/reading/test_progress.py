"""Progress of a member: in its file, and at brokers."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenq.client.loops.clients.troubles import Troubles
from evenq.client.loops.reading.progress import BrokerStore, FileStore, GroupProgress
from evenq.errors import PreconditionFailed, RequestTimeout, StoreCorrupted, StoreError
from evenq.model import NO_GENERATION, MessageQueue, QueueOffset
from evenq.runtime.clock import FakeClock

QUEUE = MessageQueue("t", "b", 0)


async def test_of_5_progress_is_saved_every_5_seconds_and_read_back_by_the_next_run(tmp_path: Path) -> None:
    clock = FakeClock()
    progress = GroupProgress(FileStore(tmp_path, "g"), clock, interval_ms=5_000)
    assert await progress.load(QUEUE) == -1
    progress.table.begin(QUEUE, QueueOffset(0), stored=False)
    progress.table.advance(QUEUE, QueueOffset(7))
    running = asyncio.ensure_future(progress.run())
    await clock.advance(4_999)
    assert not (tmp_path / "g" / "offsets.json").exists()
    await clock.advance(1)
    async with asyncio.timeout(60):
        while progress.table.due():  # noqa: ASYNC110 - the file is written in a thread that has no event
            await asyncio.sleep(0.001)
    running.cancel()
    assert await FileStore(tmp_path, "g").load(QUEUE) == 7
    assert await FileStore(tmp_path, "other").load(QUEUE) == -1  # OF-6: groups are kept apart


async def test_the_file_says_what_its_offsets_count_and_one_of_an_older_version_is_read(tmp_path: Path) -> None:
    store = FileStore(tmp_path, "g")
    assert not await store.has_begun("t")
    await store.save({QUEUE: QueueOffset(7)}, {QUEUE: "uid"})
    again = FileStore(tmp_path, "g")
    assert await again.kept(QUEUE) == (7, "uid")
    assert await again.has_begun("t")
    assert not await again.has_begun("other")
    older = json.loads((tmp_path / "g" / "offsets.json").read_bytes())
    assert older["offsets"][0].pop("uid") == "uid"
    (tmp_path / "g" / "offsets.json").write_text(json.dumps(older))
    assert await FileStore(tmp_path, "g").kept(QUEUE) == (7, "")


async def test_a_damaged_file_is_refused_and_an_unwritable_folder_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "offsets.json").write_bytes(b"\xff")
    with pytest.raises(StoreCorrupted):
        await FileStore(tmp_path, "g").load(QUEUE)
    (tmp_path / "file").write_bytes(b"")
    progress = GroupProgress(FileStore(tmp_path / "none", "g"), FakeClock(), interval_ms=5_000)
    await progress.load(QUEUE)
    (tmp_path / "none").write_bytes(b"a file where the folder should be")
    progress.table.begin(QUEUE, QueueOffset(3), stored=False)
    assert not await progress.now(QUEUE)
    assert progress.table.due() == {QUEUE: 3}


async def test_a_file_that_cannot_be_read_is_an_error_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "g" / "offsets.json"
    path.mkdir(parents=True)
    store = FileStore(tmp_path, "g")
    for read in (partial(store.load, QUEUE), partial(store.kept, QUEUE), partial(store.has_begun, "t")):
        with pytest.raises(StoreError, match=r"offsets\.json cannot be read"):
            await read()
    path.rmdir()
    assert await store.load(QUEUE) == -1
    assert list(await store.save({QUEUE: QueueOffset(7)}, {})) == [QUEUE]


async def test_a_power_loss_leaves_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g").mkdir()
    path, synced, fsync = tmp_path / "g" / "offsets.json", [], os.fsync

    def sync(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    await FileStore(tmp_path, "g").save({QUEUE: QueueOffset(7)}, {})
    assert synced == [(False, False), (True, True)], "the content before the rename, its folder after it"


async def test_queues_that_report_at_the_same_moment_are_all_in_the_file(tmp_path: Path) -> None:
    queues = [MessageQueue("t", "b", number) for number in range(40)]
    store = FileStore(tmp_path, "g")
    saved = await asyncio.gather(*(store.save({queue: QueueOffset(queue.queue_id + 1)}, {}) for queue in queues))
    assert [list(done) for done in saved] == [[queue] for queue in queues]
    again = FileStore(tmp_path, "g")
    assert await asyncio.gather(*(again.load(queue) for queue in queues)) == list(range(1, 41))


class Calls:
    """Brokers of which `stuck` does not answer."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.stored: list[tuple[str, int]] = []
        """Topic, and when."""
        self.stuck_calls = 0

    async def commit(self, address: str, group: str, offsets: Mapping[MessageQueue, QueueOffset], **_: object) -> None:
        if address == "stuck":
            self.stuck_calls += 1
            await self.clock.sleep_ms(3_000)
            raise RequestTimeout("no answer within 3,000 ms")
        self.stored += [(queue.topic, self.clock.monotonic_ms()) for queue in offsets]


class Routes:
    """Addresses are the brokers' names."""

    async def address(self, topic: str, broker_name: str) -> str:
        return broker_name


async def test_a_broker_that_does_not_answer_delays_no_progress_at_the_others_and_costs_one_call() -> None:
    clock = FakeClock()
    calls = Calls(clock)
    store = BrokerStore(
        calls, Routes(), "g", lambda _: NO_GENERATION, fenced=print, troubles=Troubles(clock, who="group g"),  # type: ignore[arg-type]
    )  # fmt: skip
    queues = [MessageQueue(topic, broker, 0) for broker in ("stuck", "well") for topic in ("t", "u")]
    began_ms = clock.monotonic_ms()
    done = await clock.during(store.save(dict.fromkeys(queues, QueueOffset(7)), {}))
    assert list(done) == queues[2:]
    assert calls.stored == [("t", began_ms), ("u", began_ms)]
    assert calls.stuck_calls == 1
    assert clock.monotonic_ms() - began_ms <= 3_100


class Brokers:
    """Brokers that take commits and resets; those in `refusing` think that the queues are not ours."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, int]] = []
        self.refusing: set[str] = set()
        self.fenced: list[str] = []
        self.calls = 0
        self.called = asyncio.Event()
        self.answering = asyncio.Event()
        self.answering.set()

    async def address(self, _topic: str, broker_name: str) -> str:
        return broker_name

    async def commit(self, address: str, _group: str, offsets: Mapping[MessageQueue, QueueOffset], **_: Any) -> None:
        self.calls += 1
        self.called.set()
        await self.answering.wait()
        if address in self.refusing:
            raise PreconditionFailed("another member holds the queue")
        self.heard += [("commit", address, offset) for offset in offsets.values()]

    async def reset(self, address: str, _group: str, offsets: Mapping[MessageQueue, QueueOffset], **_: Any) -> None:
        self.heard += [("reset", address, offset) for offset in offsets.values()]

    def progress(self) -> GroupProgress:
        clock = FakeClock()
        calls: Any = SimpleNamespace(commit=self.commit, reset=self.reset)
        routes: Any = SimpleNamespace(address=self.address)
        store = BrokerStore(
            calls, routes, "g", lambda _: NO_GENERATION, fenced=self.fenced.append, troubles=Troubles(clock, who="g")
        )
        return GroupProgress(store, clock, interval_ms=5_000)


async def test_a_broker_that_refuses_a_commit_is_asked_for_the_locks_and_others_get_theirs() -> None:
    """Until then the member would work on messages that another one is given, too."""
    brokers, other = Brokers(), MessageQueue("t", "c", 0)
    progress = brokers.progress()
    brokers.refusing.add("b")
    for queue in (QUEUE, other):
        progress.table.begin(queue, QueueOffset(7), stored=False)
    await progress.report()
    assert brokers.fenced == ["b"]
    assert brokers.heard == [("commit", "c", 7)]
    assert progress.table.due() == {QUEUE: 7}


async def test_a_queue_goes_back_once_and_forward_by_commits_again() -> None:
    brokers = Brokers()
    progress = brokers.progress()
    progress.table.begin(QUEUE, QueueOffset(7), stored=True)
    progress.table.rewind(QUEUE, QueueOffset(3))
    for offset in (3, 4):
        progress.table.advance(QUEUE, QueueOffset(offset))
        await progress.report()
    assert brokers.heard == [("reset", "b", 3), ("commit", "b", 4)]
    assert progress.table.due() == {}


async def test_a_rewind_waits_for_the_commit_under_way_which_would_undo_it() -> None:
    brokers = Brokers()
    progress = brokers.progress()
    progress.table.begin(QUEUE, QueueOffset(7), stored=True)
    progress.table.advance(QUEUE, QueueOffset(20))
    brokers.answering.clear()
    running = asyncio.ensure_future(progress.report())
    await brokers.called.wait()
    progress.table.rewind(QUEUE, QueueOffset(3))
    second = asyncio.ensure_future(progress.report())
    await asyncio.sleep(0)
    brokers.answering.set()
    assert (await running, await second) == (set(), set())
    assert brokers.heard == [("commit", "b", 20), ("reset", "b", 3)]
    assert progress.table.due() == {}
    assert not progress.table.rewound(QUEUE)


@pytest.mark.parametrize("refused", [False, True])
async def test_queues_that_report_while_a_save_runs_share_the_next_one(refused: bool) -> None:
    brokers, queues = Brokers(), [MessageQueue("t", "b", number) for number in range(40)]
    progress = brokers.progress()
    brokers.answering.clear()
    for queue in queues:
        progress.table.begin(queue, QueueOffset(1), stored=False)
    running = [asyncio.ensure_future(progress.now(queue)) for queue in queues]
    await brokers.called.wait()
    if refused:
        brokers.refusing.add("b")
    for queue in queues:
        progress.table.advance(queue, QueueOffset(2))
    running += [asyncio.ensure_future(progress.now(queue)) for queue in queues]
    await asyncio.sleep(0)
    brokers.answering.set()
    assert set(await asyncio.gather(*running)) == {not refused}
    assert brokers.calls <= 3


async def test_a_save_whose_caller_is_cancelled_does_not_count_for_others() -> None:
    brokers = Brokers()
    progress = brokers.progress()
    brokers.answering.clear()
    progress.table.begin(QUEUE, QueueOffset(1), stored=False)
    first, second = (asyncio.ensure_future(progress.now(QUEUE)) for _ in range(2))
    await brokers.called.wait()
    first.cancel()
    await asyncio.wait({first})
    brokers.answering.set()
    assert await second
    assert brokers.heard == [("commit", "b", 1)]
