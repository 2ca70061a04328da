"""Facts that brokers report: members, groups, topics, holders of queues, lags.

`rpc/translation.py` makes them from messages, and `groups.py` merges them. Immutable values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from evenq.model import NO_GENERATION, Generation, MessageModel, MessageQueue
from evenq.model.balance import EVEN_BALANCE, BalancePolicy
from evenq_rebalancer.core.modes import RequestModeSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFact:
    """One member as a broker sees it."""

    client_id: str
    model: MessageModel = MessageModel.CLUSTERING
    topics: tuple[str, ...] = ()
    """Subscribed topics, ascending; empty if the member did not report any (some 5.x clients never do)."""
    zone: str = ""
    """Empty: unknown."""
    instance: str = ""
    """Stable name of its place: a successor with the same name may get its queues; empty: it has none."""
    address: str = ""
    """Host as a broker sees it, without a port; empty: unknown."""
    capacity: float = 1.0
    """Share of the load compared with other members, above 0."""
    owns: bool = False
    """It owns queues under locks: without a strategy of the group such members divide the queues by themselves."""
    strategy: str = ""
    """The strategy by which it does so; empty: not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFact:
    """Holder of a queue as a broker knows it, by a lock that it gave, or by its answer to a member without locks."""

    queue: MessageQueue
    holder: str
    generation: Generation = NO_GENERATION


class HeldLater(Sequence[HeldFact]):
    """Reported holders, decoded at each read: there may be a row per queue, and only first decisions read them."""

    def __init__(
        self, *, count: int, epoch: int, brokers: frozenset[str], make: Callable[[], tuple[HeldFact, ...]]
    ) -> None:
        self._count = count
        self._make = make
        self.epoch = epoch
        """Largest epoch of their generations."""
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
    """Request mode that a previous leader sent to this broker."""

    topic: str
    setting: RequestModeSetting
    generation: Generation = NO_GENERATION
    """Generation of the decision that contained it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPlaceFact:
    """Member that left, and whose queues a previous leader held for a successor."""

    client_id: str
    place: str
    until_wall_ms: int
    """Ms since the epoch, on the clock of that leader."""
    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldsFact:
    """All holds of one topic, by the newest decision that reached this broker."""

    topic: str
    places: tuple[HeldPlaceFact, ...] = ()
    """Empty: that decision held nothing."""
    generation: Generation = NO_GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFact:
    group: str
    ordered: bool = False
    strategy: str = ""
    """The group's own allocate strategy; empty: none."""
    members: tuple[MemberFact, ...] = ()
    balance: BalancePolicy = EVEN_BALANCE
    held: Sequence[HeldFact] = ()
    modes: tuple[ModeFact, ...] = ()
    holds: tuple[HoldsFact, ...] = ()
    """Reported with `held`, when a stream begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFact:
    topic: str
    read_queues: int
    """0 if consumers may not read it there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagFact:
    """Lags of a group in queues of one broker; they replace that broker's previous ones of the group."""

    group: str
    lags: tuple[tuple[MessageQueue, int], ...] = ()
    """Uncommitted messages, 0 or more."""


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
    """The broker's own label; empty: it has none."""
    address: str = ""
    """Host that the broker reports from, without a port; empty: unknown."""
    brokers: tuple[str, ...] = ()
    """Live brokers that this one knows, in the first report of a stream."""
