"""Looks at where each group is, every few seconds, so that `core.heads` can say what does not move and `core.backlog`
how old the oldest unread messages are and how many wait for a retry.

A round goes in slices between other work, and pauses longer where there is more to look at: never more than about one
hundredth of a core. The store time of an oldest message is read once, as long as it stays the oldest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.errors import Error
from evenq_broker.core.backlog import Waits

if TYPE_CHECKING:
    from evenq_broker.broker import Broker
    from evenq_broker.core.queue_progress import QueueProgress

__all__ = ["look_once", "watch_heads"]

ROUND_MS = 5_000
SLICE = 500
ROWS_PER_MS = 4
"""A row costs some 2 us: a pause of 1 ms for 4 rows leaves 99 % to others."""
READ_ROWS = 50
"""A message that is read from the store costs as much as so many rows."""
PENDING_ROWS = 20
"""So many unfinished messages cost as much as a row."""


async def watch_heads(broker: Broker) -> None:
    """Runs as a loop of the broker."""
    while True:
        rows = await look_once(broker)
        await broker.clock.sleep_ms(max(ROUND_MS, rows // ROWS_PER_MS))


async def look_once(broker: Broker) -> int:
    """One round over all groups and queues; how much there was to look at, in rows."""
    rows = pause_at = 0
    for queue in broker.progress.queues():
        place = (queue.group_id, queue.topic_id, queue.queue_id)
        low, high = broker.lite.queue_range(queue.topic_id, queue.queue_id)
        waits = bool(queue.pending) or high > queue.committed
        broker.heads.look(place, queue.committed, waits=waits, now_ms=broker.clock.monotonic_ms())
        rows += 1 + len(queue.pending) // PENDING_ROWS
        if waits:
            offset = max(queue.committed, low)
            stored_ms = broker.backlog.known_ms(place, offset)
            if not stored_ms and offset < high:
                stored_ms, rows = await _stored_ms(broker, queue, offset), rows + READ_ROWS
            broker.backlog.look(place, Waits(offset, stored_ms, queue.waiting()))
        if rows - pause_at >= SLICE:
            pause_at = rows
            await broker.clock.sleep_ms(1)
    broker.heads.end_of_round()
    broker.backlog.end_of_round()
    return rows


async def _stored_ms(broker: Broker, queue: QueueProgress, offset: int) -> int:
    try:
        found = await broker.store.read_at(queue.topic_id, queue.queue_id, [offset])
    except Error:
        return 0  # its readers are told; here it has no age
    return found[0].store_ms if found else 0
