"""The keeper carries out disk jobs, holds timers by id, and removes only files that nothing names."""

from __future__ import annotations

import asyncio
import errno
from contextlib import aclosing

import pytest

from evenq.errors import StoreCorrupted, StoreFull, TooManyRequests
from evenq.store.log.snapshot import Snapshot, save
from evenq.store.timers import runs
from evenq.store.timers.keeper import NewestJob, named_by_snapshots
from evenq.store.timers.keys import id_of
from evenq.store.timers.loading import TimerLoader
from evenq.store.timers.manifest import TIMERS_UNKNOWN


async def test_a_full_disk_keeps_timers_in_memory_until_there_is_space(make_ground):
    context = make_ground()
    context.disk.faults_of["write"] = errno.ENOSPC
    await context.put(*range(5_000, 5_100))
    await context.clock.advance(10)
    assert context.keeper.stats.runs == 0
    assert context.keeper.stats.pending == 100
    context.disk.faults_of.clear()
    await context.clock.advance(1_000)
    await context.put(6_000)
    for _ in range(20):
        await context.clock.advance(1)
    assert context.keeper.stats.runs > 0
    assert context.failures == []
    await context.keeper.close()


async def test_any_other_error_stops_the_store(make_ground):
    context = make_ground()
    context.disk.faults_of["write"] = errno.EIO
    await context.put(*range(5_000, 5_020))
    await context.clock.advance(10)
    assert "writing a file of timers failed" in context.failures[0]
    await context.keeper.close()


async def test_cancelling_twice_or_what_never_was_changes_nothing(make_ground):
    context = make_ground()
    ids = await context.put(*range(5_000, 5_050))
    for _ in range(20):
        await context.clock.advance(1)
    assert context.keeper.stats.runs > 0
    assert set(await context.keeper.cancel([ids[0], ids[49], ids[0], 7])) == {ids[0], ids[49]}
    assert await context.keeper.cancel([ids[0], ids[49]]) == []
    assert context.keeper.stats.pending == 48
    await context.keeper.close()


async def test_a_cancel_that_fails_leaves_the_timer_pending(make_ground):
    context = make_ground()
    (timer_id,) = await context.put(5_000)
    context.fail = OSError("no")
    with pytest.raises(OSError, match="no"):
        await context.keeper.cancel([timer_id])
    await context.clock.advance(0)
    assert [id_of(key) for key in context.keeper.pending.due(5_000, 9)] == [timer_id]
    await context.keeper.close()


async def test_a_timer_that_is_being_fired_cannot_be_cancelled(make_ground):
    context = make_ground()
    (timer_id,) = await context.put(5_000)
    context.keeper.pending.due(5_000, 1)
    assert await context.keeper.cancel([timer_id]) == []
    await context.keeper.close()


async def test_only_files_that_no_snapshot_and_no_frozen_state_names_are_removed(make_ground):
    context = make_ground()
    for first in range(5_000, 5_200, 10):
        await context.put(*range(first, first + 10))
        for _ in range(5):
            await context.clock.advance(1)
        if first % 40 == 0:
            save(context.disk, Snapshot(first, b"", timers=context.keeper.freeze()()))
            for _ in range(5):
                await context.clock.advance(1)
        assert named_by_snapshots(context.disk) <= set(runs.numbers(context.disk))
    for number in range(3):
        save(context.disk, Snapshot(9_000 + number, b"", timers=context.keeper.freeze()()))
        for _ in range(5):
            await context.clock.advance(1)
    used = {file.number for file, _ in context.keeper.pending.used_runs()}
    assert set(runs.numbers(context.disk)) == used
    await context.keeper.close()


async def unneeded_files(context):
    """Puts timers, and takes two snapshots whose manifests no longer name the files that were merged meanwhile."""
    for first in range(5_000, 5_100, 10):
        await context.put(*range(first, first + 10))
        for _ in range(5):
            await context.clock.advance(1)
    for number in range(2):
        save(context.disk, Snapshot(9_000 + number, b"", timers=context.keeper.freeze()()))
    for _ in range(5):
        await context.clock.advance(1)
    used = {file.number for file, _ in context.keeper.pending.used_runs()}
    gone = max(used) + 1
    context.disk.open(runs.path_of(gone), create=True).close()
    context.keeper.keep_until_unnamed([gone])
    return used, gone


async def test_a_snapshot_of_another_copy_needs_no_files(make_ground):
    """A start from it reads the timers from the log."""
    context = make_ground()
    used, _ = await unneeded_files(context)
    save(context.disk, Snapshot(9_002, b"", timers=TIMERS_UNKNOWN))
    assert named_by_snapshots(context.disk) == used
    context.keeper.freeze()
    for _ in range(5):
        await context.clock.advance(1)
    assert set(runs.numbers(context.disk)) == used
    await context.keeper.close()


async def test_files_stay_while_a_snapshot_cannot_be_read(make_ground, caplog):
    context = make_ground()
    used, gone = await unneeded_files(context)
    save(context.disk, Snapshot(9_002, b"", timers=b"of a newer program, or damaged before it was saved"))
    context.keeper.freeze()
    for _ in range(5):
        await context.clock.advance(1)
    assert set(runs.numbers(context.disk)) == used | {gone}
    assert "old files of timers are kept" in caplog.text
    assert context.failures == []
    assert context.keeper._removing is None
    for number in range(2):  # it is not one of the two newest any more
        save(context.disk, Snapshot(9_010 + number, b"", timers=context.keeper.freeze()()))
    context.keeper.freeze()
    for _ in range(5):
        await context.clock.advance(1)
    assert set(runs.numbers(context.disk)) == used
    await context.keeper.close()


