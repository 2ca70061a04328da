"""Looks at where each group is, every few seconds, so that `core.diagnosis.stuck_queues` can say what does not move and
`core.diagnosis.backlog` how old the oldest unread messages are and how many wait for a retry.

A round goes in slices between other work, and pauses longer where there is more to look at: never more than about one
hundredth of a core. The store time of an oldest message is read once, as long as it stays the oldest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.errors import Error
from evenq_broker.core.diagnosis.backlog import Backlog, Waits
from evenq_broker.core.diagnosis.stuck_queues import StuckQueues
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.runtime import Runtime

if TYPE_CHECKING:
    from evenq_broker.core.delivery.queue_progress import QueueProgress

__all__ = ["look_once", "watch_heads"]

ROUND_MS = 5_000
SLICE = 500
ROWS_PER_MS = 4
"""A row costs some 2 us: a pause of 1 ms for 4 rows leaves 99 % to others."""
READ_ROWS = 50
"""Rows that cost as much as reading one message from the store."""
PENDING_ROWS = 20
"""Unfinished messages that cost as much as one row."""


async def watch_heads(
    runtime: Runtime, ledger: Ledger, *, lite: Lites, stuck_queues: StuckQueues, backlog: Backlog
) -> None:
    """Runs as a loop of the broker."""
    while True:
        rows = await look_once(runtime, ledger, lite=lite, stuck_queues=stuck_queues, backlog=backlog)
        await runtime.clock.sleep_ms(max(ROUND_MS, rows // ROWS_PER_MS))


async def look_once(
    runtime: Runtime, ledger: Ledger, *, lite: Lites, stuck_queues: StuckQueues, backlog: Backlog
) -> int:
    """One round over all groups and queues; how much there was to look at, in rows."""
    rows = pause_at = 0
    for queue in ledger.progress.queues():
        queue_key = (queue.group_id, queue.topic_id, queue.queue_id)
        low, high = lite.queue_range(queue.topic_id, queue.queue_id)
        waits = queue.lag(low, high) > 0
        stuck_queues.look(queue_key, queue.committed, waits=waits, now_ms=runtime.clock.monotonic_ms())
        rows += 1 + len(queue.pending) // PENDING_ROWS
        if waits:
            offset = max(queue.committed, low)
            stored_ms = backlog.known_ms(queue_key, offset)
            if not stored_ms and offset < high:
                stored_ms, rows = await _stored_ms(ledger, queue, offset), rows + READ_ROWS
            backlog.look(queue_key, Waits(offset, stored_ms, queue.waiting()))
        if rows - pause_at >= SLICE:
            pause_at = rows
            await runtime.clock.sleep_ms(1)
    stuck_queues.end_of_round()
    backlog.end_of_round()
    return rows


async def _stored_ms(ledger: Ledger, queue: QueueProgress, offset: int) -> int:
    try:
        messages = await ledger.store.read_at(queue.topic_id, queue.queue_id, [offset])
    except Error:
        return 0  # its readers are reported; here it has no age
    return messages[0].store_ms if messages else 0
