"""The words in which brokers tell facts: members, groups, topics, who holds a queue, how much waits in it.

Made by `rpc/translation.py` from reports, kept and merged by `groups.py`. Plain values, to be kept by anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from evenq.model import NO_GENERATION, Generation, MessageModel, MessageQueue
from evenq.model.balance import EVEN_BALANCE, BalancePolicy
from evenq_rebalancer.core.modes import RequestModeSetting

__all__ = [
    "BrokerReport",
    "GroupFact",
    "HeldFact",
    "HeldLater",
    "HeldPlaceFact",
    "HoldsFact",
    "LagFact",
    "MemberFact",
    "ModeFact",
    "TopicFact",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFact:
    """One member as a broker sees it."""

    client_id: str
    model: MessageModel = MessageModel.CLUSTERING
    topics: tuple[str, ...] = ()
    """Subscribed topics, ascending; empty if the member did not tell (some 5.x clients never do)."""
    zone: str = ""
    """Where it runs; empty: unknown."""
    instance: str = ""
    """Stable name of its place: a successor with the same one may get its queues; empty: it has none."""
    address: str = ""
    """Host as a broker sees it, without a port; empty: unknown."""
    capacity: float = 1.0
    """How much it can take beside others, above 0."""
    owns: bool = False
    """It owns queues under locks: without a strategy of the group such members divide the queues by themselves."""
    strategy: str = ""
    """By what they do so; empty: not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFact:
    """Who has a queue, as a broker knows: the lock it gave, or the answer it gave to a member that needs no lock."""

    queue: MessageQueue
    holder: str
    generation: Generation = NO_GENERATION


class HeldLater(Sequence[HeldFact]):
    """Holders as they were reported, made anew at each look: there may be a row for each queue, all
    come with the first report of a stream, and only a leader's first decisions read them.
    """

    def __init__(
        self, *, count: int, epoch: int, brokers: frozenset[str], make: Callable[[], tuple[HeldFact, ...]]
    ) -> None:
        self._count = count
        self._make = make
        self.epoch = epoch
        """The biggest of all their generations."""
        self.brokers = brokers
        """Names of the queues' brokers."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[HeldFact]:
        return iter(self._make())

    @overload
    def __getitem__(self, index: int) -> HeldFact: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[HeldFact]: ...
    def __getitem__(self, index: int | slice) -> HeldFact | Sequence[HeldFact]:
        return self._make()[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFact:
    """A request mode that a leader before sent this broker."""

    topic: str
    setting: RequestModeSetting
    generation: Generation = NO_GENERATION
    """Of the decision that contained it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPlaceFact:
    """A member that left and whose queues waited for a successor under a leader before."""

    client_id: str
    place: str
    until_wall_ms: int
    """Ms since the epoch, by the clock of that leader."""
    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldsFact:
    """All that waited in one topic, as the newest decision that reached this broker said."""

    topic: str
    places: tuple[HeldPlaceFact, ...] = ()
    """None: that decision held nothing (any more)."""
    generation: Generation = NO_GENERATION
    """Of that decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFact:
    """A whole group as a broker sees it."""

    group: str
    ordered: bool = False
    strategy: str = ""
    """The group's own allocate strategy; empty: none."""
    members: tuple[MemberFact, ...] = ()
    balance: BalancePolicy = EVEN_BALANCE
    held: Sequence[HeldFact] = ()
    modes: tuple[ModeFact, ...] = ()
    holds: tuple[HoldsFact, ...] = ()
    """With `held`, when a stream begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFact:
    """A topic on one broker."""

    topic: str
    read_queues: int
    """0 or more; 0 if consumers may not read it there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagFact:
    """How much waits for a group in the queues of one broker; replaces what that broker reported of the group
    before.
    """

    group: str
    lags: tuple[tuple[MessageQueue, int], ...] = ()
    """Messages not yet committed, 0 or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReport:
    """One report: all facts of a broker (`full`), or those that changed."""

    broker_name: str
    full: bool = False
    groups: tuple[GroupFact, ...] = ()
    groups_gone: tuple[str, ...] = ()
    topics: tuple[TopicFact, ...] = ()
    topics_gone: tuple[str, ...] = ()
    lags: tuple[LagFact, ...] = ()
    zone: str = ""
    """The broker's own label; empty: it does not know."""
    address: str = ""
    """Host that the broker reports from, without a port; empty: unknown."""
    brokers: tuple[str, ...] = ()
    """Brokers that live as this one knows, with the first report of a stream."""
