"""Facts of a server about a group beyond its queues and members, for strategies that use them.

The rebalancer and brokers build one context per division. The six classic strategies use only sorted lists, so that all
clients compute the same. Strategies that need a context work on servers only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenq.model import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Facts about one division, all optional."""

    owners: Mapping[MessageQueue, str] = field(default_factory=dict)
    """Client id of the current owner. Absent, or not a member any more: no owner."""
    zone_of_broker: Mapping[str, str] = field(default_factory=dict)
    """By broker name. Absent or empty: unknown."""
    zone_of_member: Mapping[str, str] = field(default_factory=dict)
    """By client id. Absent or empty: unknown."""
    weight_of_queue: Mapping[MessageQueue, float] = field(default_factory=dict)
    """Work of a queue, such as its lag: 0 or more, finite. Absent: 1."""
    capacity_of_member: Mapping[str, float] = field(default_factory=dict)
    """Share of the work that a member takes, relative to others: above 0, finite. Absent: 1."""
    moves_max: int = 0
    """Most queues that move for balance alone; 0: no limit. Queues without an owner are always given."""
