"""One rebalancer, wired: settings, clock, board, loops and the door. `__main__` runs it alone, the quick start beside
others.

Always true after `close`: nothing of it runs, its ports are free.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from evenq.runtime.clock import Clock
from evenq.runtime.tasks import spawn
from evenq.serving.auth import Auth
from evenq.serving.door import Door, open_door
from evenq.serving.metrics import door_metrics, exposition
from evenq.serving.page import Page, open_page
from evenq_rebalancer.core.board import Board
from evenq_rebalancer.loops.settling import Settling
from evenq_rebalancer.metrics import metrics
from evenq_rebalancer.rpc.assignment import Assignment
from evenq_rebalancer.rpc.streams import Streams
from evenq_rebalancer.settings import Settings
from evenq_rebalancer.stats import Stats

__all__ = ["Rebalancer"]

log = logging.getLogger(__name__)


class Rebalancer:
    """The program as an object. Belongs to one event loop."""

    def __init__(self, settings: Settings, *, clock: Clock) -> None:
        self.settings = settings
        self.stats = Stats()
        self.board = Board(epoch=clock.now_ms(), limits=settings.limits())
        self.streams = Streams()
        self.settling = Settling(
            self.board,
            clock=clock,
            stats=self.stats,
            debounce_ms=settings.debounce_ms,
            publish=self.streams.publish,
        )
        self._clock = clock
        self._auth = Auth(settings.auth, clock=clock)
        self._assignment = Assignment(self.board, self.streams, clock=clock, poke=self.settling.poke)
        self._door: Door | None = None
        self._page: Page | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def port(self) -> int:
        """The gRPC port that is listened on; 0 before `start`."""
        return self._door.port if self._door else 0

    @property
    def metrics_port(self) -> int:
        """The HTTP port of metrics and health; 0 if there is none."""
        return self._page.port if self._page else 0

    async def start(self) -> None:
        """Listen and decide. Raises PortInUse, SettingsError."""
        settings = self.settings
        rpcs = self._auth.rpcs(self._assignment.rpcs())
        door = await open_door(rpcs, host=settings.host, port=settings.port, clock=self._clock)
        self._door = door
        self._auth.start()
        listed = [*metrics(self.board, self.stats, self.streams), *door_metrics(lambda: door.stats)]
        try:
            self._page = await open_page(
                host=settings.host,
                port=settings.metrics_port,
                metrics=lambda: exposition(listed, {"node_type": "rebalancer"}),
                ready=lambda: door.health.serving,
            )
        except BaseException:
            await self.close()
            raise
        self._tasks = [
            spawn(self.settling.run(), name="settling"),
            spawn(self.settling.watch(), name="settling by time"),
        ]
        log.info(
            "rebalancer serves", extra={"host": settings.host, "port": self.port, "metrics_port": self.metrics_port}
        )

    async def wait(self) -> None:
        """Until a loop ends, which only a mistake of ours makes it do; then raises what ended it."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def close(self) -> None:
        """Drain: report streams end at once (brokers keep their answers), running calls within `drain_ms`."""
        if self._door is not None:
            await self._door.stop(self.settings.drain_ms)
        if self._page is not None:
            await self._page.close()
        await self._auth.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
