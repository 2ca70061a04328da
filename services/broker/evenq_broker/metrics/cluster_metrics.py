"""Metrics of a broker's connections in the cluster and of its disk.

Every broker measures whether nameservers and rebalancers answer: their own metrics are gone when they are down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq.serving.program.metrics import Metric, Sample, gauge
from evenq.store.io.disk import Usage
from evenq.store.log import volume
from evenq.store.log.options import StoreOptions
from evenq_broker.loops.assignment.rebalancer_link import RebalancerLink
from evenq_broker.loops.cluster.change_sender import ChangeSender
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.replication.follower_disk import FollowerDisk
from evenq_broker.loops.state.ledger import Ledger


def cluster_metrics(
    ledger: Ledger, *, cluster: ClusterLink, rebalancer: RebalancerLink | None, change_sender: ChangeSender
) -> list[Metric]:
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
