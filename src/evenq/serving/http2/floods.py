"""Budgets for frames that cost the peer nothing: each kind has a bucket that fills with time.

Some of them are answers to what we sent (WINDOW_UPDATE follows DATA, gRPC clients measure with a PING when data
comes), so what we send fills those buckets too. Always true: an empty bucket is a ConnectionFault with
ENHANCE_YOUR_CALM, and a connection that only does what its calls need never empties one.
"""

from __future__ import annotations

from evenq.wire.http2.codes import ConnectionFault, ErrorCode

__all__ = ["Bucket"]


CREDIT = 16
"""Times the burst that may be saved up of what our own frames called for: answers to thousands of streams are
acknowledged together."""


class Bucket:
    """What is left of one kind's budget."""

    __slots__ = ("_at_ms", "_credit", "_earned", "_left", "_limit", "_name", "burst", "per_s")

    def __init__(self, name: str, limit: str, *, burst: int, per_s: int) -> None:
        """`name`: of the frames, for the peer; `limit`: of the bound, for metrics."""
        self._name = name
        self._limit = limit
        self.burst = burst
        self.per_s = per_s
        self._left = burst * 1_000
        self._credit = 0
        self._at_ms = 0
        self._earned = 0

    def spend(self, now_ms: int, earned: int = 0) -> None:
        """Take one. `earned`: a count that only grows and adds what it grew by. Raises ConnectionFault."""
        if earned != self._earned:
            self._credit = min(CREDIT * self.burst, self._credit + earned - self._earned)
            self._earned = earned
        if self._credit:
            self._credit -= 1
            return
        left = self._left
        if left < self.burst * 1_000:
            left = min(self.burst * 1_000, left + (now_ms - self._at_ms) * self.per_s)
        self._at_ms = now_ms
        if left < 1_000:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"too many frames: {self._name}", self._limit)
        self._left = left - 1_000
