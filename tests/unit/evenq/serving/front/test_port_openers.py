"""A server opens its ports with what it is given."""

from __future__ import annotations

from typing import Any

from evenq.runtime.clock import SystemClock
from evenq.serving.front.grpc_servers import open_grpc_servers, usual_addresses
from evenq.serving.front.port_openers import PortOpeners
from evenq.serving.tls import TlsSettings


class Pretended:
    port = 7
    stopped = False

    async def stop(self, grace_ms: int = 0) -> None:
        self.stopped = True


async def test_doors_are_opened_by_the_edges_that_were_given() -> None:
    door, asked = Pretended(), []

    async def open_grpc_server(rpcs: Any, *, host: str, port: int, clock: Any, options: Any = None) -> Any:
        asked.append((host, port, options.listener.name))
        return door

    places = usual_addresses("127.0.0.1", 0, TlsSettings())
    doors = await open_grpc_servers(
        [], places, TlsSettings(), clock=SystemClock(), edges=PortOpeners(open_grpc_server=open_grpc_server)
    )
    assert doors.port == 7
    await doors.stop()
    assert asked == [("127.0.0.1", 0, "default")]
    assert door.stopped
