"""A message as a producer writes it and as a consumer gets it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenq.model.offsets import QueueOffset
from evenq.model.queue import MessageQueue

__all__ = ["Message", "ReceivedMessage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a producer sends. The server refuses an empty body and one over its limit (4 MiB - 64 KiB by default)."""

    topic: str
    body: bytes
    tag: str | None = None
    """One word to filter by; no `|`."""
    keys: tuple[str, ...] = ()
    """Words to find the message by later."""
    properties: Mapping[str, str] = field(default_factory=dict)
    message_group: str | None = None
    """Ordering key: messages of one group are stored and delivered in order."""
    delivery_ms: int | None = None
    """Earliest delivery, ms since the epoch."""
    delay_level: int = 0
    """The same by the classic levels: 1 is a second, 5 a minute, 18 two hours; 0 = no delay (RD-9). `delivery_ms` wins.
    """
    priority: int | None = None
    """Bigger is delivered sooner, 0 the least; for PRIORITY topics, and not together with a message group or a delivery
    time. As many differ as the topic has queues per broker (10 unless told); those above are the highest.
    """
    lite_topic: str | None = None
    """Name of a small queue of its own inside a LITE topic, delivered in order to those who asked for it: up to 64
    letters, digits, `%`, `_` and `-`. Not together with a message group, a delivery time or a priority.
    """
    message_id: str = ""
    """Empty: made by the producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """What a consumer gets: the message, where it was found, and what is needed to settle it."""

    topic: str
    body: bytes
    message_id: str
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    message_group: str | None
    queue: MessageQueue
    queue_offset: QueueOffset
    born_ms: int
    """Ms since the epoch, by the producer's clock."""
    store_ms: int
    """Ms since the epoch, by the broker's clock."""
    delivery_attempt: int = 1
    """1 for the first delivery to this group."""
    priority: int | None = None
    """As it was sent; None if it was sent without one."""
    lite_topic: str | None = None
    """As it was sent; None if it was sent without one."""
    receipt_handle: str = ""
    """Empty when the message was pulled; opaque else."""
