"""Periodic observation of each group's position in its queues. From it, `core.diagnosis.stuck_queues` reports queues
that do not move. `core.diagnosis.backlog` reports the age of the oldest unread message and the waiting retries.

A round runs in slices between other work, and the pause grows with the number of rows: it takes at most about one
hundredth of a core. The store time of an oldest message is read once, as long as it stays the oldest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenq.errors import Error
from evenq_broker.core.diagnosis.backlog import Backlog, Waits
from evenq_broker.core.diagnosis.stuck_queues import StuckQueues
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.ledger import Ledger

if TYPE_CHECKING:
    from evenq_broker.core.delivery.queue_progress import QueueProgress

ROUND_MS = 5_000
SLICE = 500
ROWS_PER_MS = 4
"""A row costs some 2 us: a pause of 1 ms for 4 rows leaves 99 % to other work."""
READ_ROWS = 50
"""Rows that cost as much as reading one message from the store."""
PENDING_ROWS = 20
"""Unfinished messages that cost as much as one row."""


async def watch_heads(kernel: Kernel, *, lite: Lites, stuck_queues: StuckQueues, backlog: Backlog) -> None:
    """Runs as a loop of the broker."""
    while True:
        rows = await look_once(kernel, lite=lite, stuck_queues=stuck_queues, backlog=backlog)
        await kernel.runtime.clock.sleep_ms(max(ROUND_MS, rows // ROWS_PER_MS))


async def look_once(kernel: Kernel, *, lite: Lites, stuck_queues: StuckQueues, backlog: Backlog) -> int:
    """Observes all groups and queues once; returns the work in rows."""
    rows = pause_at = 0
    for queue in kernel.ledger.progress.queues():
        queue_key = (queue.group_id, queue.topic_id, queue.queue_id)
        low, high = lite.queue_range(queue.topic_id, queue.queue_id)
        waits = queue.lag(low, high) > 0
        stuck_queues.look(queue_key, queue.committed, waits=waits, now_ms=kernel.runtime.clock.monotonic_ms())
        rows += 1 + len(queue.pending) // PENDING_ROWS
        if waits:
            offset = max(queue.committed, low)
            stored_ms = backlog.known_ms(queue_key, offset)
            if not stored_ms and offset < high:
                stored_ms, rows = await _stored_ms(kernel.ledger, queue, offset), rows + READ_ROWS
            backlog.look(queue_key, Waits(offset, stored_ms, queue.waiting()))
        if rows - pause_at >= SLICE:
            pause_at = rows
            await kernel.runtime.clock.sleep_ms(1)
    stuck_queues.end_of_round()
    backlog.end_of_round()
    return rows


async def _stored_ms(ledger: Ledger, queue: QueueProgress, offset: int) -> int:
    try:
        messages = await ledger.store.read_at(queue.topic_id, queue.queue_id, [offset])
    except Error:
        return 0  # readers report the error; here the message has no age
    return messages[0].store_ms if messages else 0
