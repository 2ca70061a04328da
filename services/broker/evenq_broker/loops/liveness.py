"""The life of v2 clients: who is silent for too long, or says goodbye, gives back what only its life held.

Wire contract 3.2 (120 s of silence on all calls), 3.6 and 5.1: deliveries of push consumers have no timer while the
client lives; after its end they become visible within about a second.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["end_client", "watch_clients"]

log = logging.getLogger(__name__)

SWEEP_MS = 1_000
RELEASE_MS = 1_000  # a last ack may still be on its way


def end_client(broker: Broker, client_id: str, *, delay_ms: int = RELEASE_MS) -> None:
    """The client is gone: end its polls, and its deliveries `delay_ms` from now."""
    if not client_id:
        return
    broker.clients.forget(client_id)
    broker.streams.retire(client_id)
    broker.waiting.end_client(client_id)
    broker.lite.end_client(client_id)
    changed = broker.progress.release(client_id, broker.now_ms() + delay_ms)
    if changed:
        broker.journal.record(*(queue.op(offset, queue.pending[offset]) for queue, offset in changed))
        broker.waiting.sooner(broker.now_ms() + delay_ms)


async def watch_clients(broker: Broker) -> None:
    """Once a second: drop who is silent. Runs as a loop of the broker."""
    while True:
        await broker.clock.sleep_ms(SWEEP_MS)
        for client_id in broker.clients.expire(broker.now_ms(), broker.settings.client_silence_ms):
            log.info("client silent", extra={"client_id": client_id, "silence_ms": broker.settings.client_silence_ms})
            end_client(broker, client_id, delay_ms=0)
        for client_id in broker.clients.give_up(broker.now_ms(), broker.settings.client_lost_ms):
            log.info("client lost", extra={"client_id": client_id, "silence_ms": broker.settings.client_lost_ms})
            end_client(broker, client_id, delay_ms=0)
