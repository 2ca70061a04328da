"""Configuration of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from evenq.model.names import topic_problem

QUEUES_MAX: Final = 4_096
"""Most queues of a topic on one broker."""


class MessageType(StrEnum):
    """Kind of messages that a topic takes. MIXED takes NORMAL, FIFO, DELAY and TRANSACTION, as in RocketMQ 4."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    LITE = "LITE"
    PRIORITY = "PRIORITY"
    MIXED = "MIXED"


MIXED_KINDS = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
"""Kinds that a MIXED topic takes; a topic of one of these types may become MIXED."""


class Permission(IntEnum):
    """Rights of clients on a topic's queues on one broker (numbers of the v2 protocol)."""

    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4

    @property
    def readable(self) -> bool:
        """True if consumers may read."""
        return self in {Permission.READ, Permission.READ_WRITE}

    @property
    def writable(self) -> bool:
        """True if producers may write."""
        return self in {Permission.WRITE, Permission.READ_WRITE}

    def without_writing(self) -> Permission:
        """Returns the permission at a broker that takes no messages."""
        return Permission.READ if self.readable else Permission.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One topic on one broker. Read and write counts differ only during a resize (RT-8): queues that are closed are
    first not written any more, then read to the end, then not read any more.
    """

    name: str
    topic_id: int
    """Numeric, per broker, never reused: the folder name of its consume queues."""
    message_type: MessageType = MessageType.NORMAL
    read_queues: int = 8
    """Queues consumers read, 1 .. 4096."""
    write_queues: int = 8
    permission: Permission = Permission.READ_WRITE
    widest: int = 0
    """Most queues that it ever had here: all of them may still hold messages. See `queues_ever`."""
    retention_ms: int | None = None
    """Time that messages are kept, ms; 0: forever; None: as long as the broker keeps any."""
    chosen: bool = False
    """An operator chose its brokers (TQ-4): no other broker creates it by itself."""
    uid: str = ""
    """New each time the topic is created; the same on all brokers that created it together."""

    def __post_init__(self) -> None:
        problem = topic_problem(self.name)
        if problem:
            raise ValueError(problem)
        for count in (self.read_queues, self.write_queues):
            if not 1 <= count <= QUEUES_MAX:
                raise ValueError(f"topic {self.name} has {count} queues, the range is 1 to {QUEUES_MAX}")
        if self.retention_ms is not None and self.retention_ms < 0:
            raise ValueError(f"topic {self.name} has a retention of {self.retention_ms} ms, the minimum is 0")

    @property
    def queues_ever(self) -> int:
        """Number of queues that it has, or had: all its stored messages are in them."""
        return max(self.widest, self.read_queues, self.write_queues)

    @property
    def closing(self) -> range:
        """Queues that are read but not written any more."""
        return range(self.write_queues, self.read_queues)

    @property
    def closed(self) -> range:
        """Queues that are not read any more; they may hold messages, which are read if the topic grows again."""
        return range(self.read_queues, self.queues_ever)
