"""Looks at where each group is, every few seconds, so that `core.heads` can say what does not move.

A round goes in slices between other work, and pauses longer where there is more to look at: never more than about one
hundredth of a core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["watch_heads"]

ROUND_MS = 5_000
SLICE = 500
ROWS_PER_MS = 4
"""A row costs some 2 us: a pause of 1 ms for 4 rows leaves 99 % to others."""


async def watch_heads(broker: Broker) -> None:
    """Runs as a loop of the broker."""
    while True:
        rows = 0
        for queue in broker.progress.queues():
            place = (queue.group_id, queue.topic_id, queue.queue_id)
            _, high = broker.lite.queue_range(queue.topic_id, queue.queue_id)
            waits = bool(queue.pending) or high > queue.committed
            broker.heads.look(place, queue.committed, waits=waits, now_ms=broker.clock.monotonic_ms())
            rows += 1
            if rows % SLICE == 0:
                await broker.clock.sleep_ms(1)
        broker.heads.end_of_round()
        await broker.clock.sleep_ms(max(ROUND_MS, rows // ROWS_PER_MS))
