"""How one queue is pulled while its broker does not answer."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from evenq.client.core.process_queue import ProcessQueue
from evenq.client.core.route import Route
from evenq.client.loops.pulling import LEADERLESS_MAX_MS, Pulling
from evenq.client.loops.routes import RouteBook
from evenq.client.loops.troubles import Troubles
from evenq.client.options import PushOptions
from evenq.errors import ConnectionFailed
from evenq.model import NO_GENERATION, FilterExpression, MessageQueue, QueueOffset
from evenq.runtime.clock import FakeClock

QUEUE = MessageQueue("t", "b", 0)


class Calls:
    """A broker that is gone."""

    def __init__(self, epochs: dict[str, int]) -> None:
        self.route = Route(topic="t", writable=(), readable=(QUEUE,), addresses={"b": "b:1"}, epochs=epochs)

    async def query_route(self, _topic: str) -> Route:
        return self.route

    async def pull(self, *_: Any, **__: Any) -> None:
        raise ConnectionFailed("nobody listens")


@pytest.mark.parametrize(("epochs", "patient"), [({"b": 7}, False), ({}, True)])
def test_a_broker_group_is_asked_again_soon_and_a_broker_alone_more_and_more_seldom(
    epochs: dict[str, int], *, patient: bool
) -> None:
    """Another copy leads within seconds; a pause that has grown to seconds is a second outage for readers."""

    async def story() -> None:
        calls, clock = Calls(epochs), FakeClock()
        pulling = Pulling(
            ProcessQueue(QUEUE, QueueOffset(0), now_ms=0),
            calls=calls,  # type: ignore[arg-type]  # what a pull needs of them
            routes=RouteBook(calls, clock, refresh_ms=30_000),
            clock=clock,
            rng=random.Random(1),
            group="g",
            options=PushOptions(),
            expression=FilterExpression("*"),
            generation=lambda: NO_GENERATION,
            limits=lambda: None,  # type: ignore[arg-type,return-value]  # not looked at
            committed=lambda: 0,
            arrived=lambda _: None,
            fenced=lambda: None,
            owner=True,
            troubles=Troubles(clock, who="group g"),
        )
        pauses = [await pulling._once() for _ in range(12)]
        assert (max(pauses) > LEADERLESS_MAX_MS) is patient
        assert pauses[0] < LEADERLESS_MAX_MS, "it begins small"

    asyncio.run(story())
