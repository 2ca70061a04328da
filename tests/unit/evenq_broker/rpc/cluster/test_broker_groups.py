"""MoveLeader and what DescribeCluster says of copies, through any broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evenq_broker.core.replication.actions import HandedOver
from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView
from evenq_broker.core.replication.membership import AddCopy, CopyChange, RemoveCopy, SetMinimum
from evenq_proofs.fake_registry import FakeRegistry

from evenq.errors import BadRequest, ConnectionFailed, NotFound, PreconditionFailed
from evenq.wire.stubs.evenq.v1 import admin_pb2

Move = admin_pb2.MoveLeaderRequest


class Control:
    """A group of two in epoch 4."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []
        self.changes: list[CopyChange] = []
        self.error: Exception | None = None

    def view(self) -> ReplicaGroupView:
        copies = tuple(
            CopyView(copy=number, address="", state=state, may_lead=True)
            for number, state in enumerate((CopyState.LEADER, CopyState.IN_SYNC))
        )
        return ReplicaGroupView(
            broker_name="b", mode="sync", epoch=4, leader=0, in_sync_min=2, told_by=0, copies=copies
        )

    async def hand_over(self, to: int | None) -> HandedOver:
        self.asked.append(to)
        if self.error is not None:
            raise self.error
        return HandedOver(1, 5)

    async def change(self, change: CopyChange) -> ReplicaGroupView:
        self.changes.append(change)
        if self.error is not None:
            raise self.error
        return self.view()


async def two(stage: Any) -> Control:
    """Broker a has one copy, b leads a group."""
    stage.net.serve("ns:1", FakeRegistry().rpcs())
    a, b = await stage.broker("a", nameservers="ns:1"), await stage.broker("b", nameservers="ns:1")
    await stage.until(lambda: all(len(broker.catalog.routes.brokers()) == 2 for broker in (a, b)))
    control = Control()
    b.runtime.leadership = replace(b.runtime.leadership, group=control)
    return control


async def ask(stage: Any, request: Any, broker: str = "a") -> Any:
    return await stage.call("/evenq.v1.Admin/MoveLeader", request, admin_pb2.MoveLeaderResponse, broker=broker)


async def test_a_hand_over_goes_on_to_the_broker_that_leads_the_group(stage: Any) -> None:
    control = await two(stage)
    for broker in "ab":
        answer = await ask(stage, Move(broker_name="b", to=1), broker)
        assert (answer.leader, answer.epoch) == (1, 5)
    await ask(stage, Move(broker_name="b"))
    await ask(stage, Move(broker_name="b", to=0))
    assert control.asked == [1, 1, None, 0], "copy 0 is not the same as none named"


async def test_a_repeat_of_a_request_that_was_done_moves_nothing(stage: Any) -> None:
    control = await two(stage)
    answer = await ask(stage, Move(broker_name="b", to=1, epoch=3))
    assert (answer.leader, answer.epoch, control.asked) == (0, 4, [])
    await ask(stage, Move(broker_name="b", to=1, epoch=4))
    assert control.asked == [1]


async def test_every_refusal_says_what_there_is(stage: Any) -> None:
    control = await two(stage)
    with pytest.raises(BadRequest, match="names no broker group"):
        await ask(stage, Move())
    with pytest.raises(NotFound, match="no broker group is named 'z'; the cluster has a, b"):
        await ask(stage, Move(broker_name="z"))
    with pytest.raises(PreconditionFailed, match="broker a has one copy"):
        await ask(stage, Move(broker_name="a"))
    control.error = PreconditionFailed("copy 1 of broker group b is not in sync")
    with pytest.raises(PreconditionFailed, match="copy 1 of broker group b is not in sync"):
        await ask(stage, Move(broker_name="b", to=1))


async def test_a_leader_that_does_not_answer_is_named(stage: Any) -> None:
    control = await two(stage)
    stage.net.stop("b:8081")
    with pytest.raises(ConnectionFailed, match="the leader of broker group b did not answer"):
        await ask(stage, Move(broker_name="b", to=1))
    assert control.asked == []


async def test_the_cluster_at_a_glance_has_the_copies_of_every_broker(stage: Any) -> None:
    await two(stage)
    answer = await stage.call(
        "/evenq.v1.Admin/DescribeCluster",
        admin_pb2.DescribeClusterRequest(),
        admin_pb2.DescribeClusterResponse,
        broker="a",
    )
    reported = [(one.broker_name, one.mode, one.leader, len(one.copies)) for one in answer.broker_groups]
    assert reported == [("a", "", 0, 1), ("b", "sync", 0, 2)]


async def ask_change(stage: Any, broker: str = "a", **fields: Any) -> Any:
    request = admin_pb2.ChangeCopiesRequest(**fields)
    return await stage.call("/evenq.v1.Admin/ChangeCopies", request, admin_pb2.ChangeCopiesResponse, broker=broker)


async def test_a_change_of_the_copies_goes_on_to_the_broker_that_leads_the_group(stage: Any) -> None:
    control = await two(stage)
    answer = await ask_change(stage, broker_name="b", add=admin_pb2.NewCopy(copy=3, address="db3:1"))
    assert (answer.group.broker_name, len(answer.group.copies)) == ("b", 2)
    await ask_change(stage, "b", broker_name="b", remove=0)
    await ask_change(stage, "b", broker_name="b", in_sync_min=1)
    assert control.changes == [AddCopy(3, "db3:1"), RemoveCopy(0), SetMinimum(1)]


async def test_a_change_that_is_none_or_nobody_can_make_is_refused(stage: Any) -> None:
    control = await two(stage)
    with pytest.raises(BadRequest, match="names no change"):
        await ask_change(stage, broker_name="b")
    with pytest.raises(BadRequest, match="names no broker group"):
        await ask_change(stage, remove=1)
    with pytest.raises(BadRequest, match="copy -1"):
        await ask_change(stage, broker_name="b", add=admin_pb2.NewCopy(copy=-1, address="db3:1"))
    with pytest.raises(BadRequest, match="copy 1000000000: copies have numbers from 0 to 999999999"):
        await ask_change(stage, broker_name="b", add=admin_pb2.NewCopy(copy=1_000_000_000, address="db3:1"))
    assert control.changes == []
    with pytest.raises(PreconditionFailed, match="broker a has one copy: it is not a group of copies"):
        await ask_change(stage, broker_name="a", remove=1)
    control.error = PreconditionFailed("not in sync: copy 1")
    with pytest.raises(PreconditionFailed, match="not in sync: copy 1"):
        await ask_change(stage, broker_name="b", remove=1)


async def test_an_unclean_election_is_refused_where_there_is_a_leader_and_not_passed_on(stage: Any) -> None:
    await two(stage)
    method, answer = "/evenq.v1.Admin/ElectUnclean", admin_pb2.ElectUncleanResponse
    with pytest.raises(PreconditionFailed, match="has a leader, copy 0, in epoch 4"):
        await stage.call(method, admin_pb2.ElectUncleanRequest(broker_name="b"), answer, broker="b")
    with pytest.raises(PreconditionFailed, match="elect-unclean b --endpoint HOST:PORT"):
        await stage.call(method, admin_pb2.ElectUncleanRequest(broker_name="b"), answer, broker="a")
    with pytest.raises(PreconditionFailed, match="broker a has one copy"):
        await stage.call(method, admin_pb2.ElectUncleanRequest(broker_name="a"), answer, broker="a")
