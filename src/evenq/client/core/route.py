"""A topic's route as a client sees it: which queues it may write and read, and where each broker answers (RT-5, RT-7).

Made by `rpc` from the answer of QueryRoute; everything else in the SDK reads it and never changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evenq.errors import ConnectionFailed
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
    """Broker name to `host:port`, with `evenqs://` in front where TLS is spoken, and `#` and its name behind where the
    address leads to any broker; no two are equal.
    """

    def address_of(self, broker_name: str) -> str:
        """Where the broker answers, `host:port`. Raises ConnectionFailed (retryable, and a reason to ask for the route
        again) if the route does not name it: the queue came from another answer, or its broker went away.
        """
        address = self.addresses.get(broker_name)
        if address is None:
            raise ConnectionFailed(f"broker {broker_name} is not in the route of {self.topic} now")
        return address
