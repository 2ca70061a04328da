"""Delivery counts for members that pull and commit offsets, which a hand-over must keep.

Counting each delivery would make every message more expensive, so the first one is not counted. The broker knows only
how far it answered the holder of a queue's lock. When that holder vanishes, what it got and did not commit is presumed
delivered once (`presume`). From then on, and after any failure, members report each further delivery before it begins
(`count`). So a message that kills its process is counted itself, and its neighbours are not. Members also report what
they finished before they begin what may end them, because the committed offset may be far behind. Called by
`loops.progress.counting`. Always true: counts grow until the offset is committed; at most `COUNTS_MAX` are kept for one
group and queue. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.delivery.queue_progress import UNKNOWN, QueueProgress
from evenq_broker.core.state.records import Counted

COUNTS_MAX = 4_096
"""For one group and queue. The smallest offsets stay: the group's progress waits for them."""
PRESUMED_MAX = 4_096
"""Messages that a holder is presumed to have got where this broker cannot know: more than members keep unfinished."""
FINISHED = 0xFFFF
"""In place of a count: the message is finished. Greater than any count."""


def presume(queue: QueueProgress, end: int) -> Counted | None:
    """Counts as delivered once what the vanished holder got and did not commit. `end`: of the queue. Returns what to
    record; None: it had nothing, or that was known.
    """
    # Too many is safe, too few is not: a message that kills its process without being counted would be redelivered for
    # ever (decision 22).
    until = queue.committed + PRESUMED_MAX if queue.handed == UNKNOWN else queue.handed
    queue.handed = queue.committed
    return count(queue, {}, given_until=min(until, end))


def count(queue: QueueProgress, deliveries: Mapping[int, int], *, given_until: int = 0) -> Counted | None:
    """Raises the counts of these offsets (or FINISHED) and `given_until`. Returns what to record; None: no change."""
    more = {
        offset: min(number, FINISHED)
        for offset, number in sorted(deliveries.items())
        if offset >= queue.committed and number > queue.counts.get(offset, 0)
    }
    further = given_until > max(queue.given_until, queue.committed)
    if not more and not further:
        return None
    if further:
        queue.given_until = given_until
    queue.counts.update(more)
    if len(queue.counts) > COUNTS_MAX:
        _clean(queue)
    return record_of(queue, more)


def known(queue: QueueProgress) -> tuple[int, list[tuple[int, int]]]:
    """Returns the end of what may have been delivered (0: nothing), and the counts as (offset, count), ascending."""
    _clean(queue)
    return queue.given_until, sorted(queue.counts.items())


def record_of(queue: QueueProgress, offsets: Iterable[int]) -> Counted | None:
    """Returns what is known of these offsets, to be recorded; None: nothing."""
    kept = {offset: queue.counts[offset] for offset in sorted(offsets) if offset in queue.counts}
    if not kept and not queue.given_until:
        return None
    queue_key = (queue.group_id, queue.topic_id, queue.queue_id)
    return Counted(*queue_key, queue.given_until, tuple(kept), tuple(kept.values()))


def apply(progress: Progress, op: Counted) -> None:
    queue = progress.queue(op.group_id, op.topic_id, op.queue_id)
    if queue is not None:
        count(queue, dict(zip(op.offsets, op.deliveries, strict=True)), given_until=op.given_until)


def dump(progress: Progress) -> Iterator[Counted]:
    """Yields everything for a snapshot, in which it must follow the offsets that `apply` needs."""
    for queue in progress.queues():
        _clean(queue)
        op = record_of(queue, queue.counts)
        if op is not None:
            yield op


def restored(progress: Progress) -> None:
    """Marks the state as read from the disk: how far holders were answered is not part of it."""
    for queue in progress.queues():
        queue.handed = UNKNOWN


def _clean(queue: QueueProgress) -> None:
    # Commits do not look here because they are too many; what they finished is removed when the counts are read.
    if queue.given_until <= queue.committed:
        queue.given_until = 0
    if not queue.counts:
        return
    left = sorted(offset for offset in queue.counts if offset >= queue.committed)[:COUNTS_MAX]
    queue.counts = {offset: queue.counts[offset] for offset in left}
