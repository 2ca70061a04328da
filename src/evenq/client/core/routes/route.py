"""A topic's route as a client sees it: which queues it may write and read, and where each broker answers (RT-5, RT-7).

Made by `rpc` from the answer of QueryRoute; everything else in the SDK reads it and never changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from evenq.errors import ConnectionFailed
from evenq.model import MessageQueue

__all__ = ["Route", "RouteLeader"]


@dataclass(frozen=True, slots=True)
class RouteLeader:
    """Who answers for a broker, as a route tells."""

    address: str
    """Empty: the route does not name the broker."""
    epoch: int
    """0: the broker has no copies, or the route does not say so."""


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

    epochs: Mapping[str, int] = field(default_factory=dict)
    """Broker name to the epoch of its leader, of the brokers that have copies: when such a leader is gone, another copy
    answers for the broker, at another address and with a higher epoch.
    """

    followers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Broker name to where the other copies of its log answer readers that take any copy, as in `addresses`."""

    fifo: bool = False
    """True: the topic takes messages with a message group and no others."""

    partial: bool = False
    """True: from a broker that may not know every live broker."""

    def leader_of(self, broker_name: str) -> RouteLeader:
        """Who answers for the broker."""
        return RouteLeader(self.addresses.get(broker_name, ""), self.epochs.get(broker_name, 0))

    def led_by(self, leaders: Mapping[str, RouteLeader]) -> Route:
        """The same route with these leaders of brokers that have copies."""
        return replace(
            self,
            addresses={**self.addresses, **{name: leader.address for name, leader in leaders.items()}},
            epochs={**self.epochs, **{name: leader.epoch for name, leader in leaders.items()}},
        )

    def completed_by(self, known: Route) -> Route:
        """The same route with the brokers of `known` that it does not name, and their queues."""
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
        """Where the broker answers, `host:port`. Raises ConnectionFailed (retryable, and a reason to ask for the route
        again) if the route does not name it: the queue came from another answer, or its broker went away.
        """
        address = self.addresses.get(broker_name)
        if address is None:
            raise ConnectionFailed(f"broker {broker_name} is not in the route of {self.topic} now")
        return address
