"""Places are given in call order and taken back when nothing was written."""

import asyncio
import errno
import random
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from evenq.errors import BadRequest, BodyTooLarge, StoreFull, StorePoisoned, TooManyRequests
from evenq.store import FlushMode
from evenq.store.io.memory_disk import MemoryDisk
from evenq.store.log.appender import GATHER_MS
from evenq.store.message_store import GATHER_TURNS


@asynccontextmanager
async def a_store(open_store, **options):
    opened = await open_store(MemoryDisk(), **options)
    try:
        yield opened.store
    finally:
        await opened.store.close()


async def test_offsets_are_dense_per_queue_in_call_order_before_anything_is_written(open_store, message):
    async with a_store(open_store) as store:
        calls = [[message(queue_id=number % 2), message(queue_id=0)] for number in range(3)]
        futures = [store.append(call) for call in calls]
        assert [one.queue_offset for call in calls for one in call] == [0, 1, 0, 2, 3, 4]
        assert store.queue_range(1, 0) == (0, 0)
        await asyncio.gather(*futures)
        assert (store.queue_range(1, 0), store.queue_range(1, 1)) == ((0, 5), (0, 1))


async def test_a_call_that_cannot_be_packed_takes_all_its_places_back(open_store, message):
    async with a_store(open_store) as store:
        await store.append([message()])
        for bad, kind in ((message(topic_id=-1), BadRequest), (message(head=bytes(5_000)), BodyTooLarge)):
            good = message()
            with pytest.raises(kind):
                store.append([good, bad])
            assert good.queue_offset == -1
        last = message()
        await store.append([last])
        assert last.queue_offset == 1


async def test_the_bounds_of_what_waits_are_reached_and_told(open_store, message):
    async with a_store(open_store, append_queue_max=3) as store:
        waiting = [store.append([message()]) for _ in range(3)]
        with pytest.raises(
            TooManyRequests, match=r"3 records of \d+ bytes wait for the disk, the limits are 3 records"
        ):
            store.append([message()])
        assert store.stats.refused == 1
        await asyncio.gather(*waiting)
        await store.append([message()])


async def test_a_full_store_refuses_messages_takes_states_and_goes_on(open_store, message):
    async with a_store(open_store) as store:
        store._state.set_full(StoreFull("the disk is full"))
        with pytest.raises(StoreFull, match="the disk is full"):
            store.append([message()])
        await store.append_state(b"state")
        store._state.set_full(None)
        await store.append([message()])


async def test_what_a_full_disk_took_back_is_told_even_if_there_is_space_again_at_once(open_store, message):
    async with a_store(open_store) as store:
        appender, taken = store._appender, asyncio.get_running_loop().create_future()
        submit, appender.writer.submit = appender.writer.submit, taken.set_result
        refused = store.append([message()])
        settled = asyncio.ensure_future(appender.settled())
        batch = await taken
        appender.writer.submit = submit
        appender.complete(batch, StoreFull("the disk was full"))
        store._state.set_full(None)
        for waiting in (settled, refused):
            with pytest.raises(StoreFull, match="the disk was full"):
                await waiting
        await store.append([message()])


async def test_a_poisoned_store_fails_who_waits_and_who_comes_and_tells_once(open_store, message):
    async with a_store(open_store) as store:
        events = []
        store.on_failure = events.append
        waiting = store.append([message()])
        for _ in range(2):
            store._state.poison("the disk is broken")
        with pytest.raises(StorePoisoned, match="the disk is broken; the store stopped, restart the broker"):
            await waiting
        for append in (lambda: store.append([message()]), lambda: store.append_state(b"x")):
            with pytest.raises(StorePoisoned):
                append()
        assert len(events) == 1
        assert store.failure is events[0]


async def test_nothing_is_no_append(open_store):
    async with a_store(open_store) as store:
        with pytest.raises(BadRequest, match="at least one message"):
            store.append([])


@pytest.mark.parametrize(("turn_ms", "turns"), [(0, GATHER_TURNS + 1), (1, GATHER_MS + 1), (50, 2)])
async def test_a_group_waits_for_others_as_long_as_turns_of_the_loop_are_short(
    open_store, message, tmp_path, turn_ms, turns
):
    """Under a crowd a turn is milliseconds, and a sender that is alone would wait for sixteen of them."""
    opened = await open_store(tmp_path, flush=FlushMode.ASYNC)
    appender, handed_over = opened.store._appender, []
    appender.writer.writes_here = lambda _: False
    submit, appender.writer.submit = appender.writer.submit, lambda batch: handed_over.append(batch) or submit(batch)
    try:
        future, passed = opened.store.append([message()]), 0
        while not handed_over:
            await asyncio.sleep(0)
            opened.clock._monotonic += turn_ms
            passed += 1
        assert passed == turns
        await future
    finally:
        await opened.store.close()


