"""Limits of one micro-batch: a maximum of messages and bytes, and a minimum of messages to wait for.

Called by the stream reader's runner at each trigger. The logged offsets fix what a batch reads, so this state need not
survive the process: after a restart the first batch does not wait, as in Spark's Kafka source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from evenq.model.queue import MessageQueue
from pyspark_evenq.options.source import Limits

NO_LIMIT = 1 << 62
"""Row limit for Spark if only bytes or a minimum are limited: Spark's limit for "everything" would disable all limits
(`Trigger.Once`)."""
SAMPLES_MAX = 8
"""Queues whose next rows are sampled for their size: those with the largest backlog."""


class Limiter:
    """The limits of one query, and the time of its last batch."""

    def __init__(self, limits: Limits, *, now: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now = now
        self._last: float | None = None

    def is_due(self, backlog: int, *, first: bool) -> bool:
        """Returns whether a batch may be made of `backlog` messages. `first`: without a wait."""
        if first or self._last is None or backlog >= self._limits.offsets_min:
            return True
        return self._now() - self._last >= self._limits.delay_ms / 1000

    def triggered(self) -> None:
        self._last = self._now()

    def rows(
        self, limit: int, backlog: Mapping[MessageQueue, int], row_bytes: Callable[[MessageQueue], float | None]
    ) -> int:
        """Returns the number of messages of the batch, at least one. `row_bytes`: estimated size of a queue's next
        messages, None without an answer of its broker.
        """
        if not self._limits.bytes_max:
            return limit
        largest = sorted((queue for queue in backlog if backlog[queue] > 0), key=lambda queue: (-backlog[queue], queue))
        sizes = {queue: size for queue in largest[:SAMPLES_MAX] if (size := row_bytes(queue)) is not None}
        if not sizes:
            return limit
        # Weighted by backlog: otherwise a queue with few large messages would make batches of small ones too short.
        mean = sum(sizes[queue] * backlog[queue] for queue in sizes) / sum(backlog[queue] for queue in sizes)
        return max(1, min(limit, int(self._limits.bytes_max / max(mean, 1.0))))
