"""Backlog of each group on each queue: since when its oldest unread message is stored, and how many messages failed and
wait for redelivery.

`loops.diagnosis.watching` updates it every few seconds, metrics read it: neither a scrape nor a delivery looks at
messages for it. Pure; times are ms since the epoch, 0 = nothing unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evenq_broker.core.diagnosis.stuck_queues import QueueKey


@dataclass(frozen=True, slots=True)
class Waits:
    """One group on one queue."""

    offset: int
    """Offset of the oldest message that it has not finished."""
    stored_ms: int
    retries: int


class Backlog:
    """One entry for each group and queue with something unfinished."""

    __slots__ = ("_now", "_seen")

    def __init__(self) -> None:
        self._now: dict[QueueKey, Waits] = {}
        self._seen: dict[QueueKey, Waits] = {}

    def known_ms(self, queue_key: QueueKey, offset: int) -> int:
        """Returns when the message at `offset` was stored, if it was the oldest at the last look, too; otherwise 0."""
        known = self._now.get(queue_key)
        return known.stored_ms if known is not None and known.offset == offset else 0

    def look(self, queue_key: QueueKey, waits: Waits) -> None:
        """Sets the present state of a queue."""
        self._seen[queue_key] = waits

    def end_of_round(self) -> None:
        """Ends a round: queues that were not looked at have nothing unfinished."""
        self._now, self._seen = self._seen, {}

    def items(self) -> Iterator[tuple[QueueKey, Waits]]:
        return iter(self._now.items())
