"""What a topic is configured to be."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from evenq.model.names import topic_problem

__all__ = ["MIXED_KINDS", "MessageType", "Permission", "TopicConfig"]


class MessageType(StrEnum):
    """The kind of messages a topic takes. MIXED takes NORMAL, FIFO, DELAY and TRANSACTION, as in RocketMQ 4."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    LITE = "LITE"
    PRIORITY = "PRIORITY"
    MIXED = "MIXED"


MIXED_KINDS = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
"""What a MIXED topic takes; a topic of one of these may become MIXED, because it takes all that it took before."""


class Permission(IntEnum):
    """What clients may do with a topic's queues on one broker (numbers of the v2 protocol)."""

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
        """What is left of it at a broker that takes no messages."""
        return Permission.READ if self.readable else Permission.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One topic on one broker. Read and write counts are equal but for a resize in steps (RT-8): what is closed is not
    written any more, then read to its end, then not read any more.
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
    """The most queues it ever had here: queues up to it may still hold messages. See `queues_ever`."""
    retention_ms: int | None = None
    """How long its messages are kept, ms; 0: for ever; None: as long as the broker keeps any."""
    chosen: bool = False
    """An operator chose the brokers that have it (TQ-4): no other one takes it by itself."""
    uid: str = ""
    """New each time that the topic is made; the same on all brokers that made it together."""

    def __post_init__(self) -> None:
        problem = topic_problem(self.name)
        if problem:
            raise ValueError(problem)
        for count in (self.read_queues, self.write_queues):
            if not 1 <= count <= 4096:
                raise ValueError(f"topic {self.name} asks for {count} queues, the range is 1 to 4096")
        if self.retention_ms is not None and self.retention_ms < 0:
            raise ValueError(f"topic {self.name} asks for a retention of {self.retention_ms} ms, the least is 0")

    @property
    def queues_ever(self) -> int:
        """How many queues it has, or had: whatever is stored of it is in one of them."""
        return max(self.widest, self.read_queues, self.write_queues)

    @property
    def closing(self) -> range:
        """Queues that take no messages any more and are still read."""
        return range(self.write_queues, self.read_queues)

    @property
    def closed(self) -> range:
        """Queues that were closed: no member reads what they may hold until the topic grows again."""
        return range(self.read_queues, self.queues_ever)
