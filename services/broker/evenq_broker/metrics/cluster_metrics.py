"""The metrics of a broker's place in the cluster and of its disk; `metrics.py` lists them with the others.

Whether nameservers and a rebalancer answer is measured by every broker, so that it is seen when they themselves are
gone and nothing scrapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq.serving.program.metrics import Metric, MetricKind, Sample
from evenq.store.io.disk import Usage
from evenq.store.log import volume
from evenq.store.log.options import StoreOptions
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.cluster.change_sender import ChangeSender
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.replication.follower_disk import FollowerDisk
from evenq_broker.loops.state.ledger import Ledger

__all__ = ["cluster_metrics", "disk_metrics", "follower_disk_metrics"]


def cluster_metrics(
    ledger: Ledger, *, cluster: ClusterLink, rebalancer: RebalancerLink | None, change_sender: ChangeSender
) -> list[Metric]:
    """What alerts of a whole cluster are made of."""
    source, gauge = _ClusterSource(ledger, cluster=cluster, rebalancer=rebalancer), MetricKind.GAUGE
    return [
        Metric(
            name="evenq_broker_nameservers", kind=gauge, unit="nameservers",
            help="Nameservers that this broker is configured with.", read=source.nameservers,
        ),
        Metric(
            name="evenq_broker_nameservers_answering", kind=gauge, unit="nameservers",
            help="Nameservers that send this broker their routes now.", read=source.nameservers_answering,
        ),
        Metric(
            name="evenq_broker_rebalancer_answers", kind=gauge, unit="rebalancers",
            help="1 while a leading rebalancer takes this broker's reports; no series without a rebalancer.",
            read=source.rebalancer,
        ),
        Metric(
            name="evenq_broker_missing_peers", kind=gauge, unit="brokers", labels=("missing",),
            help="1 for each missing broker: one that this broker knows, and that was not drained and read to the end.",
            read=source.missing,
        ),
        Metric(
            name="evenq_broker_unconfirmed_changes", kind=gauge, unit="changes", labels=("waiting",),
            help="Changes of topics and groups that this broker sends to the broker `waiting` once it is there.",
            read=lambda: [((name,), count) for name, count in change_sender.unconfirmed.waiting().items()],
        ),
        *disk_metrics(lambda: ledger.store.usage, lambda: ledger.store.free_min_bytes),
        Metric(
            name="evenq_store_refuses_messages", kind=gauge, unit="brokers",
            help="1 while the broker refuses messages because of too little space.", read=source.refuses,
        ),
    ]  # fmt: skip


def disk_metrics(usage: Callable[[], Usage | None], free_min_bytes: Callable[[], int]) -> list[Metric]:
    """Of the disk that holds the store, or a copy of its log. No series while `usage` is not known yet."""
    gauge = MetricKind.GAUGE

    def of(measure: Callable[[Usage], int]) -> Callable[[], Iterable[Sample]]:
        return lambda: [] if (seen := usage()) is None else [((), measure(seen))]

    return [
        Metric(
            name="evenq_store_disk_used_bytes", kind=gauge, unit="bytes",
            help="Used space of the disk that holds the store, by all files on it.",
            read=of(lambda seen: seen.total - seen.free),
        ),
        Metric(
            name="evenq_store_disk_free_bytes", kind=gauge, unit="bytes",
            help="Free space of the disk that holds the store.", read=of(lambda seen: seen.free),
        ),
        Metric(
            name="evenq_store_disk_free_min_bytes", kind=gauge, unit="bytes",
            help="Free space below which the broker refuses messages; a copy that follows would, if it led.",
            read=of(lambda _: free_min_bytes()),
        ),
    ]  # fmt: skip


def follower_disk_metrics(disk: FollowerDisk, options: StoreOptions) -> list[Metric]:
    """Of a copy that follows, in place of its store's."""
    return disk_metrics(
        lambda: disk.usage, lambda: 0 if disk.usage is None else volume.free_min_bytes(options, disk.usage)
    )


class _ClusterSource:
    def __init__(self, ledger: Ledger, *, cluster: ClusterLink, rebalancer: RebalancerLink | None) -> None:
        self._ledger = ledger
        self._cluster, self._rebalancer = cluster, rebalancer

    def nameservers(self) -> Iterable[Sample]:
        return [((), len(self._cluster.nameservers))]

    def nameservers_answering(self) -> Iterable[Sample]:
        return [((), self._cluster.nameservers_answering)]

    def rebalancer(self) -> Iterable[Sample]:
        link = self._rebalancer
        return [] if link is None else [((), int(link.connected))]

    def missing(self) -> Iterable[Sample]:
        return [((one.name,), 1) for one in self._cluster.known.brokers.missing()]

    def refuses(self) -> Iterable[Sample]:
        return [((), int(self._ledger.store.full is not None))]
