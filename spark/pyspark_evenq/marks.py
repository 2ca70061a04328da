"""Whether a queue still has the message that was read last: what is noted of each batch, and compared at the next one.

A broker that comes back without the end of a queue tells a smaller maximum, until the queue has grown past the old one:
then the offsets fit again and count other messages, of which some were never read. So the offset in the checkpoint
holds the mark of a message that was read (`offsets.OffsetMark`), and before more of the queue is read, its broker is
asked for the mark at that place once more, in the call that asks for the new one. A broker that does not answer is
asked at the next batch; one that tells no marks is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evenq.model.queue import MessageQueue
from pyspark_evenq.offsets import OffsetMark, StreamOffset
from pyspark_evenq.planner import batch_ranges

__all__ = ["Place", "compared"]

Place = tuple[MessageQueue, int]
"""The message before an offset of a queue."""


def compared(
    start: StreamOffset, end: StreamOffset, ask: Callable[[Sequence[Place]], Mapping[Place, str]]
) -> tuple[dict[MessageQueue, OffsetMark], dict[MessageQueue, OffsetMark]]:
    """What to note of the batch between two offsets, and of the queues that it reads those whose noted message is
    another one now, each with what was noted. Queues that begin anywhere are noted as well, read or not. `ask` tells
    marks: empty where there is no message, none where no broker answers.
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
