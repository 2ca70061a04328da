"""How often messages were delivered to members that pull and commit offsets: what a hand-over must not forget.

Counting each delivery would make every message dearer, so the first one is not counted. The broker only knows how far
the holder of a queue's lock was answered; when that holder vanishes, what it was given and did not commit is taken to
have been delivered once (`presume`). From then on, and after any failure, members say of each further delivery that it
begins before it begins (`count`), so a message that kills its process is counted by name, and its neighbours are not.
They also say what of it they finished, before they begin what may end them: the committed offset may be far behind it.
Called by `loops.progress.counting`. Always true: numbers grow until the offset is committed; at most `COUNTS_MAX` are
kept of one group and queue. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from evenq_broker.core.delivery.progress import Progress
from evenq_broker.core.delivery.queue_progress import UNKNOWN, QueueProgress
from evenq_broker.core.state.records import Counted

__all__ = [
    "COUNTS_MAX",
    "FINISHED",
    "PRESUMED_MAX",
    "apply",
    "count",
    "dump",
    "known",
    "presume",
    "record_of",
    "restored",
]

COUNTS_MAX = 4_096
"""Of one group and queue. The smallest offsets stay: they are what the group's progress waits for."""
PRESUMED_MAX = 4_096
"""How much a holder is taken to have been given where this broker cannot know: more than members keep in hand."""
FINISHED = 0xFFFF
"""Instead of a number: the message is done. More than any number."""


def presume(queue: QueueProgress, end: int) -> Counted | None:
    """The holder vanished: what it was given and did not commit counts as delivered once. `end`: of the queue. Gives
    what to record; None: it had nothing in hand, or that was known.
    """
    # Too many is safe, too few is not: a message that kills its process and was not counted would come for ever
    # (decision 22).
    until = queue.committed + PRESUMED_MAX if queue.handed == UNKNOWN else queue.handed
    queue.handed = queue.committed
    return count(queue, {}, given_until=min(until, end))


def count(queue: QueueProgress, deliveries: Mapping[int, int], *, given_until: int = 0) -> Counted | None:
    """How often these offsets were delivered, or FINISHED. What is committed, and what is known to be more, is
    left out. Gives what to record; None: nothing is new.
    """
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
    """For who takes the queue now: the end of what may have been delivered, 0 if nothing may, and (offset, deliveries)
    of what was counted, ascending.
    """
    _clean(queue)
    return queue.given_until, sorted(queue.counts.items())


def record_of(queue: QueueProgress, offsets: Iterable[int]) -> Counted | None:
    """What is known of these offsets, to be recorded; None: nothing."""
    kept = {offset: queue.counts[offset] for offset in sorted(offsets) if offset in queue.counts}
    if not kept and not queue.given_until:
        return None
    queue_key = (queue.group_id, queue.topic_id, queue.queue_id)
    return Counted(*queue_key, queue.given_until, tuple(kept), tuple(kept.values()))


def apply(progress: Progress, op: Counted) -> None:
    """Replay one operation."""
    queue = progress.queue(op.group_id, op.topic_id, op.queue_id)
    if queue is not None:
        count(queue, dict(zip(op.offsets, op.deliveries, strict=True)), given_until=op.given_until)


def dump(progress: Progress) -> Iterator[Counted]:
    """Everything, for a snapshot; it stands behind the offsets there, which `apply` needs."""
    for queue in progress.queues():
        _clean(queue)
        op = record_of(queue, queue.counts)
        if op is not None:
            yield op


def restored(progress: Progress) -> None:
    """The state was read from the disk: how far holders were answered is not part of it."""
    for queue in progress.queues():
        queue.handed = UNKNOWN


def _clean(queue: QueueProgress) -> None:
    # Commits do not look here, they are too many: what they finished goes when they are looked at.
    if queue.given_until <= queue.committed:
        queue.given_until = 0
    if not queue.counts:
        return
    left = sorted(offset for offset in queue.counts if offset >= queue.committed)[:COUNTS_MAX]
    queue.counts = {offset: queue.counts[offset] for offset in left}
