"""Virtual time passes without waiting; processes are paused and killed one by one."""

import asyncio
from collections.abc import Iterator

import pytest
from evenq_proofs.sim.loop import ProcessClock, SimProcess, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.finish()


async def ticks(clock: ProcessClock, given: list[int], loop: VirtualLoop) -> None:
    while True:
        await clock.sleep_ms(100)
        given.append(round(loop.now_ms))


def test_an_hour_passes_at_once_and_wakes_everybody_in_order(loop: VirtualLoop) -> None:
    clock, result = ProcessClock(loop), []

    async def sleeper(ms: int) -> None:
        await clock.sleep_ms(ms)
        result.append((ms, clock.monotonic_ms()))

    async def everybody() -> None:
        await asyncio.gather(sleeper(3_600_000), sleeper(5), sleeper(0))

    loop.run_until_complete(everybody())
    assert result == [(0, 0), (5, 5), (3_600_000, 3_600_000)]


def test_a_paused_process_goes_on_where_it_was_and_a_killed_one_never_does(loop: VirtualLoop) -> None:
    world, paused, killed = ProcessClock(loop), [], []
    one, other = SimProcess("one", loop), SimProcess("other", loop)
    one.spawn(ticks(ProcessClock(loop), paused, loop), name="one")
    other.spawn(ticks(ProcessClock(loop), killed, loop), name="other")

    async def play() -> None:
        await world.sleep_ms(150)
        one.pause()
        other.kill()
        await world.sleep_ms(400)
        one.resume()
        await world.sleep_ms(150)

    loop.run_until_complete(play())
    assert paused == [100, 550, 650]
    assert killed == [100]


def test_a_process_may_be_killed_by_a_callback_of_a_turn_that_was_to_run_its_own_last(loop: VirtualLoop) -> None:
    killed, ran = SimProcess("killed", loop), list[str]()
    loop.call_soon(killed.kill)
    for _ in range(3):
        loop.call_soon(ran.append, "a dead process ran", context=killed.context)
    loop.run_until_complete(ProcessClock(loop).sleep_ms(10))
    assert ran == []


def test_a_clock_may_be_wrong_and_run_fast(loop: VirtualLoop) -> None:
    right, fast = ProcessClock(loop), ProcessClock(loop, skew_ms=5_000, rate=2.0)
    loop.run_until_complete(fast.sleep_ms(1_000))
    assert (right.monotonic_ms(), fast.monotonic_ms()) == (500, 1_000)
    assert fast.now_ms() - right.now_ms() == 5_500


def test_a_thread_is_refused_and_a_world_where_nobody_waits_is_stuck(loop: VirtualLoop) -> None:
    with pytest.raises(RuntimeError, match="wants a thread"):
        loop.run_in_executor(None, print)
    with pytest.raises(RuntimeError, match="stuck"):
        loop.run_until_complete(loop.create_future())
