"""From changes to decisions: waits a few milliseconds for more of them, settles the board once, hands the news to the
streams.

Started by `app.py`. `poke` is called by whatever may have changed something; `watch` pokes when only time has passed
(a broker's grace is over, the warm-up has ended).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from evenq.runtime.clock import Clock
from evenq_rebalancer.core.board import Board
from evenq_rebalancer.core.decisions import Decision
from evenq_rebalancer.stats import Stats

__all__ = ["Settling"]

log = logging.getLogger(__name__)

TICK_MS = 100


class Settling:
    """One per process."""

    def __init__(
        self,
        board: Board,
        *,
        clock: Clock,
        stats: Stats,
        debounce_ms: int,
        publish: Callable[[Sequence[Decision]], None],
    ) -> None:
        self._board = board
        self._clock = clock
        self._stats = stats
        self._debounce_ms = debounce_ms
        self._publish = publish
        self._poked = asyncio.Event()
        self._poked_at_ms = 0

    def poke(self) -> None:
        """Something may have changed."""
        if not self._poked.is_set():
            self._poked_at_ms = self._clock.monotonic_ms()
            self._poked.set()

    async def run(self) -> None:
        """Settle after each poke. Never ends."""
        while True:
            await self._poked.wait()
            started_ms = self._poked_at_ms
            await self._clock.sleep_ms(self._debounce_ms)
            self._poked.clear()
            self._settle(started_ms)

    async def watch(self) -> None:
        """Poke when time alone brings a change. Never ends."""
        while True:
            await self._clock.sleep_ms(TICK_MS)
            due_ms = self._board.next_event_ms()
            if due_ms is not None and due_ms <= self._clock.monotonic_ms():
                self.poke()

    def _settle(self, started_ms: int) -> None:
        board, now_ms = self._board, self._clock.monotonic_ms()
        for broker in board.facts.expire(now_ms):
            log.warning("broker forgotten", extra={"broker": broker})
        decisions = board.settle(now_ms=now_ms, wall_ms=self._clock.now_ms())
        for (group, topic), problem in board.take_problems().items():
            self._stats.problems += 1
            log.warning("not rebalanced", extra={"group": group, "topic": topic, "reason": problem})
        if not decisions:
            return
        self._publish(decisions)
        self._stats.rebalanced(self._clock.monotonic_ms() - started_ms)
        for decision in decisions:
            log.info("rebalanced", extra=_fields(decision))


def _fields(decision: Decision) -> dict[str, object]:
    return {
        "group": decision.group,
        "topic": decision.topic,
        "generation": f"{decision.generation.epoch}.{decision.generation.counter}",
        "strategy": decision.strategy,
        "members": len(decision.inputs.members),
        "queues": len(decision.inputs.queues),
        "moves": decision.moves,
        "reason": decision.reason,
    }
