"""The follower gives way to senders, answers while it is behind, and ends with the store, on real threads too."""

from __future__ import annotations

import asyncio

import pytest

from evenq.errors import StoreError
from evenq.runtime.clock import FakeClock, SystemClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions
from evenq.store.index.index_follower import BUSY_PAUSE_MS
from evenq.store.index.message_index import PIECE_FRAMES
from evenq.store.io.memory_disk import MemoryDisk


async def opened(path=None, *, disk=None, clock=None, **options):
    return await MessageStore.open(
        path, StoreOptions(**{"segment_bytes": 1 << 20, **options}), clock=clock or FakeClock(), disk=disk,
        broker_name="broker-a", on_state=lambda *_: None, on_snapshot=lambda _: None,
        keys_of=lambda _, system: [system],
    )  # fmt: skip


def many(count, size=300):
    return [Append(1, 0, 0, 0, b"x" * size, b"k%d" % (number % 7)) for number in range(count)]


async def test_under_load_steps_are_far_apart_and_without_load_they_are_not():
    clock = FakeClock()
    store = await opened(disk=MemoryDisk(), clock=clock, flush=FlushMode.SYNC, segment_bytes=1 << 26)
    await store.append(many(20_000))
    one = store.stats.log_end // 20_000

    async def for_ms(duration_ms, *, load):
        before = store.stats.index_end
        for _ in range(duration_ms):
            if load:
                await store.append(many(10))
            await clock.advance(1)
        return (store.stats.index_end - before) / one / PIECE_FRAMES

    await for_ms(500, load=True)  # the first round begins
    assert await for_ms(10 * (BUSY_PAUSE_MS + 1), load=True) == pytest.approx(10, abs=2)
    assert await for_ms(20, load=False) > 10
    await store.close()


async def test_find_does_not_wait_for_the_background(tmp_path):
    store = await opened(tmp_path, clock=SystemClock())
    await store.append(many(20_000))
    found = await store.find(1, b"k3", count_max=10_000, bytes_max=1 << 30)
    assert len(found) == len([number for number in range(20_000) if number % 7 == 3])
    assert [message.queue_offset for message in found[:3]] == [19_995, 19_988, 19_981]
    assert store.stats.index_end == store.stats.log_end
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.find(1, b"k3")


async def test_a_store_with_real_files_closes_in_the_middle_of_following_and_goes_on_later(tmp_path):
    clock = SystemClock()
    store = await opened(tmp_path, clock=clock, flush_interval_ms=1)
    for _ in range(5):
        await store.append(many(4_000))
    await store.close()
    store = await opened(tmp_path, clock=clock, flush_interval_ms=1)
    async with asyncio.timeout(60):
        while store.stats.index_end < store.stats.log_end:
            await clock.sleep_ms(5)
    assert len(await store.find(1, b"k0", count_max=100_000, bytes_max=1 << 30)) == 5 * 572
    assert store.stats.index_failures == 0
    await store.close()
    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert names == [f"{number << 20:020d}" for number in range(len(names))]
    assert len(names) >= 6
