"""Views of a cluster, as plain values. Counts are of the moment; times are ms since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evenq.client.core.admin.broker_group_views import BrokerGroupView
from evenq.model import EVEN_BALANCE, BalancePolicy, FilterExpression, FilterType, MessageQueue, MessageType
from evenq.model.retry import CLASSIC_RETRY, RetryPolicy


def filter_text(expression: FilterExpression) -> str:
    """Returns a filter in the form of the command line; SQL is prefixed with `SQL`."""
    return f"SQL {expression.expression}" if expression.type is FilterType.SQL else expression.expression


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementView:
    """The placement of a created topic at one broker."""

    broker_name: str
    queues: int
    error: str
    """Empty: done."""
    message_type: MessageType = MessageType.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    topic: str
    message_type: MessageType
    brokers: int
    queues: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteTopicView:
    topic: str
    """Its parent topic, of type LITE."""
    lite_topic: str
    broker_name: str
    messages: int
    subscribers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_store_ms: int
    """0: empty."""
    permission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    topic: str
    message_type: MessageType
    queues: tuple[QueueView, ...]
    groups: tuple[str, ...]
    retention_ms: int | None = None
    """Retention; 0: for ever; None: by the broker's setting."""
    stranded: int = 0
    """Messages that groups have to read, in queues that are not readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedView:
    """The messages of one queue that a group has not finished."""

    queue: MessageQueue
    group: str
    lag: int
    """Messages, those in flight included."""
    inflight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeView:
    """The queues of a topic on one broker, during or after a change."""

    broker_name: str
    write_queues: int
    read_queues: int
    permission: str
    """READ_WRITE, READ, WRITE or NONE."""
    unfinished: tuple[UnfinishedView, ...]
    """Messages for which the change waits; 1,000 rows at most."""
    message_type: MessageType = MessageType.NORMAL
    unread: int = 0
    """Messages in the queues to be closed that no group has read; they keep a queue open unless hidden."""
    stored: int = 0
    """All messages in the queues to be closed, read or not."""

    @property
    def done(self) -> bool:
        """False: the last queues accept no messages, and are closed once all groups have read them."""
        return self.write_queues >= self.read_queues


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawView:
    """The rest of a topic on a broker from which it is withdrawn."""

    broker_name: str
    gone: bool
    """True: the topic and its `stored` messages were removed."""
    unfinished: tuple[UnfinishedView, ...]
    """Messages that groups have to finish there first; 1,000 rows at most."""
    unread: int
    """Messages of a topic that no group reads; waiting for them has no end."""
    delayed: int
    """Delayed messages and open transactions of the broker; each may be of this topic."""
    stored: int
    """All messages of the topic there, read or not."""
    schedules: int = 0
    """Its recurring messages there; they are deleted with it."""
    schedule_names: tuple[str, ...] = ()
    """100 at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainView:
    """The rest on a broker that is drained, or was."""

    broker_name: str
    draining: bool
    empty: bool
    """True: every group has finished everything there, and no message can follow; it may be stopped."""
    unfinished: tuple[UnfinishedView, ...]
    """1,000 rows at most."""
    lag: int
    """Over all groups and queues."""
    delayed: int
    """Messages with a delivery time in the future, and open transactions."""
    unread: int
    """Messages of topics that no group ever read; waiting for them has no end."""
    dead_letters: int
    other_writers: int
    """Other live brokers that accept messages; 0: producers have no other broker."""
    schedules: int = 0
    """Recurring messages that it keeps; without it nothing sends them."""
    schedule_names: tuple[str, ...] = ()
    """Topic and name, with a space between them."""
    schedule_problems: Mapping[str, str] = field(default_factory=dict)
    """By such a name, why the drain could not move the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    group: str
    ordered: bool
    max_attempts: int
    strategy: str
    members: int
    topics: int
    lag: int
    """Messages not finished; a lower bound if a broker is `silent`."""
    balance: BalancePolicy = EVEN_BALANCE
    """Policy of a rebalancer, in addition to the strategy."""
    retry: RetryPolicy = CLASSIC_RETRY
    silent: tuple[str, ...] = ()
    """Brokers that do not answer or are missing: no number includes them, and a lag of 0 is not certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    client_id: str
    language: str
    version: str
    protocol: str
    """`evenq` owns queues, `v2` receives and acknowledges."""
    model: str
    subscriptions: dict[str, str]
    """Topic to filter; a filter of SQL as `SQL region = 'eu'`."""
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
    """Client id; empty: no member."""
    min_offset: int = 0
    next_store_ms: int = 0
    """When the message at `committed` was stored; 0: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingFiltersView:
    """A topic with different filters in one group: a message that one filter excludes is skipped for all."""

    topic: str
    filters: tuple[tuple[FilterExpression, tuple[str, ...]], ...]
    """Two or more, each with its client ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTroublesView:
    """Failures of a group, over all brokers."""

    retries_waiting: int = 0
    """Failed messages that wait for another delivery."""
    given_back: int = 0
    """Deliveries that consumers gave back since the brokers' start."""
    timed_out: int = 0
    """Deliveries that were not finished in time since the brokers' start."""
    dead_letters: int = 0
    """Those not replayed."""
    oldest_ms: int = 0
    """Store time of the oldest unfinished message; 0: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    summary: GroupView
    members: tuple[MemberView, ...]
    queues: tuple[GroupQueueView, ...]
    differing_filters: tuple[DifferingFiltersView, ...] = ()
    troubles: GroupTroublesView = GroupTroublesView()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedQueueView:
    """The owner of one queue, and the reason."""

    queue: MessageQueue
    """Queue id -1: all queues of the broker."""
    state: str
    """OWNED, HELD (waits for a successor), UNOWNED."""
    owner: str
    """Client id; empty: no member; `*`: every member."""
    since_ms: int
    """0: not known."""
    reason: str
    previous_owner: str
    owner_zone: str
    broker_zone: str
    """Empty: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainView:
    """The owners of a group's queues, since when and why."""

    group: str
    decides: str
    """The component that assigns queues to members."""
    strategy: str
    generation: str
    """Generation of the newest decision, `epoch.counter`; empty: there is none."""
    queues: tuple[ExplainedQueueView, ...]
    idle: dict[str, str]
    """Client id of each member without a queue, and the reason."""
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMoveView:
    """A queue that would get another owner."""

    queue: MessageQueue
    before: str
    after: str
    """Client id; empty: no member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationView:
    """The result of a simulated assignment of a topic."""

    topic: str
    queues: int
    moves: tuple[QueueMoveView, ...]
    """Every queue whose owner would change, including those without an owner now or then."""
    moved: int
    """Those that move from one living member to another."""
    unowned: int
    share_min: int
    share_max: int
    """Smallest and largest number of queues of a member."""
    other_zone_before: int
    other_zone_after: int
    """Queues whose owner is in another zone than the broker."""
    strategy: str = ""
    """The strategy used; empty: the rebalancer does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """One fault of a group."""

    kind: str
    """UNOWNED_QUEUES, TWO_OWNERS, STUCK_HEAD ..."""
    severity: str
    """ERROR (not read, or read twice), WARNING, or NOTE (as configured, but perhaps not intended)."""
    subject: str
    """A topic, queue, member, broker or zone."""
    seen: str
    fix: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisView:
    """The faults of a group, and the extent of the check."""

    findings: tuple[FindingView, ...]
    """The worst first; empty: the group is healthy."""
    decides: str
    """The component that assigns queues to members."""
    members: int
    queues: int
    brokers: tuple[str, ...]
    silent: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMoveView:
    """The effect of an offset reset on one queue."""

    queue: MessageQueue
    """Queue id -1: all queues of a broker that did not answer."""
    before: int
    """-1: the group never read here."""
    after: int
    inflight: int
    """Deliveries that the reset forgets."""
    owner: str
    error: str
    """Empty: done, or would be."""
    note: str
    """Why the result differs from the request, as text."""
    min_offset: int = 0
    max_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
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
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBrokerView:
    """A broker that other brokers remember and that is not there."""

    name: str
    gone_ms: int
    unread: int
    """Messages that no group had ever read when it was drained and stopped."""
    dead_letters: int
    """Dead letters that it had then."""
    changes: int = 0
    """Deleted, created or extended topics of which it is notified when it is back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleInView:
    """The result of a check whether a broker may be removed."""

    broker_name: str
    state: str
    """LIVE, MISSING or UNKNOWN."""
    problem: str
    """Why it may not be removed, and what to do; empty: it may."""
    left: DrainView | None
    """None unless it is LIVE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    cluster: str
    brokers: tuple[BrokerView, ...]
    nameservers: tuple[str, ...]
    rebalancer: str
    """Its address; empty: there is none."""
    rebalancer_answers: bool
    topics: int
    groups: int
    missing: tuple[MissingBrokerView, ...] = ()
    """By ascending name."""
    broker_groups: tuple[BrokerGroupView, ...] = ()
    """Of the brokers that answered, by ascending name."""
