"""Decides which answers must wait, by the bytes that the peer has not taken.

One object per connection; its calls query it before they make more. It counts the bytes that streams have queued for
the peer's windows and that the transport holds for its socket. Always true: while the answers of an address, or of all,
are at their bound, connections over their share make no more of them. Connections under their share, or with at most
`SHARE_MIN`, do not wait for others. So the sum is at most twice the bound, plus one message of each busy handler.
"""

from __future__ import annotations

from typing import Protocol

from evenq.serving.http2.limits import SHARE_MIN, Http2Limits
from evenq.serving.http2.sending import StreamSender
from evenq.serving.http2.streams import Http2Stream

WRITE_BYTES, WRITE_BYTES_PRESSED = 256 << 10, 64 << 10
"""Bytes passed to the transport at a time: usually, and while the address has half of its bound unread."""


class Paused(Protocol):
    """A call whose handler waits for room."""

    def go_on(self) -> None:
        """Lets the handler check again, because there is room."""


class Backpressure:
    """Backpressure of one connection."""

    __slots__ = ("_core", "_crowded", "_held_bytes", "_limits", "paused_ms", "waiting")

    def __init__(self, core: StreamSender, limits: Http2Limits) -> None:
        self._core, self._limits = core, limits
        self.paused_ms: int | None = None  # since when the transport accepts no more
        self.waiting: dict[Http2Stream, Paused] = {}  # calls whose handlers wait for room
        self._held_bytes = 0  # bytes in the transport while it accepts no more
        self._crowded = False  # handlers wait for more than their own stream's room

    def must_wait(self, stream: Http2Stream) -> bool:
        """Returns whether queued data, here or on other connections, must leave before more is made."""
        queued = stream.queued_bytes
        if (queued and self._is_full()) or self.over_share:
            self._crowded = True
            return True
        return queued >= self._limits.stream_unread_bytes

    def count_wait(self, stream: Http2Stream) -> None:
        """Counts a handler that begins to wait for room."""
        core, limits = self._core, self._limits
        if limit := self.over_share:
            core.totals.reach(limit)
        elif core.unread_bytes >= limits.connection_unread_bytes:
            core.totals.reach("connection_unread_bytes")
        elif stream.queued_bytes >= limits.stream_unread_bytes:
            core.totals.reach("stream_unread_bytes")

    def wake(self) -> None:
        """Lets waiting handlers continue; checks all of them only if more than their own streams were full."""
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
        """Name of the reached bound, of the peer's address or of all, if this connection exceeds its share; otherwise
        empty.
        """
        return self._over(self._limits.address_unread_bytes)

    @property
    def refuses(self) -> str:
        """The same for calls whose answers cannot wait, at twice the bound of an address: a load balancer has many
        answers on their way, and waiting costs a client less than a refusal.
        """
        return self._over(2 * self._limits.address_unread_bytes)

    def _over(self, address_bytes: int) -> str:
        core = self._core
        own = core.unread_bytes + self._held_bytes
        # One answer on its way does not show that the peer does not read.
        if own < SHARE_MIN:
            return ""
        peer, totals, all_bytes = core.peer, core.totals, self._limits.unread_bytes
        # Multiplied instead of divided: if the sum reaches the bound, at least one share does too, so the bound holds
        # (decision 57).
        if peer.unread_bytes >= address_bytes <= own * peer.connections:
            return "address_unread_bytes"
        if totals.unread_bytes >= all_bytes <= own * totals.connections:
            return "unread_bytes"
        return ""

    @property
    def write_bytes(self) -> int:
        """Bytes that may be passed to the transport at a time."""
        pressed = self._core.peer.unread_bytes > self._limits.address_unread_bytes >> 1
        return WRITE_BYTES_PRESSED if pressed else WRITE_BYTES

    def has_stalled(self, now_ms: int) -> str:
        """Returns the time bound that the socket has reached without accepting a byte; empty: none."""
        if self.paused_ms is None:
            return ""
        limits, paused_ms = self._limits, now_ms - self.paused_ms
        if paused_ms >= limits.write_stall_ms:
            return "write_stall_ms"
        return "pressed_stall_ms" if paused_ms >= limits.pressed_stall_ms and self.over_share else ""

    def pause(self, now_ms: int, held_bytes: int) -> None:
        """Records that the transport accepts no more, and holds `held_bytes`."""
        self.paused_ms = now_ms
        self._hold(held_bytes)

    def resume(self) -> None:
        """Records that the transport accepts more, or is closed. Idempotent."""
        self.paused_ms = None
        self._hold(0)

    def _hold(self, size: int) -> None:
        change = size - self._held_bytes
        self._held_bytes = size
        self._core.peer.unread_bytes += change
        self._core.totals.unread_bytes += change

    def _is_full(self) -> bool:
        return self.paused_ms is not None or self._core.unread_bytes >= self._limits.connection_unread_bytes
