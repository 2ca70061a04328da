"""A follower's readers see what is known to be committed, wait for more, and cost nothing when they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from evenq_broker.core.replication.config import Mode
from evenq_broker.core.replication.rules import LogView
from evenq_broker.core.state.records import KeyPut, TopicPut, encode
from evenq_broker.loops.replication.follower_reads import IDLE_MS, TICK_MS, FollowerReads

from evenq.errors import HaNotAvailable
from evenq.model import TopicConfig
from evenq.runtime.clock import FakeClock, SystemClock
from evenq.store import Append, MessageStore, StoreOptions
from evenq.store.copies.log_copy import LogCopy
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log.log_pieces import LogPieces

SEGMENT = 1 << 16


class Replica:
    """What is committed, as far as a follower knows."""

    def __init__(self) -> None:
        self.log = LogView(Mode.REPL_SYNC)


class Stage:
    """A leader's store and a follower with a copy of its log."""

    def __init__(self, store: MessageStore, leading: MemoryDisk, copy: LogCopy) -> None:
        self.store, self.leading, self.log = store, leading, copy
        self.clock, self.replica = FakeClock(), Replica()
        self.copy: LogCopy | None = copy
        self.refusal = ""
        self.reads = FollowerReads(
            self.replica, copy=lambda: self.copy, refusal=lambda: self.refusal, clock=self.clock,  # type: ignore[arg-type]
            growth_bytes=1, group="b",
        )  # fmt: skip

    async def append(self, text: bytes, *, copied: bool = True) -> int:
        """One message; gives the log's end."""
        await self.store.append([Append(1, 0, 7, 5, text, b"")])
        end = self.store.stats.log_end
        if copied:
            pieces = LogPieces(self.leading, SEGMENT)
            await self.log.append(pieces.read(self.log.end, end, 1 << 20), start=self.log.end, then_sync=True)
            pieces.close()
        return end

    async def seen(self) -> list[bytes]:
        view = await self.reads.view()
        read = await view.log.read(1, 0, 0, count_max=100, bytes_max=1 << 20, tag_hashes=None)
        return [message.head for message in read.messages]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    leading, options = MemoryDisk(), StoreOptions(segment_bytes=SEGMENT)
    store = await MessageStore.open(
        None, options, clock=SystemClock(), disk=leading, broker_name="a", on_state=lambda *_: None,
        on_snapshot=lambda _: None, snapshot_of=lambda: b"",
    )  # fmt: skip
    copy = await LogCopy.open(
        None, StoreOptions(), clock=SystemClock(), disk=MemoryDisk(), broker_name="a", segment_bytes=SEGMENT
    )
    stage = Stage(store, leading, copy)
    await store.append([], state=encode([KeyPut(b"k" * 32), TopicPut(TopicConfig(name="t", topic_id=1))]))
    task = asyncio.ensure_future(stage.reads.run())
    await stage.clock.advance(1)
    try:
        yield stage
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        stage.reads.close()
        await store.close()


@pytest.mark.spec("HA-9")
async def test_readers_see_what_is_committed_and_no_more_whatever_the_copy_has(stage: Stage) -> None:
    ends = [await stage.append(b"%d" % number) for number in range(4)]
    for number, end in enumerate(ends):
        stage.replica.log.hw = end
        assert await stage.seen() == [b"%d" % one for one in range(number + 1)]
    assert (await stage.reads.view()).names.topics.get("t") is not None
    stage.replica.log.hw = await stage.append(b"not here yet", copied=False)
    assert len(await stage.seen()) == 4, "committed by others, and not in this copy"


async def test_nothing_is_shown_while_the_copy_leads_or_may_not_serve(stage: Stage) -> None:
    stage.replica.log.hw = await stage.append(b"one")
    view = await stage.reads.view()
    stage.copy = None
    with pytest.raises(HaNotAvailable, match="leads"):
        await stage.reads.view()
    with pytest.raises(HaNotAvailable, match="leads"):
        await stage.reads.grown(0, 100)
    await stage.clock.advance(TICK_MS)
    assert not view.log.is_current, "its files are given back"
    stage.copy, stage.refusal = stage.log, "it was removed"
    with pytest.raises(HaNotAvailable, match="it was removed"):
        await stage.reads.view()


async def test_a_view_of_a_log_that_was_cut_is_opened_again(stage: Stage) -> None:
    first = stage.replica.log.hw = await stage.append(b"one")
    assert await stage.seen() == [b"one"]
    await stage.append(b"never committed")
    await stage.log.truncate(first)
    assert await stage.seen() == [b"one"]


async def test_who_waits_hears_of_growth_and_of_its_end(stage: Stage) -> None:
    stage.replica.log.hw = first = await stage.append(b"one")
    waiting = asyncio.ensure_future(stage.reads.grown(first, 5_000))
    await stage.clock.advance(1_000)
    assert not waiting.done()
    stage.replica.log.hw = await stage.append(b"two")
    stage.reads.changed()
    await asyncio.wait_for(waiting, 30)
    late = asyncio.ensure_future(stage.reads.grown(stage.replica.log.hw, 5_000))
    await stage.clock.advance(5_001)
    await asyncio.wait_for(late, 30)


async def test_without_readers_nothing_is_held(stage: Stage) -> None:
    stage.replica.log.hw = await stage.append(b"one")
    view = await stage.reads.view()
    await stage.clock.advance(IDLE_MS)
    assert view.log.is_current
    for _ in range(3):
        await stage.clock.advance(TICK_MS)
    assert not view.log.is_current
    assert await stage.seen() == [b"one"], "and opened again"
