"""Whose input is read when: the time of the loop, shared between all connections of a server.

A connection reads what has come at once, as long as little is going on. Under a crowd each has a small share, and what
is left of its input waits in a queue that goes round. Counted in frames, the unit of `Limits.frames_per_turn`.
Always true: between two looks of the loop at its sockets no more than about `ROUND` turns' worth of frames are read
for the queue, and no more than twice as much from connections with new input, however many there are.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenq.serving.http2.limits import Limits
    from evenq.serving.http2.protocol import Http2Protocol

__all__ = ["Turns"]

ROUND = 8
"""Full turns between two looks at the sockets."""
SMALL = 4
"""Frames of the smallest share: a client that makes a call or two does not wait for a crowd."""


class Turns:
    """Belongs to one loop."""

    def __init__(self, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = limits.frames_per_turn
        self._small = min(SMALL, self._turn)
        self._round = ROUND * self._turn
        self._left = self._round
        """Frames that may be read before the loop looks at its sockets again; may fall below 0."""
        self._queue: dict[Http2Protocol, None] = {}
        self._loop = loop
        self._scheduled = False

    def share(self) -> int:
        """Frames that a connection with new input may read now; 0: it is to `wait`."""
        if self._left > 0:
            return self._quantum() if self._queue else self._turn
        return self._small if self._left > -self._round else 0

    def spend(self, frames: int) -> None:
        """So many were read."""
        self._left -= frames
        if self._left <= 0:
            self._schedule()

    def wait(self, connection: Http2Protocol) -> None:
        """Let `connection` go on (`Http2Protocol.go_on`) when it is its turn."""
        self._queue[connection] = None
        self._schedule()

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
