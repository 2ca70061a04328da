"""The fake clock wakes each sleeper at its own time; the real one never goes back."""

import asyncio
import time

import pytest

from evenq.runtime.clock import STEPS_AT_ONCE, FakeClock, SystemClock


async def test_sleepers_wake_in_the_order_of_their_times_and_see_them():
    clock, seen = FakeClock(now_ms=1_000), []

    async def sleeper(duration_ms):
        await clock.sleep_ms(duration_ms)
        seen.append((duration_ms, clock.monotonic_ms(), clock.now_ms()))

    tasks = [asyncio.ensure_future(sleeper(duration_ms)) for duration_ms in (30, 10, 20, 40)]
    await clock.advance(30)
    assert seen == [(10, 10, 1_010), (20, 20, 1_020), (30, 30, 1_030)]
    assert not tasks[3].done()
    await clock.advance(10)
    assert tasks[3].done()


async def test_a_sleeper_that_sleeps_again_wakes_within_the_same_advance():
    clock, beats = FakeClock(), []

    async def beat():
        while True:
            await clock.sleep_ms(10)
            beats.append(clock.monotonic_ms())

    task = asyncio.ensure_future(beat())
    await clock.advance(35)
    assert beats == [10, 20, 30]
    task.cancel()


async def test_time_passes_until_a_state_holds_and_no_longer():
    clock = FakeClock()
    await clock.until(lambda: clock.monotonic_ms() >= 12)
    assert clock.monotonic_ms() == 15
    await clock.until(lambda: clock.monotonic_ms() >= 100, step_ms=50)
    assert clock.monotonic_ms() == 115
    await clock.until(lambda: True)
    assert clock.monotonic_ms() == 115


async def test_a_state_that_does_not_come_is_an_error_after_its_limit():
    clock = FakeClock()
    with pytest.raises(AssertionError, match="within 40 ms"):
        await clock.until(lambda: False, limit_ms=40)
    assert clock.monotonic_ms() == 40
    await clock.until(lambda: clock.monotonic_ms() == 45, limit_ms=5)


async def test_time_passes_during_work_and_its_result_or_error_comes_out():
    clock = FakeClock()

    async def work(error):
        await clock.sleep_ms(12)
        if error:
            raise KeyError("told")
        return 7

    assert await clock.during(work(error=False)) == 7
    assert clock.monotonic_ms() == 15
    with pytest.raises(KeyError, match="told"):
        await clock.during(work(error=True), step_ms=1)
    assert clock.monotonic_ms() == 27


async def test_work_ends_with_whoever_waits_for_it():
    clock, ended = FakeClock(), []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    waiting = asyncio.ensure_future(clock.during(work()))
    await clock.advance(20)
    waiting.cancel()
    await clock.advance(0)
    assert ended


def test_the_wall_may_jump_while_no_time_passes():
    clock = FakeClock(now_ms=5_000)
    clock.jump_wall(-3_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (2_000, 0)


async def test_a_cancelled_sleeper_disturbs_nobody():
    clock = FakeClock()
    gone, other = (asyncio.ensure_future(clock.sleep_ms(10)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await clock.advance(10)
    assert other.done()
    assert gone.cancelled()


async def test_the_systems_clock_sleeps_at_least_as_long_as_told():
    clock = SystemClock()
    before = clock.monotonic_ms()
    await clock.sleep_ms(20)
    assert clock.monotonic_ms() - before >= 19  # both are cut to whole ms
    await clock.sleep_ms(-5)
    assert clock.now_ms() > 1_600_000_000_000


async def test_little_time_passes_while_a_thread_waits_for_a_disk() -> None:
    """A second of the machine was minutes of the clock: what was due in ten minutes came before a store was closed."""
    clock = FakeClock()
    await clock.during(asyncio.to_thread(time.sleep, 1.0))
    assert clock.monotonic_ms() < 5 * (STEPS_AT_ONCE + 1_500)
