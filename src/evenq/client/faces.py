"""Sync and asyncio classes of a client: how each of them reaches the event loop.

The arguments, checks and engine of a client, and all that does not wait, are written once, in a class that derives from
`SdkClient`. The asyncio class adds coroutines. The sync class adds the same methods as typed calls, whose coroutines
run in the process's loop thread (`loops.background`). Invariant: a sync call waits in the caller's thread, never in the
loop.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from evenq.client.core.clients.observer import OBSERVED, ClientIdentity
from evenq.client.loops.clients.background import Background
from evenq.model import ReceivedMessage
from evenq.runtime.closing import AsyncClosing, Closing
from evenq.runtime.tasks import outlasting, spawn

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_CLOSING: set[asyncio.Task[None]] = set()
"""Asyncio clients that end now; a loop has only weak references to its tasks."""


class SdkClient(ABC):
    """Base of the part that the sync and the asyncio class of a client share."""

    @abstractmethod
    def _in_loop(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """Calls `function`, which awaits nothing, in the loop; returns its result."""

    @abstractmethod
    def _soon(self, function: Callable[[], object]) -> None:
        """Calls `function` in the loop without waiting for it."""


class AsyncFace(AsyncClosing, SdkClient):
    """Base of the asyncio classes, which are called in their loop."""

    def _in_loop(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        return function(*arguments, **named)

    def _soon(self, function: Callable[[], object]) -> None:
        function()

    async def _to_its_end(self, shut: Coroutine[Any, Any, None], then: Callable[[], object] | None = None) -> None:
        """Awaits `shut`, then calls `then`. Both continue if the caller is cancelled: a client is marked as closed
        before, so nothing else would end the rest of it, and a consumer would keep its queues without reading them.
        """

        async def end() -> None:
            try:
                await shut
            finally:
                if then is not None:
                    then()

        task = spawn(end(), name="evenq-close")
        _CLOSING.add(task)
        task.add_done_callback(_CLOSING.discard)
        await outlasting(task)


class SyncFace(Closing, SdkClient):
    """Base of the sync classes, which are called in any thread but the loop's."""

    @cached_property
    def _background(self) -> Background:
        return Background.shared()

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Returns its result. An interrupt (Ctrl-C) ends only the waiting; see `Background.run_or_cancel`."""
        return self._background.run(coroutine)

    def _run_end(self, shut: Coroutine[Any, Any, None]) -> None:
        """Runs the end of a client. In an exit handler that runs after the loop's end there is nothing left to end."""
        if self._background.ended:
            shut.close()
        else:
            self._run(shut)

    def _in_loop(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        async def call() -> Result:
            return function(*arguments, **named)

        return self._background.run(call())

    def _soon(self, function: Callable[[], object]) -> None:
        self._background.call_soon(function)


def blocking(
    method: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Arguments], Result]:
    """Returns the sync method for an asyncio one. `method` may call on `self` only what both classes have."""

    @wraps(method)
    def call(self: Any, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        result: Result = self._run(method(self, *arguments, **named))
        return result

    return call


async def awaited(function: Callable[..., object], *arguments: object) -> object:
    """Returns the result of a user's function, which may be a coroutine function."""
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result


def observed_listener(
    client: ClientIdentity, listener: Callable[[list[ReceivedMessage]], object]
) -> Callable[[list[ReceivedMessage]], object]:
    """Returns the listener; if the process has an observer, as a function that reports the call in its thread."""
    observer = OBSERVED.observer
    if observer is None:
        return listener

    @wraps(listener)
    def listen(messages: list[ReceivedMessage]) -> object:
        with observer.process(client, messages) as processing:
            return processing.returned(listener(messages))

    return listen


async def awaited_listener(
    client: ClientIdentity, listener: Callable[[list[ReceivedMessage]], object], messages: list[ReceivedMessage]
) -> object:
    """Returns the result of a listener that may be a coroutine function; reports the call to the observer, if any."""
    observer = OBSERVED.observer
    if observer is None:
        return await awaited(listener, messages)
    with observer.process(client, messages) as processing:
        return processing.returned(await awaited(listener, messages))
