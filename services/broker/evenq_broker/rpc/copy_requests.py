"""What a request to change the copies of a broker group asks for, checked where it comes in: at the leader's port for
clients, and at each copy's address for the other copies.

A number that the group record cannot hold never gets to the replica: it would wait there for a write that cannot
succeed, and keep the leader from every other one. Called by `rpc.cluster` and `rpc.replication`.
"""

from __future__ import annotations

from evenq.errors import BadRequest, PreconditionFailed
from evenq.wire.stubs.evenq.v1 import admin_pb2
from evenq_broker.core.replication.group_view import CopyState, ReplicaGroupView
from evenq_broker.core.replication.membership import AddCopy, CopyChange
from evenq_broker.loops.wire.broker_groups import copy_change
from evenq_broker.replication_settings import BROKER_ID_MAX

__all__ = ["change_of", "check_address"]


def change_of(request: admin_pb2.ChangeCopiesRequest) -> CopyChange:
    """What is to change. Raises BadRequest; whether the group can have it, its leader says."""
    change = copy_change(request)
    if isinstance(change, AddCopy) and change.broker_id > BROKER_ID_MAX:
        raise BadRequest(f"copy {change.broker_id}: copies have numbers from 0 to {BROKER_ID_MAX}")
    return change


def check_address(change: CopyChange, view: ReplicaGroupView) -> None:
    """Raises PreconditionFailed if another copy answers at the address of a new one: it never could. One that does not
    answer may be the one that the new one takes the place of.
    """
    if not isinstance(change, AddCopy):
        return
    for one in view.copies:
        if one.copy != change.broker_id and one.address == change.address and one.state is not CopyState.AWAY:
            raise PreconditionFailed(
                f"copy {one.copy} of broker group {view.broker_name} answers at {one.address}: copy {change.broker_id} "
                "needs an address of its own"
            )
