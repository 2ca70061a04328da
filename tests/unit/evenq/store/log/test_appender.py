"""Places are given in call order and taken back when nothing was written."""

import asyncio
from contextlib import asynccontextmanager

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
        submit, appender.submit = appender.submit, taken.set_result
        refused = store.append([message()])
        settled = asyncio.ensure_future(appender.settled())
        batch = await taken
        appender.submit = submit
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
    submit, appender.submit = appender.submit, lambda batch: handed_over.append(batch) or submit(batch)
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
