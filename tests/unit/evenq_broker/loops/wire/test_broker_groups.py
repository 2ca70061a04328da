"""Broker groups on the wire and back."""

from __future__ import annotations

from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView
from evenq_broker.loops.wire.broker_groups import group_message, group_of


def test_a_group_comes_back_as_it_was() -> None:
    copies = tuple(
        CopyView(
            copy=number, address=f"h:{number}", state=state, may_lead=number % 2 == 0, log_end=number - 1,
            lag_bytes=10 + number, lag_ms=20 + number, away_since_ms=30 + number,
        )
        for number, state in enumerate(CopyState)
    )  # fmt: skip
    view = ReplicaGroupView(broker_name="g", mode="memory", epoch=7, leader=-1, in_sync_min=2, told_by=1, copies=copies)
    assert group_of(group_message(view)) == view


def test_a_state_that_a_newer_copy_tells_counts_as_catching_up() -> None:
    view = ReplicaGroupView(
        broker_name="g", mode="sync", epoch=7, leader=0, in_sync_min=2, told_by=1,
        copies=(CopyView(copy=0, address="", state=CopyState.LEADER, may_lead=True),),
    )  # fmt: skip
    message = group_message(view)
    message.copies[0].state = 99  # type: ignore[assignment]  # of a newer version
    assert group_of(message).copies[0].state is CopyState.CATCHING_UP
