"""A task that runs its first step immediately: a handler that does not wait costs no turn of the loop and no Task.

`asyncio.current_task()` returns it while the coroutine runs, so `asyncio.timeout` and `asyncio.TaskGroup` work inside.
It is not an `asyncio.Task` and is never awaited: `_returned` and `_raised` of the subclass get the outcome. Python
3.12's eager tasks do the same; this works on 3.11 and makes one object per call instead of three.
Always true: one of `_returned` and `_raised` is called, once, and no step runs after it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from asyncio import tasks
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any

# asyncio's interface for programs with their own tasks; it accepts any object.
_enter_task: Any = tasks._enter_task  # noqa: SLF001
_leave_task: Any = tasks._leave_task  # noqa: SLF001


class EagerTask(ABC):
    """Base of a call; belongs to one loop."""

    __slots__ = ("__weakref__", "_cancel_requests", "_context", "_coroutine", "_loop", "_must_cancel", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._waiting: Any = None
        self._must_cancel = False
        self._cancel_requests = 0
        self._context: Context | None = None

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Begins, not from within a task. Context variables set by the coroutine are its own."""
        self._coroutine = coroutine
        self._context = copy_context()
        self._context.run(self._step)

    @abstractmethod
    def _returned(self, result: Any) -> None: ...

    @abstractmethod
    def _raised(self, error: BaseException) -> None: ...

    # ---------------------------------------------------------------------------- asyncio's interface of a current task

    def cancel(self, msg: str | None = None) -> bool:
        """Works as `asyncio.Task.cancel`; False: it has ended, or never began."""
        if self._coroutine is None:
            return False
        self._cancel_requests += 1
        if self._waiting is not None and self._waiting.cancel(msg=msg):
            return True
        self._must_cancel = True
        return True

    def cancelling(self) -> int:
        """Returns the number of `cancel` calls, less `uncancel`."""
        return self._cancel_requests

    def uncancel(self) -> int:
        """Takes one `cancel` back; returns the rest."""
        self._cancel_requests = max(0, self._cancel_requests - 1)
        if not self._cancel_requests:
            self._must_cancel = False
        return self._cancel_requests

    def done(self) -> bool:
        """Returns whether it has ended, or never began."""
        return self._coroutine is None

    def get_name(self) -> str:
        return type(self).__name__

    def get_coro(self) -> Coroutine[Any, Any, Any] | None:
        return self._coroutine

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    # ----------------------------------------------------------------------------------------------------------- steps

    def _step(self, error: BaseException | None = None) -> None:
        coroutine, loop = self._coroutine, self._loop
        assert coroutine is not None
        if self._must_cancel:
            self._must_cancel = False
            # As asyncio: a cancellation that arrives after the awaited future is done wins over its outcome.
            if not isinstance(error, asyncio.CancelledError):
                error = asyncio.CancelledError()
        self._waiting = None
        # Otherwise `asyncio.timeout` and `TaskGroup` inside the handler would find no current task to cancel.
        _enter_task(loop, self)
        try:
            awaited = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            outcome, raised = stop.value, None
        except (KeyboardInterrupt, SystemExit):
            self._coroutine = None
            raise
        except BaseException as caught:  # noqa: BLE001  the outcome, as with any task
            outcome, raised = None, caught
        else:
            self._wait_for(awaited)
            return
        finally:
            _leave_task(loop, self)
            error = None  # its traceback refers to this frame, and so does that of `raised`
        self._coroutine = self._context = None
        try:
            if raised is None:
                self._returned(outcome)
            else:
                self._raised(raised)
        finally:
            raised = None

    def _wait_for(self, awaited: Any) -> None:
        if getattr(awaited, "_asyncio_future_blocking", None):
            awaited._asyncio_future_blocking = False  # noqa: SLF001  the protocol between futures and tasks
            awaited.add_done_callback(self._wake, context=self._context)
            self._waiting = awaited
            if self._must_cancel and awaited.cancel():
                self._must_cancel = False
        elif awaited is None:  # a bare yield: the next turn of the loop
            self._loop.call_soon(self._step, context=self._context)
        else:
            wrong = RuntimeError(f"a handler awaits {awaited!r}, which is not a future of this loop")
            self._loop.call_soon(self._step, wrong, context=self._context)

    def _wake(self, future: asyncio.Future[Any]) -> None:
        try:
            future.result()
        except BaseException as error:  # noqa: BLE001  raised where the coroutine waits
            self._step(error)
        else:
            self._step()
