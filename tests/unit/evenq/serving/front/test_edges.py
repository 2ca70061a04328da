"""A server opens its ports with what it is given."""

from __future__ import annotations

import asyncio
from typing import Any

from evenq.runtime.clock import SystemClock
from evenq.serving.front.edges import Edges
from evenq.serving.front.grpc_servers import open_grpc_servers, usual_addresses
from evenq.serving.tls import TlsSettings


class Pretended:
    port = 7
    stopped = False

    async def stop(self, grace_ms: int = 0) -> None:
        self.stopped = True


def test_doors_are_opened_by_the_edges_that_were_given() -> None:
    door, asked = Pretended(), []

    async def open_grpc_server(rpcs: Any, *, host: str, port: int, clock: Any, options: Any = None) -> Any:
        asked.append((host, port, options.listener.name))
        return door

    async def body() -> None:
        places = usual_addresses("127.0.0.1", 0, TlsSettings())
        doors = await open_grpc_servers(
            [], places, TlsSettings(), clock=SystemClock(), edges=Edges(open_grpc_server=open_grpc_server)
        )
        assert doors.port == 7
        await doors.stop()

    asyncio.run(body())
    assert asked == [("127.0.0.1", 0, "default")]
    assert door.stopped
