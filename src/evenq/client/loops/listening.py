"""Hands messages in hand to the listener, chunk by chunk, and settles what comes back (CC-3 to CC-9).

Called by the pull loops (`offer`). A fixed number of chunks runs at a time; queues take turns, so a full queue does not
starve the others. A listener's exception is a failure of its chunk, logged, never fatal.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from evenq.client.core.chunks import ChunkSizer
from evenq.client.core.process_queue import ProcessQueue
from evenq.errors import Error
from evenq.model import ReceivedMessage
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

__all__ = ["Listening", "RunListener"]

log = logging.getLogger(__name__)

RunListener = Callable[[Sequence[ReceivedMessage]], Awaitable[bool]]
"""Run the user's listener; False or an exception: none of the chunk is done."""


class Listening:
    """The consume service of one consumer."""

    def __init__(
        self,
        *,
        run: RunListener,
        clock: Clock,
        slots: int,
        batch_max: int,
        max_attempts: Callable[[], int],
        retry_delay_ms: Callable[[int], int],
        give_up: Callable[[ReceivedMessage, int], Awaitable[None]],
        settled: Callable[[ProcessQueue], None],
    ) -> None:
        """`max_attempts` 1 means no retries. `give_up` sends a message back for good and may raise; `settled` hears of
        each chunk that ended.
        """
        self._run = run
        self._clock = clock
        self._free = slots
        self._sizer = ChunkSizer(batch_max)
        self._max_attempts = max_attempts
        self._retry_delay_ms = retry_delay_ms
        self._give_up = give_up
        self._settled = settled
        self._ready: deque[ProcessQueue] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def offer(self, queue: ProcessQueue) -> None:
        """The queue may have something to do."""
        if queue not in self._ready:
            self._ready.append(queue)
        self._pump()

    async def close(self) -> None:
        """Start nothing any more and stop waiting for what runs."""
        self._free = 0
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _pump(self) -> None:
        while self._free > 0 and self._ready:
            queue = self._ready.popleft()
            now_ms = self._clock.monotonic_ms()
            chunk = queue.take(self._sizer.size, now_ms=now_ms)
            if not chunk:
                continue
            self._free -= 1
            self._spawn(self._work(queue, chunk), f"evenq-listen-{queue.queue}")
            if queue.due_ms() == 0:
                self._ready.append(queue)

    async def _work(self, queue: ProcessQueue, chunk: list[ReceivedMessage]) -> None:
        started_ms = self._clock.monotonic_ms()
        try:
            done = await self._run(chunk)
        except Exception:
            first = chunk[0]
            log.exception(
                "the listener failed",
                extra={"queue": str(queue.queue), "offset": first.queue_offset, "messages": len(chunk)},
            )
            done = False
        self._sizer.learn(len(chunk), self._clock.monotonic_ms() - started_ms)
        if done:
            for message in chunk:
                queue.finish(message.queue_offset)
        else:
            for message in chunk:
                await self._failed(queue, message)
        self._free += 1
        self._settled(queue)
        if queue.due_ms() == 0:
            self.offer(queue)
        else:
            self._pump()

    async def _failed(self, queue: ProcessQueue, message: ReceivedMessage) -> None:
        attempts = queue.attempts(message)
        if attempts < self._max_attempts():
            self._again(queue, message, self._retry_delay_ms(attempts), postponed=False)
            return
        try:
            await self._give_up(message, attempts)
        except Error as error:  # CC-6
            log.warning(
                "a message could not be sent back",
                extra={"queue": str(queue.queue), "offset": message.queue_offset, "error": str(error)},
            )
            self._again(queue, message, self._retry_delay_ms(1), postponed=True)
        else:
            queue.finish(message.queue_offset)

    def _again(self, queue: ProcessQueue, message: ReceivedMessage, delay_ms: int, *, postponed: bool) -> None:
        due_ms = self._clock.monotonic_ms() + delay_ms
        if postponed:
            queue.postpone(message.queue_offset, retry_ms=due_ms)
        else:
            queue.fail(message.queue_offset, retry_ms=due_ms)
        self._spawn(self._offer_later(queue, delay_ms), f"evenq-retry-{queue.queue}")

    async def _offer_later(self, queue: ProcessQueue, delay_ms: int) -> None:
        await self._clock.sleep_ms(delay_ms)
        if not queue.dropped:
            self.offer(queue)

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = spawn(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
