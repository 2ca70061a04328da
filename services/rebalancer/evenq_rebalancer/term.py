"""One term of leadership: a fresh engine, its loops, its report streams and its calls.

Made by `app.py` when this rebalancer begins to lead, and thrown away when it stops: what a leader knows comes from the
brokers' reports of its own term only, so nothing old is ever mixed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.rpc import Rpc
from evenq_rebalancer.core.assignment_engine import AssignmentEngine
from evenq_rebalancer.core.decisions import Decision
from evenq_rebalancer.loops.debouncer import Debouncer
from evenq_rebalancer.rpc.assignment import AssignmentService
from evenq_rebalancer.rpc.leader_gate import BEAT_MS
from evenq_rebalancer.rpc.streams import ReportStreams
from evenq_rebalancer.settings import RebalancerSettings
from evenq_rebalancer.stats import RebalancerStats

__all__ = ["Term"]


class Term:
    """See the module. `leads` is asked before decisions are handed out."""

    def __init__(
        self,
        epoch: int,
        settings: RebalancerSettings,
        *,
        clock: Clock,
        stats: RebalancerStats,
        leads: Callable[[], bool],
    ) -> None:
        self.engine = AssignmentEngine(epoch=epoch, limits=settings.limits())
        self.streams = ReportStreams()
        self._clock = clock
        self._leads = leads
        self._debouncer = Debouncer(
            self.engine,
            clock=clock,
            stats=stats,
            debounce_ms=settings.debounce_ms,
            debounce_max_ms=settings.debounce_max_ms,
            publish=self._publish,
        )
        assignment = AssignmentService(self.engine, self.streams, clock=clock, poke=self._debouncer.poke)
        self.rpcs: dict[str, Rpc] = {rpc.method: rpc for rpc in assignment.rpcs()}
        """By method."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> list[asyncio.Task[None]]:
        """Start the loops; they never end by themselves."""
        self._tasks = [
            spawn(self._debouncer.run(), name="debouncer"),
            spawn(self._debouncer.watch(), name="debouncer by time"),
            spawn(self._beat(), name="signs of life"),
        ]
        return self._tasks

    def poke(self) -> None:
        """Something outside of the reports changed."""
        self._debouncer.poke()

    def end(self) -> None:
        """Decide nothing any more, end all report streams."""
        for task in self._tasks:
            task.cancel()
        self.streams.end()

    def _publish(self, decisions: Sequence[Decision]) -> None:
        if self._leads():
            self.streams.publish(decisions)

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep_ms(BEAT_MS)
            if self._leads():
                self.streams.beat()
