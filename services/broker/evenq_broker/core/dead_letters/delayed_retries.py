"""How many messages wait as delayed copies for a retry topic, counted as they come and go.

The store knows when a delayed copy is due, not whose it is, so `loops.dead_letters.retries` counts each copy and
`loops.sending.delays` each one that became due. Only copies of this life of the broker count: those from before a
restart are not read for this. Pure.
"""

from __future__ import annotations

from collections import deque

__all__ = ["DelayedRetries"]

SEEN_MAX = 4_096
"""Most due timers that are remembered: a batch that the store could not take is asked about again."""


class DelayedRetries:
    """One count for each retry topic."""

    __slots__ = ("_seen", "_seen_order", "_since", "_waiting")

    def __init__(self) -> None:
        self._since = 0
        self._waiting: dict[int, int] = {}
        self._seen: set[int] = set()
        self._seen_order: deque[int] = deque()

    def begin(self, log_end: int) -> None:
        """Timers at this log offset and behind it are of this life."""
        self._since = log_end

    def put(self, topic_id: int) -> None:
        """A copy for this retry topic is about to be stored: before it may become due."""
        self._waiting[topic_id] = self._waiting.get(topic_id, 0) + 1

    def not_stored(self, topic_id: int) -> None:
        """It was not."""
        self._waiting[topic_id] = max(0, self._waiting.get(topic_id, 0) - 1)

    def due(self, topic_id: int, log_offset: int) -> None:
        """The timer at this log offset becomes a message of its topic, a retry topic or any other."""
        waiting = self._waiting.get(topic_id, 0)
        if not waiting or log_offset < self._since or log_offset in self._seen:
            return
        self._seen.add(log_offset)
        self._seen_order.append(log_offset)
        if len(self._seen_order) > SEEN_MAX:
            self._seen.discard(self._seen_order.popleft())
        self._waiting[topic_id] = waiting - 1

    def waiting(self, topic_id: int) -> int:
        """Copies that wait for this topic."""
        return self._waiting.get(topic_id, 0)

    def forget_topic(self, topic_id: int) -> None:
        """The topic was deleted."""
        self._waiting.pop(topic_id, None)
