"""How much one micro-batch takes: a maximum of messages and bytes, and not before there are enough of them.

Called by the stream reader's runner at each trigger. What a batch reads is in its logged offsets, so nothing in here
has to survive the process: after a restart the first batch does not wait, as in Spark's Kafka source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from evenq.model.queue import MessageQueue
from pyspark_evenq.options import Limits

__all__ = ["NO_LIMIT", "SAMPLES_MAX", "Limiter"]

NO_LIMIT = 1 << 62
"""What Spark gets where only bytes or a minimum are limited: its own limit for "everything" means that no limit of
ours counts (`Trigger.Once`).
"""
SAMPLES_MAX = 8
"""Queues whose next rows are looked at for their size, the ones with the largest backlog."""


class Limiter:
    """The limits of one query, and when its last batch was."""

    def __init__(self, limits: Limits, *, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now = now
        self._last: float | None = None

    def is_due(self, backlog: int, *, first: bool) -> bool:
        """Whether a batch may be made of `backlog` messages. `first`: it does not wait (the first one of a query, and
        `availableNow`).
        """
        if first or self._last is None or backlog >= self._limits.offsets_min:
            return True
        return self._now() - self._last >= self._limits.delay_ms / 1000

    def triggered(self) -> None:
        """A batch was made."""
        self._last = self._now()

    def rows(
        self, limit: int, backlog: Mapping[MessageQueue, int], row_bytes: Callable[[MessageQueue], float | None]
    ) -> int:
        """How many messages the batch takes, at least one. `row_bytes`: about how large the next messages of a queue
        are, None if its broker does not say.
        """
        if not self._limits.bytes_max:
            return limit
        largest = sorted((queue for queue in backlog if backlog[queue] > 0), key=lambda queue: (-backlog[queue], queue))
        sizes = {queue: size for queue in largest[:SAMPLES_MAX] if (size := row_bytes(queue)) is not None}
        if not sizes:
            return limit
        # Weighted by backlog: a queue with few large messages would otherwise make batches of many small ones too
        # short.
        mean = sum(sizes[queue] * backlog[queue] for queue in sizes) / sum(backlog[queue] for queue in sizes)
        return max(1, min(limit, int(self._limits.bytes_max / max(mean, 1.0))))
