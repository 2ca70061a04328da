"""Numbers of messages that wait as delayed copies for a retry topic.

The store knows when a delayed copy is due but not its topic, so `loops.dead_letters.retries` counts each copy and
`loops.sending.delays` each one that became due. Copies from before this start of the broker are not counted. Pure.
"""

from __future__ import annotations

from collections import deque

SEEN_MAX = 4_096
"""Due timers that are remembered at most: a batch that the store could not take becomes due again."""


class DelayedRetries:
    """One count for each retry topic."""

    __slots__ = ("_seen", "_seen_order", "_since", "_waiting")

    def __init__(self) -> None:
        self._since = 0
        self._waiting: dict[int, int] = {}
        self._seen: set[int] = set()
        self._seen_order: deque[int] = deque()

    def begin(self, log_end: int) -> None:
        """Sets the log offset from which on timers belong to this start."""
        self._since = log_end

    def put(self, topic_id: int) -> None:
        """Counts a copy that is about to be stored for this retry topic, before it may become due."""
        self._waiting[topic_id] = self._waiting.get(topic_id, 0) + 1

    def not_stored(self, topic_id: int) -> None:
        """Takes back a `put` whose copy was not stored."""
        self._waiting[topic_id] = max(0, self._waiting.get(topic_id, 0) - 1)

    def due(self, topic_id: int, log_offset: int) -> None:
        """Counts down for the timer at this log offset, which becomes a message of its topic (any topic)."""
        waiting = self._waiting.get(topic_id, 0)
        if not waiting or log_offset < self._since or log_offset in self._seen:
            return
        self._seen.add(log_offset)
        self._seen_order.append(log_offset)
        if len(self._seen_order) > SEEN_MAX:
            self._seen.discard(self._seen_order.popleft())
        self._waiting[topic_id] = waiting - 1

    def waiting(self, topic_id: int) -> int:
        return self._waiting.get(topic_id, 0)

    def forget_topic(self, topic_id: int) -> None:
        self._waiting.pop(topic_id, None)
