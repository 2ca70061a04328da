"""Which answers must wait: what a connection's peer has not taken, against what it may leave.

One for each connection, asked by its calls before they make more. Counted is what streams have queued for the peer's
windows and what the transport holds for its socket. Always true: while the answers of an address, or of all, are at
their bound, no connection that has more than its share of it unread makes more of them; one that has less, and one
that has `SHARE_MIN` or less, waits for no other. So the sum of all is at most twice the bound, and a message more
for each handler that was making one.
"""

from __future__ import annotations

from typing import Protocol

from evenq.serving.http2.limits import SHARE_MIN, Http2Limits
from evenq.serving.http2.sending import StreamSender
from evenq.serving.http2.streams import Http2Stream

__all__ = ["WRITE_BYTES", "Backpressure", "Paused"]

WRITE_BYTES, WRITE_BYTES_PRESSED = 256 << 10, 64 << 10
"""What is handed to the transport at a time: usually, and while the peer's address has half of what it may unread."""


class Paused(Protocol):
    """A call whose handler waits for room."""

    def go_on(self) -> None:
        """There is room again: let the handler look."""


class Backpressure:
    """Of one connection."""

    __slots__ = ("_core", "_crowded", "_held_bytes", "_limits", "paused_ms", "waiting")

    def __init__(self, core: StreamSender, limits: Http2Limits) -> None:
        self._core, self._limits = core, limits
        self.paused_ms: int | None = None
        """Since when the transport takes no more."""
        self.waiting: dict[Http2Stream, Paused] = {}
        """Calls whose handlers wait for room."""
        self._held_bytes = 0
        """What the transport holds while it takes no more."""
        self._crowded = False
        """Handlers wait for more than their own stream's room."""

    def must_wait(self, stream: Http2Stream) -> bool:
        """True: what is queued already, here or on other connections, must leave before more is made."""
        queued = stream.queued_bytes
        if (queued and self._is_full()) or self.over_share:
            self._crowded = True
            return True
        return queued >= self._limits.stream_unread_bytes

    def count_wait(self, stream: Http2Stream) -> None:
        """A handler begins to wait for room."""
        core, limits = self._core, self._limits
        if limit := self.over_share:
            core.totals.reach(limit)
        elif core.unread_bytes >= limits.connection_unread_bytes:
            core.totals.reach("connection_unread_bytes")
        elif stream.queued_bytes >= limits.stream_unread_bytes:
            core.totals.reach("stream_unread_bytes")

    def wake(self) -> None:
        """Let handlers go on whose answers left; all are looked at only if more than their own streams were full."""
        crowded, before = self._is_full() or bool(self.over_share), self._crowded
        self._crowded = crowded
        if crowded:
            return
        for stream in list(self.waiting) if before else self._core.moved:
            call = self.waiting.get(stream)
            if call is not None and stream.queued_bytes < self._limits.stream_unread_bytes:
                call.go_on()

    @property
    def over_share(self) -> str:
        """The bound that the answers of the peer's address, or of all, have reached, if this connection has left more
        than its share of it unread; else empty.
        """
        return self._over(self._limits.address_unread_bytes)

    @property
    def refuses(self) -> str:
        """The same for calls whose answers cannot wait, at twice the bound of an address: one that is a load balancer
        has many answers on their way, and waiting costs a client less than being refused.
        """
        return self._over(2 * self._limits.address_unread_bytes)

    def _over(self, address_bytes: int) -> str:
        core = self._core
        own = core.unread_bytes + self._held_bytes
        # An answer on its way is no sign of a peer that does not read.
        if own < SHARE_MIN:
            return ""
        peer, totals, all_bytes = core.peer, core.totals, self._limits.unread_bytes
        # Multiplied instead of divided: whenever the sum is over the bound, somebody's share is, so the bound holds
        # (decision 57).
        if peer.unread_bytes >= address_bytes <= own * peer.connections:
            return "address_unread_bytes"
        if totals.unread_bytes >= all_bytes <= own * totals.connections:
            return "unread_bytes"
        return ""

    @property
    def write_bytes(self) -> int:
        """What may be handed to the transport at a time."""
        pressed = self._core.peer.unread_bytes > self._limits.address_unread_bytes >> 1
        return WRITE_BYTES_PRESSED if pressed else WRITE_BYTES

    def has_stalled(self, now_ms: int) -> str:
        """The bound that the socket has reached by taking nothing; empty: none."""
        if self.paused_ms is None:
            return ""
        limits, paused_ms = self._limits, now_ms - self.paused_ms
        if paused_ms >= limits.write_stall_ms:
            return "write_stall_ms"
        return "pressed_stall_ms" if paused_ms >= limits.pressed_stall_ms and self.over_share else ""

    def pause(self, now_ms: int, held_bytes: int) -> None:
        """The transport takes no more, and holds so much."""
        self.paused_ms = now_ms
        self._hold(held_bytes)

    def resume(self) -> None:
        """The transport takes more, or is gone. Idempotent."""
        self.paused_ms = None
        self._hold(0)

    def _hold(self, size: int) -> None:
        change = size - self._held_bytes
        self._held_bytes = size
        self._core.peer.unread_bytes += change
        self._core.totals.unread_bytes += change

    def _is_full(self) -> bool:
        return self.paused_ms is not None or self._core.unread_bytes >= self._limits.connection_unread_bytes
