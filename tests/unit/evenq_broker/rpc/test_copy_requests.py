"""What is asked of the copies of a group is checked where it comes in."""

from __future__ import annotations

from typing import Any

import pytest
from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView
from evenq_broker.core.replication.membership import AddCopy, RemoveCopy, SetMinimum
from evenq_broker.replication_settings import BROKER_ID_MAX
from evenq_broker.rpc.copy_requests import change_of, check_address

from evenq.errors import BadRequest, PreconditionFailed
from evenq.wire.stubs.evenq.v1 import admin_pb2


def request(**fields: Any) -> admin_pb2.ChangeCopiesRequest:
    return admin_pb2.ChangeCopiesRequest(broker_name="b", **fields)


def group(*states: CopyState) -> ReplicaGroupView:
    copies = tuple(
        CopyView(copy=number, address=f"db{number}:1", state=state, may_lead=True)
        for number, state in enumerate(states)
    )
    return ReplicaGroupView(broker_name="b", mode="sync", epoch=4, leader=0, in_sync_min=2, told_by=0, copies=copies)


def test_a_number_that_the_group_record_cannot_hold_is_refused() -> None:
    highest = admin_pb2.NewCopy(copy=BROKER_ID_MAX, address="db3:1")
    assert change_of(request(add=highest)) == AddCopy(BROKER_ID_MAX, "db3:1")
    for number in (-1, BROKER_ID_MAX + 1):
        with pytest.raises(BadRequest, match=f"copy {number}: copies have numbers from 0 to 999999999"):
            change_of(request(add=admin_pb2.NewCopy(copy=number, address="db3:1")))


def test_a_new_copy_gets_no_address_at_which_another_one_answers() -> None:
    view = group(CopyState.LEADER, CopyState.CATCHING_UP, CopyState.AWAY)
    for taken in (0, 1):
        with pytest.raises(PreconditionFailed, match=f"copy {taken} of broker group b answers at db{taken}:1: copy 3"):
            check_address(AddCopy(3, f"db{taken}:1"), view)
    check_address(AddCopy(3, "db2:1"), view)  # what was there is gone, and copy 3 takes its place
    check_address(AddCopy(1, "db1:1"), view)  # a repeat


def test_other_changes_have_no_address() -> None:
    view = group(CopyState.LEADER, CopyState.IN_SYNC)
    for change in (RemoveCopy(1), SetMinimum(1)):
        check_address(change, view)
