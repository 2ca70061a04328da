"""The program as an object, as the quick start uses it."""

from __future__ import annotations

import asyncio

import pytest
from evenq_rebalancer.app import Rebalancer
from evenq_rebalancer.settings import Settings

from evenq.errors import PortInUse
from evenq.runtime.clock import SystemClock


def test_it_starts_on_free_ports_and_leaves_them_free() -> None:
    async def story() -> None:
        first = Rebalancer(Settings(port=0, metrics_port=0, drain_ms=0), clock=SystemClock())
        assert first.port == first.metrics_port == 0
        await first.start()
        assert first.port > 0
        assert first.metrics_port > 0
        taken = Settings(port=first.port, metrics_port=-1, drain_ms=0)
        with pytest.raises(PortInUse):
            await Rebalancer(taken, clock=SystemClock()).start()
        half = Settings(port=0, metrics_port=first.metrics_port, drain_ms=0)
        second = Rebalancer(half, clock=SystemClock())
        with pytest.raises(PortInUse):
            await second.start()
        await first.close()
        again = Rebalancer(taken, clock=SystemClock())
        await again.start()
        await again.close()

    asyncio.run(story())
