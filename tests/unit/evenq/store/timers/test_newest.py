"""The newest pending timers come first, wherever they lie, and who stops early reads little."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from evenq.store.timers import runs
from evenq.store.timers.loading import TimerLoader
from evenq.store.timers.newest import NewestJob


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
