"""One term of leadership: a fresh board, its loops, its report streams and its calls.

Made by `app.py` when this rebalancer begins to lead, and thrown away when it stops: what a leader knows comes from the
brokers' reports of its own term only, so nothing old is ever mixed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.rpc import Rpc
from evenq_rebalancer.core.board import Board
from evenq_rebalancer.core.decisions import Decision
from evenq_rebalancer.loops.settling import Settling
from evenq_rebalancer.rpc.assignment import Assignment
from evenq_rebalancer.rpc.leadership import BEAT_MS
from evenq_rebalancer.rpc.streams import Streams
from evenq_rebalancer.settings import Settings
from evenq_rebalancer.stats import Stats

__all__ = ["Term"]


class Term:
    """See the module. `leads` is asked before decisions are handed out."""

    def __init__(
        self, epoch: int, settings: Settings, *, clock: Clock, stats: Stats, leads: Callable[[], bool]
    ) -> None:
        self.board = Board(epoch=epoch, limits=settings.limits())
        self.streams = Streams()
        self._clock = clock
        self._leads = leads
        self._settling = Settling(
            self.board,
            clock=clock,
            stats=stats,
            debounce_ms=settings.debounce_ms,
            debounce_max_ms=settings.debounce_max_ms,
            publish=self._publish,
        )
        assignment = Assignment(self.board, self.streams, clock=clock, poke=self._settling.poke)
        self.rpcs: dict[str, Rpc] = {rpc.method: rpc for rpc in assignment.rpcs()}
        """By method."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> list[asyncio.Task[None]]:
        """Start the loops; they never end by themselves."""
        self._tasks = [
            spawn(self._settling.run(), name="settling"),
            spawn(self._settling.watch(), name="settling by time"),
            spawn(self._beat(), name="signs of life"),
        ]
        return self._tasks

    def poke(self) -> None:
        """Something outside of the reports changed."""
        self._settling.poke()

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
