"""Deadlines of unacknowledged deliveries: one heap for all groups and queues. Used only by `core.delivery.progress`.

One entry stands for all messages of a queue that were delivered together. A delivery that ends early leaves its entry
behind; such entries are removed when the heap has doubled. Times are ms since the epoch. Always true: a queue's newest
entry (`QueueProgress.timer`) is in the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from evenq_broker.core.delivery.queue_progress import QueueProgress

COMPACT_FROM = 4_096


class DeliveryDeadlines:
    __slots__ = ("_compact_at", "_queues", "timers")

    def __init__(self, queues: Mapping[tuple[int, int, int], QueueProgress]) -> None:
        self._queues = queues
        self.timers: list[tuple[int, int, int, int, list[int]]] = []  # a heap of deadline, group, topic, queue, offsets
        self._compact_at = COMPACT_FROM

    def next(self) -> int | None:
        """Returns the earliest deadline, maybe of a delivery that has ended; None: there is no entry."""
        return self.timers[0][0] if self.timers else None

    def arm(self, queue: QueueProgress, deadline_ms: int, offsets: list[int]) -> None:
        """Adds messages of the queue that have this deadline; keeps the list."""
        if queue.timer[0] == deadline_ms:  # still in the heap, as every future deadline is
            queue.timer[1].extend(offsets)  # the list belongs to this class since its first deliveries
            return
        queue.timer = (deadline_ms, offsets)
        heapq.heappush(self.timers, (deadline_ms, queue.group_id, queue.topic_id, queue.queue_id, offsets))
        if len(self.timers) > self._compact_at:
            self._compact()

    def due(self, now_ms: int) -> Iterator[tuple[QueueProgress, int, list[int]]]:
        """Removes and yields what is due: queue, deadline and offsets, some of which may have ended since."""
        timers = self.timers
        while timers and timers[0][0] <= now_ms:
            deadline_ms, group_id, topic_id, queue_id, offsets = heapq.heappop(timers)
            queue = self._queues.get((group_id, topic_id, queue_id))
            if queue is None:
                continue
            if queue.timer[1] is offsets:
                # Later deliveries of the same ms need a new entry: a list outside of the heap would never end them.
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
