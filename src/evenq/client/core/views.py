"""What the admin calls tell about a cluster, as plain values. Counts are of the moment; times are ms since the
epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq.model import EVEN_BALANCE, BalancePolicy, MessageQueue, MessageType

__all__ = [
    "BrokerView",
    "ClusterView",
    "DiagnosisView",
    "FindingView",
    "GroupDetails",
    "GroupQueueView",
    "GroupView",
    "MemberView",
    "OffsetMoveView",
    "PlacementView",
    "QueueView",
    "TopicDetails",
    "TopicView",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementView:
    """Where a created topic landed."""

    broker_name: str
    queues: int
    error: str
    """Empty: done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic over all brokers."""

    topic: str
    message_type: MessageType
    brokers: int
    queues: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One message queue."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_store_ms: int
    """0: empty."""
    permission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """A topic, its queues, and the groups that read it."""

    topic: str
    message_type: MessageType
    queues: tuple[QueueView, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One consumer group over all brokers."""

    group: str
    ordered: bool
    max_attempts: int
    strategy: str
    members: int
    topics: int
    lag: int
    """Messages not yet finished."""
    balance: BalancePolicy = EVEN_BALANCE
    """How a rebalancer shares the queues beside the strategy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member of a group."""

    client_id: str
    language: str
    version: str
    protocol: str
    """`evenq` owns queues, `v2` receives and acknowledges."""
    model: str
    subscriptions: dict[str, str]
    """Topic to filter."""
    joined_ms: int
    zone: str = ""
    instance: str = ""
    address: str = ""
    capacity: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQueueView:
    """A group's progress in one queue."""

    queue: MessageQueue
    committed: int
    """-1: none."""
    max_offset: int
    lag: int
    inflight: int
    owner: str
    """Client id; empty: nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """A group, its members, and its progress."""

    summary: GroupView
    members: tuple[MemberView, ...]
    queues: tuple[GroupQueueView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """One thing that is wrong with a group."""

    kind: str
    """UNOWNED_QUEUES, TWO_OWNERS, STUCK_HEAD ..."""
    severity: str
    """ERROR (not read, or read twice), WARNING, or NOTE (as it was set up, maybe not as meant)."""
    subject: str
    """A topic, queue, member, broker or zone."""
    seen: str
    fix: str
    command: str
    """The command that does `fix`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisView:
    """What is wrong with a group, and how much was looked at."""

    findings: tuple[FindingView, ...]
    """The worst first; empty: the group is healthy."""
    decides: str
    """Who gives the queues to members."""
    members: int
    queues: int
    brokers: tuple[str, ...]
    silent: tuple[str, ...]
    """Brokers that did not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMoveView:
    """What a reset does, or would do, to a group on one queue."""

    queue: MessageQueue
    """Queue id -1: a whole broker that did not answer."""
    before: int
    """-1: the group never read here."""
    after: int
    inflight: int
    """Deliveries that are forgotten."""
    owner: str
    error: str
    """Empty: done, or would be."""
    note: str
    """For people: why it is not exactly what was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """One broker."""

    name: str
    broker_id: int
    cluster: str
    addresses: tuple[str, ...]
    version: str
    start_ms: int
    topics: int
    messages_in: int
    messages_out: int
    log_bytes: int
    connections: int
    answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The whole cluster."""

    cluster: str
    brokers: tuple[BrokerView, ...]
    nameservers: tuple[str, ...]
    rebalancer: str
    """Address; empty: none."""
    rebalancer_answers: bool
    topics: int
    groups: int
