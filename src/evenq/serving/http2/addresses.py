"""One peer address: the common state of its connections, and its name in logs.

Made by `evenq.serving.http2.server` for the first connection from an address, removed with the last one. Always true:
`calls` counts the calls from this address whose handlers have not ended; `idle` contains some of them.
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

LOOK_MS = 1_000  # shortest time between two searches of all connections: 15,000 of them take some ms


class Idle(Protocol):
    """A stream that can be ended to make room for others."""

    def end(self, code: int, message: str = "") -> None:
        """Answers with a status, if no answer was sent."""

    def end_now(self) -> None:
        """Ends it without waiting for the caller's first message."""

    def abandon(self) -> None:
        """Stops the handler."""


class IdleConnection(Protocol):
    """A connection that can be ended to make room for another one."""

    @property
    def idle_since_ms(self) -> int | None:
        """Time since which it has no call with credentials; None: it has one, or is ending."""

    def make_room(self) -> None:
        """Ends the connection."""


class IdleConnections:
    """Connections that can be ended for new ones, the longest idle first, as of the last search."""

    __slots__ = ("_found", "_looked_ms")

    def __init__(self) -> None:
        self._found: deque[IdleConnection] = deque()
        self._looked_ms: int | None = None

    def end_one(self, connections: Iterable[IdleConnection], now_ms: int) -> bool:
        """Ends one that is still idle. False: none was found within the last second."""
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
    """Common state of one peer address."""

    __slots__ = ("calls", "host", "idle", "idle_connections")

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host
        self.calls = 0  # calls whose handlers have not ended
        self.idle: dict[Idle, None] = {}
        """Streams without credentials, the oldest first: no message has arrived yet, or they need none."""
        self.idle_connections: IdleConnections | None = None  # made when the maximum of connections is reached

    def make_room(self) -> bool:
        """Ends the oldest idle stream for a new call; False: there is none."""
        stream = next(iter(self.idle), None)
        if stream is None:
            return False
        del self.idle[stream]
        stream.end(Status.RESOURCE_EXHAUSTED, "an idle stream made room for other calls of this address; open it again")
        stream.end_now()
        stream.abandon()
        return True

    def peer_of(self, transport: asyncio.BaseTransport) -> str:
        """Returns `host:port`, as in contexts and logs."""
        if self.host == UNIX:
            return self.host
        port = transport.get_extra_info("peername")[1]
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"
