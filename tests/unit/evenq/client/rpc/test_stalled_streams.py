"""Readers of long streams: a broker that sends nothing more is given up, and named."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from evenq.client.backup_source import BackupSource
from evenq.client.core.admin.backup_views import BackupWish
from evenq.client.core.reading.extents import QueueExtent
from evenq.client.rpc import backup
from evenq.client.topic_source import STALL_MS, TopicSource
from evenq.client.wiring import ClientContext
from evenq.errors import RequestTimeout
from evenq.model import MessageQueue
from evenq.runtime.clock import FakeClock


class SilentNet:
    """Accepts each stream and sends nothing."""

    def __init__(self) -> None:
        self.open = 0

    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        self.open += 1
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            self.open -= 1

    async def close(self) -> None:
        pass


def records(context: ClientContext) -> AsyncIterator[object]:
    extent = QueueExtent(queue=MessageQueue("orders", "a", 3), address="host:1", low=0, high=9, uid="u")
    return TopicSource(context=context).scan(extent, 0, 9, verifies=True)


def pieces(context: ClientContext) -> AsyncIterator[object]:
    return BackupSource(context=context).fetch(BackupWish(broker_name="a"))


@pytest.mark.parametrize(
    ("read", "stall_ms", "silence"),
    [
        (records, STALL_MS, "broker a sent nothing of orders"),
        (pieces, backup.STALL_MS, "broker a sent no part of its backup"),
    ],
)
async def test_a_broker_that_sends_nothing_is_given_up(
    read: Callable[[ClientContext], AsyncIterator[object]], stall_ms: int, silence: str
) -> None:
    clock, net = FakeClock(), SilentNet()
    frames = read(ClientContext(clock=clock, rng=random.Random(1), net=net))  # type: ignore[arg-type]
    waiting = asyncio.ensure_future(anext(frames))  # type: ignore[arg-type]
    await clock.advance(stall_ms - 1)
    assert (net.open, waiting.done()) == (1, False)
    await clock.advance(1)
    with pytest.raises(RequestTimeout, match=silence):
        await asyncio.wait_for(waiting, 60)
    assert not net.open
