"""Check that a queue still has the message that was read last: a mark of each batch is compared at the next one.

A broker that restarts without the end of a queue reports a smaller maximum, until the queue has grown past the old one.
Then the offsets look valid again, but count other messages, of which some were never read. So the offset in the
checkpoint has the mark of a message that was read (`offsets.OffsetMark`). Before more of the queue is read, one call
queries the mark at that place again, and the new one. If a broker does not answer, the next batch compares. If a broker
does not support marks, its offsets count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evenq.model.queue import MessageQueue
from pyspark_evenq.plan.offsets import OffsetMark, StreamOffset
from pyspark_evenq.plan.planner import batch_ranges

Place = tuple[MessageQueue, int]
"""The message before an offset of a queue."""


def compared(
    start: StreamOffset, end: StreamOffset, ask: Callable[[Sequence[Place]], Mapping[Place, str]]
) -> tuple[dict[MessageQueue, OffsetMark], dict[MessageQueue, OffsetMark]]:
    """Returns the marks of the batch between two offsets, and its queues whose marked message has changed -> old mark.
    Queues with a start of their own get a mark even if they are not read. `ask` returns marks: empty without a message,
    missing without an answer.
    """
    kept = {queue: mark for queue, mark in start.marks.items() if queue in end.ends and queue not in end.starts}
    read = [part.queue for part in batch_ranges(start, end)]
    known = {queue: kept[queue] for queue in read if queue in kept}
    new = {queue: end.ends[queue] for queue in sorted({*read, *end.starts}) if end.ends.get(queue, 0) > 0}
    marks = ask([*((queue, mark.offset) for queue, mark in known.items()), *new.items()])
    others = {
        queue: mark for queue, mark in known.items() if marks.get((queue, mark.offset), "") not in {"", mark.text}
    }
    noted = {
        queue: OffsetMark(offset, text) for queue, offset in new.items() if (text := marks.get((queue, offset), ""))
    }
    return kept | noted, others
