"""Turns of reading: the time of the loop, shared between all connections of a server.

A connection reads its input immediately as long as the load is low. Under high load each has a small share, and the
rest of its input waits in a round-robin queue. Shares are counted in frames, the unit of `Http2Limits.frames_per_turn`.
Work that takes longer than usual frames counts as more of them, because handlers run as soon as their request is read.
Always true: between two polls of the sockets at most about `ROUND` turns' worth of frames are read for the queue, and
at most twice as many from connections with new input. Handlers of streams that wait for a message are woken a few at a
time, as many as fit `ROUND_MS`. After each round that leaves input waiting, other threads may run, such as the one that
writes to the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from evenq.runtime.tasks import let_threads_run
from evenq.serving.http2.limits import Http2Limits

ROUND = 8  # full turns between two polls of the sockets
SMALL = 4  # frames of the smallest share: a client with a call or two does not wait for others
ROUND_MS = 2
"""Time after which a round ends, however few its frames: a call that waits for the disk passes six rounds."""
WAKES_MAX = 16  # most stream handlers that are woken together; fewer if they take longer than `ROUND_MS`


class InputReader(Protocol):
    """The input of one connection, read in turns."""

    def go_on(self, frames: int) -> None:
        """Reads up to `frames` of the waiting input."""


class Turns:
    """Shares of one loop."""

    def __init__(
        self,
        limits: Http2Limits,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        let_threads_run: Callable[[], None] = let_threads_run,
    ) -> None:
        self._turn = limits.frames_per_turn
        self._small = min(SMALL, self._turn)
        self._round = ROUND * self._turn
        self._per_ms = self._round // ROUND_MS
        self._left = self._round  # frames that may be read before the next poll of the sockets; may fall below 0
        self._queue: dict[InputReader, None] = {}
        self._loop = loop
        self._now_ms = now_ms
        self._let_threads_run = let_threads_run
        self._scheduled = False
        self._waiters: dict[asyncio.Future[None], None] = {}  # handlers whose message arrived and whose turn did not
        self._wakes = self._wakes_left = WAKES_MAX
        self._wakes_began_ms = 0
        self._waking = False

    def share(self) -> int:
        """Returns the frames that a connection with new input may read now; 0: it must `wait`."""
        if self._left > 0:
            return self._quantum() if self._queue else self._turn
        return self._small if self._left > -self._round else 0

    def spend(self, frames: int, took_ms: int) -> None:
        """Counts read frames, or the time `took_ms` of the work that they began, whichever is more. The clock's steps
        are as long as many turns, so a single turn is counted inexactly.
        """
        # At most a round: one handler that blocked the loop must not exclude new input for many rounds.
        self._left -= min(max(frames, took_ms * self._per_ms), self._round)
        if self._left <= 0:
            self._schedule()

    def wait(self, connection: InputReader) -> None:
        """Lets `connection` continue (`InputReader.go_on`) in its turn."""
        self._queue[connection] = None
        self._schedule()

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """Sets the result of a handler's future, now or in a later turn of the loop."""
        if self._wakes_left > 0 and not self._waiters:
            self._wakes_left -= 1
            waiter.set_result(None)
        else:
            self._waiters[waiter] = None
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self._wake_more)

    def _wake_more(self) -> None:
        waiters = self._waiters
        self._waking, self._wakes_left = bool(waiters), self._wakes
        if not waiters:
            return
        # The loop calls this mark, then the handlers, then the end mark, so their time is measured.
        self._loop.call_soon(self._mark_begin)
        for _ in range(min(self._wakes, len(waiters))):
            waiter = next(iter(waiters))
            del waiters[waiter]
            if not waiter.done():
                waiter.set_result(None)
        self._loop.call_soon(self._mark_end)

    def _mark_begin(self) -> None:
        self._wakes_began_ms = self._now_ms()

    def _mark_end(self) -> None:
        late = self._now_ms() - self._wakes_began_ms > ROUND_MS
        self._wakes = max(1, self._wakes >> 1) if late else min(WAKES_MAX, self._wakes << 1)
        self._wake_more()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._go_round)

    def _quantum(self) -> int:
        return max(self._small, min(self._turn, self._round // len(self._queue)))

    def _go_round(self) -> None:
        self._scheduled = False
        self._left = self._round
        queue = self._queue
        if not queue:
            return
        frames = self._quantum()
        for _ in range(len(queue)):
            if self._left <= 0:
                break
            connection = next(iter(queue))
            del queue[connection]
            connection.go_on(frames)
        self._left = self._round
        if queue:
            self._schedule()
            # The loop releases the interpreter too briefly for a waiting thread, and each poll of the sockets restarts
            # its 5 ms: the store's writer waited up to 80 ms under high load (decision 57).
            self._let_threads_run()
