"""What a nameserver counts. Plain integers, owned by the loop; `metrics.py` reads them at scrape."""

from __future__ import annotations

__all__ = ["NameserverStats"]


class NameserverStats:
    """Counters since the start."""

    __slots__ = ("expired", "heartbeats", "registrations")

    def __init__(self) -> None:
        self.registrations = 0
        self.heartbeats = 0
        self.expired = 0
        """Brokers dropped because they were silent."""
