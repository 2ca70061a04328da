"""Budgets for frames that cost the peer nothing: each kind has a bucket that fills with time.

Some of them are answers to what we sent (WINDOW_UPDATE follows DATA, gRPC clients measure with a PING when data
comes), so what we send fills those buckets too. Always true: an empty bucket is a ConnectionFault with
ENHANCE_YOUR_CALM, and a connection that only does what its calls need never empties one.
"""

from __future__ import annotations

from evenq.serving.http2.codes import ConnectionFault, ErrorCode

__all__ = ["Bucket"]


class Bucket:
    """What is left of one kind's budget."""

    __slots__ = ("_at_ms", "_earned", "_left", "_name", "burst", "per_s")

    def __init__(self, name: str, *, burst: int, per_s: int) -> None:
        self._name = name
        self.burst = burst
        self.per_s = per_s
        self._left = burst * 1_000
        self._at_ms = 0
        self._earned = 0

    def spend(self, now_ms: int, earned: int = 0) -> None:
        """Take one. `earned`: a count that only grows and adds what it grew by. Raises ConnectionFault."""
        left = self._left
        if left < self.burst * 1_000:
            more = (now_ms - self._at_ms) * self.per_s + (earned - self._earned) * 1_000
            left = min(self.burst * 1_000, left + more)
        self._at_ms, self._earned = now_ms, earned
        if left < 1_000:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many frames: {self._name}")
        self._left = left - 1_000
