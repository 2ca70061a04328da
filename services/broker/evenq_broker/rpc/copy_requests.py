"""Checks requests to change the copies of a broker group, for `rpc.cluster` and `rpc.replication`.

A number that the group record cannot store must not reach the replica: its write could never succeed, and would block
every later write of the leader.
"""

from __future__ import annotations

from evenq.errors import BadRequest, PreconditionFailed
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.replication.group_view import CopyState, ReplicaGroupView
from evenq_broker.core.replication.membership import AddCopy, CopyChange
from evenq_broker.loops.wire.broker_groups import copy_change
from evenq_broker.replication_settings import BROKER_ID_MAX


def change_of(request: admin_pb2.ChangeCopiesRequest) -> CopyChange:
    """Returns the requested change. Raises BadRequest. The leader decides whether the group accepts it."""
    change = copy_change(request)
    if isinstance(change, AddCopy) and change.broker_id > BROKER_ID_MAX:
        raise BadRequest(f"copy {change.broker_id}: copies have numbers from 0 to {BROKER_ID_MAX}")
    return change


def check_address(change: CopyChange, view: ReplicaGroupView) -> None:
    """Raises PreconditionFailed if another copy answers at the new one's address; a silent one may be replaced."""
    if not isinstance(change, AddCopy):
        return
    for one in view.copies:
        if one.copy != change.broker_id and one.address == change.address and one.state is not CopyState.AWAY:
            raise PreconditionFailed(
                f"copy {one.copy} of broker group {view.broker_name} answers at {one.address}: copy {change.broker_id} "
                "needs an address of its own"
            )
