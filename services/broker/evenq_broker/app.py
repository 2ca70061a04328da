"""One broker as an object with ports: what `__main__` runs alone and the quick start beside others in one process.

Start: open the store, bind the doors (the bound port is what is advertised), start the loops, open the page, say ready.
Close: not ready, out of the routes, members told to hand their queues over and waited for, parked polls answered,
running calls ended, all within `drain_ms`; then loops ended, store flushed. Always true after `close`: nothing of it
runs, its ports and its data folder are free.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenq.errors import SettingsError
from evenq.model import BrokerAddress
from evenq.runtime.clock import Clock
from evenq.runtime.net import Net
from evenq.serving.auth import Auth
from evenq.serving.door import Door, DoorOptions, open_door, tls_credentials
from evenq.serving.latency import MethodStats
from evenq.serving.metrics import door_metrics, exposition
from evenq.serving.page import Page, open_page
from evenq_broker.backlog_metrics import single_queue_metrics
from evenq_broker.broker import Broker
from evenq_broker.metrics import broker_metrics, constant_labels
from evenq_broker.settings import Settings

__all__ = ["BrokerApp"]

log = logging.getLogger(__name__)

_WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # compared with, never bound  # nosec B104
LAST_CALLS_MS = 1_000
REQUEST_ROOM = 4 << 20
"""Bytes a request may have beyond one largest body: properties, and the other messages of a batch."""


class BrokerApp:
    """The program as an object. Belongs to one event loop."""

    def __init__(self, settings: Settings, *, clock: Clock, rng: random.Random, net: Net) -> None:
        self.settings = settings
        self._auth = Auth(settings.auth, clock=clock)
        self.broker = Broker(settings, clock=clock, rng=rng, net=self._auth.net(net))
        self._clock = clock
        self._doors: list[Door] = []
        self._page: Page | None = None
        self._ready = False

    @property
    def port(self) -> int:
        """The plain-text gRPC port that is listened on; 0 before `start`."""
        return self._doors[0].port if self._doors else 0

    @property
    def metrics_port(self) -> int:
        """The HTTP port of metrics and health; 0 if there is none."""
        return self._page.port if self._page is not None else 0

    async def start(self) -> None:
        """Serve. Raises StoreLocked, StoreCorrupted, PortInUse, SettingsError; then nothing of it is left running."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        settings = self.settings
        await self.broker.open()
        rpcs = self._auth.rpcs(self.broker.rpcs())
        self._auth.start()
        options = DoorOptions(receive_bytes_max=settings.body_bytes_max + REQUEST_ROOM, running_max=settings.calls_max)
        door = await open_door(rpcs, host=settings.host, port=settings.port, clock=self._clock, options=options)
        self._doors.append(door)
        if settings.tls_port >= 0:
            secure = replace(options, credentials=_credentials(settings))
            self._doors.append(
                await open_door(rpcs, host=settings.host, port=settings.tls_port, clock=self._clock, options=secure)
            )
        await self.broker.start(advertised(settings, door.port))
        self._page = await open_page(
            host=settings.host,
            port=settings.metrics_port,
            metrics=self._metrics,
            ready=lambda: self._ready,
            queues=lambda: exposition(single_queue_metrics(self.broker), constant_labels(self.broker)),
        )
        self._ready = True
        for one in self._doors:
            one.health.set_serving(serving=True)
        log.info("broker serves", extra={"broker": settings.broker_name, "host": settings.host, "port": self.port})

    async def wait(self) -> None:
        """Until a loop of the broker ends, which only a mistake of ours makes it do; then raises what ended it."""
        assert self.broker.failed is not None, "wait() comes after start()"
        raise await self.broker.failed

    async def close(self) -> None:
        """Drain and end. Idempotent.

        Members hand their queues over and running calls end within `drain_ms` together; calls that came late get
        `LAST_CALLS_MS` of their own.
        """
        self._ready = False
        drain_ms = self.settings.drain_ms
        deadline_ms = self._clock.monotonic_ms() + drain_ms
        await self.broker.cluster.leave(0 if self._poisoned() else drain_ms)
        self.broker.waiting.close()
        left_ms = max(deadline_ms - self._clock.monotonic_ms(), min(drain_ms, LAST_CALLS_MS))
        for door in self._doors:
            await door.stop(left_ms)
        await self.broker.close()
        await self._auth.close()
        if self._page is not None:
            await self._page.close()
            self._page = None

    def _poisoned(self) -> bool:
        # Nothing can be committed any more; members wait for the restart.
        failed = self.broker.failed
        return (
            failed is not None and failed.done() and not failed.cancelled()
        )  # who waited for it may have been told to stop

    def _metrics(self) -> bytes:
        listed = [*broker_metrics(self.broker), *door_metrics(self._calls)]
        return exposition(listed, constant_labels(self.broker))

    def _calls(self) -> Mapping[str, MethodStats]:
        # Both doors, with and without TLS, answer the same calls.
        together: dict[str, MethodStats] = {}
        for door in self._doors:
            for method, counted in door.stats.items():
                together.setdefault(method, MethodStats()).include(counted)
        return together


def advertised(settings: Settings, port: int) -> Sequence[BrokerAddress]:
    """What clients are told: the setting, or else where the door listens. Raises SettingsError for a malformed one.

    `[listener=]host:port`, comma-separated; the first is the default listener. A port 0 stands for the bound one.
    """
    if not settings.advertise.strip():
        host = "127.0.0.1" if settings.host in _WILDCARDS else settings.host
        return [BrokerAddress("default", host, port)]
    addresses = []
    for part in settings.advertise.split(","):
        listener, equals, target = part.strip().rpartition("=")
        host, colon, number = target.rpartition(":")
        if not colon or not host or not number.isdecimal() or not int(number) <= 65_535 or (equals and not listener):
            raise SettingsError(f"advertise holds {part.strip()!r}; write host:port or listener=host:port")
        addresses.append(BrokerAddress(listener or "default", host, int(number) or port))
    return addresses


def _credentials(settings: Settings) -> Any:
    # grpc has its doors; here the credentials only pass through.
    if settings.tls_certificate is None or settings.tls_key is None:
        raise SettingsError("tls_port is set without tls_certificate and tls_key; give both PEM files")
    return tls_credentials(certificate=settings.tls_certificate, key=settings.tls_key)
