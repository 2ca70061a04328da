"""How much of what peers sent waits for the owner of a replica, and when the links may be read on.

The owner counts what it takes and what it is done with; links are not read while more than the limit is in hand, so a
slow disk slows its leader down instead of filling the memory. One message may go over the limit: it is known only when
it is there. Belongs to one loop.
"""

from __future__ import annotations

import asyncio


class BytesInHand:
    """See the module."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes in hand at which links are not read any more."""
        if limit <= 0:
            raise ValueError(f"a limit of {limit} bytes in hand; it must be over 0")
        self.limit = limit
        self.bytes = 0
        """In hand now."""
        self._less = asyncio.Event()
        self._less.set()

    def take(self, size: int) -> None:
        """Further bytes are in hand."""
        self.bytes += size
        if self.bytes > self.limit:
            self._less.clear()

    def give(self, size: int) -> None:
        """The owner is done with this number of them."""
        self.bytes -= size
        assert self.bytes >= 0, f"{size} bytes were given that were not in hand"
        if self.bytes <= self.limit:
            self._less.set()

    async def room(self) -> None:
        """Wait until no more than the limit is in hand."""
        while self.bytes > self.limit:
            await self._less.wait()
