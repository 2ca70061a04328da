"""Tasks with names and guards, and writes to transports.

Each program has one top-level `asyncio.TaskGroup`, which owns all other tasks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from evenq.errors import Error
from evenq.runtime.clock import Clock

log = logging.getLogger(__name__)
T = TypeVar("T")
REST_S = 20e-6
"""Pause; 70 microseconds in total with the overhead of the system."""


def spawn(coroutine: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
    """Starts a task outside a group; the caller keeps and cancels it. For the SDK, which has no top-level group."""
    return asyncio.get_running_loop().create_task(coroutine, name=name)


async def outlasting(task: asyncio.Future[T]) -> T:
    """Waits for a task that continues if the caller is cancelled; its errors other than `Error` are then logged."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # Otherwise asyncio logs each error with a stack trace when it finds that nobody retrieved it.
        task.add_done_callback(_log_mistake)
        raise


async def to_its_end(coroutine: Coroutine[Any, Any, T], *, name: str) -> T:
    """Waits for a coroutine. If the caller is cancelled meanwhile, it ends before that is raised: for calls that create
    what the caller deletes afterwards.
    """
    task: asyncio.Task[T] = spawn(coroutine, name=name)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _log_mistake(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Error):
        name = task.get_name() if isinstance(task, asyncio.Task) else "a task"
        log.error("%s failed after its caller was cancelled", name, exc_info=error)


async def done_within(future: asyncio.Future[Any], timeout_ms: float, *, clock: Clock) -> bool:
    """Waits for the future; after `timeout_ms` cancels it and returns False."""
    if future.done():
        return True
    sleeper = spawn(clock.sleep_ms(timeout_ms), name="a limit")
    try:
        await asyncio.wait({future, sleeper}, return_when=asyncio.FIRST_COMPLETED)
        return future.done()
    finally:
        sleeper.cancel()
        if not future.done():
            future.cancel()


def let_threads_run() -> None:
    """Pauses so that a waiting thread gets the interpreter; blocks the loop. Only for busy loops, every few ms.

    A loop that always has work releases the interpreter only for the microseconds of a poll of its sockets. The system
    wakes a waiting thread more slowly than that. Each poll also restarts the thread's wait for `sys.getswitchinterval`,
    so the thread may wait for tens of turns.
    """
    time.sleep(REST_S)


def write_parts(transport: asyncio.WriteTransport, parts: Sequence[bytes | memoryview]) -> None:
    """Writes `parts` in order. uvloop does not copy them.

    `writelines` of asyncio's own sockets does not pause the protocol at the high-water mark in Python 3.12.0 to 3.12.8
    and 3.13.0 to 3.13.1 (CVE-2024-12254): a peer that does not read would fill the memory. In 3.11 it joins, too.
    """
    if isinstance(transport, asyncio.Transport):  # uvloop's is not
        transport.write(b"".join(parts))
    else:
        transport.writelines(parts)
