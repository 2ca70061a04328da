"""Runs what the user wrote (listeners, checkers, callbacks) in a thread, whatever it raises.

Some exceptions would harm the loop that waits for the thread: SystemExit ends it, StopIteration never arrives, and a
cancellation looks like the consumer's own. Here they are failures of the user's code like any other.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from evenq.client.loops.clients.troubles import Report
from evenq.errors import BadRequest, Error
from evenq.model import ReceivedMessage
from evenq.runtime.tasks import spawn

__all__ = ["NotCalled", "UserCodeFailed", "in_thread", "listened", "reporter"]

log = logging.getLogger(__name__)


class NotCalled(Exception):
    """User code was not called: the process ends without a close, and threads take nothing any more. That is no failure
    of the code, and what it was for is left to the next process.
    """


class UserCodeFailed(Exception):
    """Something that user code must not raise; its cause is what was raised."""


async def in_thread(threads: Executor | None, code: Callable[..., object], *arguments: object) -> object:
    """What `code` returns. Raises its exception, always an `Exception`, or NotCalled. `threads` None: those of the
    loop.
    """

    def run() -> object:
        try:
            return code(*arguments)
        except (StopIteration, concurrent.futures.CancelledError) as error:
            raise UserCodeFailed(f"{code!r} raised {error!r}") from error
        except Exception:
            raise
        except BaseException as error:
            raise UserCodeFailed(f"{code!r} raised {error!r}") from error

    try:
        running = asyncio.get_running_loop().run_in_executor(threads, run)
    except RuntimeError as error:
        raise NotCalled(str(error)) from error
    return await running


async def listened(
    threads: Executor,
    listener: Callable[[list[ReceivedMessage]], object],
    messages: list[ReceivedMessage],
    *,
    instead: str,
) -> object:
    """What a listener says of the messages. Raises its exception, and BadRequest for a coroutine function, naming what
    takes one `instead`.
    """
    result = await in_thread(threads, listener, messages)
    if inspect.iscoroutine(result):
        result.close()
        raise BadRequest(f"the listener is a coroutine function, which a thread cannot run; use {instead}")
    return result


def reporter(on_error: Callable[[Error], object]) -> Report:
    """Calls `on_error`, a plain or a coroutine function, for each permanent error, in the loop. What it raises is
    logged.
    """
    running: set[asyncio.Task[None]] = set()

    async def call(error: Error) -> None:
        try:
            result = on_error(error)
            while inspect.isawaitable(result):  # what a thread returns may be one, too
                result = await result
        except Exception:
            log.exception("on_error failed for: %s", error)

    def report(error: Error) -> None:
        task = spawn(call(error), name="evenq-on-error")
        running.add(task)
        task.add_done_callback(running.discard)

    return report
