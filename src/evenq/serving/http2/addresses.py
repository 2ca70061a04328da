"""One peer address: what its connections have in common, and the name under which it is logged.

Made by `evenq.serving.http2.server` for the first connection from an address, forgotten with the last one. Always
true: `calls` counts the calls from this address whose handlers are not over; `idle` holds some of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from operator import itemgetter
from typing import Protocol

from evenq.serving.binding import UNIX
from evenq.serving.http2.limits import PeerTotals
from evenq.wire.http2.codes import Status

__all__ = ["Address", "Idle", "IdleConnections"]

LOOK_MS = 1_000
"""Shortest time between two looks at all connections: 15,000 of them take some milliseconds."""


class Idle(Protocol):
    """A stream that can be ended for others."""

    def end(self, code: int, message: str = "") -> None:
        """Answer with a status, if it is not answered yet."""

    def end_now(self) -> None:
        """Do not wait until the caller has sent something."""

    def abandon(self) -> None:
        """Stop the handler."""


class IdleConnection(Protocol):
    """A connection that can be ended for another one."""

    @property
    def idle_since_ms(self) -> int | None:
        """Since when it carries no call that showed credentials; None: it carries one, or ends already."""

    def make_room(self) -> None:
        """End it."""


class IdleConnections:
    """Those that can be ended for new ones, the longest idle first, as the last look found them."""

    __slots__ = ("_found", "_looked_ms")

    def __init__(self) -> None:
        self._found: deque[IdleConnection] = deque()
        self._looked_ms: int | None = None

    def end_one(self, connections: Iterable[IdleConnection], now_ms: int) -> bool:
        """End one that is idle still. False: none was found within the last second."""
        while True:
            while self._found:
                connection = self._found.popleft()
                if connection.idle_since_ms is not None:
                    connection.make_room()
                    return True
            if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_MS:
                return False
            self._looked_ms = now_ms
            idle = [(since_ms, one) for one in connections if (since_ms := one.idle_since_ms) is not None]
            idle.sort(key=itemgetter(0))
            self._found.extend(one for _, one in idle)


class Address(PeerTotals):
    """What comes from one peer address."""

    __slots__ = ("calls", "host", "idle", "idle_connections")

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host
        self.calls = 0
        """Whose handlers are not over."""
        self.idle: dict[Idle, None] = {}
        """Streams that show no credentials: no message has come on them yet, or anybody may open them. The oldest
        first.
        """
        self.idle_connections: IdleConnections | None = None
        """Made when there are as many connections as may be."""

    def make_room(self) -> bool:
        """End the oldest idle stream for a call that comes; False: there is none."""
        stream = next(iter(self.idle), None)
        if stream is None:
            return False
        del self.idle[stream]
        stream.end(Status.RESOURCE_EXHAUSTED, "an idle stream made room for other calls of this address; open it again")
        stream.end_now()
        stream.abandon()
        return True

    def peer_of(self, transport: asyncio.BaseTransport) -> str:
        """`host:port`, as contexts and logs have it."""
        if self.host == UNIX:
            return self.host
        port = transport.get_extra_info("peername")[1]
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"