async def test_a_lone_send_with_asynchronous_flush_takes_one_turn_and_wakes_no_thread(open_store, message, tmp_path):
    opened = await open_store(tmp_path, flush=FlushMode.ASYNC, segment_bytes=1 << 20)
    store, loop = opened.store, asyncio.get_running_loop()
    hops, wake_ups = [], loop.call_soon_threadsafe
    try:
        await store.append([message(b"the file exists after this")])
        loop.call_soon_threadsafe = lambda *of, **more: hops.append(of) or wake_ups(*of, **more)
        store._appender.writer.submit = hops.append
        for number in range(3):
            sent = store.append([message(b"%d" % number)])
            await asyncio.sleep(0)
            assert sent.done()
        assert hops == []
    finally:
        loop.call_soon_threadsafe = wake_ups
        await store.close()
    assert (await contents_of(open_store, tmp_path))[1:] == [b"0", b"1", b"2"]


async def contents_of(open_store, where):
    """Messages of a closed store's queue, read by a new one."""
    opened = await open_store(where, flush=FlushMode.ASYNC)
    try:
        return await opened.contents()
    finally:
        await opened.store.close()


async def test_order_holds_when_groups_go_to_the_loop_and_the_thread_by_turns(open_store, message, tmp_path):
    opened = await open_store(tmp_path, flush=FlushMode.ASYNC)
    store, chance, here = opened.store, random.Random(5), []
    writes_here = store._appender.writer.writes_here

    def by_chance(batch):
        if not writes_here(batch) or random.Random(batch.start).random() < 0.5:
            return False
        here.append(batch)
        return True

    store._appender.writer.writes_here = by_chance
    answered, sent, futures = [], [], []
    for number in range(400):
        head = b"%d" % number
        sent.append(head)
        future = store.append([message(head)])
        future.add_done_callback(lambda _, head=head: answered.append(head))
        futures.append(future)
        for _ in range(chance.choice([0, 0, 1, 3, 30])):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            await asyncio.wait([future])
    await asyncio.gather(*futures)
    try:
        assert answered == sent
        assert [end for groups in opened.dispatched for _, _, end in groups] == sorted(
            end for groups in opened.dispatched for _, _, end in groups
        )
        assert await opened.contents() == sent
        assert 0 < len(here) < store.stats.batches
    finally:
        await store.close()
    assert await contents_of(open_store, tmp_path) == sent


async def test_a_group_behind_one_that_is_answered_is_answered_after_it(open_store, message, tmp_path):
    """A message may be appended while a group is completed; written then and there, it would be answered first."""
    opened = await open_store(tmp_path, flush=FlushMode.ASYNC, segment_bytes=1 << 20)
    store, answered = opened.store, []
    appender, submit = store._appender, store._appender.writer.submit
    writes_here, appender.writer.writes_here = appender.writer.writes_here, lambda _: False
    second = None

    def submitted(batch):
        nonlocal second
        submit(batch)
        appender.writer.writes_here = writes_here
        if second is None:
            second = store.append([message(b"second")])
            second.add_done_callback(lambda _: answered.append("second"))

    appender.writer.submit = submitted
    try:
        first = store.append([message(b"first")])
        first.add_done_callback(lambda _: answered.append("first"))
        await first
        await second
        await asyncio.sleep(0)
        assert answered == ["first", "second"]
        ends = [end for groups in opened.dispatched for _, _, end in groups]
        assert ends == sorted(ends)
    finally:
        await store.close()


async def test_a_failed_write_on_the_loop_stops_the_store_as_one_on_the_thread(open_store, message, tmp_path):
    opened = await open_store(tmp_path, flush=FlushMode.ASYNC, segment_bytes=1 << 20)
    store, failures = opened.store, []
    store.on_failure = failures.append
    await store.append([message()])

    def broken(*_):
        raise OSError(errno.EIO, "the disk is broken")

    store._log._file = SimpleNamespace(pwrite=broken, sync=lambda: None, close=store._log._file.close)
    with pytest.raises(StorePoisoned, match="the disk is broken"):
        await store.append([message()])
    assert len(failures) == 1
    await store.close()


async def test_a_group_goes_to_the_thread_while_the_flush_thread_works(open_store, message, tmp_path):
    opened = await open_store(tmp_path, flush=FlushMode.ASYNC, segment_bytes=1 << 20)
    store, may_end, submitted = opened.store, threading.Event(), []
    submit = store._appender.writer.submit
    store._appender.writer.submit = lambda batch: submitted.append(batch) or submit(batch)
    try:
        await store.append([message()])
        submitted.clear()
        working = asyncio.ensure_future(store._flush_jobs.run(lambda: may_end.wait(60)))
        await asyncio.sleep(0)
        await store.append([message()])
        assert len(submitted) == 1
        may_end.set()
        await working
        await store.append([message()])
        assert len(submitted) == 1
    finally:
        may_end.set()
        await store.close()
