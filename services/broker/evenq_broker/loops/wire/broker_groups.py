"""Conversions between `core.replication.group_view` and the `evenq.v1` messages of broker groups."""

from __future__ import annotations

from evenq.errors import BadRequest
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.replication.group_view import UNKNOWN, CopyState, CopyView, ReplicaGroupView
from evenq_broker.core.replication.membership import AddCopy, CopyChange, RemoveCopy, SetMinimum
from evenq_broker.core.replication.record import Pair, UncleanElection
from evenq_broker.core.replication.unclean import LostPair

STATES = {
    CopyState.LEADER: admin_pb2.BrokerCopy.LEADER,
    CopyState.STARTING: admin_pb2.BrokerCopy.STARTING,
    CopyState.IN_SYNC: admin_pb2.BrokerCopy.IN_SYNC,
    CopyState.CATCHING_UP: admin_pb2.BrokerCopy.CATCHING_UP,
    CopyState.AWAY: admin_pb2.BrokerCopy.AWAY,
}
NAMES = {number: state for state, number in STATES.items()}


def group_message(view: ReplicaGroupView) -> admin_pb2.BrokerGroup:
    """Returns the wire form of a group."""
    return admin_pb2.BrokerGroup(
        broker_name=view.broker_name,
        mode=view.mode,
        epoch=view.epoch,
        leader=view.leader,
        in_sync_min=view.in_sync_min,
        told_by=view.told_by,
        copies=[
            admin_pb2.BrokerCopy(
                copy=one.copy,
                address=one.address,
                state=STATES[one.state],
                may_lead=one.may_lead,
                log_end=one.log_end,
                lag_bytes=one.lag_bytes,
                lag_ms=one.lag_ms,
                away_since_ms=one.away_since_ms,
                committed_end=one.committed_end,
                log_epoch=one.log_epoch,
            )
            for one in view.copies
        ],
        unclean=map(election_message, view.unclean),
    )


def election_message(election: UncleanElection) -> admin_pb2.UncleanElection:
    """Returns the wire form of an unclean election."""
    return admin_pb2.UncleanElection(
        epoch=election.epoch,
        copy=election.broker_id,
        store_id=election.store_id,
        time_ms=election.time_ms,
        log_end=election.log_end,
        lost=[admin_pb2.LostPair(copy=pair.broker_id, store_id=pair.store_id) for pair in election.lost],
        reason=election.reason,
    )


def lost_message(pair: LostPair) -> admin_pb2.LostPair:
    """Returns the wire form of a copy that may lead by the record."""
    return admin_pb2.LostPair(copy=pair.broker_id, store_id=pair.store_id, away_since_ms=pair.away_since_ms)


def _election_of(message: admin_pb2.UncleanElection) -> UncleanElection:
    return UncleanElection(
        epoch=message.epoch,
        broker_id=message.copy,
        store_id=message.store_id,
        time_ms=message.time_ms,
        log_end=message.log_end,
        lost=tuple(Pair(pair.copy, pair.store_id) for pair in message.lost),
        reason=message.reason,
    )


def group_of(message: admin_pb2.BrokerGroup) -> ReplicaGroupView:
    """Returns the group of a message; a state that is not known here is CATCHING_UP."""
    return ReplicaGroupView(
        broker_name=message.broker_name,
        mode=message.mode,
        epoch=message.epoch,
        leader=message.leader,
        in_sync_min=message.in_sync_min,
        told_by=message.told_by,
        copies=tuple(
            CopyView(
                copy=one.copy,
                address=one.address,
                state=NAMES.get(one.state, CopyState.CATCHING_UP),
                may_lead=one.may_lead,
                log_end=one.log_end,
                lag_bytes=one.lag_bytes,
                lag_ms=one.lag_ms,
                away_since_ms=one.away_since_ms,
                committed_end=one.committed_end if one.HasField("committed_end") else UNKNOWN,
                log_epoch=one.log_epoch if one.HasField("log_epoch") else UNKNOWN,
            )
            for one in message.copies
        ),
        unclean=tuple(map(_election_of, message.unclean)),
    )


def copy_change(request: admin_pb2.ChangeCopiesRequest) -> CopyChange:
    """Returns the requested change. Raises BadRequest; the group's leader checks whether it is possible."""
    match request.WhichOneof("change"):
        case "add":
            if request.add.copy < 0:
                raise BadRequest(f"copy {request.add.copy}: copies have numbers from 0 to 999999999")
            return AddCopy(request.add.copy, request.add.address)
        case "remove":
            return RemoveCopy(request.remove)
        case "in_sync_min":
            return SetMinimum(request.in_sync_min)
        case _:
            raise BadRequest("the request names no change: a copy to add or to remove, or how many must be in sync")
