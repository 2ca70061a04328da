"""Where a read is answered from, and what it says of queues and files that are not there."""

from __future__ import annotations

import pytest
from evenq_proofs.fault_disk import FaultDisk

from evenq.errors import StoreCorrupted


async def test_a_queue_that_never_was_is_empty(open_store):
    opened = await open_store(FaultDisk())
    store = opened.store
    found = await store.read(1, 5, 7, count_max=9, bytes_max=99)
    assert (found.messages, found.next_offset, found.min_offset, found.max_offset) == ([], 7, 0, 0)
    assert await store.read_at(1, 5, [0, 1]) == []
    assert await store.offset_at(1, 5, 1_000) == 0
    await store.close()


async def test_only_reads_past_the_memory_count_as_cold(open_store, message):
    for cache_bytes, cold in ((1 << 20, 0), (0, 3)):
        opened = await open_store(FaultDisk(), cache_bytes=cache_bytes)
        store = opened.store
        await store.append([message(b"%d" % number) for number in range(5)])
        assert len((await store.read(1, 0, 0, count_max=9, bytes_max=99)).messages) == 5
        assert [one.head for one in await store.read_at(1, 0, [3, 9, 1])] == [b"3", b"1"]
        at = (await store.read_at(1, 0, [2]))[0].store_ms
        assert store.stats.cold_reads == cold
        assert await store.offset_at(1, 0, at + 1) == 5
        await store.close()


async def test_a_file_that_is_gone_without_reason_is_named(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk, cache_bytes=0)
    await opened.store.append([message()])
    lost = disk.files.pop(f"commitlog/{0:020d}")
    with pytest.raises(StoreCorrupted, match=f"commitlog/{0:020d} cannot be read"):
        await opened.store.read(1, 0, 0, count_max=1, bytes_max=99)
    disk.files[f"commitlog/{0:020d}"] = lost
    assert len(await opened.contents()) == 1
    await opened.store.close()
