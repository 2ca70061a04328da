"""A leader tells other copies of its group what lite consumers want; others, and a copy that does not lead, do not."""

from __future__ import annotations

import asyncio

import pytest
from evenq_broker.core.lite.subscriptions import LiteSet, Subscriber
from evenq_broker.loops.replication.lite_sets import METHOD
from evenq_broker.loops.wire.lite import LiteNews, ask_leader_for_lite_sets, lite_news_of
from evenq_broker.rpc.access import ACCESS
from evenq_broker.rpc.replication.lite_sets import lite_set_rpcs
from evenq_proofs.loop_net import LoopNet

from evenq.errors import BadRequest, HaNotAvailable
from evenq.runtime.clock import FakeClock
from evenq.serving.rpc import Action

ADDRESS = "host-0:8083"
NEWS = LiteNews(7, [LiteSet(Subscriber("ann", "g", "chats"), ["red"], 5)])


def answer(group: str, known: int, *, leads: bool = True) -> LiteNews:
    async def body() -> LiteNews:
        net = LoopNet(FakeClock())
        net.serve(ADDRESS, lite_set_rpcs("broker-a", lambda known: NEWS._replace(version=known + 1) if leads else None))
        request = ask_leader_for_lite_sets(group, known)
        return lite_news_of(await net.unary(ADDRESS, METHOD, request, timeout_ms=1_000))

    return asyncio.run(body())


def test_the_leader_tells_another_copy() -> None:
    version, sets = answer("broker-a", 6)
    assert version == 7
    assert [(one.subscriber, list(one.names), one.age_ms) for one in sets] == list(NEWS.sets)


def test_a_copy_of_another_group_is_refused() -> None:
    with pytest.raises(BadRequest, match="a copy of broker group broker-a, not of 'broker-b'"):
        answer("broker-b", 0)


def test_a_copy_that_does_not_lead_says_so() -> None:
    with pytest.raises(HaNotAvailable, match="does not lead"):
        answer("broker-a", 0, leads=False)


def test_it_is_for_servers_alone() -> None:
    assert ACCESS[METHOD].action is Action.INTERNAL
