"""Iterators over the messages of a simple consumer, one for each interface: `for` and `async for`.

The work is done by `loops.consumers.iterating` in the client's loop. Invariant: when an iterator is released, which a
`for` statement does at its end, also by `break` or an exception, its loop gives back what no body has seen.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Self

from evenq.client.loops.clients.background import Background
from evenq.client.loops.consumers.iterating import MessageLoop
from evenq.model import ReceivedMessage


class MessageIterator(Iterator[ReceivedMessage]):
    """Messages for one `for` statement at a time. Its methods may be called in any thread, `next` in one at a time."""

    def __init__(self, background: Background, loop: MessageLoop) -> None:
        self._background = background
        self._loop = loop
        weakref.finalize(self, _abandon, background.call_soon, loop).atexit = False

    def stop(self) -> None:
        """Lets the loop end after the body that runs now; its message is acknowledged. Also for signal handlers."""
        self._background.call_soon(self._loop.stop)

    def __iter__(self) -> Self:
        """Begins a new `for` statement: the message of the previous one, if it did not end, is left for redelivery."""
        self._background.call_soon(self._loop.skip)
        return self

    def __next__(self) -> ReceivedMessage:
        message = self._background.run_or_cancel(self._loop.next())
        if message is None:
            raise StopIteration
        return message


class AsyncMessageIterator(AsyncIterator[ReceivedMessage]):
    """Messages for one `async for` statement at a time."""

    def __init__(self, loop: MessageLoop) -> None:
        self._loop = loop
        weakref.finalize(self, _abandon, asyncio.get_running_loop().call_soon_threadsafe, loop).atexit = False

    def stop(self) -> None:
        """Lets the loop end after the body that runs now; its message is acknowledged."""
        self._loop.stop()

    def __aiter__(self) -> Self:
        """Begins a new `async for` statement: the message of the previous one is left for redelivery."""
        self._loop.skip()
        return self

    async def __anext__(self) -> ReceivedMessage:
        message = await self._loop.next()
        if message is None:
            raise StopAsyncIteration
        return message


def _abandon(call_soon: Callable[[Callable[[], None]], object], loop: MessageLoop) -> None:
    with suppress(RuntimeError):  # the event loop has ended
        call_soon(loop.abandon)
