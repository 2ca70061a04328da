"""The promises about delayed messages in the store: semantics.md RD-13 to RD-18 (storage parts)."""

from __future__ import annotations

import asyncio
import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.runtime.clock import FakeClock, SystemClock
from evenq.store import Append, FlushMode, MessageStore, StoreOptions, TimerAppend
from evenq.store.log.record import MESSAGE, TIMER, TIMER_END, TimerFields, frame_at, timer_ids_of

START = 1_700_000_000_000


async def opened(disk, clock=None, **options):
    return await MessageStore.open(
        None, StoreOptions(**{"segment_bytes": 1 << 20, "flush": FlushMode.SYNC, **options}), disk=disk,
        clock=clock or FakeClock(START), broker_name="broker-a", on_state=lambda *_: None, on_snapshot=lambda _: None,
    )  # fmt: skip


def later(due_ms, head=b"x", *, queue_id=0, tag=7, kind=1):
    return TimerAppend(1, queue_id, tag, due_ms=due_ms, kind=kind, born_ms=5, head=head, system=b"sys")


async def heads(store, queue_id=0):
    low, high = store.queue_range(1, queue_id)
    if low == high:
        return []
    found = await store.read(1, queue_id, low, count_max=10_000, bytes_max=1 << 24)
    return [message.head for message in found.messages]


def frames(disk):
    data = bytes(disk.files["commitlog/" + "0" * 20].data)
    place, found = 0, []
    while (frame := frame_at(data, place, place)) is not None:
        found.append(frame)
        place += frame.size
    return found


async def test_rd_13_14_a_delayed_message_is_kept_with_its_delivery_time_and_nobody_sees_it():
    disk = FaultDisk()
    store = await opened(disk)
    store.fire_timers()
    timer = later(START + 60_000, b"in a minute", tag=-9)
    await store.append([], timers=[timer])
    assert store.queue_range(1, 0) == (0, 0)
    (frame,) = frames(disk)
    assert (frame.kind, frame.timer) == (TIMER, TimerFields(START + 60_000, -9, 1))
    assert (frame.topic_id, frame.queue_id) == (1, 0)
    assert store.timers.stats.pending == 1
    await store.close()


async def test_rd_17_when_its_time_has_come_it_is_an_ordinary_message_of_its_topic_and_queue():
    clock, disk = FakeClock(START), FaultDisk()
    store = await opened(disk, clock)
    store.fire_timers()
    dispatched = []
    store.on_dispatched = dispatched.extend
    timer = later(START + 1_000, b"a", queue_id=3, tag=-9)
    await store.append([], timers=[timer])
    await clock.advance(999)
    assert dispatched == []
    await clock.advance(1)
    assert dispatched == [(1, 3, 1)]
    (message,) = (await store.read(1, 3, 0, count_max=9, bytes_max=99)).messages
    assert (message.head, message.system, message.tag_hash, message.born_ms) == (b"a", b"sys", -9, 5)
    *_, fired, end = frames(disk)
    assert (fired.kind, end.kind, timer_ids_of(end)) == (MESSAGE, TIMER_END, (timer.log_offset,))
    assert fired.flags & 1, "the message and the timer's end are one group"
    assert store.timers.stats.fired == 1
    await store.close()


@pytest.mark.parametrize("keep", list(Keep))
async def test_rd_18_better_a_crash_at_any_write_never_delivers_twice_nor_loses_a_delayed_message(keep):
    async def workload(disk, acked, clock):
        store = await opened(disk, clock, segment_bytes=4096)
        try:
            store.timers.pending._table_max = 4
            store.fire_timers()
            for number in range(12):
                timers = [later(clock.now_ms() + delay, b"%d.%d" % (number, delay)) for delay in (0, 3, 40, 5_000)]
                await store.append([], timers=timers)
                acked.update(timer.head for timer in timers)
                if number % 4 == 1:
                    for gone in await store.cancel_timers([timers[3].log_offset, 12_345]):
                        assert gone == timers[3].log_offset
                        acked.discard(timers[3].head)
                if number % 3 == 2:
                    await store.save_snapshot(b"state")
                await clock.advance(7)
        finally:
            await store.close()

    async def check(disk, acked, clock, tried):
        store = await opened(disk, clock, segment_bytes=4096)
        store.fire_timers()
        for _ in range(8):
            await clock.advance(1_000)
        found = await heads(store)
        assert len(set(found)) == len(found), "delivered twice"
        assert acked <= set(found) | tried, "lost"
        assert store.timers.stats.pending == 0
        await store.close()

    whole = FaultDisk()
    await workload(whole, set(), FakeClock(START))
    operations = whole.operations
    rng = random.Random(1)
    for number in range(0, operations, 5):
        disk, acked, clock = FaultDisk(), set(), FakeClock(START)
        disk.cut = (number, rng.randint(0, 300))
        tried = set()
        try:
            await workload(disk, acked, clock)
        except Exception:  # noqa: BLE001
            # a cancel that was under way may be in the log although it was not answered
            tried = {head for head in acked if head.endswith(b".5000")}
        await check(disk.crash(keep, rng), acked, FakeClock(clock.now_ms()), tried)


