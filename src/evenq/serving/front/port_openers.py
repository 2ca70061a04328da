"""Functions with which a server opens its ports: the real ones by default; a simulation passes its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evenq.runtime.clock import Clock
from evenq.serving.front.grpc_server import GrpcServer, open_grpc_server
from evenq.serving.front.http2_grpc_server import Http2GrpcServer
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.program.page import MetricsPage, open_page
from evenq.serving.rpc import Rpc


class OpenGrpcServer(Protocol):
    """Server of `rpcs` at one address, as `evenq.serving.front.grpc_server.open_grpc_server`."""

    async def __call__(
        self, rpcs: Sequence[Rpc], *, host: str, port: int, clock: Clock, options: GrpcServerOptions | None = None
    ) -> GrpcServer | Http2GrpcServer: ...


class OpenPage(Protocol):
    """Server of metrics and health over HTTP, as `evenq.serving.program.page.open_page`."""

    async def __call__(
        self,
        *,
        host: str,
        port: int,
        metrics: Callable[[], bytes],
        ready: Callable[[], bool],
        why: Callable[[], str] = ...,
        queues: Callable[[], Callable[[], bytes]] | None = ...,
    ) -> MetricsPage | None: ...


@dataclass(frozen=True, slots=True)
class PortOpeners:
    """Functions with which a server opens its ports."""

    open_grpc_server: OpenGrpcServer = open_grpc_server
    open_page: OpenPage = open_page


PORT_OPENERS = PortOpeners()
