"""Removal of deliveries whose messages a full disk did not keep.

A leader of copies lets messages be taken before they are written (`loops.delivery.taking`). No client has received such
a delivery yet, so it is undone: in the groups' progress, and in operations that the journal has not written yet.
Otherwise the next message at that offset would count as finished. Called by `loops.state.ledger`; pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.delivery.queue_progress import NUMBERS
from evenq_broker.core.state.records import VERSION, Acked, Delivered, Invisible, decode, encode_op

Ends = Mapping[tuple[int, int], int]  # topic id, queue id -> the present end of the queue


def forget(progress: Progress, ends: Ends) -> None:
    """Forgets the deliveries behind the new ends of queues: other messages will have these offsets."""
    for queue in progress.queues():
        end = ends.get((queue.topic_id, queue.queue_id))
        if end is None or queue.next <= end:
            continue
        for offset in sorted((one for one in queue.pending if one >= end), reverse=True):
            progress.finish(queue, offset)
        queue.first += NUMBERS  # so that no handle of such a delivery names another message
        queue.next, queue.committed = end, min(queue.committed, end)
        queue.walk.clear()
        queue.ready = sorted(offset for offset in queue.ready if offset < end)


def without(op: bytes, ends: Ends) -> bytes:
    """Returns an encoded operation (`core.state.records`) as it is true now; empty if nothing of it is."""
    (decoded,) = decode(bytes((VERSION,)) + op)
    if not isinstance(decoded, Delivered | Invisible | Acked):
        return op
    end = ends.get((decoded.topic_id, decoded.queue_id))
    if end is None:
        return op
    if not isinstance(decoded, Delivered):
        return op if decoded.offset < end else b""
    if decoded.next_offset <= end:
        return op
    kept = [at for at, offset in enumerate(decoded.offsets) if offset < end]
    return encode_op(
        replace(
            decoded,
            next_offset=end,
            offsets=tuple(decoded.offsets[at] for at in kept),
            numbers=tuple(decoded.numbers[at] for at in kept),
            attempts=tuple(decoded.attempts[at] for at in kept),
        )
    )
