"""The parts of a broker by name, for its calls and its metrics. Every other module takes single parts."""

from __future__ import annotations

from typing import Protocol

from evenq_broker.core.dead_letters.delayed_retries import DelayedRetries
from evenq_broker.core.diagnosis.backlog import Backlog
from evenq_broker.core.diagnosis.stuck_queues import StuckQueues
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.loops.assignment.grants import Grants
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.clients.connected import ConnectedClients
from evenq_broker.loops.cluster.change_sender import ChangeSender
from evenq_broker.loops.cluster.cluster_catalog import ClusterCatalog
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.dead_letters.mover import DeadLetterMover
from evenq_broker.loops.delivery.ending import DeliveryShutdown
from evenq_broker.loops.diagnosis.span_export import SpanExport
from evenq_broker.loops.diagnosis.span_follower import SpanFollower
from evenq_broker.loops.groups.departures import Departures
from evenq_broker.loops.groups.sessions import Sessions
from evenq_broker.loops.groups.settings import GroupSettings
from evenq_broker.loops.lite.lite_topics import Lites
from evenq_broker.loops.polls.cluster_polls import ClusterPolls
from evenq_broker.loops.polls.waiting import LongPolls
from evenq_broker.loops.progress.starting import GroupStarts
from evenq_broker.loops.sending.dedup import Deduplicator
from evenq_broker.loops.sending.schedules import Schedules
from evenq_broker.loops.staging.staging import Staging
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.transactions.transactions import Transactions
from evenq_broker.runtime import Runtime


class Parts(Protocol):
    kernel: Kernel
    runtime: Runtime
    catalog: Catalog
    ledger: Ledger
    cluster: ClusterLink
    change_sender: ChangeSender
    """Changes that other brokers have not confirmed."""
    cluster_catalog: ClusterCatalog
    membership: GroupTables
    clients: ConnectedClients
    departures: Departures
    ending: DeliveryShutdown
    starts: GroupStarts
    """Start offsets of groups."""
    sessions: Sessions
    group_settings: GroupSettings
    long_polls: LongPolls
    cluster_polls: ClusterPolls
    grants: Grants
    rebalancer: RebalancerLink | None
    """None: the cluster has no rebalancer."""
    lite: Lites
    schedules: Schedules
    transactions: Transactions
    staging: Staging
    deduplicator: Deduplicator | None
    """Recently sent messages; None: a retry is stored as another message."""
    dead_letter_mover: DeadLetterMover
    delayed_retries: DelayedRetries
    span_export: SpanExport | None
    """Spans on their way to a collector; None: there is no collector."""
    span_follower: SpanFollower | None
    stuck_queues: StuckQueues
    backlog: Backlog
    """Ages of the oldest unread messages and numbers of waiting retries, as `loops.diagnosis.watching` last saw."""
