"""The choice of a message's queue: the counter of PR-2, the fault table of PR-4, the stable hash of PR-7 and the fixed
queues of PR-10.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from evenq.client.core.sending.faults import FaultTable
from evenq.errors import Error, Forbidden
from evenq.model import MessageQueue
from evenq.model.lanes import home_of, lane_of, owner_among
from evenq.model.names import is_system_topic


class QueueCounter:
    """The default choice: a counter modulo the number of queues, with a random start (PR-2)."""

    __slots__ = ("_next",)

    def __init__(self, start: int) -> None:
        self._next = start

    def choose(self, queues: Sequence[MessageQueue], *, failed_broker: str = "") -> MessageQueue:
        """Returns the next queue that is not of the failed broker; any queue, if there is only one broker (PR-3)."""
        for _ in range(len(queues)):
            queue = queues[self._next % len(queues)]
            self._next += 1
            if queue.broker_name != failed_broker:
                return queue
        queue = queues[self._next % len(queues)]
        self._next += 1
        return queue

    def take(self, count: int) -> int:
        """Reserves `count` choices for a caller that makes them itself, and returns the number of the first one."""
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
        """Chooses by PR-4 and PR-5. `near`: another queue of the failed queue's broker comes first."""
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
    """The queues of the ordered messages of one topic.

    Queues of an absent broker stay, so that no key moves because a broker is unreachable (PR-10). New queues are added,
    and queues that a present broker has closed are removed (RT-8); then keys do move.
    """

    __slots__ = ("queues",)

    def __init__(self) -> None:
        self.queues: tuple[MessageQueue, ...] = ()

    def changed(self, seen: Sequence[MessageQueue], brokers: Collection[str]) -> bool:
        """Applies the writable queues and the brokers of a route. True if the set of queues changed."""
        if seen == self.queues:
            return False
        before = self.queues
        # A queue that the route lacks although it names the broker was closed (RT-8).
        away = {queue for queue in before if queue.broker_name not in brokers}
        self.queues = tuple(sorted(away.union(seen)))
        return bool(before) and self.queues != before


def queues_of_priority(priority: int, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
    """Returns each broker's queue for this priority: queue ids are the levels; higher priorities use the highest id."""
    highest: dict[str, int] = {}
    for queue in queues:
        highest[queue.broker_name] = max(highest.get(queue.broker_name, 0), queue.queue_id)
    return [queue for queue in queues if queue.queue_id == min(max(priority, 0), highest[queue.broker_name])]


def queue_of_group(message_group: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Returns the queue of a message group, which is the same in every process and release (PR-7).

    It is at the group's home broker, at the hash of the group modulo the queues, as brokers compute it for other SDKs.
    """
    home = home_of(message_group, dict.fromkeys(queue.broker_name for queue in queues))
    there = [queue for queue in queues if queue.broker_name == home]
    return there[lane_of(message_group, len(there))]


def queue_of_lite_topic(name: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Returns a queue of the broker that owns the lite topic now; another broker would forward the message to it.

    The owner accepts any of its queues, but equal names use the same one, so that they stay in order.
    """
    owner = owner_among((queue.broker_name for queue in queues), queues[0].topic, name)
    return next(queue for queue in queues if queue.broker_name == owner)


def is_closed(error: Error, queue: MessageQueue) -> bool:
    """True if a broker refused the queue and not the message: other queues may accept it."""
    return isinstance(error, Forbidden) and not is_system_topic(queue.topic)


def no_queue_takes(topic: str) -> Forbidden:
    """Returns the error for a topic whose route has no writable queue."""
    return Forbidden(f"topic {topic} has no writable queue now; check its permissions")
