"""Request and result of one receive, as the queues see them. Made and filled by `loops.delivery.taking`."""

from __future__ import annotations

from collections.abc import Sequence

from evenq.model import GroupConfig, MessageType, TopicConfig
from evenq_broker.core.delivery.filters import MessageFilter
from evenq_broker.core.delivery.progress import QueueProgress


class Batch:
    """Result of one receive: frames to send, and deliveries to undo if they are not sent."""

    __slots__ = ("ahead_ms", "frames", "held", "payload_bytes")

    def __init__(self) -> None:
        self.ahead_ms: list[list[int]] = []
        """Store times of messages that were not committed when they were taken, queue by queue."""
        self.frames: list[bytes] = []
        self.held: list[tuple[QueueProgress, int, int]] = []
        """(queue, offset, delivery number)."""
        self.payload_bytes = 0


class ReceiveWish:
    """Request of one receive, as far as the queues are concerned."""

    __slots__ = (
        "ahead",
        "behind",
        "client_id",
        "deadline_ms",
        "frame_bytes_max",
        "group",
        "invisible_ms",
        "message_filter",
        "node",
        "official",
        "ordered",
        "queues",
        "topic",
    )

    def __init__(
        self, group: GroupConfig, topic: TopicConfig, message_filter: MessageFilter, client_id: str, invisible_ms: int
    ) -> None:
        self.group = group
        self.topic = topic
        self.message_filter = message_filter
        self.ahead = False
        """Whether messages are taken that are not committed yet."""
        self.behind: list[QueueProgress] = []
        """Queues that may hold more: behind the look-ahead of a filter, or being read by another receive."""
        self.client_id = client_id
        self.deadline_ms = 0
        self.frame_bytes_max = 0
        """Largest encoded message that the client's SDK receives, bytes; 0 = no limit."""
        self.invisible_ms = None if client_id else invisible_ms
        self.node = False
        """Whether the client is that of Node.js, which compares no CRC32 (`core.sending.body_digest`)."""
        self.official = True
        """Whether a group that has never read the topic begins as those of official SDKs do (RB-46)."""
        self.queues: Sequence[int] | None = None
        """Of lite topics: only these are read."""
        self.ordered = group.ordered
        """One message of a message group at a time; always so in a lite topic, and not across priorities."""
        if topic.message_type is MessageType.LITE or topic.message_type is MessageType.PRIORITY:
            self.ordered = topic.message_type is MessageType.LITE
