"""Metrics of one copy of a broker group, as leader and as follower."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from evenq.serving.program.metrics import Metric, counter, gauge
from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView
from evenq_broker.core.replication.replica import Replica
from evenq_broker.core.replication.rules import Role
from evenq_broker.loops.replication.record_repair import RecordRepair
from evenq_broker.loops.replication.replica_driver import ReplicaDriver
from evenq_broker.loops.replication.replica_log import ReplicaLog


def replication_metrics(
    driver: ReplicaDriver, view: Callable[[], ReplicaGroupView], replica_log: ReplicaLog, repair: RecordRepair
) -> list[Metric]:
    """Returns the metrics. `view`: the group as this copy knows it now."""
    replica = driver.replica
    return [
        gauge("evenq_broker_replica_role", "", "role").series(
            lambda: [((role.value,), int(replica.role is role)) for role in Role],
            "1 for the role of this copy; ready = a leader that serves, fetching = a follower that copies.",
        ),
        gauge("evenq_broker_replica_member", "").value(
            lambda: int(replica.record is not None and replica.config.broker_id in replica.record.members),
            "1 while the group record contains this copy; 0 = it was removed, or not added yet.",
        ),
        gauge("evenq_broker_replica_record_reachable", "").value(
            lambda: int(driver.reaches_record),
            "0 while the place of the group record (a Lease, a key of etcd) does not answer this copy. The leader "
            "continues, but no other copy can be elected.",
        ),
        gauge("evenq_broker_replica_epoch", "").value(
            lambda: replica.max_epoch, "Epoch of the broker group in which this copy acts."
        ),
        gauge("evenq_broker_replica_leader", "").value(
            replica.group.leader_id, "Broker id of the group's leader, as far as this copy knows; -1 if unknown."
        ),
        gauge("evenq_broker_replicas", "copies").value(
            lambda: len(view().copies), "Copies of the group, including those that are down."
        ),
        gauge("evenq_broker_replicas_in_sync", "copies").value(
            lambda: view().in_sync,
            "Copies in sync, including this one: they have every committed record and keep up. A follower counts "
            "the copies that answer it.",
        ),
        gauge("evenq_broker_replicas_in_sync_min", "copies").value(
            lambda: 0 if replica.record is None else replica.record.min_isr,
            "Fewest copies in sync; with fewer, the leader accepts no writes.",
        ),
        gauge("evenq_broker_replica_log_end", "bytes").value(
            lambda: replica.log.end, "Log offset after the last record of this copy."
        ),
        gauge("evenq_broker_replica_committed_end", "bytes").value(
            lambda: replica.log.hw, "Log offset up to which the log is committed, as far as this copy knows."
        ),
        *_lags(replica, view),
        *_unclean(replica),
        *_of_follower(replica_log),
        *_of_repair(repair),
    ]


def _lags(replica: Replica, view: Callable[[], ReplicaGroupView]) -> list[Metric]:
    return [
        gauge("evenq_broker_replica_lag", "bytes", "broker_id").series(
            lambda: [((str(one.copy),), one.lag_bytes) for one in _others(replica, view()) if one.lag_bytes >= 0],
            "At the leader: bytes of the log that each other copy has not confirmed yet.",
        ),
        gauge("evenq_broker_replica_lag_seconds", "seconds", "broker_id").series(
            lambda: [
                ((str(one.copy),), one.lag_ms / 1000)
                for one in _others(replica, view())
                if one.lag_ms >= 0 and one.state is not CopyState.AWAY
            ],
            "At the leader: time for which each other copy that answers has been behind; 0 = it is not behind.",
        ),
    ]


def _unclean(replica: Replica) -> list[Metric]:
    def newest_seconds() -> float:
        unclean = () if replica.record is None else replica.record.unclean
        return unclean[-1].time_ms / 1000 if unclean else 0.0

    return [
        gauge("evenq_broker_unclean_elections", "").value(
            lambda: 0 if replica.record is None else len(replica.record.unclean),
            "Unclean elections in the group record, at most the last 4: an operator let a copy lead that may have "
            "lacked acknowledged messages.",
        ),
        gauge("evenq_broker_unclean_election_timestamp_seconds", "seconds").value(
            newest_seconds, "Time of the last unclean election, seconds since 1970-01-01 UTC; 0 = never."
        ),
    ]


def _of_follower(replica_log: ReplicaLog) -> list[Metric]:
    return [
        gauge("evenq_broker_replica_replay_lag", "bytes").value(
            lambda: replica_log.replay_lag,
            "At a follower: committed bytes of the log that it must still read before it can serve as the leader.",
        ),
        counter("evenq_broker_replica_messages_out_total", "messages").value(
            lambda: replica_log.reads.messages_out,
            "Messages that this copy delivered to readers that take any copy, while it followed.",
        ),
    ]


def _of_repair(repair: RecordRepair) -> list[Metric]:
    return [
        counter("evenq_broker_replica_records_repaired_total", "records").value(
            lambda: repair.records_repaired,
            "Damaged records of this copy's log that were replaced with those of another copy.",
        ),
        counter("evenq_broker_replica_repairs_failed_total", "repairs").value(
            lambda: repair.parts_failed,
            "Damaged parts of this copy's log that no other copy could replace; each attempt counts.",
        ),
    ]


def _others(replica: Replica, view: ReplicaGroupView) -> Iterable[CopyView]:
    return [one for one in view.copies if one.copy != view.told_by] if replica.leads else []
