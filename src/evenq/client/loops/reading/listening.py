"""The consume service: passes held messages to the listener in chunks (CC-1 to CC-4, CC-12, OC-10 to OC-12).

Called by the pull loops (`offer`). A fixed number of chunks runs at the same time. Queues take turns, so a full queue
does not block the others; an ordered queue runs one chunk at a time. A listener's exception fails its chunk and is
logged. `loops.settler` settles the messages; `scan` finds overdue ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from evenq.client.core.reading.chunks import ChunkSizer
from evenq.client.core.reading.process_queue import ProcessQueue
from evenq.client.loops.clients.user_code import NotCalled, raised_by_user
from evenq.client.loops.reading.settler import Count, SendBack, Settler
from evenq.client.options import PushOptions
from evenq.model import ReceivedMessage
from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn

log = logging.getLogger(__name__)

RunListener = Callable[[list[ReceivedMessage]], Awaitable[object]]
"""Runs the user's listener. `core.outcome` interprets its result; an exception counts as False."""

SCAN_MAX_MS = 60_000
OVERDUE_MAX = 16  # for each queue and scan
HOLD_MS = 100
NOT_CALLED_MS = 1_000
"""Pause after a listener could not be called; nearly always the process ends before."""


class ListenerCalls:
    def __init__(
        self,
        *,
        group: str,
        run: RunListener,
        clock: Clock,
        slots: int,
        options: PushOptions,
        max_attempts: Callable[[], int],
        send_back: SendBack | None,
        count: Count,
        settled: Callable[[ProcessQueue], None],
        trusted: Callable[[ProcessQueue], bool],
    ) -> None:
        """`settled` is called after each chunk; `trusted`: True if this member surely still owns the queue."""
        self._group = group
        self._run = run
        self._clock = clock
        self._free = slots
        self._options = options
        self._sizer = ChunkSizer(options.consume_batch)
        self._settler = Settler(
            clock=clock,
            options=options,
            max_attempts=max_attempts,
            send_back=send_back,
            count=count,
            again=self._again,
        )
        self._settled = settled
        self._trusted = trusted
        self._max_attempts = max_attempts
        self._ready: deque[ProcessQueue] = deque()
        self._careful: ProcessQueue | None = None  # the queue of the running message that may end the process
        self._waits: dict[ProcessQueue, None] = {}  # queues that may have such a message, and wait for its end
        self._tasks: set[asyncio.Task[None]] = set()

    def offer(self, queue: ProcessQueue) -> None:
        """Schedules a queue that may have messages for the listener."""
        if queue not in self._ready:
            self._ready.append(queue)
        self._pump()

    async def scan(self, queues: Callable[[], Iterable[ProcessQueue]]) -> None:
        """Sends overdue messages back, for ever (CC-12); not for ordered or broadcasting consumers."""
        timeout_ms = self._options.consume_timeout_ms
        while True:
            await self._clock.sleep_ms(min(timeout_ms, SCAN_MAX_MS))
            for queue in [queue for queue in queues() if not queue.ordered]:
                now_ms = self._clock.monotonic_ms()
                late = queue.overdue(now_ms=now_ms, timeout_ms=timeout_ms, count=OVERDUE_MAX)
                for message in late:
                    await self._settler.overdue(queue, message)
                if late:
                    self._settled(queue)

    async def close(self) -> None:
        """Starts no more calls, and cancels the tasks that wait for running ones."""
        self._free = 0
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _pump(self) -> None:
        while self._free > 0 and self._ready:
            queue = self._ready.popleft()
            now_ms = self._clock.monotonic_ms()
            due_ms = queue.due_ms()
            if due_ms is not None and due_ms <= now_ms and not self._trusted(queue):
                queue.hold(now_ms + HOLD_MS)  # OC-8: another member may own the queue by now
                self._again(queue, HOLD_MS)
                continue
            # With only one delivery allowed, a message must not fail because of a neighbour.
            count = self._sizer.size if self._max_attempts() > 1 else 1
            chunk = queue.take(count, now_ms=now_ms, careful=self._careful is None)
            if self._careful is not None:
                self._waits[queue] = None
            if not chunk:
                continue
            if queue.careful(chunk[0]):
                self._careful = queue
            self._free -= 1
            self._spawn(self._work(queue, chunk), f"evenq-listen-{queue.queue}")
            # Back to the end of the line: queues take turns, one chunk each.
            if queue.due_ms() == 0:
                self._ready.append(queue)

    async def _work(self, queue: ProcessQueue, chunk: list[ReceivedMessage]) -> None:
        careful = queue.careful(chunk[0])
        try:
            if not await self._settler.begin(queue, chunk):
                pass
            elif queue.fenced:  # fenced meanwhile: the new owner delivers the chunk
                queue.put_back(chunk, retry_ms=0)
            else:
                await self._listen(queue, chunk)
        finally:
            self._free += 1
            if careful:
                self._careful = None
        self._settled(queue)
        if careful:
            waits, self._waits = self._waits, {}
            self._ready.extend(one for one in waits if one not in self._ready and not one.dropped)
        due_ms = queue.due_ms()
        if due_ms is not None and due_ms <= self._clock.monotonic_ms():
            self.offer(queue)
        else:
            self._pump()

    async def _listen(self, queue: ProcessQueue, chunk: list[ReceivedMessage]) -> None:
        started_ms = self._clock.monotonic_ms()
        result: object
        try:
            result = await self._run(chunk)
        except NotCalled:
            queue.put_back(chunk, retry_ms=self._clock.monotonic_ms() + NOT_CALLED_MS)
            self._again(queue, NOT_CALLED_MS)
            return
        except (Exception, asyncio.CancelledError) as error:
            if not raised_by_user(error):
                raise  # the consumer ends
            first = chunk[0]
            log.exception(
                "group %s: the listener failed for message %s%s of queue %s (attempt %d of %d); %s",
                self._group,
                first.message_id,
                f" and {len(chunk) - 1} more" if len(chunk) > 1 else "",
                queue.queue,
                first.delivery_attempt,
                self._max_attempts(),
                self._settler.outlook(queue, first),
            )
            result = False
        self._sizer.learn(len(chunk), self._clock.monotonic_ms() - started_ms)
        await self._settler.settle(queue, chunk, result)

    def _again(self, queue: ProcessQueue, delay_ms: int) -> None:
        self._spawn(self._offer_later(queue, delay_ms), f"evenq-retry-{queue.queue}")

    async def _offer_later(self, queue: ProcessQueue, delay_ms: int) -> None:
        await self._clock.sleep_ms(delay_ms)
        if not queue.dropped:
            self.offer(queue)

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        task = spawn(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
