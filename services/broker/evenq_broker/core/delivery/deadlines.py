"""When deliveries end that were not acknowledged: one heap for all groups and queues. Used by `core.delivery.progress`
alone.

One entry stands for all messages of a queue that were delivered together. A delivery that ends early leaves its entry
behind; such entries are thrown out when the heap has doubled. Times are milliseconds since the epoch.
Always true: a queue's newest entry (`QueueProgress.timer`) is in the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from evenq_broker.core.delivery.queue_progress import QueueProgress

__all__ = ["DeliveryDeadlines"]

COMPACT_FROM = 4_096


class DeliveryDeadlines:
    """The deadlines of all deliveries."""

    __slots__ = ("_compact_at", "_queues", "timers")

    def __init__(self, queues: Mapping[tuple[int, int, int], QueueProgress]) -> None:
        self._queues = queues
        self.timers: list[tuple[int, int, int, int, list[int]]] = []
        """A heap of deadline, group, topic, queue, offsets."""
        self._compact_at = COMPACT_FROM

    def next(self) -> int | None:
        """The earliest; None: there is none. May be of a delivery that has ended."""
        return self.timers[0][0] if self.timers else None

    def arm(self, queue: QueueProgress, deadline_ms: int, offsets: list[int]) -> None:
        """Messages of the queue that have this deadline; the list is kept."""
        if queue.timer[0] == deadline_ms:  # still in the heap: it holds what is armed for a time to come
            queue.timer[1].extend(offsets)  # the list was handed over with its first deliveries
            return
        queue.timer = (deadline_ms, offsets)
        heapq.heappush(self.timers, (deadline_ms, queue.group_id, queue.topic_id, queue.queue_id, offsets))
        if len(self.timers) > self._compact_at:
            self._compact()

    def due(self, now_ms: int) -> Iterator[tuple[QueueProgress, int, list[int]]]:
        """Take out what is due: queue, deadline and offsets, of which some may have ended since."""
        timers = self.timers
        while timers and timers[0][0] <= now_ms:
            deadline_ms, group_id, topic_id, queue_id, offsets = heapq.heappop(timers)
            queue = self._queues.get((group_id, topic_id, queue_id))
            if queue is None:
                continue
            if queue.timer[1] is offsets:
                # Later deliveries of the same ms must make a new entry: a list that is out of the heap would never end
                # them.
                queue.timer = (-1, [])
            yield queue, deadline_ms, offsets

    def _compact(self) -> None:
        kept = []
        for timer in self.timers:
            queue = self._queues.get((timer[1], timer[2], timer[3]))
            if queue is not None and any(
                (entry := queue.pending.get(offset)) is not None and entry.deadline_ms == timer[0]
                for offset in timer[4]
            ):
                kept.append(timer)
            elif queue is not None and queue.timer[1] is timer[4]:
                queue.timer = (-1, [])
        heapq.heapify(kept)
        self.timers[:] = kept
        self._compact_at = max(COMPACT_FROM, 2 * len(kept))
