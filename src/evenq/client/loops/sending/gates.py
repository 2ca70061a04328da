"""Limits of a producer's unacknowledged messages, for threads and for tasks.

Both classes count messages and bytes. The loop calls `leave` for a batch at a time. A message that exceeds a whole
limit enters when nothing else is pending.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from evenq.errors import TooManyRequests

BLOCK_MS = 60_000


class ThreadGate:
    """The gate of the sync face: `enter` is called in the users' threads, `leave` in the loop's thread."""

    def __init__(self, *, messages_max: int, bytes_max: int, block_ms: int = BLOCK_MS) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._block_ms = block_ms
        self._changed = threading.Condition()
        self._waiting = 0
        self.messages = 0
        self._bytes = 0

    def enter(self, size: int, messages: int = 1) -> None:
        """Waits for capacity. Raises TooManyRequests after `block_ms`."""
        with self._changed:
            if self.messages and not self._room(size, messages):
                self._waiting += 1
                try:
                    if not self._changed.wait_for(lambda: self._room(size, messages), self._block_ms / 1000):
                        raise no_room(self.messages, self._bytes, self._block_ms)
                finally:
                    self._waiting -= 1
            self.messages += messages
            self._bytes += size

    def _room(self, size: int, messages: int) -> bool:
        # One message of any size may enter alone: otherwise it could never be sent.
        return not self.messages or (
            self.messages + messages <= self._messages_max and self._bytes + size <= self._bytes_max
        )

    def leave(self, messages: int, size: int) -> None:
        """Returns the capacity of settled messages."""
        with self._changed:
            self.messages -= messages
            self._bytes -= size
            # Waking a sender for each batch would make two threads compete for the interpreter; half empty is early
            # enough.
            if self._waiting and (self.messages <= self._messages_max // 2 or self._bytes <= self._bytes_max // 2):
                self._changed.notify_all()

    def wait_empty(self, timeout_ms: int | None = None) -> bool:
        """Waits until nothing is pending; False if `timeout_ms` passed before."""
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(
                    lambda: self.messages == 0, None if timeout_ms is None else timeout_ms / 1000
                )
            finally:
                self._waiting -= 1


class TaskGate:
    """The gate of the asyncio face; all calls are made in one loop."""

    def __init__(self, *, messages_max: int, bytes_max: int, block_ms: int = BLOCK_MS) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._block_ms = block_ms
        self._line: deque[asyncio.Future[None]] = deque()
        self.messages = 0
        self._bytes = 0

    async def enter(self, size: int, messages: int = 1) -> None:
        if not self._room(size, messages):
            try:
                async with asyncio.timeout(self._block_ms / 1000):
                    while not self._room(size, messages):
                        await self._changed()
            except TimeoutError:
                raise no_room(self.messages, self._bytes, self._block_ms) from None
        self.messages += messages
        self._bytes += size

    def _room(self, size: int, messages: int) -> bool:
        return not self.messages or (
            self.messages + messages <= self._messages_max and self._bytes + size <= self._bytes_max
        )

    def leave(self, messages: int, size: int) -> None:
        self.messages -= messages
        self._bytes -= size
        # Wakes all: which of them fits depends on their sizes.
        while self._line:
            waiter = self._line.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def wait_empty(self) -> None:
        while self.messages:
            await self._changed()

    async def _changed(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(waiter)
        await waiter


def no_room(messages: int, size: int, waited_ms: int) -> TooManyRequests:
    return TooManyRequests(
        f"{messages} messages of {size} bytes are not acknowledged yet and {waited_ms} ms have passed (block_ms): send "
        "more slowly, or raise pending_messages and pending_bytes"
    )
