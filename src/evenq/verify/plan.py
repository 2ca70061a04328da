"""What a verification does: which kinds of message, for how long, how fast, and what counts as late. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from evenq.errors import BadRequest

__all__ = ["MESSAGE_TYPES", "Kind", "Plan"]


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
"""What one verification remembers: each message of it, about 250 bytes."""
_BOUNDS = {
    "seconds": (1, 7 * 86_400), "rate": (1, 10_000), "consumers": (1, 100), "streams": (1, 1_000),
    "tolerance_ms": (1, 3_600_000), "drain_seconds": (1, 3_600), "body_bytes": (64, 3 << 20),
    "delay_min_ms": (1, 3_600_000), "delay_max_ms": (1, 3_600_000), "invisible_ms": (1_000, 3_600_000),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One verification."""

    endpoint: str
    """Access point, several joined with `;`."""
    kinds: tuple[Kind, ...] = field(default_factory=lambda: tuple(Kind))
    seconds: int = 60
    """How long messages are sent. 1 .. 7 days."""
    rate: int = 50
    """Messages a second of each kind; fewer if the cluster answers slower. 1 .. 10,000."""
    consumers: int = 2
    """Members of each group. 1 .. 100."""
    streams: int = 8
    """Message groups of the FIFO kind and lite topics of the LITE kind, each a sequence of its own. 1 .. 1,000."""
    tolerance_ms: int = 1_000
    """A delayed message that comes longer than this after its time is late."""
    delay_min_ms: int = 1_000
    delay_max_ms: int = 4_000
    """Delays are spread over this range."""
    drain_seconds: int = 90
    """After the sending: longest wait for what has not come yet. What is still missing then is lost."""
    body_bytes: int = 128
    """Size of a body. 64 .. 3 MiB."""
    invisible_ms: int = 10_000
    """How long a received message is hidden from the other members; what is not acknowledged comes again then."""
    timeout_ms: int = 10_000
    """Longest wait for the answer that makes or removes a topic or group."""

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
                f"at most {MESSAGES_MAX:,} are remembered: take a lower rate, or verify several times"
            )
        if not self.kinds:
            raise BadRequest(f"no kind of message is chosen; the kinds are {', '.join(Kind)}")
