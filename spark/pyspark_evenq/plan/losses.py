"""Counts and warnings of messages that are left out while failOnDataLoss or failOnUnavailable is false.

Called by the readers on the driver and in Spark's workers; each process has its own counts. Each loss is one warning of
the logger `pyspark_evenq.losses`, which ends with the sums of its process. A repeated task counts again. Losses at the
planning of a stream are also in the batch's end offset (`offsets`), once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from evenq.model.queue import MessageQueue

log = logging.getLogger("pyspark_evenq.losses")
NAMED_MAX = 20


@dataclass(slots=True)
class LossCount:
    """Sums since the process started."""

    messages: int = 0
    """Messages that are gone, or not read because no broker served them, as far as their number is known."""
    queues: set[MessageQueue] = field(default_factory=set)
    """Queues that lost messages."""
    unavailable: set[MessageQueue] = field(default_factory=set)
    """Queues that were left out because no broker served them."""

    def lost(self, queue: MessageQueue, messages: int, why: object) -> None:
        """Counts and logs messages that are gone; 0: their number is not known."""
        self.messages += messages
        self.queues.add(queue)
        log.warning("evenq: lost messages=%d of %s: %s; %s", messages, queue, why, self)

    def left_out(self, queues: Mapping[MessageQueue, int], why: object) -> None:
        """Counts and logs queues without a broker -> their unread messages, 0 = not known."""
        messages = sum(queues.values())
        self.messages += messages
        self.unavailable.update(queues)
        log.warning(
            "evenq: left out queues=%d messages=%d: %s: %s; %s", len(queues), messages, named(queues), why, self
        )

    def __str__(self) -> str:
        return (
            f"in this process so far messages={self.messages} queues={len(self.queues)} "
            f"unavailable={len(self.unavailable)}"
        )


counted = LossCount()


def named(queues: Collection[MessageQueue]) -> str:
    """Returns the queues as text, by topic and broker: `flights on broker-b (queues 0, 1)`."""
    ids: dict[tuple[str, str], list[int]] = {}
    for queue in sorted(queues):
        ids.setdefault((queue.topic, queue.broker_name), []).append(queue.queue_id)
    parts = [f"{topic} on {broker} ({_ids(numbers)})" for (topic, broker), numbers in ids.items()]
    more = len(parts) - NAMED_MAX
    return ", ".join(parts[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _ids(numbers: Iterable[int]) -> str:
    listed = [str(number) for number in numbers]
    return f"queue{'s' if len(listed) > 1 else ''} {', '.join(listed)}"
