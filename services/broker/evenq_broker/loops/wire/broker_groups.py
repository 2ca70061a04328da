"""Between `core.replication.group_view` and the `evenq.v1` messages of broker groups, in both directions."""

from __future__ import annotations

from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView

__all__ = ["group_message", "group_of"]

STATES = {
    CopyState.LEADER: admin_pb2.BrokerCopy.LEADER,
    CopyState.STARTING: admin_pb2.BrokerCopy.STARTING,
    CopyState.IN_SYNC: admin_pb2.BrokerCopy.IN_SYNC,
    CopyState.CATCHING_UP: admin_pb2.BrokerCopy.CATCHING_UP,
    CopyState.AWAY: admin_pb2.BrokerCopy.AWAY,
}
NAMES = {number: state for state, number in STATES.items()}


def group_message(view: ReplicaGroupView) -> admin_pb2.BrokerGroup:
    """A group, on the wire."""
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
            )
            for one in view.copies
        ],
    )


def group_of(message: admin_pb2.BrokerGroup) -> ReplicaGroupView:
    """And back; a state that is not known here is CATCHING_UP."""
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
            )
            for one in message.copies
        ),
    )