async def test_timers_survive_a_restart_with_and_without_a_snapshot_and_a_damaged_file_of_them():
    disk, clock = FaultDisk(), FakeClock(START)
    timers = [later(START + 10_000 + n, b"%d" % n) for n in range(300)]
    store = await opened(disk, clock)
    store.timers.pending._table_max = 50
    for first in range(0, 300, 20):
        await store.append([], timers=timers[first : first + 20])
        if first == 200:
            await store.save_snapshot(b"")
    assert await store.cancel_timers([timers[5].log_offset, timers[299].log_offset, 3]) == [
        timers[299].log_offset, timers[5].log_offset,
    ]  # fmt: skip
    await store.close()
    damaged = disk.crash(Keep.ALL, random.Random(0))
    runs = [name for name in damaged.files if name.startswith("timers/")]
    assert runs
    damaged.files[runs[0]].data[50] ^= 1
    for found in (disk.crash(Keep.ALL, random.Random(0)), damaged):
        again_at = FakeClock(START)
        again = await opened(found, again_at)
        assert again.timers.stats.pending == 298
        again.fire_timers()
        await again_at.advance(10_000)
        await again_at.advance(400)
        assert await heads(again) == [b"%d" % n for n in range(299) if n != 5]
        await again.close()


async def test_timers_older_than_the_log_that_goes_are_rolled_forward_and_fire_once():
    disk, clock = FaultDisk(), FakeClock(START)
    store = await opened(disk, clock)
    store.timers.pending._table_max = 40
    timers = [later(START + 1_000 + n, b"%d" % n) for n in range(250)]
    for first in range(0, 250, 10):
        await store.append([], timers=timers[first : first + 10])
    bound = store.stats.log_end
    assert store.timers.pinned_before() == 0
    await store.timers.roll_forward(bound)
    assert store.timers.pinned_before() >= bound
    assert store.timers.stats.pending == 250
    store.fire_timers()
    await clock.advance(1_000)
    await clock.advance(300)
    assert await heads(store) == [b"%d" % n for n in range(250)]
    await store.close()


async def test_a_clock_that_jumps_fires_nothing_twice_and_is_noticed_within_200_ms():
    disk, clock = FaultDisk(), FakeClock(START)
    store = await opened(disk, clock)
    store.fire_timers()
    await store.append([], timers=[later(START + 100, b"a"), later(START + 3_600_000, b"b")])
    await clock.advance(100)
    assert await heads(store) == [b"a"]
    clock.jump_wall(-50_000)
    await clock.advance(1_000)
    assert await heads(store) == [b"a"]
    clock.jump_wall(3_700_000)
    await clock.advance(200)
    assert await heads(store) == [b"a", b"b"]
    await store.close()


async def test_a_full_disk_puts_firing_off_and_loses_nothing():
    disk, clock = FaultDisk(), FakeClock(START)
    store = await opened(disk, clock)
    store.fire_timers()
    await store.append([], timers=[later(START + n, b"%d" % n) for n in range(5)])
    disk.bytes_max = disk.bytes_used
    await clock.advance(500)
    assert await heads(store) in ([], [b"0"])
    disk.bytes_max = 1 << 30
    await clock.advance(2_000)
    assert await heads(store) == [b"%d" % n for n in range(5)]
    assert store.timers.stats.retries > 0
    await store.close()


async def test_the_owner_may_renew_or_drop_a_due_timer_and_a_failing_owner_loses_none():
    disk, clock = FaultDisk(), FakeClock(START)
    store = await opened(disk, clock)
    asked = []

    def on_due(timers):
        asked.append([timer.head for timer in timers])
        if len(asked) <= 3:
            raise RuntimeError("not yet")
        return [
            None if timer.kind == 3
            else later(clock.now_ms() + 50, timer.head, kind=4) if timer.kind == 2
            else Append(timer.topic_id, 1, 0, 0, timer.head, b"")
            for timer in timers
        ]  # fmt: skip

    store.fire_timers(on_due)
    await store.append([], timers=[later(START, b"check", kind=2), later(START, b"drop", kind=3)])
    await clock.advance(9_000)
    assert asked == [[b"check", b"drop"], [b"check"], [b"drop"]]
    assert store.timers.stats.aside == 2
    assert store.timers.stats.pending == 2
    await clock.advance(2_000)
    assert await heads(store, 1) == [b"check"]
    assert store.timers.stats.pending == 0
    await store.close()


async def test_an_earlier_timer_wakes_the_one_who_sleeps_for_a_later_one():
    clock = FakeClock(START)
    store = await opened(FaultDisk(), clock)
    store.fire_timers()
    await store.append([], timers=[later(START + 150, b"late")])
    await clock.advance(10)
    await store.append([], timers=[later(START + 20, b"early")])
    await clock.advance(10)
    assert await heads(store) == [b"early"]
    await store.close()


async def test_with_a_real_clock_and_disk_a_timer_fires_within_a_generous_bound(tmp_path):
    clock = SystemClock()
    store = await MessageStore.open(
        tmp_path, StoreOptions(disk_free_min_bytes=0, disk_used_max_ratio=1.0), clock=clock, broker_name="a",
        on_state=lambda *_: None, on_snapshot=lambda _: None,
    )  # fmt: skip
    fired = asyncio.get_running_loop().create_future()
    store.on_dispatched = lambda _: fired.set_result(clock.now_ms())
    store.fire_timers()
    due_ms = clock.now_ms() + 60
    await store.append([], timers=[later(due_ms)])
    at_ms = await asyncio.wait_for(fired, 60)
    assert due_ms <= at_ms <= due_ms + 30_000
    await store.close()
