"""Tasks with names and guards. One `asyncio.TaskGroup` stands at the top of each program; all else hangs off it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from evenq.errors import Error
from evenq.runtime.backoff import Backoff
from evenq.runtime.clock import Clock

__all__ = ["forever", "outlasting", "spawn"]

log = logging.getLogger(__name__)

T = TypeVar("T")


def spawn(coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
    """Start a task outside a group; the caller keeps it and cancels it. For the SDK, which has no top-level group."""
    return asyncio.get_running_loop().create_task(coroutine, name=name)


async def outlasting(task: asyncio.Future[T]) -> T:
    """Wait for a task that goes on if the caller is broken off meanwhile. Then nobody hears of its outcome: an `Error`
    was for that caller alone, any other one is a mistake of ours, and logged.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # Else asyncio would log each one with a stack trace, when it finds that it was not read.
        task.add_done_callback(_log_mistake)
        raise


def _log_mistake(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Error):
        name = task.get_name() if isinstance(task, asyncio.Task) else "a task"
        log.error("%s failed after its caller was broken off", name, exc_info=error)


async def forever(name: str, once: Callable[[], Awaitable[None]], *, clock: Clock, rng: random.Random) -> None:
    """Run `once` again and again; after an error of the network or a peer, log one line and wait longer each time.

    `once` returns normally to be run again at once (it does its own waiting). An error outside `evenq.errors` is a
    mistake of ours and ends the loop, and with it the process.
    """
    backoff = Backoff(rng)
    while True:
        try:
            await once()
            backoff.reset()
        except Error as error:
            delay_ms = backoff.next_ms()
            log.warning("%s failed", name, extra={"error": str(error), "retry_in_ms": delay_ms})
            await clock.sleep_ms(delay_ms)
