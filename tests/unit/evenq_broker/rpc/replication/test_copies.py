"""`DescribeCluster` at a copy's address for the other copies, no matter which copy leads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from evenq_broker.core.replication.actions import HandedOver
from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView
from evenq_broker.core.replication.membership import CopyChange, SetMinimum
from evenq_broker.core.replication.record import Pair, UncleanElection
from evenq_broker.core.replication.unclean import LostPair, UncleanOrder, UncleanPlan
from evenq_broker.rpc.replication.copies import METHOD, copy_rpcs
from evenq_broker.runtime import Runtime
from evenq_broker.settings import BrokerSettings
from evenq_proofs.loop_net import LoopNet

from evenq.errors import BadRequest, ConnectionFailed, PreconditionFailed
from evenq.runtime.clock import FakeClock
from evenq.wire.status import check
from evenq.wire.stubs.evenq.v1 import admin_pb2


def view(own: int, *, leader: int = -1, epoch: int = 3, name: str = "broker-a") -> ReplicaGroupView:
    """Of a copy that reaches no other."""
    copies = tuple(
        CopyView(
            copy=number, address=f"host-{number}:1", may_lead=True, log_end=100 + number if number == own else -1,
            state=(CopyState.LEADER if leader == own else CopyState.IN_SYNC) if number == own else CopyState.AWAY,
            away_since_ms=0 if number == own else 50,
        )
        for number in range(3)
    )  # fmt: skip
    return ReplicaGroupView(
        broker_name=name, mode="sync", epoch=epoch, leader=leader, in_sync_min=2, told_by=own, copies=copies
    )


class Control:
    def __init__(self, result: ReplicaGroupView) -> None:
        self.result = result

    def view(self) -> ReplicaGroupView:
        return self.result

    async def hand_over(self, to: int | None) -> HandedOver:
        raise AssertionError(f"nobody asked for {to}")


def asked(
    views: list[ReplicaGroupView], *, local: bool = False, spoil: Callable[[LoopNet], None] = lambda _: None
) -> Any:
    """What the first of these copies answers."""

    async def main() -> Any:
        clock = FakeClock()
        net = LoopNet(clock)
        for one in views:
            settings = BrokerSettings(broker_name="broker-a", cluster="c")
            runtime = Runtime(settings, clock=clock, rng=random.Random(1), net=net)
            net.serve(f"host-{one.told_by}:1", copy_rpcs(runtime, Control(one)))
        spoil(net)
        request = admin_pb2.DescribeClusterRequest(local=local).SerializeToString()
        task = asyncio.ensure_future(
            net.unary(f"host-{views[0].told_by}:1", METHOD, request, timeout_ms=5_000, metadata={})
        )
        await clock.until(task.done)
        response = admin_pb2.DescribeClusterResponse.FromString(await task)
        assert (response.status.code, response.cluster, len(response.brokers)) == (20000, "c", 0)
        (group,) = response.broker_groups
        return group

    return asyncio.run(main())


def test_without_a_leader_each_copy_that_answers_tells_of_itself() -> None:
    group = asked([view(1), view(2)])
    assert group.leader == -1
    assert [(one.state, one.lag_bytes, one.away_since_ms) for one in group.copies] == [
        (admin_pb2.BrokerCopy.AWAY, -1, 50),
        (admin_pb2.BrokerCopy.IN_SYNC, 1, 0),
        (admin_pb2.BrokerCopy.IN_SYNC, 0, 0),
    ]


def test_the_leader_is_believed_whoever_is_asked() -> None:
    assert asked([view(1), view(0, leader=0), view(2)]).told_by == 0


def test_a_leader_of_a_lower_epoch_is_not() -> None:
    group = asked([view(1, epoch=4), view(0, leader=0, epoch=3)])
    assert (group.told_by, group.leader, group.epoch) == (1, -1, 4)


def test_another_copy_asks_for_what_this_one_knows_alone() -> None:
    group = asked([view(1), view(2)], local=True)
    assert [one.state for one in group.copies] == [5, 3, 5]


def test_an_address_that_leads_to_another_group_by_now_does_not_count() -> None:
    stranger = replace(view(2), broker_name="broker-b")
    assert [one.state for one in asked([view(1), stranger]).copies] == [5, 3, 5]


# Unclean elections, and changes of the copies while nobody serves.


class Electable(Control):
    """A copy that is not in sync, of a group whose copy 0 is gone."""

    def __init__(self, own: int, *, refusal: str = "") -> None:
        gone = CopyView(copy=0, address="host-0:1", may_lead=True, state=CopyState.AWAY, away_since_ms=50)
        copies = (gone, *(
            CopyView(copy=number, address=f"host-{number}:1", may_lead=False, log_end=number, log_epoch=3,
                     state=CopyState.CATCHING_UP if number == own else CopyState.AWAY)
            for number in (1, 2)
        ))  # fmt: skip
        super().__init__(replace(view(own), copies=copies))
        self.refusal, self.orders, self.changes = refusal, [], []

    def unclean_plan(self, told: ReplicaGroupView, order: UncleanOrder | None) -> UncleanPlan:
        lost = (LostPair(broker_id=0, store_id="a" * 32, away_since_ms=50),)
        return UncleanPlan(group=told, lost=lost, suggested=2, refusal=self.refusal)

    async def elect_unclean(self, _: ReplicaGroupView, order: UncleanOrder) -> UncleanElection:
        self.orders.append(order)
        return UncleanElection(
            epoch=4, broker_id=order.copy, store_id="b" * 32, time_ms=7, log_end=2,
            lost=(Pair(0, "a" * 32),), reason=order.reason,
        )  # fmt: skip

    async def change(self, change: CopyChange) -> ReplicaGroupView:
        self.changes.append(change)
        return self.result


def called(controls: list[Any], method: str, request: Any, response: Any) -> Any:
    """What the first of these copies answers. Raises what its status says."""

    async def main() -> Any:
        clock = FakeClock()
        net = LoopNet(clock)
        for one in controls:
            settings = BrokerSettings(broker_name="broker-a", cluster="c")
            runtime = Runtime(settings, clock=clock, rng=random.Random(1), net=net)
            net.serve(f"host-{one.result.told_by}:1", copy_rpcs(runtime, one))
        address = f"host-{controls[0].result.told_by}:1"
        task = asyncio.ensure_future(
            net.unary(address, "/evenq.v1.Admin/" + method, request.SerializeToString(), timeout_ms=5_000, metadata={})
        )
        await clock.until(task.done)
        answer = response.FromString(await task)
        check(answer.status)
        return answer

    return asyncio.run(main())


def elected(controls: list[Any], **fields: Any) -> Any:
    request = admin_pb2.ElectUncleanRequest(**{"broker_name": "broker-a", **fields})
    return called(controls, "ElectUnclean", request, admin_pb2.ElectUncleanResponse)


def test_without_consent_the_answer_is_the_plan_and_nothing_is_done() -> None:
    one = Electable(1, refusal="why not")
    answer = elected([one, Electable(2)], copy=2)
    assert (answer.suggested, answer.refusal, answer.HasField("election"), one.orders) == (2, "why not", False, [])
    assert [(pair.copy, pair.store_id, pair.away_since_ms) for pair in answer.lost] == [(0, "a" * 32, 50)]
    assert [(copy.log_end, copy.log_epoch) for copy in answer.group.copies][1:] == [(1, 3), (2, 3)]


def test_the_copy_that_is_to_lead_does_it_whoever_is_asked() -> None:
    one, other = Electable(1), Electable(2)
    answer = elected([one, other], copy=2, accept_data_loss=True, reason="fire", epoch=3)
    assert (one.orders, other.orders) == ([], [UncleanOrder(copy=2, reason="fire", epoch=3)])
    assert (answer.election.epoch, answer.election.copy, answer.election.reason) == (4, 2, "fire")
    assert elected([one], copy=1, accept_data_loss=True).election.copy == 1


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({"broker_name": "b"}, BadRequest, "a copy of broker group broker-a, not of 'b'"),
        ({"accept_data_loss": True}, BadRequest, "names no copy"),
        ({"copy": 1, "reason": "x" * 201}, BadRequest, "has 201 characters, the limit is 200"),
        ({"copy": 9, "accept_data_loss": True}, PreconditionFailed, "copy 9 of broker group broker-a must be called"),
        ({"copy": 2, "accept_data_loss": True}, ConnectionFailed, "copy 2 of broker group broker-a at host-2:1"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        elected([Electable(1)], **fields)


def test_a_plan_with_a_refusal_is_not_carried_out() -> None:
    one = Electable(1, refusal="a leader lives")
    with pytest.raises(PreconditionFailed, match="copy 1: a leader lives"):
        elected([one], copy=1, accept_data_loss=True)
    assert one.orders == []


def test_the_minimum_is_lowered_at_the_leader_that_serves_nobody_yet() -> None:
    leader, other = Electable(2), Electable(1)
    leader.result = replace(leader.result, leader=2)
    request = admin_pb2.ChangeCopiesRequest(broker_name="broker-a", in_sync_min=1)
    called([other, leader], "ChangeCopies", request, admin_pb2.ChangeCopiesResponse)
    assert (other.changes, leader.changes) == ([], [SetMinimum(1)])


@pytest.mark.parametrize(
    ("new", "kind", "said"),
    [
        ({"copy": 1_000_000_000, "address": "host-9:1"}, BadRequest, "numbers from 0 to 999999999"),
        ({"copy": 3, "address": "host-2:1"}, PreconditionFailed, "copy 2 of broker group broker-a answers at host-2:1"),
    ],
)
def test_a_copy_that_could_never_be_reached_or_written_down_is_not_added(
    new: dict[str, Any], kind: type[Exception], said: str
) -> None:
    leader = Electable(2)
    leader.result = replace(leader.result, leader=2)
    request = admin_pb2.ChangeCopiesRequest(broker_name="broker-a", add=admin_pb2.NewCopy(**new))
    with pytest.raises(kind, match=said):
        called([leader], "ChangeCopies", request, admin_pb2.ChangeCopiesResponse)
    assert leader.changes == []
