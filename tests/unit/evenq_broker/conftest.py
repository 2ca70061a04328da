"""A broker on a net without sockets, with a clock that the test moves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.rpc import admin, data, groups, routing
from evenq_broker.settings import Settings

from evenq.model import BrokerAddress
from evenq.runtime.clock import FakeClock
from evenq.testing.loop_net import LoopNet
from evenq.wire.status import check

Story = Callable[["Stage"], Awaitable[None]]


class Stage:
    """Clock, net and the brokers on it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.net = LoopNet(self.clock)
        self.brokers: list[Broker] = []

    async def broker(self, name: str = "a", **settings: Any) -> Broker:
        told = Settings(broker_name=name, **settings)
        broker = Broker(told, clock=self.clock, rng=random.Random(name), net=self.net)
        await broker.open()
        rpcs = [rpc for module in (data, groups, admin, routing) for rpc in module.rpcs(broker)]
        self.net.serve(f"{name}:8081", rpcs)
        await self.passing(broker.start([BrokerAddress("default", name, 8081)]))
        self.brokers.append(broker)
        return broker

    async def call(self, method: str, request: Any, response: Any, broker: str = "a") -> Any:
        """One unary call while time passes; raises the error that the answer's status says."""
        told = request.SerializeToString()
        answer = response.FromString(
            await self.passing(self.net.unary(f"{broker}:8081", method, told, timeout_ms=60_000))
        )
        check(answer.status)
        return answer

    async def passing(self, work: Awaitable[Any]) -> Any:
        """The result of `work`, while time passes."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await self.clock.advance(5)
        return task.result()

    async def until(self, state: Callable[[], bool], *, limit_ms: int = 30_000) -> None:
        """Let time pass until the state holds."""
        for _ in range(limit_ms // 5):
            if state():
                return
            await self.clock.advance(5)
        raise AssertionError("the state did not come")


@pytest.fixture
def run() -> Callable[[Story], None]:
    def play(story: Story) -> None:
        async def body() -> None:
            stage = Stage()
            try:
                await story(stage)
            finally:
                for broker in stage.brokers:
                    await stage.passing(broker.close())

        asyncio.run(body())

    return play
