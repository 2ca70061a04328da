"""Queues of our share whose locks others keep: what two members' lists both name is noticed nowhere else (AL-14).

Called by `loops.ownership` with each answer about a lock. Pure; time comes in as monotonic ms.
"""

from __future__ import annotations

from collections.abc import Collection

from evenq.model import MessageQueue

__all__ = ["OVERLAP_MS", "Overlaps"]

OVERLAP_MS = 120_000
"""How long another member may hold a queue of our share until that is no hand-over any more: twice the longest
`drain_ms`, and more than an ordered call may hold it (`revoke_ms`, 90 s)."""


class Overlaps:
    """Of one consumer."""

    def __init__(self) -> None:
        self._since_ms: dict[MessageQueue, int] = {}
        self._reported: set[MessageQueue] = set()

    def refused(self, queue: MessageQueue, now_ms: int) -> bool:
        """Another member holds it. True, once, when it has done so for `OVERLAP_MS`."""
        overlaps = now_ms - self._since_ms.setdefault(queue, now_ms) >= OVERLAP_MS
        news = overlaps and queue not in self._reported
        if news:
            self._reported.add(queue)
        return news

    def over(self, queue: MessageQueue) -> None:
        """The lock is ours, or its holder is not known."""
        self._since_ms.pop(queue, None)
        self._reported.discard(queue)

    def assigned(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """A new share of the topic: what is not in it is wanted no more."""
        for queue in [queue for queue in self._since_ms if queue.topic == topic and queue not in queues]:
            self.over(queue)
