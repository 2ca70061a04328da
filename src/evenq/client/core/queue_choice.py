"""Which queue a message goes to: the counter of PR-2 and the stable hash of PR-7.

Called by the producer loop for every message. The counter's random start is handed in, so a test can choose it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from evenq.model import MessageQueue

__all__ = ["QueueCounter", "queue_of_group", "queues_of_priority"]


class QueueCounter:
    """The default choice: a counter with a random start, one up per choice, modulo the list length (PR-2)."""

    __slots__ = ("_next",)

    def __init__(self, start: int) -> None:
        self._next = start

    def choose(self, queues: Sequence[MessageQueue], *, failed_broker: str = "") -> MessageQueue:
        """The next queue that is not of the broker that failed in the previous attempt; any, if it is the only
        broker (PR-3).
        """
        for _ in range(len(queues)):
            queue = queues[self._next % len(queues)]
            self._next += 1
            if queue.broker_name != failed_broker:
                return queue
        queue = queues[self._next % len(queues)]
        self._next += 1
        return queue


def queues_of_priority(priority: int, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
    """Each broker's queue for this priority: its queues are the levels, and what is above the highest belongs there."""
    highest: dict[str, int] = {}
    for queue in queues:
        highest[queue.broker_name] = max(highest.get(queue.broker_name, 0), queue.queue_id)
    return [queue for queue in queues if queue.queue_id == min(max(priority, 0), highest[queue.broker_name])]


def queue_of_group(message_group: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Equal message groups go to one queue, in every process and release (PR-7): a SHA-256 of the group, modulo the
    queues.
    """
    digest = hashlib.sha256(message_group.encode()).digest()
    return queues[int.from_bytes(digest[:8], "big") % len(queues)]
