"""`DescribeCluster` at a copy's address for the other copies, no matter which copy leads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from evenq_broker.core.replication.actions import HandedOver
from evenq_broker.core.replication.group_view import CopyState, CopyView, ReplicaGroupView
from evenq_broker.rpc.replication.copies import METHOD, copy_rpcs
from evenq_broker.runtime import Runtime
from evenq_broker.settings import BrokerSettings
from evenq_proofs.loop_net import LoopNet

from evenq.runtime.clock import FakeClock
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
