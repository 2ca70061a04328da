"""Runs user functions (listeners, checkers, callbacks) in a thread, whatever they raise.

Some exceptions would harm the loop that waits for the thread: SystemExit ends it, StopIteration never arrives, and a
cancellation looks like the consumer's own. Here they are ordinary failures of the user's function.
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

log = logging.getLogger(__name__)


class NotCalled(Exception):
    """A user function was not called, because the process ends. Its message is left to the next process."""


class UserCodeFailed(Exception):
    """A user function raised an exception that it must not raise; that is the cause."""


def raised_by_user(error: BaseException) -> bool:
    """True unless the error is the cancellation of the current task, which must be raised again. A user's coroutine may
    raise a CancelledError of its own, for example of a task that it cancelled and awaited.
    """
    task = asyncio.current_task()
    return not (isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling())


async def in_thread(threads: Executor | None, code: Callable[..., object], *arguments: object) -> object:
    """Returns the result of `code`. Raises its exception, always an `Exception`, or NotCalled."""

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
    """Returns the listener's result. Raises BadRequest for a coroutine function; `instead` names what accepts one."""
    result = await in_thread(threads, listener, messages)
    if inspect.iscoroutine(result):
        result.close()
        raise BadRequest(f"the listener is a coroutine function, which a thread cannot run; use {instead}")
    return result


def reporter(on_error: Callable[[Error], object]) -> Report:
    """Returns a function that calls `on_error`, plain or coroutine, in the loop. Its exceptions are logged."""
    running: set[asyncio.Task[None]] = set()

    async def call(error: Error) -> None:
        try:
            result = on_error(error)
            while inspect.isawaitable(result):  # a result may be awaitable, too
                result = await result
        except (Exception, asyncio.CancelledError) as failure:
            if not raised_by_user(failure):
                raise
            log.exception("on_error failed for: %s", error)

    def report(error: Error) -> None:
        task = spawn(call(error), name="evenq-on-error")
        running.add(task)
        task.add_done_callback(running.discard)

    return report
