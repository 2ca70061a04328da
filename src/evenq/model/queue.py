"""A message queue, the unit of balancing for producing and for consuming (RT-5), and two kinds of offset, as distinct
types, so that the type checker finds a confusion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

QueueOffset = NewType("QueueOffset", int)
"""Position in one message queue: 0 for its first message, dense, assigned once."""
LogOffset = NewType("LogOffset", int)
"""Position of a byte in a broker's commit log."""


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """(topic, broker name, queue id), sorted in this order, as every allocate strategy needs (XO-9)."""

    topic: str
    broker_name: str
    queue_id: int
    """0 .. read or write count - 1; -1 in an assignment means all queues of the broker."""

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"
