"""The two faces of the SDK, as what a client adds to the part that both share: how it gets into the event loop.

What a client is (its arguments, its checks, its engine, all that waits for nothing) is written once, in a class that
derives from `SdkClient`. The asyncio client adds its coroutines, the sync one the same methods as typed calls that let
the coroutine run in the process's loop thread (`loops.background`). Always true: a sync call waits in the thread that
makes it, never in the loop.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from evenq.client.loops.clients.background import Background
from evenq.runtime.closing import AsyncClosing, Closing

__all__ = ["AsyncFace", "SdkClient", "SyncFace", "awaited", "blocking"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class SdkClient(ABC):
    """What both faces of a client share derives from this."""

    @abstractmethod
    def _in_loop(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """`function(...)`, which awaits nothing, called in the loop."""

    @abstractmethod
    def _soon(self, function: Callable[[], object]) -> None:
        """The same, without waiting for it."""


class AsyncFace(AsyncClosing, SdkClient):
    """Called in its loop."""

    def _in_loop(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        return function(*arguments, **named)

    def _soon(self, function: Callable[[], object]) -> None:
        function()


class SyncFace(Closing, SdkClient):
    """Called in any thread but the loop's."""

    @cached_property
    def _background(self) -> Background:
        return Background.shared()

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Its result. An interrupt (Ctrl-C) ends the waiting alone; see `Background.run_or_cancel`."""
        return self._background.run(coroutine)

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
    """Returns the sync client's method for one of the asyncio client. `method` must call on `self` only what
    both clients have in common.
    """

    @wraps(method)
    def call(self: Any, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        result: Result = self._run(method(self, *arguments, **named))
        return result

    return call


async def awaited(function: Callable[..., object], *arguments: object) -> object:
    """What a user's function returns, be it a plain one or a coroutine function."""
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result
