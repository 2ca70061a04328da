"""Deliveries to push consumers whose answer may have been lost with the process that sent it.

A push consumer's life holds its deliveries, for a day at most. A process that dies between the record of a delivery and
its answer leaves a message that its living client does not know of. The client repeats the call with the same attempt
id, but attempts are in memory (`attempts.py`). So deliveries from shortly before the end are held for a usual invisible
time from the next start on. Then they are redelivered unless they are acknowledged (decision 91). They stay their
client's: if it is gone, they are redelivered when brokers find out, which is sooner. Called by `broker.py` after the
replay; pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.delivery.queue_progress import QueueProgress


def hold_by_time(
    progress: Progress, *, given_from_ms: int, held_ms: int, until_ms: int, now_ms: int
) -> Iterator[tuple[QueueProgress, int]]:
    """Ends at `until_ms` what a client's life holds and was delivered at `given_from_ms` or later; yields queue and
    offset of each. `held_ms`: longest hold of a life, from which the time of a delivery follows.
    """
    for queue in progress.queues():
        for offset, entry in queue.pending.items():
            if entry.client_id and entry.deadline_ms > until_ms and entry.deadline_ms - held_ms >= given_from_ms:
                queue.running -= entry.running
                entry.waits = True  # the consumer did not fail: no pause before redelivery
                progress.hold_on(queue, offset, entry.number, now_ms=now_ms, deadline_ms=until_ms)
                yield queue, offset
