"""Durations of calls, counted by the server in plain integers and read at scrape by `evenq.serving.program.metrics`.

The buckets are those of RocketMQ 5's `rocketmq_rpc_latency`, so existing dashboards fit. One `MethodStats` per method,
owned by the loop; `add` costs a search among nine numbers and two additions.
"""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_MS = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)  # RocketMQ 5, buckets of the RPC cost time


class MethodStats:
    __slots__ = ("buckets", "errors", "running", "total_ms")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_MS) + 1)
        """Finished calls by duration, not cumulative; the last bucket is "longer than all bounds"."""
        self.total_ms = 0
        self.running = 0  # calls that have not ended, including waiting polls and open streams
        self.errors: dict[int, int] = {}  # answered errors of the server, by code of the protocol

    def add(self, duration_ms: int) -> None:
        """Counts a finished call."""
        self.buckets[bisect_left(BOUNDS_MS, duration_ms)] += 1
        self.total_ms += duration_ms

    def failed(self, code: int) -> None:
        """Counts an error. The codes are those of the proto, so the table stays small."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def include(self, other: MethodStats) -> None:
        """Adds all counts of `other`: two servers with one method are one to Prometheus."""
        self.buckets = [own + more for own, more in zip(self.buckets, other.buckets, strict=True)]
        self.total_ms += other.total_ms
        self.running += other.running
        for code, number in other.errors.items():
            self.errors[code] = self.errors.get(code, 0) + number

    @property
    def finished(self) -> int:
        """Number of ended calls, with or without an error."""
        return sum(self.buckets)

    @property
    def called(self) -> bool:
        """True if there was any call."""
        return bool(self.running or self.errors or self.finished)
