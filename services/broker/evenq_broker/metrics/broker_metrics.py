"""All metrics of the broker: name, kind, unit, labels, help, and the function that reads the value at a scrape.

Names are those of RocketMQ 5 where it has the metric. Every series has the labels `cluster`, `node_type` and `node_id`.
Series of deleted topics and groups disappear. Nothing here runs between scrapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from evenq.model import MessageType
from evenq.serving.program.metrics import Metric, Sample, counter, gauge
from evenq.store.io.disk import Usage
from evenq.store.log import volume
from evenq.store.log.options import StoreOptions
from evenq_broker.core.groups.membership import GroupTables
from evenq_broker.core.groups.subscriptions import different_filters, wanted_of
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.cluster.change_sender import ChangeSender
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.diagnosis.span_export import SpanExport
from evenq_broker.loops.diagnosis.span_follower import SpanFollower
from evenq_broker.loops.replication.follower_disk import FollowerDisk
from evenq_broker.loops.resizing.resizing import stranded
from evenq_broker.loops.staging.staging import Staging
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.loops.transactions.transactions import Transactions
from evenq_broker.metrics.backlog_metrics import backlog_metrics
from evenq_broker.parts import Parts
from evenq_broker.runtime import Runtime

_TOPIC = ("topic", "message_type")
_GROUP_TOPIC = ("consumer_group", "topic")
_GROUP = ("consumer_group",)
_TYPES = {MessageType.TRANSACTION, MessageType.MIXED}


def constant_labels(runtime: Runtime) -> dict[str, str]:
    """Returns the labels that every series has."""
    return {
        "cluster": runtime.settings.cluster,
        "node_type": "broker",
        "node_id": runtime.settings.broker_name,
    }


def broker_metrics(parts: Parts) -> list[Metric]:
    source = _BrokerSource(parts)
    return [
        *_of_topics(source),
        *_of_groups(source, parts),
        *_of_broker(parts),
        *_of_store(source, parts.ledger),
        *_of_features(parts),
    ]


def _of_topics(source: _BrokerSource) -> list[Metric]:
    return [
        counter("rocketmq_messages_in_total", "messages", *_TOPIC).series(
            lambda: source.by_topic("messages_in"), "Messages stored."
        ),
        counter("rocketmq_throughput_in_total", "bytes", *_TOPIC).series(
            lambda: source.by_topic("bytes_in"), "Bytes of stored messages."
        ),
        counter("evenq_broker_duplicates_total", "messages", *_TOPIC).series(
            lambda: source.by_topic("duplicates"), "Repeated sends of stored messages; they are not stored again."
        ),
    ]


def _of_groups(source: _BrokerSource, parts: Parts) -> list[Metric]:
    return [
        counter("rocketmq_messages_out_total", "messages", *_GROUP_TOPIC).series(
            lambda: source.by_group_topic("messages_out"),
            "Messages delivered to consumers, and messages read by Spark.",
        ),
        counter("rocketmq_throughput_out_total", "bytes", *_GROUP_TOPIC).series(
            lambda: source.by_group_topic("bytes_out"), "Bytes of delivered messages."
        ),
        counter("rocketmq_send_to_dlq_messages_total", "messages", *_GROUP_TOPIC).series(
            lambda: source.by_group_topic("dead_letters"), "Messages moved to the dead-letter topic."
        ),
        counter("evenq_broker_redeliveries_total", "messages", *_GROUP_TOPIC).series(
            lambda: source.by_group_topic("redeliveries"), "Redelivered messages."
        ),
        counter("evenq_broker_filtered_total", "messages", *_GROUP_TOPIC).series(
            lambda: source.by_group_topic("filtered"), "Messages skipped by a filter."
        ),
        counter("evenq_broker_acks_total", "messages", *_GROUP_TOPIC).series(
            lambda: source.by_group_topic("acks"), "Messages acknowledged."
        ),
        gauge("evenq_broker_differing_filters", "filters", *_GROUP_TOPIC).series(
            source.differing, "Different filters that members of one group use for the topic."
        ),
        counter("evenq_duplicate_client_ids_total", "members", *_GROUP).series(
            source.duplicate_ids, "Members refused because another member has the same client id."
        ),
        gauge("rocketmq_consumer_lag_messages", "messages", *_GROUP_TOPIC).series(
            lambda: source.unfinished(with_fresh=True), "Messages that the group has not finished."
        ),
        gauge("rocketmq_consumer_inflight_messages", "messages", *_GROUP_TOPIC).series(
            lambda: source.unfinished(with_fresh=False), "Messages that clients have and have not finished."
        ),
        gauge("rocketmq_producer_connections", "clients").value(
            lambda: parts.clients.table.counts()[0], "Connected producers."
        ),
        gauge("rocketmq_consumer_connections", "clients", *_GROUP).series(
            source.consumers, "Connected members of the group."
        ),
        gauge("evenq_broker_locked_queues", "queues", *_GROUP).series(source.locked, "Queues locked by a member."),
        gauge("evenq_broker_wanted_queues", "queues", *_GROUP).series(
            source.wanted, "Locked queues that another member waits for."
        ),
        gauge("evenq_broker_stuck_queues", "queues", *_GROUP).series(
            source.stuck, "Queues that are read, but whose oldest message stays unfinished for longer than stuck_ms."
        ),
    ]


def _of_broker(parts: Parts) -> list[Metric]:
    return [
        gauge("rocketmq_consumer_group_number", "groups").value(
            lambda: len(parts.catalog.groups), "Consumer groups of this broker."
        ),
        gauge("evenq_broker_unfollowed_resets", "queues").value(
            lambda: len(parts.sessions.fences),
            "Queues whose offset was reset, but whose owner does not read from the new offset yet.",
        ),
        gauge("rocketmq_topic_number", "topics").value(lambda: len(parts.catalog.topics), "Topics of this broker."),
        gauge("evenq_broker_schedules", "schedules", "state").series(
            lambda: _schedules(parts),
            "Schedules of recurring messages that fire, are paused, or fail to fire.",
        ),
        counter("evenq_schedule_firings_total", "messages").value(
            lambda: parts.schedules.firings, "Messages of schedules, without those of `evenq schedule run`."
        ),
        counter("evenq_schedule_missed_total", "times").value(
            lambda: parts.schedules.passed, "Times of schedules that passed without a message, by their policy."
        ),
        gauge("evenq_broker_lite_topics", "topics").value(
            lambda: len(parts.lite.topics), "Lite topics of this broker."
        ),
        gauge("evenq_broker_lite_subscriptions", "names").value(
            lambda: len(parts.lite.subscriptions), "Subscriptions of clients to lite topics."
        ),
        gauge("evenq_broker_polls_parked", "calls").value(
            lambda: len(parts.long_polls.table), "Long polls that are waiting."
        ),
        gauge("evenq_broker_polls_elsewhere", "wants").value(
            lambda: len(parts.cluster_polls.waiters),
            "Waiting polls at other brokers that are woken by messages of this broker.",
        ),
        counter("evenq_broker_fetches_total", "calls").value(
            lambda: parts.cluster_polls.fetches, "Fetches of messages from another broker for polls that waited here."
        ),
        counter("evenq_broker_empty_fetches_total", "calls").value(
            lambda: parts.cluster_polls.fetches_empty, "Fetches from another broker that found no message."
        ),
    ]


def _of_store(source: _BrokerSource, ledger: Ledger) -> list[Metric]:
    return [
        gauge("rocketmq_storage_size", "bytes").value(lambda: ledger.store.stats.log_bytes, "Size of the commit log."),
        counter("evenq_store_fsyncs_total", "calls").value(
            lambda: ledger.store.stats.fsyncs, "Syncs of the commit log to disk."
        ),
        counter("evenq_store_snapshots_total", "snapshots").value(
            lambda: ledger.store.stats.snapshots, "Snapshots written."
        ),
        counter("evenq_store_deleted_bytes_total", "bytes").value(
            lambda: ledger.store.stats.deleted_bytes, "Bytes of the commit log deleted by retention."
        ),
        gauge("evenq_store_index_behind_bytes", "bytes").series(
            source.index_behind, "Bytes of the commit log that the message index does not cover yet."
        ),
        counter("evenq_store_cold_reads_total", "reads").value(
            lambda: ledger.store.stats.cold_reads, "Reads that needed the disk."
        ),
        counter("evenq_store_damaged_reads_total", "reads").value(
            lambda: ledger.store.stats.damaged_reads,
            "Reads of messages that found damaged bytes; each repetition counts.",
        ),
        counter("evenq_store_batches_total", "batches").value(
            lambda: ledger.store.stats.batches, "Batches of records written to the commit log."
        ),
    ]


def _of_features(parts: Parts) -> list[Metric]:
    return [
        *backlog_metrics(parts.kernel, lite=parts.lite, delayed_retries=parts.delayed_retries, backlog=parts.backlog),
        *queue_metrics(parts.kernel, membership=parts.membership),
        *cluster_metrics(
            parts.ledger, cluster=parts.cluster, rebalancer=parts.rebalancer, change_sender=parts.change_sender
        ),
        *transaction_metrics(parts.catalog, transactions=parts.transactions),
        *staging_metrics(staging=parts.staging),
        *span_metrics(span_export=parts.span_export, span_follower=parts.span_follower),
    ]


def _schedules(parts: Parts) -> Iterable[Sample]:
    states = Counter(kept.state for kept in parts.schedules.table)
    return [((state,), states[state]) for state in ("active", "paused", "failing")]


class _BrokerSource:
    def __init__(self, parts: Parts) -> None:
        self._runtime, self._catalog, self._ledger = parts.runtime, parts.catalog, parts.ledger
        self._membership, self._sessions, self._stuck_queues = parts.membership, parts.sessions, parts.stuck_queues

    def by_topic(self, name: str) -> Iterable[Sample]:
        for topic in self._catalog.topics.all():
            stats = self._runtime.stats.topics.get(topic.topic_id)
            if stats is not None:
                yield (topic.name, str(topic.message_type).lower()), getattr(stats, name)

    def by_group_topic(self, name: str) -> Iterable[Sample]:
        for (group_id, topic_id), stats in self._runtime.stats.group_topics.items():
            group, topic = self._catalog.groups.by_id(group_id), self._catalog.topics.by_id(topic_id)
            if group is not None and topic is not None:
                yield (group.name, topic.name), getattr(stats, name)

    def differing(self) -> Iterable[Sample]:
        members = self._membership.members
        for group in members.groups():
            for topic, filters in different_filters(wanted_of(members.members(group))).items():
                yield (group, topic), len(filters)

    def duplicate_ids(self) -> Iterable[Sample]:
        for group, count in self._sessions.duplicates.items():
            if self._catalog.groups.get(group) is not None:
                yield (group,), count

    def unfinished(self, *, with_fresh: bool) -> Iterable[Sample]:
        sums: dict[tuple[str, ...], int] = {}
        for queue in self._ledger.progress.queues():
            group, topic = self._catalog.groups.by_id(queue.group_id), self._catalog.topics.by_id(queue.topic_id)
            if group is None or topic is None:
                continue
            low, high = self._ledger.store.queue_range(queue.topic_id, queue.queue_id)
            count = queue.lag(low, high) if with_fresh else queue.inflight(low, high)
            sums[group.name, topic.name] = sums.get((group.name, topic.name), 0) + count
        return sums.items()

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

    def index_behind(self) -> Iterable[Sample]:
        stats = self._ledger.store.stats
        return [((), max(0, stats.log_end - stats.index_end))] if self._runtime.settings.store.message_index else []


def queue_metrics(kernel: Kernel, *, membership: GroupTables) -> list[Metric]:
    """Returns metrics of queue counts and permissions (RT-8, TQ-14), for resizing of topics and draining of brokers."""
    catalog = kernel.catalog

    def writable() -> Iterable[Sample]:
        closed = catalog.draining
        for topic in catalog.topics.all():
            yield (topic.name,), topic.write_queues if topic.permission.writable and not closed else 0

    def readable() -> Iterable[Sample]:
        for topic in catalog.topics.all():
            yield (topic.name,), topic.read_queues if topic.permission.readable else 0

    def unread() -> Iterable[Sample]:
        for topic in catalog.topics.all():
            if topic.closed or not topic.permission.readable:
                yield (topic.name,), stranded(kernel, topic, membership=membership)

    return [
        gauge("evenq_topic_write_queues", "queues", "topic").series(writable, "Queues that accept messages."),
        gauge("evenq_topic_read_queues", "queues", "topic").series(readable, "Queues that can be read."),
        gauge("evenq_topic_stranded_messages", "messages", "topic").series(unread, "Unread messages in closed queues."),
        gauge("evenq_broker_draining", "brokers").value(
            lambda: int(catalog.draining), "1 while this broker is being drained and accepts no messages."
        ),
    ]


def staging_metrics(*, staging: Staging) -> list[Metric]:
    """Returns metrics of staged rows (exactly-once sinks)."""
    stats = staging.stats

    def rows() -> Iterable[Sample]:
        yield ("staged",), stats.staged_rows
        yield ("published",), stats.published_rows
        yield ("dropped",), stats.dropped_rows

    return [
        gauge("evenq_broker_staged_rows", "rows").value(
            lambda: staging.table.rows, "Rows that wait for the decision of their batch."
        ),
        gauge("evenq_broker_staged_bytes", "bytes").value(
            lambda: staging.table.bytes, "Bytes of rows that wait for the decision of their batch."
        ),
        counter("evenq_broker_staged_rows_total", "rows", "result").series(
            rows,
            "Rows staged, published (batch decided), or dropped (attempt lost, or batch never decided).",
        ),
        counter("evenq_broker_stagings_dropped_total", "stagings").value(
            lambda: stats.dropped_stagings, "Stagings of attempts that lost, failed or were never decided."
        ),
        counter("evenq_broker_staging_decisions_total", "batches").value(
            lambda: stats.decisions, "Batches decided by this broker."
        ),
        gauge("evenq_broker_staging_decisions_open", "batches").value(
            lambda: staging.deciding.table.open_count,
            "Batches decided by this broker that are not published at every broker yet.",
        ),
    ]


def transaction_metrics(catalog: Catalog, *, transactions: Transactions) -> list[Metric]:
    stats = transactions.stats

    def by_topic(counts: Mapping[int, int]) -> Iterable[Sample]:
        for topic in catalog.topics.all():
            if topic.message_type in _TYPES or topic.topic_id in counts:
                yield (topic.name,), counts.get(topic.topic_id, 0)

    def checks() -> Iterable[Sample]:
        return [(("sent",), stats.checks), (("relayed",), stats.relayed), (("missed",), stats.missed)]

    return [
        gauge("rocketmq_half_messages", "messages", "topic").series(
            lambda: by_topic(Counter(half.topic_id for _, half in transactions.table.all())), "Open transactions."
        ),
        counter("rocketmq_commit_messages_total", "messages", "topic").series(
            lambda: by_topic(stats.committed), "Transactions committed."
        ),
        counter("rocketmq_rollback_messages_total", "messages", "topic").series(
            lambda: by_topic(stats.rolled_back), "Transactions rolled back."
        ),
        counter("evenq_broker_transaction_checks_total", "checks", "result").series(
            checks,
            "Checks sent to a producer here, relayed through another broker, or missed (no producer connected).",
        ),
        counter("evenq_broker_transactions_given_up_total", "messages").value(
            lambda: stats.given_up, "Transactions that no producer decided, moved to TRANS_CHECK_MAX_TIME_TOPIC."
        ),
        counter("evenq_broker_transaction_conflicts_total", "calls").value(
            lambda: stats.conflicts, "Commits after a rollback, or rollbacks after a commit; they are ignored."
        ),
    ]


def cluster_metrics(
    ledger: Ledger, *, cluster: ClusterLink, rebalancer: RebalancerLink | None, change_sender: ChangeSender
) -> list[Metric]:
    """Returns the metrics of connections in the cluster, and of the disk. Every broker measures whether nameservers and
    rebalancers answer: their own metrics are gone when they are down.
    """

    def leading() -> Iterable[Sample]:
        return [] if rebalancer is None else [((), int(rebalancer.connected))]

    return [
        gauge("evenq_broker_nameservers", "nameservers").value(
            lambda: len(cluster.nameservers), "Nameservers that this broker is configured with."
        ),
        gauge("evenq_broker_nameservers_answering", "nameservers").value(
            lambda: cluster.nameservers_answering, "Nameservers that send this broker their routes now."
        ),
        gauge("evenq_broker_rebalancer_answers", "rebalancers").series(
            leading,
            "1 while a leading rebalancer accepts this broker's reports; no series without a rebalancer.",
        ),
        gauge("evenq_broker_missing_peers", "brokers", "missing").series(
            lambda: [((one.name,), 1) for one in cluster.known.brokers.missing()],
            "1 for each missing broker: this broker knows it, and it was not drained and read to the end.",
        ),
        gauge("evenq_broker_unconfirmed_changes", "changes", "waiting").series(
            lambda: [((name,), count) for name, count in change_sender.unconfirmed.waiting().items()],
            "Changes of topics and groups that this broker will send to the broker `waiting` when it is back.",
        ),
        *disk_metrics(lambda: ledger.store.usage, lambda: ledger.store.free_min_bytes),
        gauge("evenq_store_refuses_messages", "brokers").value(
            lambda: int(ledger.store.full is not None),
            "1 while the broker refuses messages because its disk has too little free space.",
        ),
    ]


def disk_metrics(usage: Callable[[], Usage | None], free_min_bytes: Callable[[], int]) -> list[Metric]:
    """Returns the metrics of the disk with the store, or a copy of its log. No series while `usage` is unknown."""

    def of(measure: Callable[[Usage], int]) -> Callable[[], Iterable[Sample]]:
        return lambda: [] if (seen := usage()) is None else [((), measure(seen))]

    return [
        gauge("evenq_store_disk_used_bytes", "bytes").series(
            of(lambda seen: seen.total - seen.free), "Used space of the disk that holds the store, by all files on it."
        ),
        gauge("evenq_store_disk_free_bytes", "bytes").series(
            of(lambda seen: seen.free), "Free space of the disk that holds the store."
        ),
        gauge("evenq_store_disk_free_min_bytes", "bytes").series(
            of(lambda _: free_min_bytes()),
            "Free space below which the broker refuses messages; a follower would refuse them if it led.",
        ),
    ]


def follower_disk_metrics(disk: FollowerDisk, options: StoreOptions) -> list[Metric]:
    """Returns the disk metrics of a copy that follows: it has no store."""
    return disk_metrics(
        lambda: disk.usage, lambda: 0 if disk.usage is None else volume.free_min_bytes(options, disk.usage)
    )


def span_metrics(*, span_export: SpanExport | None, span_follower: SpanFollower | None) -> list[Metric]:
    """Returns the metrics of the spans that the broker exports; no series without `tracing.otlp_endpoint`."""

    def results() -> Iterable[Sample]:
        if span_export is not None:
            yield ("exported",), span_export.exported
            yield ("failed",), span_export.failed
            yield ("dropped",), span_export.dropped

    return [
        counter("evenq_broker_spans_total", "spans", "result").series(
            results,
            "Spans of messages: accepted by the collector, lost in a call that failed, or dropped because the queue "
            "was full.",
        ),
        gauge("evenq_broker_spans_waiting", "spans").series(
            lambda: [] if span_export is None else [((), len(span_export))], "Spans that wait for the collector."
        ),
        counter("evenq_broker_span_events_missed_total", "events").series(
            lambda: [] if span_follower is None else [((), span_follower.missed)],
            "Messages and records of deliveries that were too many to make spans of; raise trace_bytes.",
        ),
    ]
