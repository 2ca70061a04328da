"""All calls of a broker, with their handlers. `rpc.cluster.directing` runs before each of them."""

from __future__ import annotations

from evenq.serving.auth.calls import MESSAGING, rpc
from evenq.serving.rpc import Rpc
from evenq_broker.loops.delivery.taking import MessageTaker
from evenq_broker.loops.sending.schedule_moves import ScheduleMoves
from evenq_broker.parts import Parts
from evenq_broker.rpc.admin import admin_v2_messages
from evenq_broker.rpc.admin.admin_v2 import BrokerAdmin
from evenq_broker.rpc.admin.admin_v2_groups import GroupAdmin
from evenq_broker.rpc.admin.groups import Groups
from evenq_broker.rpc.admin.topics import Topics
from evenq_broker.rpc.backup import backup
from evenq_broker.rpc.clients.client_list import ClientList
from evenq_broker.rpc.clients.telemetry import Clients, TelemetryHandler
from evenq_broker.rpc.cluster.broker_groups import BrokerGroupHandler
from evenq_broker.rpc.cluster.directing import directed
from evenq_broker.rpc.cluster.overview import ClusterOverview
from evenq_broker.rpc.cluster.routing import Routing
from evenq_broker.rpc.dead_letters.dead_letters import DeadLetterHandler
from evenq_broker.rpc.delivery import data
from evenq_broker.rpc.delivery.pulling import PullHandler
from evenq_broker.rpc.delivery.receive import ReceiveHandler
from evenq_broker.rpc.delivery.settle import Acknowledger
from evenq_broker.rpc.delivery.transact import TransactHandler
from evenq_broker.rpc.diagnosis import queries, tracing
from evenq_broker.rpc.diagnosis.diagnosis import Doctor
from evenq_broker.rpc.diagnosis.parts import GroupParts
from evenq_broker.rpc.groups.groups import GroupHandler
from evenq_broker.rpc.groups.offsets import OffsetResets
from evenq_broker.rpc.lite.lite import LiteSubscriptionHandler
from evenq_broker.rpc.polls import peers
from evenq_broker.rpc.resizing.resizing import ResizeHandler
from evenq_broker.rpc.sending.scheduled import RecallHandler, ScheduledHandler
from evenq_broker.rpc.sending.schedules import ScheduleHandler
from evenq_broker.rpc.sending.send import SendHandler
from evenq_broker.rpc.staging.staging import StagingCalls
from evenq_broker.rpc.transactions import transactions
from evenq_broker.rpc.transactions.transactions import EndTransactionHandler


def every_call(parts: Parts) -> list[Rpc]:
    """Returns the calls with their handlers; calls that name another broker are sent to it."""
    sending = SendHandler(
        parts.kernel,
        cluster=parts.cluster,
        cluster_catalog=parts.cluster_catalog,
        lite=parts.lite,
        transactions=parts.transactions,
        deduplicator=parts.deduplicator,
    )
    client_list = ClientList(parts.kernel, cluster=parts.cluster, membership=parts.membership, clients=parts.clients)
    resets = OffsetResets(
        parts.kernel,
        cluster=parts.cluster,
        membership=parts.membership,
        sessions=parts.sessions,
        long_polls=parts.long_polls,
        lite=parts.lite,
        stuck_queues=parts.stuck_queues,
    )
    rpcs = [
        *_messaging(parts, sending),
        *_clients(parts),
        *client_list.rpcs(),
        *_consumers(parts),
        *resets.rpcs(),
        *_operators(parts, sending, client_list, resets),
    ]
    return directed(parts.kernel, rpcs, cluster=parts.cluster)


def _messaging(parts: Parts, sending: SendHandler) -> list[Rpc]:
    """Returns the calls of `apache.rocketmq.v2.MessagingService`, without those in `telemetry` and `routing`."""
    kernel = parts.kernel
    taker = MessageTaker(
        kernel,
        starts=parts.starts,
        sessions=parts.sessions,
        long_polls=parts.long_polls,
        lite=parts.lite,
        dead_letter_mover=parts.dead_letter_mover,
    )
    receiving = ReceiveHandler(
        kernel,
        taker,
        cluster=parts.cluster,
        clients=parts.clients,
        fetched=parts.ending.fetched,
        sessions=parts.sessions,
        long_polls=parts.long_polls,
        cluster_polls=parts.cluster_polls,
        grants=parts.grants,
        lite=parts.lite,
    )
    acknowledger = Acknowledger(
        kernel,
        cluster=parts.cluster,
        fetched=parts.ending.fetched,
        long_polls=parts.long_polls,
        dead_letter_mover=parts.dead_letter_mover,
    )
    pulling = PullHandler(kernel, cluster=parts.cluster, long_polls=parts.long_polls)
    heartbeats = Clients(parts.runtime, clients=parts.clients, departures=parts.departures, sessions=parts.sessions)
    ending = EndTransactionHandler(kernel, cluster=parts.cluster, transactions=parts.transactions)
    lite = LiteSubscriptionHandler(kernel, cluster=parts.cluster, clients=parts.clients, lite=parts.lite)
    return [
        rpc(MESSAGING + "SendMessage", sending.send, plain=sending.plain),
        rpc(MESSAGING + "AckMessage", acknowledger.ack),
        rpc(MESSAGING + "ChangeInvisibleDuration", acknowledger.change_invisible),
        rpc(MESSAGING + "ForwardMessageToDeadLetterQueue", acknowledger.forward_to_dead_letters),
        rpc(MESSAGING + "Heartbeat", heartbeats.heartbeat),
        rpc(MESSAGING + "NotifyClientTermination", heartbeats.terminate),
        rpc(MESSAGING + "UpdateOffset", pulling.update_offset),
        rpc(MESSAGING + "GetOffset", pulling.get_offset),
        rpc(MESSAGING + "QueryOffset", pulling.query_offset),
        rpc(MESSAGING + "EndTransaction", ending.end),
        rpc(MESSAGING + "RecallMessage", RecallHandler(kernel, cluster=parts.cluster).recall),
        rpc(MESSAGING + "SyncLiteSubscription", lite.sync),
        rpc(MESSAGING + "ReceiveMessage", receiving.receive),
        rpc(MESSAGING + "PullMessage", pulling.pull),
    ]


