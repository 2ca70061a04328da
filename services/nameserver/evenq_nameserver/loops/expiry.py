"""The loop that removes silent brokers and notifies the watchers (NS-8)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from evenq.runtime.clock import Clock
from evenq_nameserver.core.registry import Registry, RouteChange
from evenq_nameserver.stats import NameserverStats

log = logging.getLogger(__name__)


async def expire_forever(
    registry: Registry,
    announce: Callable[[RouteChange], None],
    settled: Callable[[], None],
    *,
    expiry_ms: int,
    clock: Clock,
    stats: NameserverStats,
) -> None:
    """Checks every tenth of `expiry_ms`, at most once in 10 ms, so a broker is removed at most 10 % late. Never ends.

    Time in which this process or its machine was stopped does not count as silence. `settled` is called once, when
    `expiry_ms` have passed since the start: a broker that has not registered by then is gone.
    """
    settled_ms: int | None = clock.monotonic_ms() + expiry_ms
    step_ms = max(10, expiry_ms // 10)
    while True:
        began_ms = clock.monotonic_ms()
        await clock.sleep_ms(step_ms)
        now_ms = clock.monotonic_ms()
        paused_ms = now_ms - began_ms - step_ms
        if paused_ms > step_ms:
            # Heartbeats of the pause are still unread: without this all brokers would leave the routes together.
            registry.excuse(paused_ms, now_ms)
            settled_ms = None if settled_ms is None else settled_ms + paused_ms
        for change in registry.expire(now_ms):
            stats.expired += 1
            log.warning(
                "broker %s is silent, removed from the routes", change.removed, extra={"version": change.version}
            )
            announce(change)
        if settled_ms is not None and now_ms >= settled_ms:
            settled_ms = None
            settled()
