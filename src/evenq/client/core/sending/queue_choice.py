"""Which queue a message goes to: the counter of PR-2, the table of faults of PR-4, the stable hash of PR-7 and the
fixed table of PR-10.

Called by the producer loop for every message. The counter's random start is handed in, so a test can choose it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evenq.client.core.sending.faults import FaultTable
from evenq.errors import Error, Forbidden
from evenq.model import MessageQueue
from evenq.model.lanes import home_of, lane_of, owner_among
from evenq.model.names import is_system_topic

__all__ = [
    "FixedQueues",
    "QueueCounter",
    "is_closed",
    "no_queue_takes",
    "queue_of_group",
    "queue_of_lite_topic",
    "queues_of_priority",
]


class QueueCounter:
    """The default choice: a counter with a random start, one up per choice, modulo the list length (PR-2)."""

    __slots__ = ("_next",)

    def __init__(self, start: int) -> None:
        self._next = start

    def choose(self, queues: Sequence[MessageQueue], *, failed_broker: str = "") -> MessageQueue:
        """The next queue that is not of the broker that failed in the previous attempt; any, if it is the only
        broker (PR-3).
        """
        for _ in range(len(queues)):
            queue = queues[self._next % len(queues)]
            self._next += 1
            if queue.broker_name != failed_broker:
                return queue
        queue = queues[self._next % len(queues)]
        self._next += 1
        return queue

    def take(self, count: int) -> int:
        """As many choices at once, for a caller that makes them by itself: the number of the first one."""
        first = self._next
        self._next = first + count
        return first

    def choose_by_faults(
        self,
        queues: Sequence[MessageQueue],
        faults: FaultTable,
        *,
        now_ms: int,
        failed: MessageQueue | None = None,
        near: bool = False,
    ) -> MessageQueue:
        """PR-4 and PR-5: after the failure of queue `failed`, `near` wants another queue of its broker first; else a
        queue of a broker that is not in a pause, else of the one whose pause ends first.
        """
        if failed is not None and near:
            others = [queue for queue in queues if queue.broker_name == failed.broker_name and queue != failed]
            if others:
                return self.choose(others)
        away = [queue for queue in queues if failed is None or queue.broker_name != failed.broker_name] or list(queues)
        refused: set[str] = set()
        for _ in range(len(away)):
            queue = self.choose(away)
            broker = queue.broker_name
            if broker not in refused and faults.admits(broker, now_ms):
                return queue
            refused.add(broker)
        soonest = faults.soonest(sorted(refused))
        return self.choose([queue for queue in away if queue.broker_name == soonest])


class FixedQueues:
    """The queues of ordered messages of one topic: those ever seen, also when the route does not name them now, so that
    no key moves because a broker is away (PR-10). New queues join, those that a present broker has closed leave (RT-8),
    and then keys do move.
    """

    __slots__ = ("queues",)

    def __init__(self) -> None:
        self.queues: tuple[MessageQueue, ...] = ()

    def changed(self, seen: Sequence[MessageQueue], brokers: Collection[str]) -> bool:
        """Take in the writable queues of a route, and its brokers. True if they are others than there were."""
        if seen == self.queues:
            return False
        before = self.queues
        # Of brokers that are in the route only what it names stays: a queue that is missing there was closed (RT-8).
        away = {queue for queue in before if queue.broker_name not in brokers}
        self.queues = tuple(sorted(away.union(seen)))
        return bool(before) and self.queues != before


def queues_of_priority(priority: int, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
    """Each broker's queue for this priority: its queues are the levels, and what is above the highest belongs there."""
    highest: dict[str, int] = {}
    for queue in queues:
        highest[queue.broker_name] = max(highest.get(queue.broker_name, 0), queue.queue_id)
    return [queue for queue in queues if queue.queue_id == min(max(priority, 0), highest[queue.broker_name])]


def queue_of_group(message_group: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Equal message groups go to one queue, in every process and release (PR-7): the group's home broker, and there the
    hash of the group modulo the queues, as brokers do it for other SDKs.
    """
    home = home_of(message_group, dict.fromkeys(queue.broker_name for queue in queues))
    there = [queue for queue in queues if queue.broker_name == home]
    return there[lane_of(message_group, len(there))]


def queue_of_lite_topic(name: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """A queue of the broker that owns the lite topic now: another broker would pass the message on to it. Which queue
    it is does not matter there, but equal names go through one, so that they stay in order.
    """
    owner = owner_among((queue.broker_name for queue in queues), queues[0].topic, name)
    return next(queue for queue in queues if queue.broker_name == owner)


def is_closed(error: Error, queue: MessageQueue) -> bool:
    """True if a broker refused the queue, not the message: others may take it."""
    return isinstance(error, Forbidden) and not is_system_topic(queue.topic)


def no_queue_takes(topic: str) -> Forbidden:
    """What to raise for a topic whose route names no queue to write to."""
    return Forbidden(f"topic {topic} has no writable queue now; look at its permissions")
