"""The program as an object, as the quick start uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from evenq_rebalancer.app import Rebalancer, Term
from evenq_rebalancer.rpc.leader_gate import BEAT
from evenq_rebalancer.settings import RebalancerSettings
from evenq_rebalancer.stats import RebalancerStats

from evenq.errors import ConnectionFailed, PortInUse
from evenq.runtime.clock import FakeClock, SystemClock
from evenq.serving.rpc import RpcContext
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2

CONTEXT = RpcContext("m", (), "10.0.0.9:1", None)


async def test_it_starts_on_free_ports_and_leaves_them_free() -> None:
    first = Rebalancer(RebalancerSettings(port=0, metrics_port=0, drain_ms=0), clock=SystemClock())
    assert first.port == first.metrics_port == 0
    await first.start()
    assert first.port > 0
    assert first.metrics_port > 0
    taken = RebalancerSettings(port=first.port, metrics_port=-1, drain_ms=0)
    with pytest.raises(PortInUse):
        await Rebalancer(taken, clock=SystemClock()).start()
    half = RebalancerSettings(port=0, metrics_port=first.metrics_port, drain_ms=0)
    second = Rebalancer(half, clock=SystemClock())
    with pytest.raises(PortInUse):
        await second.start()
    await first.close()
    again = Rebalancer(taken, clock=SystemClock())
    await again.start()
    await again.close()


async def test_of_two_with_one_lease_the_first_serves_and_the_second_follows_when_it_goes(tmp_path: Path) -> None:
    clock, net = SystemClock(), GrpcNet()
    settings = RebalancerSettings(
        port=0,
        metrics_port=-1,
        drain_ms=0,
        lease=f"file:{tmp_path / 'lease'}",
        lease_ms=1_500,
        lease_renew_ms=1_000,
        lease_retry_ms=50,
    )
    first, second = Rebalancer(settings, clock=clock), Rebalancer(settings, clock=clock)

    async def until(rebalancer: Rebalancer) -> None:
        async with asyncio.timeout(60):
            while not rebalancer.leads():
                await clock.sleep_ms(10)

    async def ask(rebalancer: Rebalancer) -> assignment_pb2.AssignmentResponse:
        request = assignment_pb2.AssignmentRequest(group="g", topic="t", client_id="c").SerializeToString()
        address = f"127.0.0.1:{rebalancer.port}"
        answer = await net.unary(address, "/evenq.v1.Assignment/Query", request, timeout_ms=5_000)
        return assignment_pb2.AssignmentResponse.FromString(answer)

    await first.start()
    await until(first)
    await second.start()
    assert (await ask(first)).status.code == definition_pb2.OK
    async with asyncio.timeout(60):
        while f"127.0.0.1:{first.port}" not in (refused := await ask(second)).status.message:
            await clock.sleep_ms(10)
    assert refused.status.code == ConnectionFailed.code
    assert ConnectionFailed.retryable
    await first.close()
    await until(second)
    assert (await ask(second)).status.code == definition_pb2.OK
    await second.close()
    await net.close()


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
