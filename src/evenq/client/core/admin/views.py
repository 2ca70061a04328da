"""What the admin calls tell about a cluster, as plain values. Counts are of the moment; times are ms since the
epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from evenq.client.core.admin.broker_group_views import BrokerGroupView
from evenq.model import EVEN_BALANCE, BalancePolicy, FilterExpression, FilterType, MessageQueue, MessageType
from evenq.model.retry import CLASSIC_RETRY, RetryPolicy

__all__ = [
    "BrokerView",
    "ClusterView",
    "DiagnosisView",
    "DifferingFiltersView",
    "DrainView",
    "ExplainView",
    "ExplainedQueueView",
    "FindingView",
    "GroupDetails",
    "GroupQueueView",
    "GroupTroublesView",
    "GroupView",
    "LiteTopicView",
    "MemberView",
    "MissingBrokerView",
    "OffsetMoveView",
    "PlacementView",
    "QueueMoveView",
    "QueueView",
    "ResizeView",
    "ScaleInView",
    "SimulationView",
    "TopicDetails",
    "TopicView",
    "UnfinishedView",
    "WithdrawView",
    "filter_text",
]


def filter_text(expression: FilterExpression) -> str:
    """A filter as a user writes it; SQL is named."""
    return f"SQL {expression.expression}" if expression.type is FilterType.SQL else expression.expression


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementView:
    """Where a created topic landed."""

    broker_name: str
    queues: int
    error: str
    """Empty: done."""
    message_type: MessageType = MessageType.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One topic over all brokers."""

    topic: str
    message_type: MessageType
    brokers: int
    queues: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteTopicView:
    """A lite topic at one broker."""

    topic: str
    """Its parent, of type LITE."""
    lite_topic: str
    broker_name: str
    messages: int
    subscribers: int
    """Clients that are subscribed now."""


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
    retention_ms: int | None = None
    """How long messages are kept; 0: for ever; None: as the broker's setting says."""
    stranded: int = 0
    """Messages that groups should read, in queues that are not readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedView:
    """What a group has yet to read in one queue."""

    queue: MessageQueue
    group: str
    lag: int
    """Messages, those in flight included."""
    inflight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeView:
    """A topic's queues on one broker, after a change or in its middle."""

    broker_name: str
    write_queues: int
    read_queues: int
    permission: str
    """READ_WRITE, READ, WRITE or NONE."""
    unfinished: tuple[UnfinishedView, ...]
    """What a shrinking waits for, 1,000 at most."""
    message_type: MessageType = MessageType.NORMAL
    unread: int = 0
    """Messages in the last queues that no group has read: queues with any stay open unless the caller hides them."""
    stored: int = 0
    """All messages in the last queues, read or not."""

    @property
    def done(self) -> bool:
        """False: the last queues take no messages any more, and are closed once all groups have read them."""
        return self.write_queues >= self.read_queues


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawView:
    """What is left of a topic on a broker that it is to leave, or left with it."""

    broker_name: str
    gone: bool
    """True: the topic is not there any more, nor what was `stored`."""
    unfinished: tuple[UnfinishedView, ...]
    """What groups have to read there first, 1,000 at most."""
    unread: int
    """Messages, if no group reads the topic at all: they cannot be waited for."""
    delayed: int
    """Delayed messages and open transactions of the broker, of which each may be of this topic."""
    stored: int
    """All its messages there, read or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainView:
    """What is left on a broker that takes no new messages, or takes them again."""

    broker_name: str
    draining: bool
    empty: bool
    """True: every group has finished everything there, and nothing is to come; it may be stopped."""
    unfinished: tuple[UnfinishedView, ...]
    """1,000 at most."""
    lag: int
    """Over all groups and queues."""
    delayed: int
    """Messages whose delivery time has not come, and open transactions."""
    unread: int
    """Messages of topics that no group ever read: they cannot be waited for."""
    dead_letters: int
    other_writers: int
    """Other live brokers that take messages; 0: producers have nowhere to go."""


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
    """Messages not yet finished; at least this number, if a broker is `silent`."""
    balance: BalancePolicy = EVEN_BALANCE
    """How a rebalancer shares the queues beside the strategy."""
    retry: RetryPolicy = CLASSIC_RETRY
    """How long a failed message waits."""
    silent: tuple[str, ...] = ()
    """Brokers that do not answer or are missing, ascending: what the group has there is in no number. A lag of 0 means
    that all is done only if this is empty.
    """


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
    """Topic to filter, one of SQL as `SQL region = 'eu'`."""
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
    """When the message at `committed` was stored; 0: there is none to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingFiltersView:
    """A topic that members of one group filter differently: what one filter leaves out is passed over for all."""

    topic: str
    filters: tuple[tuple[FilterExpression, tuple[str, ...]], ...]
    """Two or more, each with the client ids that have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTroublesView:
    """What a group cannot handle, over all brokers."""

    retries_waiting: int = 0
    """Messages that failed and wait for their next delivery."""
    given_back: int = 0
    """Deliveries that consumers gave back, since the brokers' start."""
    timed_out: int = 0
    """Deliveries that were not finished in their time, since the brokers' start."""
    dead_letters: int = 0
    """That were not replayed."""
    oldest_ms: int = 0
    """When the oldest message that is not finished was stored; 0: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetails:
    """A group, its members, its progress, and what it cannot handle."""

    summary: GroupView
    members: tuple[MemberView, ...]
    queues: tuple[GroupQueueView, ...]
    differing_filters: tuple[DifferingFiltersView, ...] = ()
    troubles: GroupTroublesView = GroupTroublesView()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedQueueView:
    """Why one queue is where it is."""

    queue: MessageQueue
    """Queue id -1: all of the broker."""
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
    """Who has which queue of a group, since when and why."""

    group: str
    decides: str
    """Who gives the queues to members."""
    strategy: str
    generation: str
    """Of the newest decision, `epoch.counter`; empty: there is none."""
    queues: tuple[ExplainedQueueView, ...]
    idle: dict[str, str]
    """Client id of a member without a queue to the reason."""
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMoveView:
    """A queue that would change its owner."""

    queue: MessageQueue
    before: str
    after: str
    """Client id; empty: no member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationView:
    """What would become of a topic's queues."""

    topic: str
    queues: int
    moves: tuple[QueueMoveView, ...]
    """Every queue with another owner than now, also those that have none now or would have none."""
    moved: int
    """Of these, those that go from one living member to another."""
    unowned: int
    share_min: int
    share_max: int
    """Queues of the member with the fewest and the most."""
    other_zone_before: int
    other_zone_after: int
    """Queues whose owner is in another zone than their broker."""
    strategy: str = ""
    """What would divide them; empty: the rebalancer does not say."""


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
    min_offset: int = 0
    max_offset: int = 0


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
    draining: bool = False
    """True: it takes no new messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBrokerView:
    """A broker that others knew and that is not there."""

    name: str
    gone_ms: int
    """When it was missed first."""
    unread: int
    """Messages that no group ever read, which it held when it was drained and ended."""
    dead_letters: int
    """The same."""
    changes: int = 0
    """Deletions, and topics made or widened, that it gets when it is back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleInView:
    """Whether a broker may be taken away."""

    broker_name: str
    state: str
    """LIVE, MISSING or UNKNOWN."""
    problem: str
    """Why it may not be taken away, and what to do; empty: it may."""
    left: DrainView | None
    """What it holds; None unless it is LIVE."""


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
    missing: tuple[MissingBrokerView, ...] = ()
    """Brokers that others knew and that are not there, ascending name."""
    broker_groups: tuple[BrokerGroupView, ...] = ()
    """The copies of each broker that answered, ascending name."""
