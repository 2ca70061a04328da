"""A message as a producer writes it and as a consumer gets it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenq.errors import (
    BadRequest,
    IllegalDeliveryTime,
    IllegalLiteTopic,
    IllegalMessageGroup,
    IllegalMessageKey,
    IllegalMessageTag,
    IllegalPropertyKey,
)
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

    def __post_init__(self) -> None:
        # Exact types first: nearly every message has those, and producers make many.
        if type(self.body) is not bytes and not isinstance(self.body, bytes):
            raise BadRequest(f"the body is {_kind(self.body)}, give bytes: {_as_bytes(self.body)}")
        if self.tag is not None and not isinstance(self.tag, str):
            raise IllegalMessageTag(f"the tag is {_kind(self.tag)}, give one text, as in tag='paid'")
        if self.keys:
            self._check_keys()
        if self.properties:
            self._check_properties()
        if not isinstance(self.delay_level, int):
            raise IllegalDeliveryTime(f"delay_level is {_kind(self.delay_level)}, give a whole number, 0 to 18")
        if self.delivery_ms is not None and not isinstance(self.delivery_ms, int):
            raise IllegalDeliveryTime(
                f"delivery_ms is {_kind(self.delivery_ms)}, give whole ms since the epoch, as in "
                "int(time.time() * 1000) + 60_000"
            )
        if self.priority is not None and not isinstance(self.priority, int):
            raise BadRequest(f"priority is {_kind(self.priority)}, give a whole number, 0 or more")
        if self.message_group is not None and not isinstance(self.message_group, str):
            raise IllegalMessageGroup(f"message_group is {_kind(self.message_group)}, give a text")
        if self.lite_topic is not None and not isinstance(self.lite_topic, str):
            raise IllegalLiteTopic(f"lite_topic is {_kind(self.lite_topic)}, give a text")

    def _check_keys(self) -> None:
        if isinstance(self.keys, str | bytes):
            raise IllegalMessageKey(
                f"keys is the text {self.keys!r:.80}, which would be a key for each letter; give a tuple, as in "
                f"keys=({self.keys!r:.80},)"
            )
        for key in self.keys:
            if not isinstance(key, str):
                raise IllegalMessageKey(f"a key is {_kind(key)}, give texts, as in keys=('order-1',)")

    def _check_properties(self) -> None:
        if not isinstance(self.properties, Mapping):
            raise IllegalPropertyKey(f"properties is {_kind(self.properties)}, give a dict of texts")
        for key, value in self.properties.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise IllegalPropertyKey(
                    f"property {key!r:.80} is {_kind(value)}, give texts for both, as in {{{str(key)!r:.80}: "
                    f"{str(value)!r:.80}}}"
                )


def _kind(value: object) -> str:
    return f"{value!r:.80} ({type(value).__name__})"


def _as_bytes(body: object) -> str:
    if isinstance(body, str):
        return "text.encode()"
    return "bytes(body)" if isinstance(body, bytearray | memoryview) else "json.dumps(value).encode(), for example"


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
