"""All gRPC doors of one server: plain text, TLS, and further listeners; opened together, counted and closed as one.

`open_doors` takes the server's settings of where to listen. A call knows the door it came through by
`RpcContext.listener`. Always true: if one door cannot be opened, none stays open; the first door is the plain one,
where it is on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evenq.errors import SettingsError
from evenq.model import PLAIN_DOOR, TLS_DOOR, Listener
from evenq.runtime.clock import Clock
from evenq.serving.door import Door, DoorOptions
from evenq.serving.edges import EDGES, Edges
from evenq.serving.http2.limits import Totals
from evenq.serving.http2_door import Http2Door
from evenq.serving.latency import MethodStats
from evenq.serving.rpc import Rpc
from evenq.serving.tls import ServerTls, TlsSettings
from evenq.wire.addresses import TLS

__all__ = ["Doors", "Place", "open_doors", "usual_places"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a door is to be."""

    listener: Listener
    host: str
    port: int
    """0 = any free one."""


class Doors:
    """Open doors of one server, at least one."""

    def __init__(self, doors: Sequence[Door | Http2Door], tls: ServerTls) -> None:
        self._doors = list(doors)
        self._tls = tls

    @property
    def port(self) -> int:
        """Port of the first door: the plain one, where it is on."""
        return self._doors[0].port

    @property
    def listener(self) -> Listener:
        """Of the first door."""
        return self._doors[0].listener

    def port_of(self, listener: str) -> int:
        """Port of the door with this name; 0 if there is none."""
        return next((door.port for door in self._doors if door.listener.name == listener), 0)

    @property
    def ports(self) -> Mapping[Listener, int]:
        """Each door and its port, the first door first."""
        return {door.listener: door.port for door in self._doors}

    def address(self, host: str, *, tls: bool, advertise: str = "") -> str:
        """Where other servers call this one: `advertise`, or else `host` and the port of the first door that speaks as
        `tls` wants it (of the first one, if none does); with `evenqs://` in front if that door has TLS.
        """
        door = next((door for door in self._doors if door.listener.tls == tls), self._doors[0])
        if "://" in advertise:
            return advertise
        called = advertise or (f"[{host}]:{door.port}" if ":" in host else f"{host}:{door.port}")
        return f"{TLS}{called}" if door.listener.tls else called

    @property
    def serving(self) -> bool:
        """What the health service of all doors says."""
        return all(door.health.serving for door in self._doors)

    def set_serving(self, *, serving: bool, service: str = "") -> None:
        """Let the health service of all doors say so."""
        for door in self._doors:
            door.health.set_serving(serving=serving, service=service)

    def stats(self) -> Mapping[str, MethodStats]:
        """Counters by method, of all doors together: they answer the same calls."""
        if len(self._doors) == 1:
            return self._doors[0].stats
        together: dict[str, MethodStats] = {}
        for door in self._doors:
            for method, counted in door.stats.items():
                together.setdefault(method, MethodStats()).include(counted)
        return together

    @property
    def totals(self) -> list[Totals]:
        """What the connections of each door on the front `http2` hold."""
        return [door.totals for door in self._doors if isinstance(door, Http2Door)]

    async def stop(self, grace_ms: int = 0) -> None:
        """Take no new calls, end running ones within `grace_ms`, stop watching the TLS files. Idempotent."""
        await self._tls.close()
        await asyncio.gather(*(door.stop(grace_ms) for door in self._doors))


def usual_places(host: str, port: int, tls: TlsSettings) -> list[Place]:
    """The plain door and the TLS door, as far as they are on (-1 = off)."""
    wanted = ((PLAIN_DOOR, port), (TLS_DOOR, tls.port))
    return [Place(listener, host, number) for listener, number in wanted if number >= 0]


async def open_doors(
    rpcs: Sequence[Rpc],
    places: Sequence[Place],
    tls: TlsSettings,
    *,
    clock: Clock,
    options: DoorOptions | None = None,
    edges: Edges = EDGES,
) -> Doors:
    """Serve `rpcs` at all `places`, and show TLS files that change from then on. Raises PortInUse, SettingsError."""
    if not places:
        raise SettingsError("port and tls.port are both -1, so nothing would be served; give one of them")
    server_tls = ServerTls(tls, clock=clock)
    opened: list[Door | Http2Door] = []
    try:
        for place in places:
            each = replace(options or DoorOptions(), listener=place.listener)
            if place.listener.tls and each.front == "grpcio":
                each = replace(each, credentials=server_tls.credentials())
            elif place.listener.tls:
                each = replace(each, tls=server_tls.contexts())
            opened.append(await edges.open_door(rpcs, host=place.host, port=place.port, clock=clock, options=each))
    except BaseException:
        for door in opened:
            await door.stop()
        raise
    server_tls.start()
    return Doors(opened, server_tls)
