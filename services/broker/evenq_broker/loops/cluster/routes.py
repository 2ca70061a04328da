"""Watching the routes of every nameserver into the broker's `RouteTable`.

One loop per nameserver holds a `WatchRoutes` stream; a broken one is opened again after a growing pause, while the
table goes on with what it knows. When a topic's route changes, the sessions that read it are notified at once (NS-8).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from evenq.errors import ConnectionFailed, Error
from evenq.runtime.backoff import Backoff
from evenq_broker.core.cluster.routes import RouteTable
from evenq_broker.loops.wire.registry import RouteNews, route_news, watch_routes
from evenq_broker.runtime import Runtime

__all__ = ["RouteWatch"]

log = logging.getLogger(__name__)


class RouteListener(Protocol):
    """Listeners of what a watch hears."""

    def routes_received(self) -> None: ...
    def register_now(self) -> None: ...
    def routes_changed(self) -> None: ...


class RouteWatch:
    """The stream of one nameserver."""

    def __init__(self, runtime: Runtime, routes: RouteTable, listener: RouteListener, address: str) -> None:
        self._runtime, self._routes, self._listener = runtime, routes, listener
        self._address = address
        self.connected = False
        """True between the first event of a stream and its end."""
        self.tried = asyncio.Event()
        """Set when the first snapshot has come, or the first try has failed."""

    async def run(self) -> None:
        """Never ends."""
        backoff = Backoff(self._runtime.rng, max_ms=2_000)
        while True:
            try:
                await self._watch(backoff)
            except Error as error:
                if self.connected:
                    log.warning(
                        "routes of nameserver %s are no longer received: %s",
                        self._address,
                        error.message,
                        extra={"nameserver": self._address},
                    )
            self.connected = False
            self.tried.set()
            self._routes.away(self._address, self._runtime.clock.monotonic_ms())
            await self._runtime.clock.sleep_ms(backoff.next_ms())

    async def _watch(self, backoff: Backoff) -> None:
        request = watch_routes(self._runtime.settings.broker_name)
        stream = self._runtime.net.stream(self._address, "/evenq.v1.Registry/WatchRoutes", request, timeout_ms=None)
        async for data in stream:
            if not self.connected:
                log.info("receiving routes of nameserver %s", self._address, extra={"nameserver": self._address})
            self.connected = True
            self._take(route_news(data))
            self.tried.set()
            backoff.reset()
        raise ConnectionFailed(f"nameserver {self._address} ended the watch of routes; asking again")

    def _take(self, news: RouteNews) -> None:
        now_ms = self._runtime.clock.monotonic_ms()
        if news.snapshot:
            self._routes.snapshot(self._address, news.nameserver, news.brokers, now_ms, settling=news.settling)
            self._listener.routes_received()
            if all(view.name != self._runtime.settings.broker_name for view in news.brokers):
                self._listener.register_now()  # it restarted, or dropped us: others wait for our word there
        else:
            self._routes.changed(self._address, news.brokers, news.removed, now_ms)
        self._listener.routes_changed()
