"""One peer address: what its connections have in common, and the name under which it is logged.

Made by `evenq.serving.http2.server` for the first connection from an address, forgotten with the last one. Always
true: `calls` counts the calls from this address whose handlers are not over.
"""

from __future__ import annotations

import asyncio

from evenq.serving.binding import UNIX
from evenq.serving.http2.limits import PeerTotals

__all__ = ["Address"]


class Address(PeerTotals):
    """What comes from one peer address."""

    __slots__ = ("calls", "host")

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host
        self.calls = 0
        """Whose handlers are not over."""

    def peer_of(self, transport: asyncio.BaseTransport) -> str:
        """`host:port`, as contexts and logs have it."""
        if self.host == UNIX:
            return self.host
        port = transport.get_extra_info("peername")[1]
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"
