"""A server opens its ports with what it is given."""

from __future__ import annotations

import asyncio
from typing import Any

from evenq.runtime.clock import SystemClock
from evenq.serving.doors import open_doors, usual_places
from evenq.serving.edges import Edges
from evenq.serving.tls import TlsSettings


class Pretended:
    port = 7
    stopped = False

    async def stop(self, grace_ms: int = 0) -> None:
        self.stopped = True


def test_doors_are_opened_by_the_edges_that_were_given() -> None:
    door, asked = Pretended(), []

    async def open_door(rpcs: Any, *, host: str, port: int, clock: Any, options: Any = None) -> Any:
        asked.append((host, port, options.listener.name))
        return door

    async def body() -> None:
        places = usual_places("127.0.0.1", 0, TlsSettings())
        doors = await open_doors([], places, TlsSettings(), clock=SystemClock(), edges=Edges(open_door=open_door))
        assert doors.port == 7
        await doors.stop()

    asyncio.run(body())
    assert asked == [("127.0.0.1", 0, "default")]
    assert door.stopped
