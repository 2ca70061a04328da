"""A message queue: the unit of balancing for producing and for consuming (RT-5)."""

from dataclasses import dataclass

__all__ = ["MessageQueue"]


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """(topic, broker name, queue id). Sorts by topic, broker name, id, as every allocate strategy needs (XO-9)."""

    topic: str
    broker_name: str
    queue_id: int
    """0 .. read or write count - 1; -1 in an assignment means all queues of the broker."""

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"
