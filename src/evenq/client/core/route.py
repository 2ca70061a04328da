"""A topic's route as a client sees it: which queues it may write and read, and where each broker answers (RT-5, RT-7).

Made by `rpc` from the answer of QueryRoute; everything else in the SDK reads it and never changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evenq.model import MessageQueue

__all__ = ["Route"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One topic, at one moment."""

    topic: str
    writable: tuple[MessageQueue, ...]
    """Sorted by broker name, then id."""
    readable: tuple[MessageQueue, ...]
    addresses: Mapping[str, str]
    """Broker name to `host:port`."""
