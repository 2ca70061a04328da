"""What a leader says of lite consumers is kept by the copies of its group, and by no others."""

from __future__ import annotations

import asyncio

import pytest
from evenq_broker.core.lite.subscriptions import LiteSet, Subscriber
from evenq_broker.loops.replication.lite_sets import METHOD
from evenq_broker.loops.wire.peers import accepted, lite_sets_for_copy
from evenq_broker.rpc.replication.replication import lite_set_rpcs
from evenq_proofs.loop_net import LoopNet

from evenq.errors import BadRequest
from evenq.runtime.clock import FakeClock
from evenq.serving.auth.calls import CALLS
from evenq.serving.rpc import Action

ADDRESS = "host-0:8083"
SETS = [LiteSet(Subscriber("ann", "g", "chats"), ["red"], 5)]


def kept_of(group: str) -> list[LiteSet]:
    kept: list[LiteSet] = []

    async def body() -> None:
        net = LoopNet(FakeClock())
        net.serve(ADDRESS, lite_set_rpcs("broker-a", kept.extend))
        accepted(await net.unary(ADDRESS, METHOD, lite_sets_for_copy(group, SETS), timeout_ms=1_000))

    asyncio.run(body())
    return [LiteSet(one.subscriber, list(one.names), one.age_ms) for one in kept]


def test_another_copy_keeps_what_the_leader_says() -> None:
    assert kept_of("broker-a") == SETS


def test_the_leader_of_another_group_is_refused() -> None:
    with pytest.raises(BadRequest, match="a copy of broker group broker-a, not of 'broker-b'"):
        kept_of("broker-b")


def test_it_is_for_servers_alone() -> None:
    assert CALLS[METHOD].access.action is Action.INTERNAL
