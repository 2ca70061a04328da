"""All that one division depends on, and what follows from it at a glance: who shares, what divides, PULL or POP.

Made by `assignment_engine.py` from the facts; `sharing.py` divides it, `decisions.py` compares it with the one before.
Two equal inputs never need two decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from evenq.model import MessageModel, MessageQueue
from evenq.model.balance import EVEN_BALANCE, BalancePolicy
from evenq.model.names import RETRY_PREFIX
from evenq_rebalancer.core.holds import Hold
from evenq_rebalancer.core.modes import RequestMode, RequestModeSetting
from evenq_rebalancer.core.reports import MemberFact

__all__ = ["ALL_BROKERS", "BROADCASTING", "Inputs"]

ALL_BROKERS = "ALL_BROKERS"
"""What is named as the strategy when every member gets every broker."""
BROADCASTING = "BROADCASTING"
FIRST = "AVG"
"""Divides where something has to and no strategy was set, as in RocketMQ."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """All that a division depends on. Properties are computed once."""

    strategy: str
    """Empty: none was asked for."""
    mode: RequestModeSetting | None
    queues: tuple[MessageQueue, ...]
    """Ascending."""
    members: tuple[MemberFact, ...]
    """Ascending client id."""
    topic: str = ""
    balance: BalancePolicy = EVEN_BALANCE
    zones: Mapping[str, str] = field(default_factory=dict)
    """Of brokers, by name, as far as known."""
    held: Mapping[MessageQueue, Hold] = field(default_factory=dict)
    """Queues that wait for a successor and are not divided."""
    instead_of: str = ""
    """The group's own strategy, if it failed and `strategy` divides in its place."""

    @cached_property
    def clustering(self) -> list[str]:
        """Ids of the members that share queues with others."""
        return [member.client_id for member in self.members if member.model is MessageModel.CLUSTERING]

    @cached_property
    def strangers(self) -> list[str]:
        """Clustering members that said what they read and do not read this topic, while others do (RG-8)."""
        if not self.topic or self.topic.startswith(RETRY_PREFIX):
            return []
        subscribers = [member for member in self.members if member.topics and member.model is MessageModel.CLUSTERING]
        if all(self.topic in member.topics for member in subscribers):
            return []
        strangers = [member.client_id for member in subscribers if self.topic not in member.topics]
        return strangers if len(strangers) < len(self.clustering) else []

    @cached_property
    def readers(self) -> list[str]:
        """Ids of the members that share this topic's queues."""
        strangers = set(self.strangers)
        return (
            [client_id for client_id in self.clustering if client_id not in strangers] if strangers else self.clustering
        )

    @cached_property
    def dividing(self) -> str:
        """The name of what divides: a strategy, ALL_BROKERS or BROADCASTING."""
        if self.members and not self.clustering:
            return BROADCASTING
        count = len(self.readers)
        match self.mode:
            case None if self.topic.startswith(RETRY_PREFIX):
                return self.strategy or FIRST  # a retry topic is pulled, whatever the rest of the group does
            case None:
                return self.strategy or ALL_BROKERS
            case RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=number) if not 0 < number < count - 1:
                return ALL_BROKERS  # RocketMQ 5: no member is left outside of the share, so each pops everything
        return self.strategy or FIRST

    @cached_property
    def own_strategies(self) -> list[str]:
        """What the owners of queues among the readers divide them by, ascending: they do so by themselves where every
        member gets every broker. Empty: none of the readers owns queues, or something else divides.
        """
        if self.dividing != ALL_BROKERS:
            return []
        readers = set(self.readers)
        return sorted({one.strategy or FIRST for one in self.members if one.owns and one.client_id in readers})

    @property
    def request_mode(self) -> RequestMode:
        """PULL or POP, for all members."""
        if self.dividing == ALL_BROKERS:
            return RequestMode.POP
        return self.mode.mode if self.mode else RequestMode.PULL

    @property
    def shared(self) -> int:
        """How many members beside its owner pop each queue; 0: a queue has one owner."""
        return self.mode.pop_share_queue_num if self.mode and self.dividing != ALL_BROKERS else 0

    @property
    def one_owner(self) -> bool:
        """True if each queue has one owner, so that queues can be held and moves be counted one by one."""
        return self.dividing not in {ALL_BROKERS, BROADCASTING} and not self.shared

    @cached_property
    def zone_of_member(self) -> dict[str, str]:
        """By client id, as far as known."""
        return {member.client_id: member.zone for member in self.members if member.zone}
