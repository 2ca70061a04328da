"""The metrics of one copy of a broker group, leader or not. Read at a scrape."""

from __future__ import annotations

from collections.abc import Iterable

from evenq.serving.metrics import Metric, MetricKind, Sample
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role

__all__ = ["replication_metrics"]


def replication_metrics(replica: Replica) -> list[Metric]:
    """What an operator of a replicated group looks at."""
    gauge = MetricKind.GAUGE
    return [
        Metric(
            name="evenq_broker_replica_role", kind=gauge, unit="", labels=("role",),
            help="1 for the role that this copy has: ready is a leader that serves, fetching a follower that copies.",
            read=lambda: [((role.value,), int(replica.role is role)) for role in Role],
        ),
        Metric(
            name="evenq_broker_replica_epoch", kind=gauge, unit="", labels=(),
            help="Epoch of the group that this copy acts in.", read=lambda: [((), replica.max_epoch)],
        ),
        Metric(
            name="evenq_broker_replica_leader", kind=gauge, unit="", labels=(),
            help="Broker id of the group's leader, as far as known here; -1 if it is not.",
            read=lambda: [((), replica.leader_id())],
        ),
        Metric(
            name="evenq_broker_replicas_in_sync", kind=gauge, unit="copies", labels=(),
            help="Copies that have every committed record, this one too if it has.",
            read=lambda: [((), 0 if replica.record is None else len(replica.record.isr))],
        ),
        Metric(
            name="evenq_broker_replicas_in_sync_min", kind=gauge, unit="copies", labels=(),
            help="With fewer copies in sync nothing is taken.",
            read=lambda: [((), 0 if replica.record is None else replica.record.min_isr)],
        ),
        Metric(
            name="evenq_broker_replica_log_end", kind=gauge, unit="bytes", labels=(),
            help="Log offset behind the last record of this copy.", read=lambda: [((), replica.end)],
        ),
        Metric(
            name="evenq_broker_replica_committed_end", kind=gauge, unit="bytes", labels=(),
            help="Log offset below which all is committed, as far as known here.", read=lambda: [((), replica.hw)],
        ),
        Metric(
            name="evenq_broker_replica_lag", kind=gauge, unit="bytes", labels=("broker_id",),
            help="At the leader: what each other copy has not confirmed yet.", read=lambda: _lags(replica),
        ),
    ]  # fmt: skip


def _lags(replica: Replica) -> Iterable[Sample]:
    if not replica.leads:
        return []
    own = replica.config.broker_id
    newest: dict[int, int] = {}
    for pair, end in replica.acks.items():
        if pair.broker_id != own:
            newest[pair.broker_id] = max(end, newest.get(pair.broker_id, 0))
    return [((str(broker_id),), replica.end - end) for broker_id, end in sorted(newest.items())]
