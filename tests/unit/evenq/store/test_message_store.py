"""The store from outside: what goes in comes out, in order, also after a clean stop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from evenq_proofs.fault_disk import FaultDisk

from evenq.errors import BadRequest, BodyTooLarge, StoreError, StoreFull, StoreLocked, StorePoisoned, TooManyRequests
from evenq.runtime.clock import FakeClock
from evenq.store import Append, AppendBlock, FlushMode
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log.appender import GATHER_BYTES


@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("engine", ["memory", "folder"])
async def test_a_message_comes_back_as_it_was_given(open_store, message, tmp_path, engine, flush):
    opened = await open_store(tmp_path if engine == "folder" else None, flush=flush)
    entry = message(b"the head", topic_id=9, queue_id=3, tag=-(1 << 63), system=b"the system")
    await opened.store.append([entry])
    assert (entry.queue_offset, entry.log_offset, entry.store_ms) == (0, 0, opened.clock.now_ms())
    for cold in (False, True):
        if cold:
            [found] = opened.store._reader.read_at(_entries(opened.store, 9, 3), [0])
        else:
            [found] = (await opened.store.read(9, 3, 0, count_max=5, bytes_max=100)).messages
        assert (found.topic_id, found.queue_id, found.queue_offset, found.log_offset) == (9, 3, 0, 0)
        assert (found.head, found.system, found.tag_hash, found.born_ms) == (
            b"the head",
            b"the system",
            -(1 << 63),
            1_000,
        )
        assert found.store_ms == opened.clock.now_ms()
    assert opened.dispatched == [[(9, 3, 1)]]
    await opened.store.close()


def _entries(store, topic_id, queue_id):
    from evenq.store.queues.reader import Entries

    queue = store._queues[topic_id, queue_id]
    return Entries.of(queue, queue.min_offset, queue.max_offset)


@pytest.mark.parametrize("engine", ["fault", "folder"])
async def test_a_clean_stop_keeps_messages_states_and_snapshots_in_order(open_store, message, tmp_path, engine):
    disk = FaultDisk() if engine == "fault" else tmp_path
    opened = await open_store(disk)
    for number in range(50):
        await opened.store.append([message(b"%d" % number), message(b"other", queue_id=1)])
        opened.store.append_state(b"s%d" % number)
        if number in (10, 20, 30):
            await opened.store.flush()
            await opened.store.save_snapshot(b"until %d" % number)
    await opened.store.close()
    again = await open_store(disk)
    assert again.store.stats.recovered_records == 38 + 19  # only what is behind the snapshot is read
    assert await again.contents() == [b"%d" % number for number in range(50)]
    assert again.store.queue_range(1, 1) == (0, 50)
    assert again.snapshots == [b"until 30"]
    assert again.states == [b"s%d" % number for number in range(31, 50)]
    entry = message(b"next")
    await again.store.append([entry])
    assert entry.queue_offset == 50
    await again.store.close()


async def test_a_good_checkpoint_saves_reading_the_log_again(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk)
    for _ in range(100):
        await opened.store.append([message(b"x" * 200)])
    await opened.store.save_snapshot(b"state")
    await opened.store.close()
    again = await open_store(disk)
    assert again.store.stats.recovered_records == 0
    assert again.store.queue_range(1, 0) == (0, 100)
    await again.store.close()


@pytest.mark.parametrize("cache_bytes", [1 << 20, 0, 1_000])
async def test_reads_respect_count_bytes_and_tags_from_memory_and_from_disk(open_store, message, cache_bytes):
    opened = await open_store(None, cache_bytes=cache_bytes, segment_bytes=1 << 16)
    for number in range(40):
        await opened.store.append([message(b"h" * 96, tag=number % 4, system=b"s" * 4)])
    read = opened.store.read
    hot = opened.store.read_hot(1, 0, 0, count_max=1, bytes_max=1)
    assert (hot is None) == (cache_bytes < 4_000)
    result = await read(1, 0, 5, count_max=8, bytes_max=1 << 20)
    assert [m.queue_offset for m in result.messages] == list(range(5, 13))
    assert (result.next_offset, result.min_offset, result.max_offset) == (13, 0, 40)
    result = await read(1, 0, 0, count_max=32, bytes_max=350)
    assert (len(result.messages), result.next_offset) == (3, 3)
    result = await read(1, 0, 0, count_max=32, bytes_max=1)
    assert (len(result.messages), result.next_offset) == (1, 1)
    result = await read(1, 0, 2, count_max=3, bytes_max=1 << 20, tag_hashes=frozenset({1}))
    assert [m.queue_offset for m in result.messages] == [5, 9, 13]
    assert result.next_offset in (14, 17)
    result = await read(1, 0, 0, count_max=32, bytes_max=1 << 20, tag_hashes=frozenset({99}))
    assert (result.messages, result.next_offset) == ([], 40)
    result = await read(1, 0, 40, count_max=32, bytes_max=1)
    assert (result.messages, result.next_offset, result.max_offset) == ([], 40, 40)
    result = await read(5, 5, 3, count_max=32, bytes_max=1)
    assert (result.messages, result.next_offset, result.max_offset) == ([], 3, 0)
    found = await opened.store.read_at(1, 0, [39, 3, 77, 3, 0, -1])
    assert [m.queue_offset for m in found] == [39, 3, 3, 0]
    assert await opened.store.read_at(5, 5, [0]) == []
    await opened.store.close()


async def test_a_call_is_stored_whole_or_not_at_all(open_store, message):
    opened = await open_store(None)
    first = opened.store.append([message(b"kept")])
    with pytest.raises(BadRequest, match="does not fit"):
        opened.store.append([message(b"a"), message(b"b", tag=1 << 63)])
    with pytest.raises(BadRequest):
        opened.store.append([message(b"a" * 3000), message(b"b" * 3000), message(b"c", topic_id=-1)])
    with pytest.raises(BodyTooLarge, match="4096"):
        opened.store.append([message(b"a"), message(b"b" * 5000)])
    with pytest.raises(BodyTooLarge):
        opened.store.append_state(b"b" * 5000)
    with pytest.raises(BadRequest):
        opened.store.append([])
    await first
    await opened.store.append([message(b"next")])
    assert await opened.contents() == [b"kept", b"next"]
    await opened.store.close()


async def test_too_many_waiting_appends_are_refused(open_store, message):
    opened = await open_store(None, append_queue_max=3)
    futures = [opened.store.append([message()]) for _ in range(3)]
    with pytest.raises(TooManyRequests, match="3 records"):
        opened.store.append([message()])
    state = opened.store.append_state(b"states are not refused")
    await asyncio.gather(*futures, state)
    await opened.store.append([message()])
    assert opened.store.queue_range(1, 0) == (0, 4)
    await opened.store.close()


async def test_store_times_never_fall_and_find_offsets(open_store, message):
    opened = await open_store(None)
    start = opened.clock.now_ms()
    for delta in (0, 10, 10, -25, 30):
        opened.clock.jump_wall(delta)
        await opened.store.append([message()])
    times = [m.store_ms - start for m in (await opened.store.read(1, 0, 0, count_max=9, bytes_max=999)).messages]
    assert times == [0, 10, 20, 20, 25]
    found = [await opened.store.offset_at(1, 0, start + ms) for ms in (-1, 0, 1, 10, 20, 21, 25, 26)]
    assert found == [0, 0, 1, 1, 2, 4, 4, 5]
    assert await opened.store.offset_at(8, 8, 0) == 0
    await opened.store.close()


async def test_a_message_is_consumable_only_when_it_is_safe(open_store, message):
    opened = await open_store(None)
    seen = []
    opened.store.on_dispatched = lambda grown: seen.append((grown, opened.store.queue_range(1, 0)))
    future = opened.store.append([message()])
    assert opened.store.queue_range(1, 0) == (0, 0)
    assert opened.store.read_hot(1, 0, 0, count_max=1, bytes_max=1).messages == []
    await future
    assert seen == [([(1, 0, 1)], (0, 1))]
    await opened.store.close()


async def test_appends_of_one_turn_share_one_write_and_one_sync(open_store, message, tmp_path):
    opened = await open_store(tmp_path, segment_bytes=1 << 20)
    before = opened.store.stats.fsyncs
    await asyncio.gather(*[opened.store.append([message(queue_id=n % 4)]) for n in range(64)])
    assert opened.store.stats.batches == 1
    assert opened.store.stats.fsyncs == before + 1
    assert opened.dispatched == [[(1, n, 16) for n in range(4)]]
    await opened.store.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("evenq-store")]


async def test_in_async_mode_appends_of_neighbouring_turns_share_one_write_of_the_thread(open_store, message, tmp_path):
    opened = await open_store(tmp_path, flush=FlushMode.ASYNC)
    opened.store._appender.writer.writes_here = lambda _: False
    before = opened.store.stats.batches
    futures = []
    for _ in range(8):
        futures.append(opened.store.append([message()]))
        await asyncio.sleep(0)  # one turn of the loop
    await asyncio.gather(*futures)
    assert opened.store.stats.batches - before == 1
    assert opened.store.queue_range(1, 0) == (0, 8)
    await opened.store.close()


async def test_a_large_group_does_not_wait_for_more(open_store, message, tmp_path):
    opened = await open_store(tmp_path, flush=FlushMode.ASYNC, segment_bytes=1 << 20)
    turns = 0
    future = opened.store.append([message(b"x" * (GATHER_BYTES // 4)) for _ in range(4)])
    while opened.store.stats.batches == 0 and not opened.store._appender._busy:
        await asyncio.sleep(0)
        turns += 1
    assert turns <= 2
    await future
    await opened.store.close()


async def test_async_mode_syncs_by_time_and_by_size(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk, flush=FlushMode.ASYNC, flush_bytes=2_000)
    await opened.store.append([message()])
    assert opened.store.stats.log_synced == 0
    await opened.clock.advance(500)
    assert opened.store.stats.log_synced == opened.store.stats.log_end
    await opened.store.append([message(b"x" * 2_000)])
    await opened.clock.advance(1)
    assert opened.store.stats.log_synced == opened.store.stats.log_end
    await opened.store.close()


async def test_checkpoints_keep_memory_flat(open_store, message):
    opened = await open_store(None, segment_bytes=1 << 20, checkpoint_entries=500, cache_bytes=10_000)
    for _ in range(40):
        await opened.store.append([message() for _ in range(100)])
        await asyncio.sleep(0)
    [queue] = opened.store._queues.values()
    assert len(queue.tail) <= 20 * 1_000
    assert len(queue.hot) <= 10_000
    assert opened.store.stats.cache_bytes <= 10_000
    assert len(await opened.contents()) == 4_000
    await opened.clock.advance(10_000)
    assert len(queue.tail) == 20 * 128
    await opened.store.close()


async def test_a_second_owner_is_refused_by_name_and_pid(open_store, tmp_path):
    opened = await open_store(tmp_path)
    with pytest.raises(StoreLocked, match=r"in use by process \d+"):
        await open_store(tmp_path)
    await opened.store.close()
    await (await open_store(tmp_path)).store.close()


async def test_another_brokers_folder_is_refused(open_store, tmp_path):
    await (await open_store(tmp_path)).store.close()
    with pytest.raises(StoreError, match="belongs to broker 'broker-a', this one is 'broker-b'"):
        await open_store(tmp_path, name="broker-b")
    await (await open_store(tmp_path)).store.close()


def test_a_folder_that_cannot_be_written_is_refused(open_store):
    async def scenario():
        disk = FaultDisk()
        disk.faults_of["lock"] = 30  # EROFS
        with pytest.raises(StoreError, match="cannot be written"):
            await open_store(disk)

    asyncio.run(scenario())
    with pytest.raises(StoreError, match="cannot be created"):
        asyncio.run(open_store(Path("/proc/version/data")))


async def test_close_may_be_called_again_and_refuses_appends(open_store, message, tmp_path):
    opened = await open_store(tmp_path)
    future = opened.store.append([message()])
    await asyncio.gather(opened.store.close(), opened.store.close())
    assert future.done()
    assert future.exception() is None
    await opened.store.close()
    with pytest.raises(StorePoisoned, match="closed"):
        opened.store.append([message()])


async def test_a_cancelled_sender_does_not_disturb_the_others(open_store, message):
    opened = await open_store(None)
    cancelled = opened.store.append([message(b"a")])
    other = opened.store.append([message(b"b")])
    cancelled.cancel()
    await other
    assert await opened.contents() == [b"a", b"b"]
    await opened.store.close()


async def test_concurrent_reads_from_a_folder_see_whole_messages(open_store, tmp_path):
    opened = await open_store(tmp_path, cache_bytes=0, segment_bytes=1 << 16, open_files_max=2, checkpoint_entries=50)

    async def reader(queue_id):
        seen = 0
        while seen < 200:
            result = await opened.store.read(1, queue_id, seen, count_max=7, bytes_max=1 << 20)
            for found in result.messages:
                assert found.head == b"%d/%d" % (queue_id, found.queue_offset) + b"." * 300
            seen = result.next_offset
            await asyncio.sleep(0)

    async def sender(queue_id):
        for number in range(200):
            await opened.store.append([Append(1, queue_id, 0, 0, b"%d/%d" % (queue_id, number) + b"." * 300, b"")])

    async with asyncio.TaskGroup() as group:
        for queue_id in range(3):
            group.create_task(sender(queue_id))
            group.create_task(reader(queue_id))
    await opened.store.close()


async def test_the_memory_engine_needs_no_thread(open_store, message):
    opened = await open_store(MemoryDisk())
    await opened.store.append([message()])
    assert not [t for t in threading.enumerate() if t.name.startswith("evenq-store")]
    await opened.store.close()


async def test_the_folders_segment_size_wins_over_a_changed_setting(open_store, message, tmp_path):
    opened = await open_store(tmp_path)
    await opened.store.append([message(b"x" * 3_000), message(b"y" * 3_000)])
    await opened.store.close()
    again = await open_store(tmp_path, segment_bytes=1 << 20, clock=FakeClock())
    assert again.store.identity.segment_bytes == 4096
    assert await again.contents() == [b"x" * 3_000, b"y" * 3_000]
    await again.store.close()


@pytest.mark.parametrize("engine", ["memory", "fault", "folder"])
async def test_blocks_of_messages_are_read_in_their_order_between_others_also_after_a_restart(
    open_store, message, tmp_path, engine
):

    async def texts(store):
        found = []
        for queue_id in (0, 1):
            _, end = store.queue_range(1, queue_id)
            found += [message.head for message in await store.read_at(1, queue_id, range(end))]
        return found

    disk = {"memory": None, "fault": FaultDisk(), "folder": tmp_path}[engine]
    opened = await open_store(disk)
    store, wanted, before = opened.store, [], []
    for number in range(6):
        heads = [b"%d-%d" % (number, at) * (at + 1) for at in range(40)]
        if number % 2:
            sizes = [len(head) for head in heads]
            block = AppendBlock(
                1, b"".join(head + b"sys" for head in heads), 0, queue_ids=[at % 2 for at in range(40)],
                tag_hashes=range(40), born_ms=[5] * 40, head_bytes=sizes, system_bytes=[3] * 40,
            )  # fmt: skip
            stored = store.append((), state=b"s", blocks=[block])
        else:
            stored = store.append([message(head, queue_id=at % 2) for at, head in enumerate(heads)])
        ends = [store.queue_range(1, queue_id)[1] for queue_id in (0, 1)]
        assert sum(ends) == len(before)  # given a place, and not consumable; no disk is waited for to see that
        await stored
        wanted += heads
        before = [head for queue_id in (0, 1) for at, head in enumerate(wanted) if at % 2 == queue_id]
        assert await texts(store) == before
    hot = store.read_hot(1, 0, 60, count_max=50, bytes_max=1 << 20)
    cold = store.read_hot(1, 0, 110, count_max=50, bytes_max=1 << 20)
    assert (hot, cold) == (None, None)  # what is in a block, and what was before it
    [last] = (await store.read(1, 1, 119, count_max=1, bytes_max=1)).messages
    assert (last.system, last.tag_hash, last.born_ms) == (b"sys", 39, 5)
    assert opened.dispatched[-1] == [(1, 0, 120), (1, 1, 120)]
    assert store.stats.waiting == 0
    assert store.stats.cache_bytes < 0.6 * store.stats.bytes
    await store.append([message(b"x" * 100)])
    [hot] = store.read_hot(1, 0, 120, count_max=50, bytes_max=1 << 20).messages
    assert hot.head == b"x" * 100
    await store.close()
    if engine != "memory":
        again = await open_store(disk)
        found = await texts(again.store)
        assert [head for head in found if head != b"x" * 100] == before
        await again.store.close()


async def test_a_block_that_finds_the_disk_full_was_never_there(open_store, message):
    opened = await open_store(FaultDisk())
    store = opened.store
    await store.append([message(b"first")])
    block = AppendBlock(
        1, b"onetwo", 0, queue_ids=[0, 0], tag_hashes=[0, 0], born_ms=[0, 0], head_bytes=[3, 3],
        system_bytes=[0, 0],
    )  # fmt: skip
    appender, taken = store._appender, asyncio.get_running_loop().create_future()
    submit, appender.writer.submit = appender.writer.submit, taken.set_result
    refused = store.append((), state=b"s", blocks=[block])
    batch = await taken
    appender.writer.submit = submit
    appender.complete(batch, StoreFull("the disk was full"))
    store._state.set_full(None)
    with pytest.raises(StoreFull, match="the disk was full"):
        await refused
    assert store.queue_range(1, 0) == (0, 1)
    await store.append((), state=b"s", blocks=[block])
    await store.append([message(b"last")])
    assert await opened.contents() == [b"first", b"one", b"two", b"last"]
    assert store.read_hot(1, 0, 3, count_max=9, bytes_max=100).messages[0].queue_offset == 3
    await store.close()
