"""Flow control limits per queue (PQ-7, PQ-8), and the division of limits per topic among queues (RB-39)."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Limits of one queue; its pulls are delayed while it holds more."""

    messages: int = 1_000
    bytes: int = 100 << 20
    span: int = 2_000
    """Largest minus smallest offset held; strictly more delays pulls (PQ-7)."""

    def spread(self, *, messages_topic: int, bytes_topic: int, queues: int) -> Thresholds:
        """Divides the limits of a topic, unless they are -1, among `queues` queues: at least 1 for each (RB-39)."""
        if queues <= 0:
            return self
        return replace(
            self,
            messages=self.messages if messages_topic == -1 else max(1, messages_topic // queues),
            bytes=self.bytes if bytes_topic == -1 else max(1, bytes_topic // queues),
        )
