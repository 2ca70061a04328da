"""What was left out, counted: the one place that says so when failOnDataLoss or failOnUnavailable is false.

Called by the readers on the driver and in Spark's workers, each of which is a process with a count of its own. Each
loss is one warning of the logger `pyspark_evenq.losses` that ends with the sums of its process; a task that Spark runs
again counts again. What a stream leaves out when it plans is also in the batch's end offset (`offsets`), once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from evenq.model.queue import MessageQueue

__all__ = ["LossCount", "counted", "named"]

log = logging.getLogger(__name__)
NAMED_MAX = 20


@dataclass(slots=True)
class LossCount:
    """Sums since the process started."""

    messages: int = 0
    """Gone, or not read because no broker served them, as far as it is known how many."""
    queues: set[MessageQueue] = field(default_factory=set)
    """That lost messages."""
    unavailable: set[MessageQueue] = field(default_factory=set)
    """That were left out because no broker served them."""

    def lost(self, queue: MessageQueue, messages: int, why: object) -> None:
        """Messages are gone; `messages` 0: it is not known how many."""
        self.messages += messages
        self.queues.add(queue)
        log.warning("evenq: lost messages=%d of %s: %s; %s", messages, queue, why, self)

    def left_out(self, queues: Mapping[MessageQueue, int], why: object) -> None:
        """Queues are not read because no broker serves them; how many messages each had to be read, 0 = not known."""
        self.messages += sum(queues.values())
        self.unavailable.update(queues)
        log.warning(
            "evenq: left out queues=%d messages=%d: %s: %s; %s",
            len(queues), sum(queues.values()), named(queues), why, self,
        )  # fmt: skip

    def __str__(self) -> str:
        return (
            f"in this process so far messages={self.messages} queues={len(self.queues)} "
            f"unavailable={len(self.unavailable)}"
        )


counted = LossCount()
"""Of this process."""


def named(queues: Collection[MessageQueue]) -> str:
    """The queues in words, by topic and broker: `flights on broker-b (queues 0, 1)`."""
    ids: dict[tuple[str, str], list[int]] = {}
    for queue in sorted(queues):
        ids.setdefault((queue.topic, queue.broker_name), []).append(queue.queue_id)
    parts = [f"{topic} on {broker} ({_ids(numbers)})" for (topic, broker), numbers in ids.items()]
    more = len(parts) - NAMED_MAX
    return ", ".join(parts[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _ids(numbers: Iterable[int]) -> str:
    listed = [str(number) for number in numbers]
    return f"queue{'s' if len(listed) > 1 else ''} {', '.join(listed)}"
