"""A term of leadership: its engine and streams, from beginning to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from evenq_rebalancer.rpc.leader_gate import BEAT
from evenq_rebalancer.settings import RebalancerSettings
from evenq_rebalancer.stats import RebalancerStats
from evenq_rebalancer.term import Term

from evenq.runtime.clock import FakeClock
from evenq.serving.rpc import RpcContext
from evenq.wire.stubs.evenq.v1 import assignment_pb2

CONTEXT = RpcContext("m", (), "10.0.0.9:1", None)


async def test_it_decides_beats_while_nothing_happens_and_ends_its_streams() -> None:
    clock, leads, result = FakeClock(), [True], []
    term = Term(7, RebalancerSettings(warm_up_ms=0), clock=clock, stats=RebalancerStats(), leads=lambda: leads[0])
    term.start()
    go_on = asyncio.Event()

    async def reports() -> AsyncIterator[bytes]:
        report = assignment_pb2.BrokerReport(broker_name="b", full=True)
        report.topics.add(name="T", read_queues=2)
        facts = report.groups.add(group="g", strategy="AVG")
        facts.members.add(client_id="c").subscriptions.add(topic="T")
        yield report.SerializeToString()
        await go_on.wait()

    async def follow() -> None:
        handler: Any = term.rpcs["/evenq.v1.Assignment/Report"].handler
        result.extend([frame async for frame in handler(reports(), CONTEXT)])

    following = asyncio.ensure_future(follow())
    await clock.advance(100)
    assert [(d.group, d.topic, d.generation.epoch) for d in term.engine.decisions()] == [("g", "T", 7)]
    await clock.advance(2_000)
    term.end()
    await following
    assert assignment_pb2.Decision.FromString(result[0]).group == "g"
    assert set(result[1:]) == {BEAT}
    go_on.set()
