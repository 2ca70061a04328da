"""Where a server meets the network: how it opens its ports. The real ones by default; a simulation brings its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evenq.runtime.clock import Clock
from evenq.serving.door import Door, DoorOptions, open_door
from evenq.serving.http2_door import Http2Door
from evenq.serving.page import Page, open_page
from evenq.serving.rpc import Rpc

__all__ = ["EDGES", "Edges", "OpenDoor", "OpenPage"]


class OpenDoor(Protocol):
    """Serves `rpcs` at one address; see `evenq.serving.door.open_door`."""

    async def __call__(
        self, rpcs: Sequence[Rpc], *, host: str, port: int, clock: Clock, options: DoorOptions | None = None
    ) -> Door | Http2Door: ...


class OpenPage(Protocol):
    """Serves metrics and health over HTTP; see `evenq.serving.page.open_page`."""

    async def __call__(
        self,
        *,
        host: str,
        port: int,
        metrics: Callable[[], bytes],
        ready: Callable[[], bool],
        why: Callable[[], str] = ...,
        queues: Callable[[], Callable[[], bytes]] | None = ...,
    ) -> Page | None: ...


@dataclass(frozen=True, slots=True)
class Edges:
    """What a server opens its ports with."""

    open_door: OpenDoor = open_door
    open_page: OpenPage = open_page


EDGES = Edges()
