"""Open report streams with the decisions that each broker still has to receive.

Only the newest decision of each (group, topic) waits, so a slow broker skips outdated ones. Above `WAITING_MAX` waiting
decisions the stream ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from evenq.errors import TooManyRequests
from evenq_rebalancer.core.decisions import Decision

WAITING_MAX = 50_000


class DecisionOutbox:
    """Waiting decisions of one stream. One task puts, one task takes, both on the loop."""

    def __init__(self, *, waiting_max: int = WAITING_MAX) -> None:
        self._waiting: dict[tuple[str, str], Decision] = {}
        self._waiting_max = waiting_max
        self._wake = asyncio.Event()
        self._overflowed = False
        self.ended = False
        """True once the stream must end, because this process no longer leads."""

    def put(self, decision: Decision) -> None:
        """Adds a decision in place of an older one about the same (group, topic)."""
        key = (decision.group, decision.topic)
        if key not in self._waiting and len(self._waiting) >= self._waiting_max:
            self._overflowed = True
        else:
            self._waiting[key] = decision
        self._wake.set()

    def wake(self) -> None:
        """Ends a wait in `take`, with or without decisions."""
        self._wake.set()

    def end(self) -> None:
        """Ends the stream now; waiting decisions are dropped."""
        self._waiting, self.ended = {}, True
        self._wake.set()

    async def take(self) -> list[Decision]:
        """Waits for decisions or `wake`, and returns all. Raises TooManyRequests if there were too many."""
        await self._wake.wait()
        self._wake.clear()
        if self._overflowed:
            raise TooManyRequests(
                f"{self._waiting_max} decisions wait for this broker, the maximum; open the stream again and report"
            )
        decisions, self._waiting = list(self._waiting.values()), {}
        return decisions


class ReportStreams:
    def __init__(self) -> None:
        self._count = 0
        self._outboxes: dict[int, DecisionOutbox] = {}

    def __len__(self) -> int:
        return len(self._outboxes)

    def open(self) -> tuple[int, DecisionOutbox]:
        """Opens a stream; its number is larger than all previous ones."""
        self._count += 1
        outbox = self._outboxes[self._count] = DecisionOutbox()
        return self._count, outbox

    def close(self, stream: int) -> None:
        self._outboxes.pop(stream, None)

    def beat(self) -> None:
        """Wakes every stream; those without decisions send a sign of life."""
        for outbox in self._outboxes.values():
            outbox.wake()

    def end(self) -> None:
        for outbox in self._outboxes.values():
            outbox.end()

    def publish(self, decisions: Iterable[Decision]) -> None:
        """Adds the decisions to all streams, because members may be connected to any broker."""
        for decision in decisions:
            for outbox in self._outboxes.values():
                outbox.put(decision)
