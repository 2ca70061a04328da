"""The metrics of a broker's place in the cluster and of its disk; `metrics.py` lists them with the others.

Whether nameservers and a rebalancer answer is measured by every broker, so that it is seen when they themselves are
gone and nothing scrapes them.
"""

from __future__ import annotations

from collections.abc import Iterable

from evenq.serving.metrics import Metric, MetricKind, Sample
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.ledger import Ledger

__all__ = ["cluster_metrics"]


def cluster_metrics(ledger: Ledger, *, cluster: ClusterLink, rebalancer: RebalancerLink | None) -> list[Metric]:
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
            name="evenq_store_disk_used_bytes", kind=gauge, unit="bytes",
            help="Used space of the disk that holds the store, by all files on it.", read=source.disk_used,
        ),
        Metric(
            name="evenq_store_disk_free_bytes", kind=gauge, unit="bytes",
            help="Free space of the disk that holds the store.", read=source.disk_free,
        ),
        Metric(
            name="evenq_store_disk_free_min_bytes", kind=gauge, unit="bytes",
            help="Free space below which the broker refuses messages.", read=source.disk_free_min,
        ),
        Metric(
            name="evenq_store_refuses_messages", kind=gauge, unit="brokers",
            help="1 while the broker refuses messages because of too little space.", read=source.refuses,
        ),
    ]  # fmt: skip


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

    def disk_used(self) -> Iterable[Sample]:
        usage = self._ledger.store.usage
        return [((), usage.total - usage.free)]

    def disk_free(self) -> Iterable[Sample]:
        return [((), self._ledger.store.usage.free)]

    def disk_free_min(self) -> Iterable[Sample]:
        return [((), self._ledger.store.free_min_bytes)]

    def refuses(self) -> Iterable[Sample]:
        return [((), int(self._ledger.store.full is not None))]
