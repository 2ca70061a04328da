"""The watcher of `evenq verify` looks at a broker where it is, not where it was."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from evenq.errors import ConnectionFailed
from evenq.runtime.clock import FakeClock
from evenq.verify.outages import Outages
from evenq.verify.running import PERIOD_MS, BrokerWatcher


class World:
    """Where the broker answers, and what is said of that."""

    def __init__(self) -> None:
        self.answers_at = "a:1"
        self.known: str | None = "a:1"
        self.asked: list[str] = []

    async def unary(
        self, address: str, method: str, request: bytes, *, timeout_ms: int, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        self.asked.append(address)
        if address != self.answers_at:
            raise ConnectionFailed("refused")
        return b""

    def stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None: ...

    async def find(self, name: str) -> str:
        assert name == "broker-a"
        if self.known is None:
            raise ConnectionFailed("nobody answers")
        return self.known


@pytest.mark.parametrize("known", [None, "", "a:1"])
async def test_a_broker_group_is_back_when_another_copy_leads_at_another_address(known: str | None) -> None:
    world, clock, outages = World(), FakeClock(), Outages()
    watcher = BrokerWatcher(world, "broker-a", "a:1", outages, clock=clock, client_id="v1", find=world.find)
    task = asyncio.ensure_future(watcher.run())
    await clock.advance(PERIOD_MS)
    assert not outages.any
    world.answers_at, world.known = "a:2", known  # nobody knows of the next leader
    await clock.advance(3 * PERIOD_MS)
    assert outages.count == 1
    world.known = "a:2"
    await clock.advance(2 * PERIOD_MS)
    assert world.asked[-1] == "a:2"
    assert outages.longest_ms(clock.now_ms() + 60_000) <= 7 * PERIOD_MS  # it is over
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
