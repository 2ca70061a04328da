"""What a server knows about a group beyond its queues and members, for strategies that use it.

The rebalancer and brokers build one per division. The six classic strategies see only sorted lists, as upstream's do,
so that clients can compute alike; a context is known to one decider only, and what needs it works on servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenq.model import MessageQueue

__all__ = ["Context"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Facts about one division. Everything is optional: nothing known divides as at the very first time."""

    owners: Mapping[MessageQueue, str] = field(default_factory=dict)
    """Who has each queue now, by client id. Absent, or not a member any more: no owner."""
    zone_of_broker: Mapping[str, str] = field(default_factory=dict)
    """By broker name. Absent or empty: unknown."""
    zone_of_member: Mapping[str, str] = field(default_factory=dict)
    """By client id. Absent or empty: unknown."""
    weight_of_queue: Mapping[MessageQueue, float] = field(default_factory=dict)
    """How much work a queue is, such as its lag: 0 or more, finite. Absent: 1."""
    capacity_of_member: Mapping[str, float] = field(default_factory=dict)
    """How much of the work a member takes, compared with others: above 0, finite. Absent: 1."""
    moves_max: int = 0
    """Queues that may move in this division only for balance, 0: no limit. Queues without owner are always given."""
