"""Counters of the loops, as plain integers, which `metrics.py` reads at scrape."""

from __future__ import annotations

from bisect import bisect_left

DURATION_BOUNDS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 5_000)


class RebalancerStats:
    __slots__ = ("duration_buckets", "duration_total_ms", "problems")

    def __init__(self) -> None:
        self.duration_buckets = [0] * (len(DURATION_BOUNDS_MS) + 1)
        """Rounds that made decisions, by time from the first change to the push; not cumulative."""
        self.duration_total_ms = 0
        self.problems = 0
        """Times that a strategy began to fail."""

    def rebalanced(self, duration_ms: int) -> None:
        self.duration_buckets[bisect_left(DURATION_BOUNDS_MS, duration_ms)] += 1
        self.duration_total_ms += duration_ms
