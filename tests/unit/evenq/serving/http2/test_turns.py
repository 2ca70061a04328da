"""The loop's time under a crowd: who reads how much between two looks at the sockets, and in which order."""

import asyncio
from typing import Any

from evenq.runtime.clock import SystemClock
from evenq.serving.http2.limits import Limits
from evenq.serving.http2.turns import ROUND, SMALL, Turns

TURN = 10
FULL = ROUND * TURN


class Loop:
    """Keeps what is to be called in the next turn."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def call_soon(self, call: Any) -> None:
        self.calls.append(call)

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Backlog:
    """A connection with so many frames that wait."""

    def __init__(self, turns: Turns, frames: int, log: list[tuple[str, int]], name: str) -> None:
        self.turns = turns
        self.frames = frames
        self.log = log
        self.name = name

    def go_on(self, frames: int) -> None:
        read = min(frames, self.frames)
        self.frames -= read
        self.log.append((self.name, read))
        self.turns.spend(read)
        if self.frames:
            self.turns.wait(self)  # type: ignore[arg-type]  # as much of a connection as is used


def made() -> tuple[Turns, Any]:
    loop: Any = Loop()
    return Turns(Limits(frames_per_turn=TURN), loop), loop


def crowd(turns: Turns, count: int, frames: int) -> tuple[list[Backlog], list[tuple[str, int]]]:
    log: list[tuple[str, int]] = []
    waiting = [Backlog(turns, frames, log, str(number)) for number in range(count)]
    for one in waiting:
        turns.wait(one)  # type: ignore[arg-type]
    return waiting, log


def test_a_connection_alone_has_full_turns() -> None:
    turns, loop = made()
    for _ in range(100):
        assert turns.share() == TURN
        turns.spend(2)
        loop.turn()


def test_when_much_was_read_shares_are_small_and_then_nothing_until_the_loop_has_looked() -> None:
    turns, loop = made()
    turns.spend(FULL)
    assert turns.share() == SMALL
    turns.spend(FULL)
    assert turns.share() == 0
    loop.turn()
    assert turns.share() == TURN
    assert loop.calls == []


def test_a_crowd_reads_a_bounded_number_of_frames_between_two_looks() -> None:
    turns, loop = made()
    waiting, log = crowd(turns, count=500, frames=40)
    while any(one.frames for one in waiting):
        assert loop.calls, "connections wait and nobody calls them"
        before = sum(read for _, read in log)
        loop.turn()
        assert 0 < sum(read for _, read in log) - before < FULL + TURN
        assert len(loop.calls) <= 1
    assert sum(read for _, read in log) == 500 * 40


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
        turns.spend(2)


def test_few_that_wait_have_full_turns() -> None:
    turns, loop = made()
    _, log = crowd(turns, count=3, frames=100)
    loop.turn()
    assert {read for _, read in log} == {TURN}


def test_the_real_loop_goes_on_until_nobody_waits() -> None:
    async def story() -> None:
        turns = Turns(Limits(frames_per_turn=TURN), asyncio.get_running_loop())
        waiting, _ = crowd(turns, count=50, frames=30)
        async with asyncio.timeout(20):
            while any(one.frames for one in waiting):
                await SystemClock().sleep_ms(0)

    asyncio.run(story())
