"""Replays that belong to a session."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from evenq.console.replays import KEPT_MAX, RUNNING_MAX, ReplayPlan, SessionReplays
from evenq.errors import TooManyRequests
from evenq.runtime.clock import SystemClock


class EndlessAdmin:
    """An admin whose replays end when `ends` is set."""

    def __init__(self) -> None:
        self.ends = asyncio.Event()
        self.mistake = False

    async def replay_dead_letters(self, _group: str, **_: Any) -> list[Any]:
        if self.mistake:
            raise RuntimeError("a defect")
        await self.ends.wait()
        return []


def replays(admin: EndlessAdmin) -> SessionReplays:
    return SessionReplays(admin, SystemClock())  # type: ignore[arg-type]  # only the replay is called


async def until_ended(made: SessionReplays, group: str) -> str:
    clock = SystemClock()
    while (replay := made.of(group)) is not None and replay.end_ms is None:
        await clock.sleep_ms(1)
    assert replay is not None
    return replay.problem


async def test_the_number_of_replays_that_run_and_that_are_kept_is_limited() -> None:
    admin = EndlessAdmin()
    made = replays(admin)
    for number in range(RUNNING_MAX):
        made.start(ReplayPlan(group=f"g{number}"))
    with pytest.raises(TooManyRequests, match=f"{RUNNING_MAX} replays"):
        made.start(ReplayPlan(group="more"))
    admin.ends.set()
    for number in range(KEPT_MAX + 20):
        made.start(ReplayPlan(group=f"g{number}"))
        await until_ended(made, f"g{number}")
    assert made.of("g0") is None
    assert made.of(f"g{KEPT_MAX + 19}") is not None
    await made.close()


async def test_a_replay_that_is_stopped_before_its_first_step_has_ended() -> None:
    made = replays(EndlessAdmin())
    replay = made.start(ReplayPlan(group="g"))
    await made.stop("g")
    assert (replay.problem, replay.end_ms is not None) == ("it was stopped", True)
    await made.stop("g")


async def test_a_defect_is_logged_and_shown_as_the_end(caplog: pytest.LogCaptureFixture) -> None:
    admin = EndlessAdmin()
    admin.mistake = True
    made = replays(admin)
    with caplog.at_level(logging.ERROR):
        made.start(ReplayPlan(group="g"))
        assert "RuntimeError" in await until_ended(made, "g")
    assert "a defect" in caplog.text
