"""Room for threads and for tasks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from evenq.client.loops.sending.gates import TaskGate, ThreadGate
from evenq.errors import TooManyRequests


def test_a_thread_waits_for_room_and_an_oversized_message_goes_alone() -> None:
    gate = ThreadGate(messages_max=2, bytes_max=10)
    gate.enter(100)
    entered = threading.Event()

    def enter() -> None:
        gate.enter(1)
        entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.05)
    gate.leave(1, 100)
    assert entered.wait(60)
    thread.join()
    assert not gate.wait_empty(1)
    gate.leave(1, 1)
    assert gate.wait_empty(1)


async def test_a_block_enters_as_a_whole_or_not_at_all() -> None:
    gate = ThreadGate(messages_max=4, bytes_max=10, block_ms=0)
    gate.enter(1, 2)
    with pytest.raises(TooManyRequests, match="2 messages of 1 bytes"):
        gate.enter(1, 3)
    gate.enter(9, 2)
    assert gate.messages == 4
    gate = TaskGate(messages_max=4, bytes_max=10, block_ms=0)
    await gate.enter(1, 2)
    for size, count in ((1, 3), (10, 1)):
        with pytest.raises(TooManyRequests, match="2 messages of 1 bytes"):
            await gate.enter(size, count)
    await gate.enter(9, 2)
    assert gate.messages == 4


async def test_tasks_wait_for_room_in_turn() -> None:
    gate = TaskGate(messages_max=1, bytes_max=10)
    await gate.enter(1)
    order: list[int] = []

    async def enter(number: int) -> None:
        await gate.enter(1)
        order.append(number)

    waiting = [asyncio.ensure_future(enter(number)) for number in range(3)]
    for _ in waiting:
        await asyncio.sleep(0)
        assert len(order) < 3
        gate.leave(1, 1)
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2]


async def test_all_tasks_that_fit_go_on_when_there_is_room() -> None:
    """A large message that still has no room must not hold back those behind it."""
    gate = TaskGate(messages_max=10, bytes_max=10)
    await gate.enter(1)
    await gate.enter(9)
    waiting = [asyncio.ensure_future(gate.enter(size)) for size in (10, 1, 1)]
    await asyncio.sleep(0)
    gate.leave(1, 9)
    for _ in range(3):
        await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [False, True, True]
    gate.leave(3, 3)
    await asyncio.gather(*waiting)


@pytest.mark.parametrize("block_ms", [0, 20])
async def test_without_room_within_the_time_a_sender_is_told(block_ms: int) -> None:
    gate = ThreadGate(messages_max=1, bytes_max=10, block_ms=block_ms)
    gate.enter(1)
    with pytest.raises(TooManyRequests, match="block_ms"):
        gate.enter(1)
    gate = TaskGate(messages_max=1, bytes_max=10, block_ms=block_ms)
    await gate.enter(1)
    with pytest.raises(TooManyRequests, match="block_ms"):
        await gate.enter(1)
    gate.leave(1, 1)
    await gate.enter(1)
