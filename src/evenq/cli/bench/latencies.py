"""Percentiles of many durations in bounded memory: counts in buckets whose width grows with the duration. Pure.

A bucket is 1 % wide, so a percentile is exact to 1 %. Durations of 1 microsecond to an hour need 2,200 buckets.
"""

from __future__ import annotations

import math
from collections import Counter

_GROWTH = math.log(1.01)
MAX_US = 3_600 * 1_000_000


class Latencies:
    """Durations in microseconds, each counted once."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.max_us = 0.0

    def add(self, microseconds: float) -> None:
        """Counts a duration; one outside 1 microsecond to an hour counts as the bound."""
        bounded = min(max(microseconds, 1.0), MAX_US)
        self._buckets[int(math.log(bounded) / _GROWTH)] += 1
        self.count += 1
        self.max_us = max(self.max_us, bounded)

    def percentile_ms(self, percent: float) -> float | None:
        """Returns the duration that `percent` of all do not exceed, ms; None without durations."""
        if not self.count:
            return None
        rank, seen = max(1, math.ceil(self.count * percent / 100)), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                upper_us = math.exp((bucket + 1) * _GROWTH)
                return round(min(upper_us, self.max_us) / 1000, 3)
        raise AssertionError("the ranks end at the count")
