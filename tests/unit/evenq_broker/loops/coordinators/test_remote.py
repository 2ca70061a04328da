"""What is concluded from single tries at a store that fails as the test sets: retries, lost answers, late watches."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
from evenq_broker.core.replication.record import GroupRecord, Pair, RecordRefused, first_record
from evenq_broker.loops.coordinators.coordinator import CoordinatorUnknown, RecordWentBack
from evenq_broker.loops.coordinators.epoch_mark import EpochMark
from evenq_broker.loops.coordinators.remote import Look, RemoteCoordinator, RemoteTiming, StoredRecord, stored_of

from evenq.errors import ConnectionFailed, Error, Forbidden
from evenq.runtime.clock import SystemClock

FIRST = first_record(Pair(0, "0" * 32), members=(0, 1, 2), min_isr=2)


class FakeStore:
    """The edge."""

    name = "x"

    def __init__(self) -> None:
        self.endpoints = 1
        self.stored: StoredRecord | None = None
        self.tries = 0
        self.errors: list[Error | None] = []
        """Of the next tries; None: carried out."""
        self.after: list[Error | None] = []
        """Raised after a write was carried out."""
        self.watched: list[StoredRecord] = []
        self.hangs = False

    def _try(self) -> None:
        self.tries += 1
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    async def read(self) -> Look:
        self._try()
        if self.hangs:
            await asyncio.Event().wait()
        return Look(self.stored, "0")

    async def write(self, record: GroupRecord, text: str, token: str) -> str | None:
        self._try()
        if (self.stored.token if self.stored is not None else "") != token:
            return None
        self.stored = stored_of(text, str(int(token or 0) + 1), self.name)
        if self.after and (error := self.after.pop(0)) is not None:
            raise error
        return self.stored.token

    async def changes(self, since: str) -> AsyncGenerator[StoredRecord | None, None]:
        for one in self.watched:
            yield one
        await asyncio.Event().wait()


def on(store: FakeStore, folder: Path, *, total_ms: int = 20_000) -> RemoteCoordinator:
    timing = RemoteTiming(total_ms=total_ms, tries=4, silence_ms=200, retry_ms_max=100)
    return RemoteCoordinator(
        store, mark=EpochMark(folder / "mark"), clock=SystemClock(), rng=random.Random(1), timing=timing
    )


@pytest.mark.slow
async def test_tries_are_bounded_and_grow_with_the_endpoints(tmp_path: Path) -> None:
    store = FakeStore()
    a = on(store, tmp_path)
    for endpoints, tries in ((1, 4), (5, 6)):
        store.endpoints, store.tries, store.errors = endpoints, 0, [ConnectionFailed("down")] * 99
        with pytest.raises(CoordinatorUnknown, match="the group record x cannot be read: down") as caught:
            await a.read()
        assert caught.value.is_logged, "who calls says nothing of its own"
        assert store.tries == tries
    store.tries, store.errors = 0, [ConnectionFailed("down")] * 3
    assert await a.read() is None
    store.tries, store.errors = 0, [Forbidden("no role")] * 9
    with pytest.raises(CoordinatorUnknown, match="no role"):
        await a.read()
    assert store.tries == 1, "nothing changes by asking again"


async def test_a_store_that_hangs_is_unknown_when_the_time_is_over(tmp_path: Path) -> None:
    store = FakeStore()
    store.hangs = True
    a = on(store, tmp_path, total_ms=100)
    for call in (a.read(), a.read()):
        with pytest.raises(CoordinatorUnknown, match="no answer within 100 ms"):
            await asyncio.wait_for(call, 60)


async def test_a_write_whose_answer_was_lost_counts_if_it_is_there(tmp_path: Path) -> None:
    store = FakeStore()
    store.after = [ConnectionFailed("lost")]
    seen = await on(store, tmp_path).compare_and_set(None, FIRST)
    assert seen is not None
    assert (seen.record, seen.token) == (FIRST, "1")


async def test_a_write_that_never_arrived_is_written_by_the_next_try(tmp_path: Path) -> None:
    store = FakeStore()
    store.errors = [ConnectionFailed("lost"), ConnectionFailed("lost")]
    seen = await on(store, tmp_path).compare_and_set(None, FIRST)
    assert seen is not None
    assert store.tries == 3


async def test_behind_a_lost_answer_another_write_leaves_it_unknown(tmp_path: Path) -> None:
    """Ours may have been written and replaced, or never; it is not known."""
    store = FakeStore()
    a, b = on(store, tmp_path / "a"), on(store, tmp_path / "b")
    seen = await a.compare_and_set(None, FIRST)
    assert seen is not None
    await b.compare_and_set(seen, FIRST.elected(0))
    store.errors = [ConnectionFailed("lost")]
    with pytest.raises(CoordinatorUnknown, match="may or may not have been written"):
        await a.compare_and_set(seen, FIRST.renewed())
    assert await a.compare_and_set(seen, FIRST.renewed()) is None, "with an answer a lost race is one"


async def test_what_a_watch_tells_too_late_is_left_out(tmp_path: Path) -> None:
    store = FakeStore()
    a = on(store, tmp_path)
    seen = await a.compare_and_set(None, FIRST)
    older = store.stored
    assert older is not None
    watch = a.watch()
    assert await anext(watch) == seen
    seen = await a.compare_and_set(seen, FIRST.elected(0))
    newer = store.stored
    assert newer is not None
    store.watched = [StoredRecord(FIRST, "late", ""), newer]
    assert await asyncio.wait_for(anext(watch), 60) == newer.seen
    await watch.aclose()


async def test_a_record_that_goes_back_is_not_written(tmp_path: Path) -> None:
    store = FakeStore()
    a = on(store, tmp_path)
    seen = await a.compare_and_set(None, FIRST)
    seen = await a.compare_and_set(seen, FIRST.elected(0))
    with pytest.raises(RecordRefused, match="is not written: this broker has seen epoch 1, version 2"):
        await a.compare_and_set(seen, FIRST)
    assert store.stored is not None
    assert store.stored.record.epoch == 1


def test_the_mark_is_used_by_one_at_a_time(tmp_path: Path) -> None:
    class SlowMark(EpochMark):
        inside = most = 0

        def accept(self, record: GroupRecord | None, place: str) -> None:
            self.inside += 1
            self.most = max(self.most, self.inside)
            time.sleep(0.05)
            try:
                super().accept(record, place)
            finally:
                self.inside -= 1

    async def story() -> None:
        store, mark = FakeStore(), SlowMark(tmp_path / "mark")
        store.stored = StoredRecord(FIRST, "1", "")
        store.watched = [
            StoredRecord(replace(FIRST, version=FIRST.version + more), str(more), "") for more in (2, 3, 4)
        ]
        coordinator = RemoteCoordinator(store, mark=mark, clock=SystemClock(), rng=random.Random(1))
        watch = coordinator.watch()
        assert (await anext(watch)).record == FIRST

        async def watched() -> None:
            for _ in store.watched:
                await anext(watch)

        async def read() -> None:
            for _ in range(3):
                with contextlib.suppress(RecordWentBack):  # the store knew newer ones
                    await coordinator.read()

        await asyncio.gather(watched(), read())
        assert mark.most == 1
        await watch.aclose()

    asyncio.run(story())


async def test_a_record_is_not_used_while_the_mark_of_this_broker_cannot_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:

    caplog.set_level("INFO")
    store = FakeStore()
    a = on(store, tmp_path)
    seen = await a.compare_and_set(None, FIRST)
    newer = StoredRecord(FIRST.elected(0), "2", "")
    watch = a.watch()
    assert await anext(watch) == seen
    (tmp_path / "mark").unlink()
    (tmp_path / "mark").mkdir()
    store.stored, store.watched = newer, [newer]
    for call in (
        anext(watch),
        a.read(),
        on(store, tmp_path).read(),
        on(store, tmp_path).compare_and_set(seen, FIRST),
    ):
        with pytest.raises(CoordinatorUnknown, match=r"^the epoch that this broker saw in .*mark") as raised:
            await call
        assert raised.value.is_logged
    assert store.tries == 4, "another try does not help"
    (tmp_path / "mark").rmdir()
    assert await a.read() == newer.seen
    assert "is reached again" in caplog.text


def test_a_right_to_write_that_is_missing_is_said_once_however_well_the_record_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        store = FakeStore()
        a = on(store, tmp_path)
        seen = await a.compare_and_set(None, FIRST)
        assert seen is not None
        for _ in range(3):
            store.errors = [Forbidden("no right to write")]
            with pytest.raises(CoordinatorUnknown):
                await a.compare_and_set(seen, replace(FIRST, version=FIRST.version + 1))
            assert await a.read() == seen
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1
        assert "cannot be written: no right to write" in said[0]
        caplog.clear()
        assert await a.compare_and_set(seen, replace(FIRST, version=FIRST.version + 1)) is not None
        assert ["is reached again" in record.getMessage() for record in caplog.records] == [True]

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
