"""The store takes snapshots by itself, so that a start reads a bounded part of the log."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest
from evenq_proofs.fault_disk import FaultDisk, Keep

from evenq.errors import StoreFull
from evenq.store.log import snapshot


class Owner:
    """Counts the state records; its state is that count."""

    def __init__(self):
        self.count = 0
        self.asked = 0

    def state(self):
        self.asked += 1
        return b"%d" % self.count


class Timers:
    """A timer store that says when it was frozen."""

    def __init__(self, where):
        self.where = where
        self.frozen = []

    def freeze(self):
        at = self.where()
        return lambda: b"timers at %d" % at

    def pinned_before(self):
        return None

    async def roll_forward(self, log_offset):
        raise AssertionError


@pytest.mark.parametrize("bound", [{"snapshot_log_bytes": 8_000}, {"snapshot_records": 50}])
async def test_a_start_reads_no_more_than_the_log_since_the_last_automatic_snapshot(open_store, message, bound):
    disk, owner = FaultDisk(), Owner()
    opened = await open_store(disk, snapshot_of=owner.state, **bound)
    for number in range(400):
        await opened.store.append([message(b"%d" % number + b"." * 80)])
        await opened.store.append_state(b"s%d" % number)
        owner.count += 1
        if number % 10 == 9:
            await opened.clock.advance(500)
    image = disk.crash(Keep.ALL, random.Random(0))
    disk.dead = False
    assert opened.store.stats.snapshots > 5
    assert len(image.list("snapshot")) == 2
    again = await open_store(image)
    assert int(again.snapshots[0]) + len(again.states) == 400
    assert again.store.stats.recovered_records < 100
    assert len(await again.contents()) == 400
    await again.store.close()
    await opened.store.close()


@pytest.mark.parametrize(("takes_ms", "snapshots"), [(0, 12), (300, 2)])
async def test_snapshots_are_taken_early_while_they_take_little_of_the_time(open_store, message, takes_ms, snapshots):
    """300 records in 12 s, at most 300 between two: one a second, when a twentieth came, or, at 300 ms each, after 6 s."""
    opened = await open_store(
        FaultDisk(), snapshot_of=lambda: opened.clock.spend(takes_ms) or b"", snapshot_records=300
    )
    assert opened.store.stats.snapshots == 0
    begun_ms = opened.clock.monotonic_ms()
    for number in range(300):
        await opened.store.append([message(b"%d" % number)])
        await opened.clock.advance(40)
    assert opened.store.stats.snapshots == snapshots
    assert opened.clock.monotonic_ms() - begun_ms >= 12_000
    await opened.store.close()


async def test_no_more_than_so_many_records_lie_behind_a_snapshot_however_long_it_takes(open_store, message):
    opened = await open_store(FaultDisk(), snapshot_of=lambda: opened.clock.spend(60_000) or b"", snapshot_records=300)
    for number in range(1_000):
        await opened.store.append([message(b"%d" % number)])
        await opened.clock.advance(20)
    assert opened.store.stats.snapshots == 4
    await opened.store.close()


async def test_records_that_a_start_read_count_for_the_next_one(open_store, message):
    """Else starts that each append little would read more and more."""
    disk, read = FaultDisk(), []
    for _ in range(12):
        opened = await open_store(disk, snapshot_of=lambda: b"", snapshot_records=300)
        read.append(opened.store.stats.recovered_records)
        await opened.store.append([message(b"%d" % number) for number in range(9)])
        await opened.clock.advance(2_000)
        disk = disk.crash(Keep.ALL, random.Random(0))
    assert max(read) <= 15 + 9
    assert len(set(read)) < 6, "it does not grow"


async def test_one_is_taken_after_the_interval_only_if_anything_is_new(open_store, message):
    owner = Owner()
    opened = await open_store(FaultDisk(), snapshot_of=owner.state, snapshot_interval_ms=60_000)
    await opened.clock.advance(200_000)
    assert owner.asked == 0
    await opened.store.append([message()])
    await opened.clock.advance(60_000)
    assert owner.asked == 1
    await opened.clock.advance(200_000)
    assert owner.asked == 1
    await opened.store.close()


async def test_all_sections_are_of_one_moment_even_while_appends_go_on(open_store, message):
    disk = FaultDisk()
    opened = await open_store(disk)
    opened.store._snapshotter.timers = Timers(lambda: opened.store.stats.log_end)
    await opened.store.append([message(queue_id=3), message(queue_id=5)])
    end = opened.store.stats.log_end
    saving = asyncio.ensure_future(opened.store.save_snapshot(b"owner"))
    await asyncio.sleep(0)
    await opened.store.append([message(queue_id=3)])
    await saving
    saved = snapshot.load(disk, log_start=0)
    assert saved.log_offset == end
    assert saved.queues == {(1, 3): (0, 1), (1, 5): (0, 1)}
    assert (saved.payload, saved.timers) == (b"owner", b"timers at %d" % end)
    await opened.store.close()


async def test_a_full_disk_puts_a_snapshot_off_and_poisons_nothing(open_store, message):
    disk, owner = FaultDisk(), Owner()
    opened = await open_store(disk, snapshot_of=owner.state, snapshot_interval_ms=1_000, disk_used_max_ratio=1.0)
    await opened.store.append([message()])
    disk.bytes_max = disk.bytes_used + 10
    await opened.clock.advance(2_000)
    assert opened.store.stats.snapshots == 0
    with pytest.raises(StoreFull, match="no snapshot now: no space left"):
        await opened.store.save_snapshot(b"x")
    disk.bytes_max += 1 << 20
    await opened.clock.advance(2_000)
    assert opened.store.stats.snapshots == 1
    await opened.store.close()


async def test_a_change_whose_record_is_refused_gets_into_no_snapshot(open_store):
    disk = FaultDisk()
    opened = await open_store(disk)
    disk.faults_of["write"] = errno.ENOSPC
    appended = opened.store.append_state(b"change")
    with pytest.raises(StoreFull):
        await opened.store.save_snapshot(b"with the change")
    with pytest.raises(StoreFull):
        await appended
    disk.faults_of.clear()
    await opened.store.close()
    again = await open_store(disk)
    assert (again.snapshots, again.states) == ([], [])
    await again.store.close()


async def test_a_change_whose_record_is_not_safe_yet_is_in_the_snapshot_and_is_told_again(open_store):
    disk = FaultDisk()
    opened = await open_store(disk)
    await opened.store.append_state(b"first")
    appended = opened.store.append_state(b"second")
    await opened.store.save_snapshot(b"first and second")
    await appended
    await opened.store.close()
    again = await open_store(disk)
    assert (again.snapshots, again.states) == ([b"first and second"], [b"second"])
    await again.store.close()
