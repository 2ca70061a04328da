"""The loop's time under a crowd: who reads how much between two looks at the sockets, and in which order."""

import asyncio
from typing import Any

from evenq.runtime.clock import SystemClock
from evenq.serving.http2.limits import Http2Limits
from evenq.serving.http2.turns import ROUND, ROUND_MS, SMALL, WAKES_MAX, Turns

TURN = 10
FULL = ROUND * TURN


class Loop:
    """Keeps what is to be called in the next turn."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.now_ms = 0
        self.rests = 0

    def call_soon(self, call: Any) -> None:
        self.calls.append(call)

    def rest(self) -> None:
        self.rests += 1

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Backlog:
    """A connection with this number of frames that wait."""

    def __init__(self, turns: Turns, frames: int, log: list[tuple[str, int]], name: str) -> None:
        self.turns = turns
        self.frames = frames
        self.log = log
        self.name = name
        self.takes_ms = 0

    def go_on(self, frames: int) -> None:
        read = min(frames, self.frames)
        self.frames -= read
        self.log.append((self.name, read))
        self.turns.spend(read, self.takes_ms)
        if self.frames:
            self.turns.wait(self)


def made() -> tuple[Turns, Any]:
    loop: Any = Loop()
    return Turns(Http2Limits(frames_per_turn=TURN), loop, lambda: loop.now_ms, loop.rest), loop


def crowd(turns: Turns, count: int, frames: int) -> tuple[list[Backlog], list[tuple[str, int]]]:
    log: list[tuple[str, int]] = []
    waiting = [Backlog(turns, frames, log, str(number)) for number in range(count)]
    for one in waiting:
        turns.wait(one)
    return waiting, log


def test_a_connection_alone_has_full_turns() -> None:
    turns, loop = made()
    for _ in range(100):
        assert turns.share() == TURN
        turns.spend(2, 0)
        loop.turn()


def test_when_much_was_read_shares_are_small_and_then_nothing_until_the_loop_has_looked() -> None:
    turns, loop = made()
    turns.spend(FULL, 0)
    assert turns.share() == SMALL
    turns.spend(FULL, 0)
    assert turns.share() == 0
    loop.turn()
    assert turns.share() == TURN
    assert loop.calls == []


def test_a_crowd_reads_a_bounded_number_of_frames_between_two_looks() -> None:
    turns, loop = made()
    waiting, log = crowd(turns, count=500, frames=40)
    while any(one.frames for one in waiting):
        assert loop.calls, "connections wait and are not called"
        before = sum(read for _, read in log)
        loop.turn()
        assert 0 < sum(read for _, read in log) - before < FULL + TURN
        assert len(loop.calls) <= 1
    assert sum(read for _, read in log) == 500 * 40


def test_handlers_that_take_long_end_a_round_however_few_their_frames() -> None:
    turns, loop = made()
    waiting, log = crowd(turns, count=100, frames=SMALL)
    for one in waiting:
        one.takes_ms = 1
    loop.turn()
    assert len(log) == ROUND_MS, "a round has that number of milliseconds"
    turns.spend(1, ROUND_MS)
    assert turns.share() == SMALL, "who has a call or two reads them all the same"
    turns.spend(1, 10_000)
    assert turns.share() == 0
    loop.turn()
    assert len(log) == 2 * ROUND_MS, "one turn that took very long is paid for once"


class Waiter:
    """A handler that takes 1 ms when its message has come."""

    def __init__(self, loop: Any, log: list[Any]) -> None:
        self.loop = loop
        self.log = log
        self.over = False

    def done(self) -> bool:
        return self.over

    def set_result(self, _result: None) -> None:
        assert not self.over
        self.over = True
        self.loop.call_soon(self._step)

    def _step(self) -> None:
        self.loop.now_ms += 1
        self.log.append(self)


def test_handlers_that_take_long_are_woken_a_few_at_a_time_and_each_once_in_order() -> None:
    turns, loop = made()
    log: list[Any] = []
    waiters: list[Any] = [Waiter(loop, log) for _ in range(500)]
    for one in waiters:
        turns.wake(one)
    turns.wake(waiters[400])  # another message for one that waits still
    waiters[450].over = True  # its call was cancelled
    longest = []
    while loop.calls:
        before = len(log)
        loop.turn()
        longest.append(len(log) - before)
    assert log == [one for one in waiters if one is not waiters[450]]
    assert longest[0] == WAKES_MAX, "few handlers are woken at once"
    assert max(longest[-100:]) <= 2 * ROUND_MS
    one = Waiter(loop, log)
    turns.wake(one)  # type: ignore[arg-type]  # as much of a future as is used
    assert one.over, "no connection waits for nothing"
    while loop.calls:
        loop.turn()


def test_the_queue_goes_round() -> None:
    turns, loop = made()
    waiting, log = crowd(turns, count=100, frames=12)
    while any(one.frames for one in waiting):
        loop.turn()
        left = [one.frames for one in waiting]
        assert max(left) - min(left) <= SMALL
    order = [name for name, _ in log]
    assert order[:100] == [str(number) for number in range(100)]
    assert order[100:200] == order[:100]


def test_a_new_call_does_not_wait_behind_a_crowd() -> None:
    turns, loop = made()
    crowd(turns, count=500, frames=1_000)
    for _ in range(20):
        loop.turn()
        assert turns.share() == SMALL, "enough for a call or two, at once"
        turns.spend(2, 0)


def test_threads_may_run_after_each_round_that_leaves_somebody_waiting() -> None:
    turns, loop = made()
    for _ in range(10):
        turns.spend(FULL, 0)
        loop.turn()
    assert not loop.rests, "nothing waits, so the loop rests by itself"
    waiting, _ = crowd(turns, count=100, frames=SMALL)
    rounds = 0
    while any(one.frames for one in waiting):
        loop.turn()
        rounds += 1
    assert loop.rests == rounds - 1 > 1


def test_few_that_wait_have_full_turns() -> None:
    turns, loop = made()
    _, log = crowd(turns, count=3, frames=100)
    loop.turn()
    assert {read for _, read in log} == {TURN}


async def test_the_real_loop_goes_on_until_nobody_waits() -> None:
    turns = Turns(Http2Limits(frames_per_turn=TURN), asyncio.get_running_loop(), SystemClock().monotonic_ms)
    waiting, _ = crowd(turns, count=50, frames=30)
    async with asyncio.timeout(60):
        while any(one.frames for one in waiting):
            await SystemClock().sleep_ms(0)
