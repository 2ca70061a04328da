"""The metrics of one copy of a broker group, leader or not. Read at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq.serving.program.metrics import Metric, MetricKind
from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role
from evenq_broker.loops.replication.record_repair import RecordRepair

__all__ = ["replication_metrics"]


def replication_metrics(
    replica: Replica,
    view: Callable[[], ReplicaGroupView],
    *,
    replay_lag: Callable[[], int] = lambda: 0,
    messages_out: Callable[[], int] = lambda: 0,
    repair: RecordRepair | None = None,
    reaches_record: Callable[[], bool] = lambda: True,
) -> list[Metric]:
    """What an operator of a replicated group looks at. `view`: the group as this copy knows it now; `replay_lag`: of
    `FollowerReplay`; `messages_out`: of `FollowerReads`; `repair`: of damaged records; `reaches_record`: of the driver.
    """
    gauge = MetricKind.GAUGE
    return [
        Metric(
            name="evenq_broker_replica_role", kind=gauge, unit="", labels=("role",),
            help="1 for the role that this copy has: ready is a leader that serves, fetching a follower that copies.",
            read=lambda: [((role.value,), int(replica.role is role)) for role in Role],
        ),
        _member(replica),
        _record(reaches_record),
        Metric(
            name="evenq_broker_replica_epoch", kind=gauge, unit="", labels=(),
            help="Epoch of the broker group in which this copy acts.", read=lambda: [((), replica.max_epoch)],
        ),
        Metric(
            name="evenq_broker_replica_leader", kind=gauge, unit="", labels=(),
            help="Broker id of the group's leader, as far as this copy knows; -1 if unknown.",
            read=lambda: [((), replica.leader_id())],
        ),
        Metric(
            name="evenq_broker_replicas", kind=gauge, unit="copies", labels=(),
            help="Copies of the group, including those that are down.", read=lambda: [((), len(view().copies))],
        ),
        Metric(
            name="evenq_broker_replicas_in_sync", kind=gauge, unit="copies", labels=(),
            help="Copies in sync, including this one: they have every committed record and keep up; a follower counts "
            "those that answer it.",
            read=lambda: [((), view().in_sync)],
        ),
        Metric(
            name="evenq_broker_replicas_in_sync_min", kind=gauge, unit="copies", labels=(),
            help="Copies that must be in sync; with fewer the leader accepts no writes.",
            read=lambda: [((), 0 if replica.record is None else replica.record.min_isr)],
        ),
        Metric(
            name="evenq_broker_replica_log_end", kind=gauge, unit="bytes", labels=(),
            help="Log offset after the last record of this copy.", read=lambda: [((), replica.end)],
        ),
        Metric(
            name="evenq_broker_replica_committed_end", kind=gauge, unit="bytes", labels=(),
            help="Log offset up to which the log is committed, as far as this copy knows.",
            read=lambda: [((), replica.hw)],
        ),
        *_lags(replica, view),
        *_unclean(replica),
        *_of_follower(replay_lag, messages_out),
        *_of_repair(repair),
    ]  # fmt: skip


def _lags(replica: Replica, view: Callable[[], ReplicaGroupView]) -> list[Metric]:
    gauge = MetricKind.GAUGE
    return [
        Metric(
            name="evenq_broker_replica_lag", kind=gauge, unit="bytes", labels=("broker_id",),
            help="At the leader: bytes of the log that each other copy has not confirmed yet.",
            read=lambda: [((str(one.copy),), one.lag_bytes) for one in _others(replica, view()) if one.lag_bytes >= 0],
        ),
        Metric(
            name="evenq_broker_replica_lag_seconds", kind=gauge, unit="seconds", labels=("broker_id",),
            help="At the leader: how long each other copy that answers has been behind; 0 if it is not.",
            read=lambda: [
                ((str(one.copy),), one.lag_ms / 1000)
                for one in _others(replica, view())
                if one.lag_ms >= 0 and one.state is not CopyState.AWAY
            ],
        ),
    ]  # fmt: skip


def _unclean(replica: Replica) -> list[Metric]:
    def newest_seconds() -> float:
        unclean = () if replica.record is None else replica.record.unclean
        return unclean[-1].time_ms / 1000 if unclean else 0.0

    return [
        Metric(
            name="evenq_broker_unclean_elections", kind=MetricKind.GAUGE, unit="", labels=(),
            help="Times that an operator let a copy lead that may have lacked acknowledged messages, by the record, "
            "4 at most.",
            read=lambda: [((), 0 if replica.record is None else len(replica.record.unclean))],
        ),
        Metric(
            name="evenq_broker_unclean_election_timestamp_seconds", kind=MetricKind.GAUGE, unit="seconds", labels=(),
            help="When that was done last, seconds since the epoch of time; 0: never.",
            read=lambda: [((), newest_seconds())],
        ),
    ]  # fmt: skip


def _of_follower(replay_lag: Callable[[], int], messages_out: Callable[[], int]) -> list[Metric]:
    return [
        Metric(
            name="evenq_broker_replica_replay_lag", kind=MetricKind.GAUGE, unit="bytes", labels=(),
            help="At a follower: committed bytes of the log that it would read before it could serve as the leader.",
            read=lambda: [((), replay_lag())],
        ),
        Metric(
            name="evenq_broker_replica_messages_out_total", kind=MetricKind.COUNTER, unit="messages", labels=(),
            help="Messages that this copy gave to readers that take any copy, while it followed.",
            read=lambda: [((), messages_out())],
        ),
    ]  # fmt: skip


def _of_repair(repair: RecordRepair | None) -> list[Metric]:
    return [
        Metric(
            name="evenq_broker_replica_records_repaired_total", kind=MetricKind.COUNTER, unit="records", labels=(),
            help="Records of this copy's log that its disk had damaged, replaced by another copy's.",
            read=lambda: [((), repair.records_repaired if repair is not None else 0)],
        ),
        Metric(
            name="evenq_broker_replica_repairs_failed_total", kind=MetricKind.COUNTER, unit="repairs", labels=(),
            help="Damaged parts of this copy's log that no other copy could replace; each try counts.",
            read=lambda: [((), repair.parts_failed if repair is not None else 0)],
        ),
    ]  # fmt: skip


def _member(replica: Replica) -> Metric:
    return Metric(
        name="evenq_broker_replica_member",
        kind=MetricKind.GAUGE,
        unit="",
        labels=(),
        help="1 while the group record has this copy; 0: it was removed, or not added yet.",
        read=lambda: [((), int(replica.record is not None and replica.config.broker_id in replica.record.members))],
    )


def _record(reaches_record: Callable[[], bool]) -> Metric:
    return Metric(
        name="evenq_broker_replica_record_reachable",
        kind=MetricKind.GAUGE,
        unit="",
        labels=(),
        help="0 while the place of the group record (a Lease, a key of etcd) does not answer this copy: the leader "
        "goes on, and no other copy can be elected.",
        read=lambda: [((), int(reaches_record()))],
    )


def _others(replica: Replica, view: ReplicaGroupView) -> Iterable[CopyView]:
    return [one for one in view.copies if one.copy != view.told_by] if replica.leads else []
