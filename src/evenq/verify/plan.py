"""Plan of a verification: kinds of message, duration, rate, and the limit for late messages. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from evenq.errors import BadRequest


class Kind(StrEnum):
    """A kind of message, each with a topic and a group of its own."""

    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    PRIORITY = "priority"
    LITE = "lite"


MESSAGE_TYPES = {kind: kind.name for kind in Kind}
"""The message type of each kind's topic."""

MESSAGES_MAX = 10_000_000
"""Largest number of messages of one verification; each takes about 250 bytes of memory."""
_BOUNDS = {
    "seconds": (1, 7 * 86_400), "rate": (1, 10_000), "consumers": (1, 100), "streams": (1, 1_000),
    "tolerance_ms": (1, 3_600_000), "drain_seconds": (1, 3_600), "body_bytes": (64, 3 << 20),
    "delay_min_ms": (1, 3_600_000), "delay_max_ms": (1, 3_600_000), "invisible_ms": (1_000, 3_600_000),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    endpoint: str
    """Access point, several joined with `;`."""
    kinds: tuple[Kind, ...] = field(default_factory=lambda: tuple(Kind))
    seconds: int = 60
    """Time during which messages are sent. 1 .. 7 days."""
    rate: int = 50
    """Messages a second of each kind; fewer if the cluster answers more slowly. 1 .. 10,000."""
    consumers: int = 2
    """Members of each group. 1 .. 100."""
    streams: int = 8
    """Message groups of the FIFO kind, and lite topics of the LITE kind, each a sequence. 1 .. 1,000."""
    tolerance_ms: int = 1_000
    """A delayed message that arrives more than this after its time is late."""
    delay_min_ms: int = 1_000
    delay_max_ms: int = 4_000
    """Delays are spread over this range."""
    drain_seconds: int = 90
    """Longest wait for missing messages after the last send. Messages that are missing then are lost."""
    body_bytes: int = 128
    """Size of a body. 64 .. 3 MiB."""
    invisible_ms: int = 10_000
    """Time for which a received message is hidden from other members; without an ack it is redelivered then."""
    timeout_ms: int = 10_000
    """Longest wait for an answer that creates or deletes a topic or group."""

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise BadRequest(f"{name.replace('_', ' ')} is {value}, the range is {low} to {high}")
        if self.delay_min_ms > self.delay_max_ms:
            raise BadRequest(f"the smallest delay, {self.delay_min_ms} ms, is above the greatest, {self.delay_max_ms}")
        messages = self.seconds * self.rate * len(self.kinds)
        if messages > MESSAGES_MAX:
            raise BadRequest(
                f"{self.seconds} seconds of {self.rate} messages a second of {len(self.kinds)} kinds are {messages:,}; "
                f"the limit is {MESSAGES_MAX:,}: choose a lower rate, or verify several times"
            )
        if not self.kinds:
            raise BadRequest(f"no kind of message is chosen; the kinds are {', '.join(Kind)}")
