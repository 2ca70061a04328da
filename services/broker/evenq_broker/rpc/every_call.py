"""Every call that a broker answers: the handlers, each with the parts that it needs.

`Broker.rpcs` asks for it once, for the server. Which broker a call is for is settled here, in front of all handlers
(`rpc.cluster.directing`).
"""

from __future__ import annotations

from evenq.serving.rpc import Rpc
from evenq_broker.loops.delivery.taking import MessageTaker
from evenq_broker.parts import Parts
from evenq_broker.rpc import messaging
from evenq_broker.rpc.admin import admin_v2, admin_v2_groups, admin_v2_messages
from evenq_broker.rpc.admin.groups import Groups
from evenq_broker.rpc.admin.topics import Topics
from evenq_broker.rpc.backup import backup
from evenq_broker.rpc.clients import client_list, telemetry
from evenq_broker.rpc.clients.heartbeat import Clients
from evenq_broker.rpc.cluster import broker_groups, overview, routing
from evenq_broker.rpc.cluster.directing import directed
from evenq_broker.rpc.dead_letters import dead_letters
from evenq_broker.rpc.delivery import data
from evenq_broker.rpc.delivery.pulling import PullHandler
from evenq_broker.rpc.delivery.receive import ReceiveHandler
from evenq_broker.rpc.delivery.settle import Acknowledger
from evenq_broker.rpc.diagnosis import diagnosis, queries, tracing
from evenq_broker.rpc.groups import groups, offsets
from evenq_broker.rpc.lite.lite import LiteSubscriptionHandler
from evenq_broker.rpc.polls import peers
from evenq_broker.rpc.resizing import resizing
from evenq_broker.rpc.sending.recall import RecallHandler
from evenq_broker.rpc.sending.send import SendHandler
from evenq_broker.rpc.staging import staging
from evenq_broker.rpc.transactions import transactions

__all__ = ["every_call"]


def every_call(parts: Parts) -> list[Rpc]:
    """The calls with their handlers; those that name another broker go on to it."""
    sending = SendHandler(
        parts.runtime,
        parts.catalog,
        parts.ledger,
        cluster=parts.cluster,
        cluster_catalog=parts.cluster_catalog,
        lite=parts.lite,
        transactions=parts.transactions,
        deduplicator=parts.deduplicator,
    )
    rpcs = [*_messaging(parts, sending), *_clients(parts), *_consumers(parts), *_operators(parts, sending)]
    return directed(parts.runtime, parts.catalog, rpcs, cluster=parts.cluster)


def _messaging(parts: Parts, sending: SendHandler) -> list[Rpc]:
    runtime, catalog, ledger = parts.runtime, parts.catalog, parts.ledger
    taker = MessageTaker(
        runtime,
        catalog,
        ledger,
        starts=parts.starts,
        sessions=parts.sessions,
        long_polls=parts.long_polls,
        lite=parts.lite,
        dead_letter_mover=parts.dead_letter_mover,
    )
    return messaging.rpcs(
        sending=sending,
        receiving=ReceiveHandler(
            runtime,
            catalog,
            ledger,
            taker,
            cluster=parts.cluster,
            clients=parts.clients,
            fetched=parts.ending.fetched,
            sessions=parts.sessions,
            long_polls=parts.long_polls,
            cluster_polls=parts.cluster_polls,
            grants=parts.grants,
            lite=parts.lite,
        ),
        acknowledger=Acknowledger(
            runtime,
            catalog,
            ledger,
            cluster=parts.cluster,
            fetched=parts.ending.fetched,
            long_polls=parts.long_polls,
            dead_letter_mover=parts.dead_letter_mover,
        ),
        pulling=PullHandler(runtime, catalog, ledger, cluster=parts.cluster, long_polls=parts.long_polls),
        heartbeats=Clients(runtime, clients=parts.clients, departures=parts.departures, sessions=parts.sessions),
        transactions=transactions.EndTransactionHandler(
            runtime, catalog, ledger, cluster=parts.cluster, transactions=parts.transactions
        ),
        recall_handler=RecallHandler(runtime, catalog, ledger, cluster=parts.cluster),
        lite_subscription_handler=LiteSubscriptionHandler(
            runtime, catalog, cluster=parts.cluster, clients=parts.clients, lite=parts.lite
        ),
    )


