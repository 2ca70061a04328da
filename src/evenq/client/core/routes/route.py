"""A topic's route: the queues that a client may write and read, and the address of each broker (RT-5, RT-7).

Made by `rpc` from the answer of QueryRoute; never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from evenq.errors import ConnectionFailed
from evenq.model import MessageQueue


@dataclass(frozen=True, slots=True)
class RouteLeader:
    """The leader of a broker, as a route reports it."""

    address: str
    """Empty: the route does not name the broker."""
    epoch: int
    """0: the broker has no copies, or the route does not report them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    topic: str
    writable: tuple[MessageQueue, ...]
    """Sorted by broker name, then id."""
    readable: tuple[MessageQueue, ...]
    addresses: Mapping[str, str]
    """Broker name to a unique `host:port`, with `evenqs://` for TLS, and `#name` if it leads to any broker."""

    epochs: Mapping[str, int] = field(default_factory=dict)
    """Broker name to the epoch of its leader, for brokers with copies; a new leader has a higher one."""

    followers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Broker name to the addresses of its other copies, for readers that accept any copy; as in `addresses`."""

    fifo: bool = False
    """True: the topic accepts only messages with a message group."""

    partial: bool = False
    """True: from a broker that may lack some live brokers."""

    def leader_of(self, broker_name: str) -> RouteLeader:
        return RouteLeader(self.addresses.get(broker_name, ""), self.epochs.get(broker_name, 0))

    def led_by(self, leaders: Mapping[str, RouteLeader]) -> Route:
        """Returns the route with these leaders."""
        return replace(
            self,
            addresses={**self.addresses, **{name: leader.address for name, leader in leaders.items()}},
            epochs={**self.epochs, **{name: leader.epoch for name, leader in leaders.items()}},
        )

    def completed_by(self, known: Route) -> Route:
        """Returns the route with the brokers of `known` that it lacks, and their queues."""
        lost = known.addresses.keys() - self.addresses.keys()
        if not lost:
            return self

        def queues(own: tuple[MessageQueue, ...], before: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
            return tuple(sorted((*own, *(queue for queue in before if queue.broker_name in lost))))

        return replace(
            self,
            writable=queues(self.writable, known.writable),
            readable=queues(self.readable, known.readable),
            addresses={**known.addresses, **self.addresses},
            epochs={**{name: epoch for name, epoch in known.epochs.items() if name in lost}, **self.epochs},
            followers={**{name: them for name, them in known.followers.items() if name in lost}, **self.followers},
        )

    def address_of(self, broker_name: str) -> str:
        """Returns the broker's address. Raises ConnectionFailed (retryable, refreshes the route) if it is missing."""
        address = self.addresses.get(broker_name)
        if address is None:
            raise ConnectionFailed(f"broker {broker_name} is not in the route of {self.topic} now")
        return address
