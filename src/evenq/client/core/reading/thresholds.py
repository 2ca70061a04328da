"""Flow control limits per queue (PQ-7, PQ-8) and how limits per topic are spread over them (RB-39)."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Thresholds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What one queue may hold before its pulls are put off."""

    messages: int = 1_000
    bytes: int = 100 << 20
    span: int = 2_000
    """Largest minus smallest offset in hand; strictly more puts off (PQ-7)."""

    def spread(self, *, messages_topic: int, bytes_topic: int, queues: int) -> Thresholds:
        """With `queues` queues in the table: a limit for the whole, unless -1, divided, at least 1 each (RB-39)."""
        if queues <= 0:
            return self
        return replace(
            self,
            messages=self.messages if messages_topic == -1 else max(1, messages_topic // queues),
            bytes=self.bytes if bytes_topic == -1 else max(1, bytes_topic // queues),
        )
