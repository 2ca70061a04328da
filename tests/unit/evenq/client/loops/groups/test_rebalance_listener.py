"""Reports of gained and lost queues, whatever `on_rebalance` does."""

from __future__ import annotations

import asyncio

import pytest

from evenq.client.loops.groups.rebalance_listener import RebalanceListener
from evenq.model import MessageQueue

FIRST, SECOND = (MessageQueue("t", "b", number) for number in range(2))


async def test_a_callback_that_raises_a_cancellation_delays_no_later_report(caplog: pytest.LogCaptureFixture) -> None:
    reports: list[list[MessageQueue]] = []
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def callback(_: list[MessageQueue], lost: list[MessageQueue]) -> None:
        reports.append(lost)
        if len(reports) > 1:
            return
        inside.set()
        await go_on.wait()
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task  # raises CancelledError, although nobody cancelled the callback

    listener = RebalanceListener(callback, group="g")
    first = asyncio.create_task(listener.lost(FIRST))
    await inside.wait()
    second = asyncio.create_task(listener.lost(SECOND))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(asyncio.gather(first, second), 10)
    assert reports == [[FIRST], [SECOND]]
    assert "on_rebalance failed for 0 gained and 1 lost queues" in caplog.text


async def test_a_cancelled_loop_reports_no_failure_of_the_callback(caplog: pytest.LogCaptureFixture) -> None:
    inside = asyncio.Event()

    async def callback(_: list[MessageQueue], __: list[MessageQueue]) -> None:
        inside.set()
        await asyncio.Event().wait()

    listener = RebalanceListener(callback, group="g")
    lost = asyncio.create_task(listener.lost(FIRST))
    await inside.wait()
    assert listener._task is not None
    listener._task.cancel()
    await asyncio.wait({listener._task})
    assert listener._task.cancelled()
    await asyncio.wait_for(lost, 10)
    assert "failed" not in caplog.text