def _clients(parts: Parts) -> list[Rpc]:
    kernel = parts.kernel
    return [
        *TelemetryHandler(
            kernel,
            clients=parts.clients,
            starts=parts.starts,
            sessions=parts.sessions,
            long_polls=parts.long_polls,
            transactions=parts.transactions,
        ).rpcs(),
        *Routing(
            kernel,
            cluster=parts.cluster,
            cluster_catalog=parts.cluster_catalog,
            membership=parts.membership,
            clients=parts.clients,
            sessions=parts.sessions,
            rebalancer=parts.rebalancer,
        ).rpcs(),
        *peers.rpcs(
            cluster_polls=parts.cluster_polls,
            lite=parts.lite,
            group_settings=parts.group_settings,
            departures=parts.departures,
            change_sender=parts.change_sender,
        ),
        *transactions.rpcs(transactions=parts.transactions),
    ]


def _consumers(parts: Parts) -> list[Rpc]:
    kernel = parts.kernel
    return [
        *data.rpcs(
            kernel,
            cluster=parts.cluster,
            cluster_catalog=parts.cluster_catalog,
            membership=parts.membership,
            starts=parts.starts,
            sessions=parts.sessions,
            long_polls=parts.long_polls,
            deduplicator=parts.deduplicator,
            delayed_retries=parts.delayed_retries,
        ),
        *TransactHandler(kernel, deduplicator=parts.deduplicator, long_polls=parts.long_polls).rpcs(),
        *GroupHandler(kernel, membership=parts.membership, sessions=parts.sessions).rpcs(),
        *DeadLetterHandler(
            kernel, cluster=parts.cluster, cluster_catalog=parts.cluster_catalog, lite=parts.lite
        ).rpcs(),
        *StagingCalls(kernel, cluster_catalog=parts.cluster_catalog, staging=parts.staging).rpcs(),
    ]


def _operators(parts: Parts, sending: SendHandler, client_list: ClientList, resets: OffsetResets) -> list[Rpc]:
    kernel = parts.kernel
    of_topics = Topics(
        kernel,
        cluster=parts.cluster,
        cluster_catalog=parts.cluster_catalog,
        membership=parts.membership,
        lite=parts.lite,
    )
    of_groups = Groups(
        kernel,
        cluster=parts.cluster,
        cluster_catalog=parts.cluster_catalog,
        membership=parts.membership,
        lite=parts.lite,
        delayed_retries=parts.delayed_retries,
        group_settings=parts.group_settings,
    )
    return [
        *of_topics.rpcs(),
        *of_groups.rpcs(),
        *ScheduleHandler(
            kernel,
            cluster=parts.cluster,
            schedules=parts.schedules,
            moves=ScheduleMoves(kernel, cluster=parts.cluster, schedules=parts.schedules),
            sending=sending,
        ).rpcs(),
        *BrokerAdmin(kernel, cluster=parts.cluster, clients=parts.clients).rpcs(),
        *GroupAdmin(
            kernel,
            cluster=parts.cluster,
            client_list=client_list,
            long_polls=parts.long_polls,
            sessions=parts.sessions,
            resets=resets,
        ).rpcs(),
        *admin_v2_messages.rpcs(
            kernel,
            cluster=parts.cluster,
            client_list=client_list,
            clients=parts.clients,
            sending=sending,
            groups=of_groups,
        ),
        *_diagnosis(parts),
    ]


def _diagnosis(parts: Parts) -> list[Rpc]:
    kernel = parts.kernel
    group_parts = GroupParts(
        kernel,
        cluster=parts.cluster,
        membership=parts.membership,
        sessions=parts.sessions,
        delayed_retries=parts.delayed_retries,
        stuck_queues=parts.stuck_queues,
        schedules=parts.schedules.table,
    )
    return [
        *ClusterOverview(
            kernel,
            cluster=parts.cluster,
            membership=parts.membership,
            rebalancer=parts.rebalancer,
            change_sender=parts.change_sender,
        ).rpcs(),
        *BrokerGroupHandler(kernel, cluster=parts.cluster).rpcs(),
        *ResizeHandler(
            kernel,
            cluster=parts.cluster,
            cluster_catalog=parts.cluster_catalog,
            membership=parts.membership,
            lite=parts.lite,
            schedules=parts.schedules.table,
        ).rpcs(),
        *Doctor(parts.runtime, cluster=parts.cluster, rebalancer=parts.rebalancer, group_parts=group_parts).rpcs(),
        *queries.rpcs(kernel, cluster=parts.cluster),
        *ScheduledHandler(kernel, cluster=parts.cluster).rpcs(),
        *backup.rpcs(kernel),
        *tracing.rpcs(kernel, cluster=parts.cluster),
    ]
