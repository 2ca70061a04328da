"""Waits of tests for a state that sets no event, in this process or another one."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

Result = TypeVar("Result")
LOOK_S = 0.02


def until(state: Callable[[], Result], what: str | Callable[[], object] = "", *, seconds: float = 60) -> Result:
    """Calls `state` every 20 ms; returns its first true result. Raises AssertionError after `seconds`, with `what` or
    what it returns.
    """
    deadline = time.monotonic() + seconds
    while not (result := state()):
        assert time.monotonic() < deadline, _text(what, seconds)
        time.sleep(LOOK_S)
    return result


async def until_async(
    state: Callable[[], Awaitable[Any] | Any], what: str | Callable[[], object] = "", *, seconds: float = 60
) -> Any:
    """The same in a loop, every 5 ms; `state` may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        result = state()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        assert time.monotonic() < deadline, _text(what, seconds)
        await asyncio.sleep(LOOK_S / 4)


def _text(what: str | Callable[[], object], seconds: float) -> str:
    return f"not within {seconds:g} s: {what() if callable(what) else what}"
