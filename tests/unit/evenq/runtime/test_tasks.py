"""A loop that goes on after errors of the network and ends with a mistake of ours."""

import asyncio
import itertools
import random

import pytest

from evenq.errors import ConnectionFailed
from evenq.runtime.clock import FakeClock
from evenq.runtime.tasks import forever, spawn


def test_each_failure_waits_longer_and_a_success_starts_over():
    async def story():
        clock, starts = FakeClock(), []
        outcomes = iter([False, False, False, True, False])

        async def once():
            starts.append(clock.monotonic_ms())
            good = next(outcomes, None)
            if good is None:
                await asyncio.Event().wait()
            if not good:
                raise ConnectionFailed("no server answers")

        loop = spawn(forever("work", once, clock=clock, rng=random.Random(1)), name="loop")
        await clock.advance(5_000)
        gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
        assert gaps[0] < gaps[1] < gaps[2]
        assert gaps[3] == 0, "a success is repeated at once"
        assert gaps[4] <= 120, "and the next failure waits as briefly as the first"
        loop.cancel()

    asyncio.run(story())


def test_a_mistake_of_ours_ends_the_loop():
    async def story():
        async def once():
            raise ValueError("a mistake")

        with pytest.raises(ValueError, match="a mistake"):
            await forever("work", once, clock=FakeClock(), rng=random.Random(1))

    asyncio.run(story())


def test_a_task_has_the_name_it_was_given():
    async def story():
        task = spawn(asyncio.sleep(0), name="a name")
        assert task.get_name() == "a name"
        await task

    asyncio.run(story())
