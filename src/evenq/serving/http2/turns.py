"""Whose input is read when: the time of the loop, shared between all connections of a server.

A connection reads what has come at once, as long as little is going on. Under a crowd each has a small share, and what
is left of its input waits in a queue that goes round. Counted in frames, the unit of
`Http2Limits.frames_per_turn`; what takes longer than frames usually do counts as more of them, because handlers run as
soon as their request is read.
Always true: between two looks of the loop at its sockets no more than about `ROUND` turns' worth of frames are read
for the queue, and no more than twice as much from connections with new input, however many there are. Handlers of
streams that waited for a message are woken a few at a time, as many as `ROUND_MS` has room for. After each round that
leaves input waiting the threads beside the loop may run: what writes to the disk is one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from evenq.runtime.threads import let_threads_run
from evenq.serving.http2.limits import Http2Limits

__all__ = ["InputReader", "Turns"]

ROUND = 8
"""Full turns between two looks at the sockets."""
SMALL = 4
"""Frames of the smallest share: a client that makes a call or two does not wait for a crowd."""
ROUND_MS = 2
"""A round that takes longer than this is over, however few its frames: a call that waits for the disk passes six of
them."""
WAKES_MAX = 16
"""Handlers of streams that are woken in one go, at most; fewer if they take longer than `ROUND_MS`."""


class InputReader(Protocol):
    """What is read in turns: the input of one connection."""

    def go_on(self, frames: int) -> None:
        """Read up to `frames` of what has come."""


class Turns:
    """Belongs to one loop."""

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
        self._left = self._round
        """Frames that may be read before the loop looks at its sockets again; may fall below 0."""
        self._queue: dict[InputReader, None] = {}
        self._loop = loop
        self._now_ms = now_ms
        self._let_threads_run = let_threads_run
        self._scheduled = False
        self._waiters: dict[asyncio.Future[None], None] = {}
        """Whose message has come, and whose turn has not."""
        self._wakes = self._wakes_left = WAKES_MAX
        self._wakes_began_ms = 0
        self._waking = False

    def share(self) -> int:
        """Frames that a connection with new input may read now; 0: it is to `wait`."""
        if self._left > 0:
            return self._quantum() if self._queue else self._turn
        return self._small if self._left > -self._round else 0

    def spend(self, frames: int, took_ms: int) -> None:
        """This number was read, and what it began took `took_ms`: the more of both counts, at most as a round. The
        clock's steps are as long as many turns: what one turn pays too much, others pay too little.
        """
        # At most a round: one handler that blocked the loop must not shut out new input for many rounds.
        self._left -= min(max(frames, took_ms * self._per_ms), self._round)
        if self._left <= 0:
            self._schedule()

    def wait(self, connection: InputReader) -> None:
        """Let `connection` go on (`InputReader.go_on`) when it is its turn."""
        self._queue[connection] = None
        self._schedule()

    def wake(self, waiter: asyncio.Future[None]) -> None:
        """Set the result of what a handler waits for, now or in a later turn of the loop."""
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
        # What is called next is this mark, then the handlers, then the end: so their time is known.
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
            # The loop gives the interpreter away too briefly for a waiting thread to take it, and each look at the
            # sockets begins its 5 ms anew: the store's writer waited up to 80 ms beside a crowd (decision 57).
            self._let_threads_run()