async def test_whoever_asks_hears_of_timers_that_moved_and_their_file_stays_until_it_has_noted_it(make_ground):
    context = make_ground()
    put = await context.put(5_000, 6_000, 7_000)
    noted = asyncio.get_running_loop().create_future()
    heard, called = [], asyncio.Event()

    def on_moved(moved):
        heard.extend((before, timer.log_offset) for before, timer in moved)
        called.set()
        return noted

    context.keeper.on_moved = on_moved
    moving = asyncio.ensure_future(context.keeper.roll_forward(put[2]))
    await called.wait()
    assert sorted(heard) == [(put[0], put[2] + 100), (put[1], put[2] + 200)]
    await asyncio.sleep(0)
    assert not moving.done()
    noted.set_result(None)
    await moving
    assert context.keeper.pinned_before() == put[2]
    await context.keeper.close()


async def test_nobody_hears_of_timers_that_could_not_move(make_ground):
    context = make_ground()
    put = await context.put(5_000, 6_000)
    heard = []
    context.keeper.on_moved = heard.append
    context.fail = StoreFull("no space")
    with pytest.raises(StoreFull):
        await context.keeper.roll_forward(put[1])
    assert heard == []
    assert context.keeper.pinned_before() == put[0]
    await context.keeper.close()


async def test_a_timer_that_another_copy_may_still_repair_is_pending_until_it_can_move(make_ground):
    context = make_ground()
    put = await context.put(5_000, 6_000, 7_000, 8_000)
    damaged, read = {put[1]}, context.keeper._read_timers

    async def reads_some(timer_ids, bytes_max):
        if damaged & set(timer_ids):
            raise StoreCorrupted("damaged, and its repair from another copy continues")
        return await read(timer_ids, bytes_max)

    context.keeper._read_timers = reads_some
    context.keeper.awaits_repair = lambda: True
    context.fail = StoreFull("no space")
    with pytest.raises(StoreFull):
        await context.keeper.roll_forward(put[3])
    await context.clock.advance(0)
    context.fail = None
    with pytest.raises(TooManyRequests, match=f"timer {put[1]} is damaged here and not repaired from another copy yet"):
        await context.keeper.roll_forward(put[3])
    assert context.keeper.stats.pending == 4
    assert context.keeper.stats.damaged == 0
    assert context.keeper.pinned_before() == put[1]
    assert sorted(context.log) == [*put, put[3] + 100, put[3] + 200], "the others have moved"
    damaged.clear()
    await context.keeper.roll_forward(put[3])
    assert context.keeper.stats.pending == 4
    assert context.keeper.pinned_before() == put[3]
    assert context.log[put[3] + 300].due_ms == 6_000
    assert [id_of(key) for key in context.keeper.pending.due(9_000, 9)] == [
        put[3] + 100, put[3] + 300, put[3] + 200, put[3],
    ]  # fmt: skip
    await context.keeper.close()


async def newest(keeper, count_max=1_000, **options):
    found = []
    async with aclosing(keeper.newest(**options)) as timers:
        async for timer in timers:
            found.append(timer.log_offset)
            if len(found) == count_max:
                break
    return found


async def written(context):
    for _ in range(40):
        await context.clock.advance(1)


@pytest.mark.parametrize("step", [7, -7])
async def test_all_that_is_pending_comes_the_last_one_first(make_ground, step):
    """Due times go up or down, so a run's end or its begin has its newest."""
    context = make_ground(runs_max=8)
    ids = []
    for number in range(60):
        ids += await context.put(50_000 + step * number)
    await written(context)
    assert context.keeper.stats.runs > 1
    ended = {ids[3], ids[20], ids[59]}
    await context.keeper.cancel(ended)
    expected = [one for one in reversed(ids) if one not in ended]
    assert await newest(context.keeper) == expected
    assert await newest(context.keeper, batch=1) == expected
    await context.keeper.close()


async def test_a_run_is_read_only_when_all_that_is_newer_was_taken(make_ground, monkeypatch):
    context = make_ground()
    ids = await context.put(*range(50_000, 50_058))
    await written(context)
    looked_at = []
    monkeypatch.setattr(NewestJob, "steps", lambda job, disk: iter(looked_at.append(job) or ()))
    memory = sorted(context.keeper.pending.memory_ids(), reverse=True)
    highest = max(run.highest_id for run, _ in context.keeper.pending.used_runs())
    newer = [one for one in memory if one > highest]
    assert newer
    assert await newest(context.keeper, len(newer)) == newer == ids[: -len(newer) - 1 : -1]
    assert looked_at == []
    await context.keeper.close()


async def test_a_run_that_was_checked_at_a_start_says_its_newest_too(make_ground):
    context = make_ground()
    await context.put(*range(50_000, 50_030))
    await written(context)
    for run, _ in context.keeper.pending.used_runs():
        assert runs.verify(context.disk, run.number) == run
    section = context.keeper.freeze()()
    loaded = TimerLoader(context.disk, section=section, log_offset=context.end, log_start=0)
    assert [run for run, _ in loaded.pending.used_runs()] == [run for run, _ in context.keeper.pending.used_runs()]
    await context.keeper.close()


async def test_of_a_long_run_only_the_newest_are_kept(make_ground):
    context = make_ground(table_max=600)
    ids = await context.put(*range(60_000, 50_000, -10))
    await written(context)
    [(run, used)] = context.keeper.pending.used_runs()
    job = NewestJob(run, used, frozenset(), count_max=5)
    for _ in job.steps(context.disk):
        assert len(job.found) <= 10
    assert set(job.found) >= set(sorted(ids[: run.count])[-5:])
    await context.keeper.close()
