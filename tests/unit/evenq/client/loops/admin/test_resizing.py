"""Waiting for queues and brokers to be read."""

from __future__ import annotations

import asyncio

import pytest

from evenq.client.core.admin.views import DrainView, ResizeView, UnfinishedView
from evenq.client.loops.admin.resizing import AGAIN_MS, drained, problems_text, scaled, why_kept
from evenq.errors import BadRequest, RequestTimeout
from evenq.model import MessageQueue
from evenq.runtime.clock import FakeClock


def left(*groups: str) -> tuple[UnfinishedView, ...]:
    return tuple(UnfinishedView(queue=MessageQueue("t", "a", 3), group=g, lag=2, inflight=0) for g in groups)


class Wire:
    """A topic that is read after this number of steps."""

    def __init__(self, steps: int, *schedules: str) -> None:
        self.steps = steps
        self.asked = 0
        self.schedules = list(schedules)

    async def move_schedule(self, topic: str, name: str, to: str) -> None:
        if topic == "closed":
            raise BadRequest("no other broker accepts its messages")
        self.schedules.remove(f"{topic} {name}")

    async def scale_topic(
        self, topic: str, queues: int, *, broker: str, force: bool, close_unread: bool, dry_run: bool = False
    ) -> list[ResizeView]:
        self.asked += 1
        open_ones = self.asked < self.steps
        view = ResizeView(
            broker_name="a",
            write_queues=queues,
            read_queues=4 if open_ones else queues,
            permission="READ_WRITE",
            unfinished=left("g", "g", "h") if open_ones else (),
        )
        return [view]

    async def drain_broker(self, broker: str, *, resume: bool = False) -> DrainView:
        self.asked += 1
        return DrainView(
            broker_name=broker,
            draining=not resume,
            empty=self.asked >= self.steps,
            unfinished=left("g"),
            lag=2,
            delayed=1,
            unread=0,
            dead_letters=0,
            other_writers=1,
            schedules=len(self.schedules),
            schedule_names=tuple(self.schedules),
        )


async def ahead(clock: FakeClock, task: asyncio.Task[object], steps: int) -> None:
    for _ in range(steps):
        await clock.advance(AGAIN_MS)
    await asyncio.wait({task}, timeout=60)


async def test_without_a_wait_one_step_is_done_and_told() -> None:
    wire = Wire(9)
    (view,) = await scaled(wire, FakeClock(), "t", 2, broker="", force=False, close_unread=False, wait_ms=0)
    assert (wire.asked, view.done, len(view.unfinished)) == (1, False, 3)
    assert not (await drained(wire, FakeClock(), "a", wait_ms=0)).empty
    looked = scaled(wire, FakeClock(), "t", 2, broker="", force=False, close_unread=False, dry_run=True, wait_ms=9_000)
    assert not (await looked)[0].done, "a look waits for nothing"


async def test_a_drain_moves_the_schedules_that_can_be_moved() -> None:
    view = await drained(Wire(1, "t nightly", "closed daily"), FakeClock(), "a", wait_ms=0)
    assert view.schedule_names == ("closed daily",)
    assert view.schedule_problems == {"closed daily": "no other broker accepts its messages"}
    assert problems_text(view.schedule_problems) == (
        " Schedule closed daily stays: no other broker accepts its messages."
    )
    assert not (await drained(Wire(1, "t nightly"), FakeClock(), "a", wait_ms=0)).schedule_problems
    assert "it keeps 1 schedule (closed daily)" in why_kept("a", view, allow_unread=False)
    assert why_kept("a", view, allow_unread=True) == ""


async def test_a_wait_goes_on_until_everything_is_read() -> None:
    for start in (
        lambda wire, clock: scaled(wire, clock, "t", 2, broker="", force=False, close_unread=False, wait_ms=60_000),
        lambda wire, clock: drained(wire, clock, "a", wait_ms=60_000),
    ):
        wire, clock = Wire(3), FakeClock()
        task = asyncio.ensure_future(start(wire, clock))
        await ahead(clock, task, 3)
        assert task.done()
        assert wire.asked == 3
        await task


async def test_a_wait_that_ends_too_early_says_who_is_not_through() -> None:
    clock = FakeClock()
    task = asyncio.ensure_future(
        scaled(Wire(99), clock, "t", 2, broker="", force=False, close_unread=False, wait_ms=1_000)
    )
    await ahead(clock, task, 3)
    with pytest.raises(RequestTimeout, match=r"more than 2 queues to read after 1000 ms: g 4, h 2; call again"):
        await task
    clock = FakeClock()
    other = asyncio.ensure_future(drained(Wire(99), clock, "a", wait_ms=1_000))
    await ahead(clock, other, 3)
    with pytest.raises(RequestTimeout, match="broker a has messages to be read after 1000 ms: g 2; 1 delayed"):
        await other
