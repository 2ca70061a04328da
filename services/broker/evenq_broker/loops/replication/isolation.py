"""Detects an isolated leader, which nothing can confirm: a copy in sync and the record's place do not answer.

Only a write of the group record removes such a copy from the set. Until one of both answers, no append is acknowledged
here, and another copy may lead already. Senders would wait for their own limits and get an unknown outcome. After
`suspect_ms`, new appends are rejected before they are stored, and the broker is not ready: load balancers send clients
elsewhere, also connected ones, which are requested to reconnect. A rejection is always safe. Run by `replicated_app`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from evenq.runtime.clock import Clock
from evenq_broker.loops.replication.replica_driver import ReplicaDriver
from evenq_broker.loops.replication.replica_log import ReplicaLog

log = logging.getLogger(__name__)

LOOK_MS = 500
TURN_AWAY_MS = 10_000
"""Between two requests to reconnect: by then load balancers know that the broker is not ready."""


class ServesClients(Protocol):
    """The part that serves the clients of a leader."""

    def isolate(self, why: str) -> None:
        """Sets why nothing can be confirmed here; empty: it can."""

    def turn_away(self) -> None:
        """Makes clients reconnect; running calls continue."""


async def watch_isolation(
    driver: ReplicaDriver,
    replica_log: ReplicaLog,
    *,
    term: Callable[[], ServesClients | None],
    clock: Clock,
    group: str,
) -> None:
    """Runs for as long as the broker lives. `term`: serves clients now; `group`: the broker's name, for log lines."""
    gate, after_ms = replica_log.gate, driver.replica.config.timing.suspect_ms
    since_ms: int | None = None
    turned_ms = 0
    while True:
        silent, now_ms = _silent(driver), clock.monotonic_ms()
        since_ms = None if not silent else since_ms if since_ms is not None else now_ms
        lasts = since_ms is not None and now_ms - since_ms >= after_ms
        if lasts is not bool(gate.isolation):
            gate.isolation = _reason(silent) if lasts else ""
            if lasts:
                log.warning(
                    "replica %s: messages are rejected: %s. They are accepted again when one of these answers",
                    group,
                    gate.isolation,
                    extra={"broker": group, "copies": sorted(silent)},
                )
            else:
                log.info("replica %s: this leader is not isolated any more", group, extra={"broker": group})
            replica_log.look()
            turned_ms = now_ms
        serves = term()
        if serves is not None:
            serves.isolate(gate.isolation)
            if lasts and now_ms - turned_ms >= TURN_AWAY_MS:
                turned_ms = now_ms
                serves.turn_away()
        await clock.sleep_ms(LOOK_MS)


def _silent(driver: ReplicaDriver) -> set[int]:
    """Copies that must confirm, do not answer, and cannot be removed from the set now."""
    record = driver.replica.record
    if not driver.leads or driver.reaches_record or record is None:
        return set()
    return {pair.broker_id for pair in record.isr} - {driver.replica.config.broker_id} - driver.peers.connected


def _reason(silent: set[int]) -> str:
    copies = " and ".join(f"copy {number}" for number in sorted(silent))
    answer = "do not answer" if len(silent) > 1 else "does not answer"
    return (
        f"{copies} {answer}, nor does the place of the group record, so nothing can be confirmed here; "
        "another copy may lead by now"
    )
