"""The fake clock wakes each sleeper at its own time; the real one never goes back."""

import asyncio

from evenq.runtime.clock import FakeClock, SystemClock


def test_sleepers_wake_in_the_order_of_their_times_and_see_them():
    async def story():
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

    asyncio.run(story())


def test_a_sleeper_that_sleeps_again_wakes_within_the_same_advance():
    async def story():
        clock, beats = FakeClock(), []

        async def beat():
            while True:
                await clock.sleep_ms(10)
                beats.append(clock.monotonic_ms())

        task = asyncio.ensure_future(beat())
        await clock.advance(35)
        assert beats == [10, 20, 30]
        task.cancel()

    asyncio.run(story())


def test_the_wall_may_jump_while_no_time_passes():
    clock = FakeClock(now_ms=5_000)
    clock.jump_wall(-3_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (2_000, 0)


def test_a_cancelled_sleeper_disturbs_nobody():
    async def story():
        clock = FakeClock()
        gone, other = (asyncio.ensure_future(clock.sleep_ms(10)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await clock.advance(10)
        assert other.done()
        assert gone.cancelled()

    asyncio.run(story())


def test_the_systems_clock_sleeps_at_least_as_long_as_told():
    async def story():
        clock = SystemClock()
        before = clock.monotonic_ms()
        await clock.sleep_ms(20)
        assert clock.monotonic_ms() - before >= 19  # both are cut to whole ms
        await clock.sleep_ms(-5)
        assert clock.now_ms() > 1_600_000_000_000

    asyncio.run(story())
