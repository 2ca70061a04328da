"""Inputs of one division, with what follows from them directly: readers, dividing strategy, PULL or POP.

`deciding.py` makes them from the facts, `sharing.py` divides them, and `decisions.py` compares them with the previous
ones. Equal inputs need a new decision only where balance is looked at again.
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

ALL_BROKERS = "ALL_BROKERS"
"""Shown as the strategy where every member gets every broker."""
BROADCASTING = "BROADCASTING"
FIRST = "AVG"
"""Strategy where queues must be divided and none was set, as in RocketMQ."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    strategy: str
    """Empty: none was requested."""
    mode: RequestModeSetting | None
    queues: tuple[MessageQueue, ...]
    """Ascending, as are `members` by client id."""
    members: tuple[MemberFact, ...]
    topic: str = ""
    balance: BalancePolicy = EVEN_BALANCE
    zones: Mapping[str, str] = field(default_factory=dict)
    """Known zones of brokers, by name."""
    held: Mapping[MessageQueue, Hold] = field(default_factory=dict)
    """Queues that wait for a successor and are left out of the division."""
    instead_of: str = ""
    """The group's own strategy, if it failed and `strategy` divides in its place."""

    @cached_property
    def clustering(self) -> list[str]:
        """Ids of the clustering members."""
        return [member.client_id for member in self.members if member.model is MessageModel.CLUSTERING]

    @cached_property
    def strangers(self) -> list[str]:
        """Clustering members that reported subscriptions without this topic, while others read it (RG-8)."""
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
        """Name of the dividing rule: a strategy, ALL_BROKERS or BROADCASTING."""
        if self.members and not self.clustering:
            return BROADCASTING
        count = len(self.readers)
        match self.mode:
            case None if self.topic.startswith(RETRY_PREFIX):
                return self.strategy or FIRST  # a retry topic is always pulled
            case None:
                return self.strategy or ALL_BROKERS
            case RequestModeSetting(mode=RequestMode.POP, pop_share_queue_num=number) if not 0 < number < count - 1:
                return ALL_BROKERS  # RocketMQ 5: every member pops every queue
        return self.strategy or FIRST

    @cached_property
    def own_strategies(self) -> list[str]:
        """Under ALL_BROKERS: strategies by which readers that own queues divide them by themselves; otherwise empty."""
        if self.dividing != ALL_BROKERS:
            return []
        readers = set(self.readers)
        return sorted({one.strategy or FIRST for one in self.members if one.owns and one.client_id in readers})

    @property
    def request_mode(self) -> RequestMode:
        if self.dividing == ALL_BROKERS:
            return RequestMode.POP
        return self.mode.mode if self.mode else RequestMode.PULL

    @property
    def shared(self) -> int:
        """Number of members that pop each queue besides its owner; 0: a queue has one owner."""
        return self.mode.pop_share_queue_num if self.mode and self.dividing != ALL_BROKERS else 0

    @property
    def one_owner(self) -> bool:
        """True if each queue has one owner, so that queues can be held and single moves be counted."""
        return self.dividing not in {ALL_BROKERS, BROADCASTING} and not self.shared

    @cached_property
    def zone_of_member(self) -> dict[str, str]:
        """Known zones, by client id."""
        return {member.client_id: member.zone for member in self.members if member.zone}
