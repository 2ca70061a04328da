"""The timers that are due next come first, wherever they lie, and a run is read only as far as needed."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from evenq.store.timers import soonest as module


async def soonest(keeper, count_max=1_000, batch=16):
    async with aclosing(keeper.soonest(count_max, batch=batch)) as timers:
        return [timer.log_offset async for timer in timers]


async def written(context):
    for _ in range(40):
        await context.clock.advance(1)


@pytest.mark.parametrize("step", [7, -7])
async def test_the_next_ones_come_first_from_memory_and_all_runs(make_ground, step):
    context = make_ground(runs_max=8)
    ids = []
    for number in range(60):
        ids += await context.put(50_000 + step * number)
    await written(context)
    assert context.keeper.stats.runs > 1
    ended = {ids[3], ids[20], ids[59]}
    await context.keeper.cancel(ended)
    expected = [one for one in ids[:: 1 if step > 0 else -1] if one not in ended]
    for batch in (1, 16):
        assert await soonest(context.keeper, batch=batch) == expected
    assert await soonest(context.keeper, 5) == expected[:5]
    await context.keeper.close()


async def test_of_a_run_only_the_wanted_number_is_read(make_ground, monkeypatch):
    context = make_ground()
    ids = await context.put(*range(50_000, 50_058))
    await written(context)
    pieces, read = module.pieces, []

    def counted(*given):
        for keys in pieces(*given):
            for key in keys:  # pieces of a long run, as it were
                read.append(1)
                yield [key]

    monkeypatch.setattr(module, "pieces", counted)
    assert await soonest(context.keeper, 2) == ids[:2]
    assert 0 < len(read) <= 2 * context.keeper.stats.runs
    assert await soonest(context.keeper) == ids
    await context.keeper.close()
