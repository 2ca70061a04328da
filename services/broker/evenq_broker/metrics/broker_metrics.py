"""Every metric of the broker, once: name, kind, unit, labels, help, and where the number is read at a scrape.

Names are RocketMQ 5's where it has the metric; `cluster`, `node_type` and `node_id` stand on each as constant labels.
Series go away with their topic or group. Nothing here runs between scrapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq.serving.program.metrics import Metric, MetricKind, Sample
from evenq_broker.core.groups.subscriptions import different_filters, wanted_of
from evenq_broker.metrics.backlog_metrics import backlog_metrics
from evenq_broker.metrics.cluster_metrics import cluster_metrics
from evenq_broker.metrics.queue_metrics import queue_metrics
from evenq_broker.metrics.staging_metrics import staging_metrics
from evenq_broker.metrics.transaction_metrics import transaction_metrics
from evenq_broker.parts import Parts
from evenq_broker.runtime import Runtime

__all__ = ["broker_metrics", "constant_labels"]

_TOPIC = ("topic", "message_type")
_GROUP_TOPIC = ("consumer_group", "topic")
_GROUP = ("consumer_group",)

MetricMaker = Callable[[str, MetricKind, str, tuple[str, ...], str, str], Metric]
"""Takes name, kind, unit, labels, help, and the name of the method of `_BrokerSource` that reads the value."""


def constant_labels(runtime: Runtime) -> dict[str, str]:
    """What stands on every series."""
    return {
        "cluster": runtime.settings.cluster,
        "node_type": "broker",
        "node_id": runtime.settings.broker_name,
    }


def broker_metrics(parts: Parts) -> list[Metric]:
    """All metrics of this half of the broker."""
    source = _BrokerSource(parts)

    def metric(name: str, kind: MetricKind, unit: str, labels: tuple[str, ...], text: str, read: str) -> Metric:
        return Metric(name=name, kind=kind, unit=unit, labels=labels, help=text, read=getattr(source, read))

    return [*_of_messages(metric), *_of_groups(metric), *_of_broker_and_store(metric), *_of_features(parts)]


def _of_messages(metric: MetricMaker) -> list[Metric]:
    counter = MetricKind.COUNTER
    return [
        metric("rocketmq_messages_in_total", counter, "messages", _TOPIC, "Messages stored.", "messages_in"),
        metric("rocketmq_throughput_in_total", counter, "bytes", _TOPIC, "Bytes of stored messages.", "bytes_in"),
        metric(
            "evenq_broker_duplicates_total", counter, "messages", _TOPIC,
            "Repeated sends of a stored message, which were not stored again.", "duplicates",
        ),
        metric(
            "rocketmq_messages_out_total", counter, "messages", _GROUP_TOPIC,
            "Messages delivered to consumers, and messages read by Spark.", "messages_out",
        ),
        metric(
            "rocketmq_throughput_out_total", counter, "bytes", _GROUP_TOPIC,
            "Bytes of delivered messages.", "bytes_out",
        ),
        metric(
            "rocketmq_send_to_dlq_messages_total", counter, "messages", _GROUP_TOPIC,
            "Messages moved to the dead-letter topic.", "dead_letters",
        ),
        metric(
            "evenq_broker_redeliveries_total", counter, "messages", _GROUP_TOPIC,
            "Messages delivered again.", "redeliveries",
        ),
        metric(
            "evenq_broker_filtered_total", counter, "messages", _GROUP_TOPIC,
            "Messages skipped by a filter.", "filtered",
        ),
        metric("evenq_broker_acks_total", counter, "messages", _GROUP_TOPIC, "Messages acknowledged.", "acks"),
    ]  # fmt: skip


def _of_groups(metric: MetricMaker) -> list[Metric]:
    counter, gauge = MetricKind.COUNTER, MetricKind.GAUGE
    return [
        metric(
            "evenq_broker_differing_filters", gauge, "filters", _GROUP_TOPIC,
            "Different filters that members of one group use for the topic.", "differing",
        ),
        metric(
            "evenq_duplicate_client_ids_total", counter, "members", _GROUP,
            "Members refused because another member has the same client id.", "duplicate_ids",
        ),
        metric(
            "rocketmq_consumer_lag_messages", gauge, "messages", _GROUP_TOPIC,
            "Messages that the group has not finished.", "lag",
        ),
        metric(
            "rocketmq_consumer_inflight_messages", gauge, "messages", _GROUP_TOPIC,
            "Messages delivered and not finished.", "inflight",
        ),
        metric("rocketmq_producer_connections", gauge, "clients", (), "Connected producers.", "producers"),
        metric(
            "rocketmq_consumer_connections", gauge, "clients", _GROUP,
            "Connected members of the group.", "consumers",
        ),
        metric("evenq_broker_locked_queues", gauge, "queues", _GROUP, "Queues locked by a member.", "locked"),
        metric(
            "evenq_broker_wanted_queues", gauge, "queues", _GROUP,
            "Locked queues that another member waits for.", "wanted",
        ),
        metric(
            "evenq_broker_stuck_queues", gauge, "queues", _GROUP,
            "Queues that are read, but whose oldest message stays unfinished for longer than stuck_ms.", "stuck",
        ),
        metric("rocketmq_consumer_group_number", gauge, "groups", (), "Consumer groups of this broker.", "groups"),
        metric(
            "evenq_broker_unfollowed_resets", gauge, "queues", (),
            "Queues whose offset was reset and whose owner does not follow yet.", "unfollowed",
        ),
    ]  # fmt: skip


def _of_broker_and_store(metric: MetricMaker) -> list[Metric]:
    counter, gauge = MetricKind.COUNTER, MetricKind.GAUGE
    return [
        metric("rocketmq_topic_number", gauge, "topics", (), "Topics of this broker.", "topics"),
        metric("evenq_broker_lite_topics", gauge, "topics", (), "Lite topics of this broker.", "lite_topics"),
        metric(
            "evenq_broker_lite_subscriptions", gauge, "names", (),
            "Subscriptions of clients to lite topics.", "lite_subscriptions",
        ),
        metric("evenq_broker_polls_parked", gauge, "calls", (), "Long polls that are waiting.", "polls"),
        metric(
            "evenq_broker_polls_elsewhere", gauge, "wants", (),
            "Waiting polls of other brokers that are woken by messages of this broker.", "polls_elsewhere",
        ),
        metric(
            "evenq_broker_fetches_total", counter, "calls", (),
            "Fetches of messages at another broker for polls that waited here.", "fetches",
        ),
        metric(
            "evenq_broker_empty_fetches_total", counter, "calls", (),
            "Fetches at another broker that found no message.", "fetches_empty",
        ),
        metric("rocketmq_storage_size", gauge, "bytes", (), "Size of the commit log.", "log_bytes"),
        metric("evenq_store_fsyncs_total", counter, "calls", (), "Syncs of the commit log to disk.", "fsyncs"),
        metric("evenq_store_snapshots_total", counter, "snapshots", (), "Snapshots written.", "snapshots"),
        metric(
            "evenq_store_deleted_bytes_total", counter, "bytes", (),
            "Bytes of the commit log deleted by retention.", "deleted",
        ),
        metric(
            "evenq_store_index_behind_bytes", gauge, "bytes", (),
            "Bytes of the commit log that the message index does not cover yet.", "index_behind",
        ),
        metric("evenq_store_cold_reads_total", counter, "reads", (), "Reads that needed the disk.", "cold_reads"),
        metric(
            "evenq_store_damaged_reads_total", counter, "reads", (),
            "Reads of messages that met damaged bytes; each repeat counts.", "damaged_reads",
        ),
        metric(
            "evenq_store_batches_total", counter, "batches", (),
            "Batches of records written to the commit log.", "batches",
        ),
    ]  # fmt: skip


def _of_features(parts: Parts) -> list[Metric]:
    return [
        *backlog_metrics(
            parts.runtime,
            parts.catalog,
            parts.ledger,
            lite=parts.lite,
            delayed_retries=parts.delayed_retries,
            backlog=parts.backlog,
        ),
        *queue_metrics(parts.runtime, parts.catalog, parts.ledger, membership=parts.membership),
        *cluster_metrics(
            parts.ledger, cluster=parts.cluster, rebalancer=parts.rebalancer, change_sender=parts.change_sender
        ),
        *transaction_metrics(parts.catalog, transactions=parts.transactions),
        *staging_metrics(staging=parts.staging),
    ]


class _BrokerSource:
    def __init__(self, parts: Parts) -> None:
        self._runtime, self._catalog, self._ledger = parts.runtime, parts.catalog, parts.ledger
        self._membership, self._clients, self._sessions = parts.membership, parts.clients, parts.sessions
        self._long_polls, self._cluster_polls, self._lite = parts.long_polls, parts.cluster_polls, parts.lite
        self._stuck_queues = parts.stuck_queues

    def _by_topic(self, name: str) -> Iterable[Sample]:
        for topic in self._catalog.topics.all():
            stats = self._runtime.stats.topics.get(topic.topic_id)
            if stats is not None:
                yield (topic.name, str(topic.message_type).lower()), getattr(stats, name)

    def _by_group_topic(self, name: str) -> Iterable[Sample]:
        for (group_id, topic_id), stats in self._runtime.stats.group_topics.items():
            group, topic = self._catalog.groups.by_id(group_id), self._catalog.topics.by_id(topic_id)
            if group is not None and topic is not None:
                yield (group.name, topic.name), getattr(stats, name)

    def messages_in(self) -> Iterable[Sample]:
        return self._by_topic("messages_in")

    def bytes_in(self) -> Iterable[Sample]:
        return self._by_topic("bytes_in")

    def duplicates(self) -> Iterable[Sample]:
        return self._by_topic("duplicates")

    def messages_out(self) -> Iterable[Sample]:
        return self._by_group_topic("messages_out")

    def bytes_out(self) -> Iterable[Sample]:
        return self._by_group_topic("bytes_out")

    def dead_letters(self) -> Iterable[Sample]:
        return self._by_group_topic("dead_letters")

    def redeliveries(self) -> Iterable[Sample]:
        return self._by_group_topic("redeliveries")

    def filtered(self) -> Iterable[Sample]:
        return self._by_group_topic("filtered")

    def differing(self) -> Iterable[Sample]:
        members = self._membership.members
        for group in members.groups():
            for topic, filters in different_filters(wanted_of(members.members(group))).items():
                yield (group, topic), len(filters)

    def duplicate_ids(self) -> Iterable[Sample]:
        for group, count in self._sessions.duplicates.items():
            if self._catalog.groups.get(group) is not None:
                yield (group,), count

    def acks(self) -> Iterable[Sample]:
        return self._by_group_topic("acks")

    def lag(self) -> Iterable[Sample]:
        return self._progress(with_fresh=True)

    def inflight(self) -> Iterable[Sample]:
        return self._progress(with_fresh=False)

    def _progress(self, *, with_fresh: bool) -> Iterable[Sample]:
        sums: dict[tuple[str, ...], int] = {}
        for queue in self._ledger.progress.queues():
            group, topic = self._catalog.groups.by_id(queue.group_id), self._catalog.topics.by_id(queue.topic_id)
            if group is None or topic is None:
                continue
            low, high = self._ledger.store.queue_range(queue.topic_id, queue.queue_id)
            count = queue.lag(low, high) if with_fresh else queue.inflight(low, high)
            sums[group.name, topic.name] = sums.get((group.name, topic.name), 0) + count
        return sums.items()

    def lite_topics(self) -> Iterable[Sample]:
        return [((), len(self._lite.topics))]

    def lite_subscriptions(self) -> Iterable[Sample]:
        return [((), len(self._lite.subscriptions))]

    def producers(self) -> Iterable[Sample]:
        return [((), self._clients.table.counts()[0])]

    def consumers(self) -> Iterable[Sample]:
        members = self._membership.members
        return [((group,), len(members.members(group))) for group in members.groups()]

    def locked(self) -> Iterable[Sample]:
        return [((group,), count) for group, count in self._membership.locks.counts().items()]

    def wanted(self) -> Iterable[Sample]:
        counts = dict.fromkeys(self._membership.locks.counts(), 0) | self._membership.locks.wanted()
        return [((group,), count) for group, count in counts.items()]

    def stuck(self) -> Iterable[Sample]:
        counts = {name: 0 for name in self._membership.members.groups() if self._catalog.groups.get(name) is not None}
        now_ms = self._runtime.clock.monotonic_ms()
        for (group_id, _, _), _ in self._stuck_queues.stuck(self._runtime.settings.stuck_ms, now_ms=now_ms):
            group = self._catalog.groups.by_id(group_id)
            if group is not None and group.name in counts:
                counts[group.name] += 1
        return [((group,), count) for group, count in counts.items()]

    def topics(self) -> Iterable[Sample]:
        return [((), len(self._catalog.topics))]

    def groups(self) -> Iterable[Sample]:
        return [((), len(self._catalog.groups))]

    def polls_elsewhere(self) -> Iterable[Sample]:
        yield (), len(self._cluster_polls.waiters)

    def fetches(self) -> Iterable[Sample]:
        yield (), self._cluster_polls.fetches

    def fetches_empty(self) -> Iterable[Sample]:
        yield (), self._cluster_polls.fetches_empty

    def unfollowed(self) -> Iterable[Sample]:
        return [((), len(self._sessions.fences))]

    def polls(self) -> Iterable[Sample]:
        return [((), len(self._long_polls.table))]

    def log_bytes(self) -> Iterable[Sample]:
        return [((), self._ledger.store.stats.log_bytes)]

    def fsyncs(self) -> Iterable[Sample]:
        return [((), self._ledger.store.stats.fsyncs)]

    def batches(self) -> Iterable[Sample]:
        return [((), self._ledger.store.stats.batches)]

    def snapshots(self) -> Iterable[Sample]:
        return [((), self._ledger.store.stats.snapshots)]

    def deleted(self) -> Iterable[Sample]:
        return [((), self._ledger.store.stats.deleted_bytes)]

    def index_behind(self) -> Iterable[Sample]:
        stats = self._ledger.store.stats
        return [((), max(0, stats.log_end - stats.index_end))] if self._runtime.settings.store.message_index else []

    def cold_reads(self) -> Iterable[Sample]:
        return [((), self._ledger.store.stats.cold_reads)]

    def damaged_reads(self) -> Iterable[Sample]:
        return [((), self._ledger.store.stats.damaged_reads)]
