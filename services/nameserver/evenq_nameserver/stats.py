"""Counters of a nameserver, as plain integers, which `metrics.py` reads at scrape."""

from __future__ import annotations


class NameserverStats:
    __slots__ = ("expired", "heartbeats", "registrations")

    def __init__(self) -> None:
        self.registrations = 0
        self.heartbeats = 0
        self.expired = 0
        """Brokers removed because they were silent."""
