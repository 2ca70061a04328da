"""One peer address: what its connections have in common, and the name under which it is logged.

Made by `evenq.serving.http2.server` for the first connection from an address, forgotten with the last one. Always
true: `calls` counts the calls from this address whose handlers are not over; `idle` holds some of them.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from evenq.serving.binding import UNIX
from evenq.serving.http2.limits import PeerTotals
from evenq.wire.http2.codes import Status

__all__ = ["Address", "Idle"]


class Idle(Protocol):
    """A stream that can be ended for others."""

    def end(self, code: int, message: str = "") -> None:
        """Answer with a status, if it is not answered yet."""

    def end_now(self) -> None:
        """Do not wait until the caller has sent something."""

    def abandon(self) -> None:
        """Stop the handler."""


class Address(PeerTotals):
    """What comes from one peer address."""

    __slots__ = ("calls", "host", "idle")

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host
        self.calls = 0
        """Whose handlers are not over."""
        self.idle: dict[Idle, None] = {}
        """Streams that show no credentials: no message has come on them yet, or anybody may open them. The oldest
        first.
        """

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