def _clients(parts: Parts) -> list[Rpc]:
    """Routes, streams and what brokers ask each other."""
    runtime, catalog, ledger = parts.runtime, parts.catalog, parts.ledger
    return [
        *telemetry.rpcs(
            runtime,
            catalog,
            clients=parts.clients,
            starts=parts.starts,
            sessions=parts.sessions,
            long_polls=parts.long_polls,
            transactions=parts.transactions,
        ),
        *routing.rpcs(
            runtime,
            catalog,
            cluster=parts.cluster,
            cluster_catalog=parts.cluster_catalog,
            membership=parts.membership,
            clients=parts.clients,
            sessions=parts.sessions,
            rebalancer=parts.rebalancer,
        ),
        *client_list.rpcs(runtime, ledger, cluster=parts.cluster, membership=parts.membership, clients=parts.clients),
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
    """Members, their blocks and their progress; batches of rows."""
    runtime, catalog, ledger = parts.runtime, parts.catalog, parts.ledger
    return [
        *data.rpcs(
            runtime,
            catalog,
            ledger,
            cluster=parts.cluster,
            cluster_catalog=parts.cluster_catalog,
            membership=parts.membership,
            starts=parts.starts,
            sessions=parts.sessions,
            long_polls=parts.long_polls,
            deduplicator=parts.deduplicator,
            delayed_retries=parts.delayed_retries,
        ),
        *groups.rpcs(runtime, catalog, ledger, membership=parts.membership, sessions=parts.sessions),
        *offsets.rpcs(
            runtime,
            catalog,
            ledger,
            cluster=parts.cluster,
            membership=parts.membership,
            sessions=parts.sessions,
            long_polls=parts.long_polls,
            lite=parts.lite,
            stuck_queues=parts.stuck_queues,
        ),
        *dead_letters.rpcs(
            runtime, catalog, ledger, cluster=parts.cluster, cluster_catalog=parts.cluster_catalog, lite=parts.lite
        ),
        *staging.rpcs(runtime, catalog, cluster_catalog=parts.cluster_catalog, staging=parts.staging),
    ]


def _operators(parts: Parts, sending: SendHandler) -> list[Rpc]:
    """What the command line and other tools ask."""
    runtime, catalog, ledger = parts.runtime, parts.catalog, parts.ledger
    of_topics = Topics(
        runtime,
        catalog,
        ledger,
        cluster=parts.cluster,
        cluster_catalog=parts.cluster_catalog,
        membership=parts.membership,
        lite=parts.lite,
    )
    of_groups = Groups(
        runtime,
        catalog,
        ledger,
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
        *admin_v2.rpcs(runtime, catalog, cluster=parts.cluster, clients=parts.clients),
        *admin_v2_groups.rpcs(
            runtime,
            catalog,
            ledger,
            cluster=parts.cluster,
            membership=parts.membership,
            clients=parts.clients,
            sessions=parts.sessions,
            long_polls=parts.long_polls,
            lite=parts.lite,
            stuck_queues=parts.stuck_queues,
        ),
        *admin_v2_messages.rpcs(
            runtime,
            catalog,
            ledger,
            cluster=parts.cluster,
            membership=parts.membership,
            clients=parts.clients,
            sending=sending,
            groups=of_groups,
        ),
        *_diagnosis(parts),
    ]


def _diagnosis(parts: Parts) -> list[Rpc]:
    """What is wrong, and what became of a message; brokers that come and go."""
    runtime, catalog, ledger = parts.runtime, parts.catalog, parts.ledger
    return [
        *overview.rpcs(
            runtime,
            catalog,
            ledger,
            cluster=parts.cluster,
            membership=parts.membership,
            rebalancer=parts.rebalancer,
            change_sender=parts.change_sender,
        ),
        *broker_groups.rpcs(runtime, catalog, cluster=parts.cluster),
        *resizing.rpcs(
            runtime,
            catalog,
            ledger,
            cluster=parts.cluster,
            cluster_catalog=parts.cluster_catalog,
            membership=parts.membership,
            lite=parts.lite,
        ),
        *diagnosis.rpcs(
            runtime,
            catalog,
            ledger,
            cluster=parts.cluster,
            membership=parts.membership,
            sessions=parts.sessions,
            rebalancer=parts.rebalancer,
            delayed_retries=parts.delayed_retries,
            stuck_queues=parts.stuck_queues,
        ),
        *queries.rpcs(runtime, catalog, ledger, cluster=parts.cluster),
        *backup.rpcs(runtime, ledger),
        *tracing.rpcs(runtime, catalog, ledger, cluster=parts.cluster),
    ]
