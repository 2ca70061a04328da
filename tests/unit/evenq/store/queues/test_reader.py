"""Memory and files give the same answer."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenq.errors import StoreCorrupted
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log.messages import Append
from evenq.store.queues import reader
from evenq.store.queues.reader import Entries

TAGS = frozenset({1, 2})


def facts(result):
    places = [(one.queue_offset, one.head, one.system, one.tag_hash) for one in result.messages]
    return places, result.next_offset, result.min_offset, result.max_offset


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 3)), min_size=1, max_size=40),
    start=st.integers(0, 45), count=st.integers(1, 40), space=st.integers(1, 4_000), filtered=st.booleans(),
)  # fmt: skip
def test_hot_and_cold_reads_agree(open_store, sizes, start, count, space, filtered):
    async def story():
        opened = await open_store(MemoryDisk())
        for number, (size, tag) in enumerate(sizes):
            await opened.store.append([Append(1, 0, tag, 0, bytes([number]) * size, b"sys")])
        queue = opened.store._queues[1, 0]
        options = {"count_max": count, "bytes_max": space, "tag_hashes": TAGS if filtered else None}
        hot = reader.hot(queue, start, **options)
        if start < len(sizes):
            await opened.store.checkpoint()
            entries = Entries.of(queue, start, queue.max_offset)
            assert facts(opened.store._reader.read(entries, start, **options)) == facts(hot)
        assert hot.next_offset > start or start >= len(sizes)
        await opened.store.close()

    asyncio.run(story())


async def test_a_frame_of_another_message_is_told_with_the_file_and_what_to_do(open_store, message):
    opened = await open_store(MemoryDisk())
    await opened.store.append([message(), message()])
    queue = opened.store._queues[1, 0]
    entries = Entries.of(queue, 0, 2)
    swapped = Entries(1, 0, 0, 2, 0, entries.tail[20:] + entries.tail[:20])
    with pytest.raises(StoreCorrupted, match=r"commitlog/0+ holds no message 0 of queue 0 at log offset"):
        opened.store._reader.read_at(swapped, [0])
    await opened.store.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([0, 200, 200, 200, 9_000, 40_000]), min_size=1, max_size=60),
    others=st.integers(0, 3), count=st.integers(1, 60), start=st.integers(0, 59),
)  # fmt: skip
def test_near_and_far_frames_of_any_size_are_read_alike(open_store, sizes, others, count, start):
    async def story():
        opened = await open_store(MemoryDisk(), segment_bytes=1 << 18, cache_bytes=0)
        for number, size in enumerate(sizes):
            between = [Append(2, 0, 0, 0, bytes(7_000), b"") for _ in range(others)]
            await opened.store.append([Append(1, 0, 0, 0, bytes([number]) * size, b"sys"), *between])
        queue = opened.store._queues[1, 0]
        first = min(start, len(sizes) - 1)
        entries = Entries.of(queue, first, queue.max_offset)
        for _ in range(2):
            found = opened.store._reader.read(entries, first, count_max=count, bytes_max=1 << 30, tag_hashes=None)
            assert [one.head for one in found.messages] == [
                bytes([number]) * size for number, size in enumerate(sizes) if first <= number < first + count
            ]
        await opened.store.close()

    asyncio.run(story())


async def test_a_short_read_needs_no_thread_once_its_files_are_open(open_store, tmp_path, monkeypatch):
    opened = await open_store(tmp_path, cache_bytes=0, segment_bytes=1 << 20)
    await opened.store.append([Append(1, 0, 0, 0, b"%d" % number * 100, b"") for number in range(300)])
    await opened.store.checkpoint()
    hops = []
    run = opened.store._reads.jobs.run
    monkeypatch.setattr(opened.store._reads.jobs, "run", lambda job: hops.append(job) or run(job))
    for low in (0, 30, 60):
        found = await opened.store.read(1, 0, low, count_max=30, bytes_max=1 << 20)
        assert [one.queue_offset for one in found.messages] == list(range(low, low + 30))
        assert [one.head for one in await opened.store.read_at(1, 0, [low])] == [b"%d" % low * 100]
    with_thread = len(hops)
    entries = Entries.of(opened.store._queues[1, 0], 0, 300)
    if opened.store._reader.read_now(entries, 0, count_max=1, bytes_max=1) is not None:
        assert with_thread == 1
    assert opened.store.stats.cold_reads == 6
    await opened.store.close()


async def test_damage_is_told_by_the_pool_not_by_the_loop(open_store, tmp_path):
    opened = await open_store(tmp_path, cache_bytes=0, segment_bytes=1 << 20)
    store = opened.store
    await store.append([Append(1, 0, 0, 0, b"%d" % number * 100, b"") for number in range(30)])
    await store.checkpoint()
    assert len((await store.read(1, 0, 0, count_max=30, bytes_max=1 << 20)).messages) == 30
    buffers = len(store._reader._buffers)
    log = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[data.index(b"7" * 100)] ^= 1
    log.write_bytes(data)
    entries = Entries.of(store._queues[1, 0], 0, 30)
    assert store._reader.read_now(entries, 0, count_max=30, bytes_max=1 << 20) is None
    assert store._reader.read_at_now(entries, [7]) is None
    with pytest.raises(StoreCorrupted, match="holds no message 7 of queue 0 at log offset"):
        await store.read(1, 0, 0, count_max=30, bytes_max=1 << 20)
    assert len(store._reader._buffers) == buffers, "buffers come back from reads that failed"
    assert len((await store.read(1, 0, 0, count_max=7, bytes_max=1 << 20)).messages) == 7
    await store.close()
