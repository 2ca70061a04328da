"""What each group has before it on each queue: since when its oldest unread message lies there, and how many messages
failed and wait for another delivery.

Fed every few seconds by `loops.diagnosis.watching`, read by metrics at a scrape: neither a scrape nor a delivery looks
at messages for it. Pure; times are ms since the epoch, 0 = nothing unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evenq_broker.core.diagnosis.stuck_queues import QueueKey

__all__ = ["Backlog", "Waits"]


@dataclass(frozen=True, slots=True)
class Waits:
    """One group on one queue."""

    offset: int
    """Of the oldest message that it has not finished."""
    stored_ms: int
    retries: int


class Backlog:
    """One entry for each group and queue with something unfinished."""

    __slots__ = ("_now", "_seen")

    def __init__(self) -> None:
        self._now: dict[QueueKey, Waits] = {}
        self._seen: dict[QueueKey, Waits] = {}

    def known_ms(self, queue_key: QueueKey, offset: int) -> int:
        """When the message at `offset` was stored, if it was the oldest at the last look, too; else 0."""
        known = self._now.get(queue_key)
        return known.stored_ms if known is not None and known.offset == offset else 0

    def look(self, queue_key: QueueKey, waits: Waits) -> None:
        """How it is now."""
        self._seen[queue_key] = waits

    def end_of_round(self) -> None:
        """Every place was looked at: those that were not have nothing unfinished."""
        self._now, self._seen = self._seen, {}

    def items(self) -> Iterator[tuple[QueueKey, Waits]]:
        """All of them, as they were at the last look."""
        return iter(self._now.items())
