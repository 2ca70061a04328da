"""Deliveries to push consumers whose answer may have been lost with the process that gave it.

A push consumer's life holds what it was given, for a day at most. A process that dies between the record of a delivery
and its answer leaves a message that its client, which lives, does not know of. The client asks again with the same
attempt id, but attempts are in memory (`attempts.py`). So what was given shortly before the end is held for a usual
invisible time from the next start on, and comes again then unless it is acknowledged (decision 91). It stays its
client's: if that is gone, the message comes again when brokers find out, which is sooner. Called by `broker.py` after
the replay; pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.delivery.queue_progress import QueueProgress

__all__ = ["hold_by_time"]


def hold_by_time(
    progress: Progress, *, given_from_ms: int, held_ms: int, until_ms: int, now_ms: int
) -> Iterator[tuple[QueueProgress, int]]:
    """End at `until_ms` what a client's life holds and was given at `given_from_ms` or later; gives queue and offset of
    each. `held_ms`: how long a life holds at most, by which the time of a delivery is known.
    """
    for queue in progress.queues():
        for offset, entry in queue.pending.items():
            if entry.client_id and entry.deadline_ms > until_ms and entry.deadline_ms - held_ms >= given_from_ms:
                entry.waits = True  # its end is no failure of the consumer: no pause before the next delivery
                progress.hold_on(queue, offset, entry.number, now_ms=now_ms, deadline_ms=until_ms)
                yield queue, offset
