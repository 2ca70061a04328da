"""The open report streams: what each broker has still to receive.

Per stream only the newest decision of each (group, topic) waits, so a broker that reads slowly skips what is out of
date, and what waits is bounded by the number of pairs, and by `WAITING_MAX`, behind which the stream is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from evenq.errors import TooManyRequests
from evenq_rebalancer.core.decisions import Decision

__all__ = ["DecisionOutbox", "ReportStreams"]

WAITING_MAX = 50_000


class DecisionOutbox:
    """Decisions for one stream. One task puts, one task takes, both on the loop."""

    def __init__(self, *, waiting_max: int = WAITING_MAX) -> None:
        self._waiting: dict[tuple[str, str], Decision] = {}
        self._waiting_max = waiting_max
        self._wake = asyncio.Event()
        self._overflowed = False
        self.ended = False
        """True once the stream should end: this process leads no more."""

    def put(self, decision: Decision) -> None:
        """Tell this decision, in place of an older one about the same (group, topic)."""
        key = (decision.group, decision.topic)
        if key not in self._waiting and len(self._waiting) >= self._waiting_max:
            self._overflowed = True
        else:
            self._waiting[key] = decision
        self._wake.set()

    def wake(self) -> None:
        """End a wait in `take`, with or without decisions."""
        self._wake.set()

    def end(self) -> None:
        """Let the stream end now; what waits is not sent any more."""
        self._waiting, self.ended = {}, True
        self._wake.set()

    async def take(self) -> list[Decision]:
        """Wait for decisions, or for `wake`; all that wait. Raises TooManyRequests if some were lost for lack of
        room.
        """
        await self._wake.wait()
        self._wake.clear()
        if self._overflowed:
            raise TooManyRequests(
                f"{self._waiting_max} decisions wait for this broker, the maximum; open the stream again and report"
            )
        decisions, self._waiting = list(self._waiting.values()), {}
        return decisions


class ReportStreams:
    """All open streams."""

    def __init__(self) -> None:
        self._count = 0
        self._outboxes: dict[int, DecisionOutbox] = {}

    def __len__(self) -> int:
        return len(self._outboxes)

    def open(self) -> tuple[int, DecisionOutbox]:
        """A new stream; its number is bigger than all before."""
        self._count += 1
        outbox = self._outboxes[self._count] = DecisionOutbox()
        return self._count, outbox

    def close(self, stream: int) -> None:
        """The stream ended."""
        self._outboxes.pop(stream, None)

    def beat(self) -> None:
        """Wake every stream: one that has nothing to tell gives a sign of life."""
        for outbox in self._outboxes.values():
            outbox.wake()

    def end(self) -> None:
        """End all streams."""
        for outbox in self._outboxes.values():
            outbox.end()

    def publish(self, decisions: Iterable[Decision]) -> None:
        """Tell all brokers: members may be connected to any of them."""
        for decision in decisions:
            for outbox in self._outboxes.values():
                outbox.put(decision)
