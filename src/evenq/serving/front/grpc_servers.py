"""All gRPC servers of one program: plain text, TLS, and further listeners; opened together, counted and closed as one.

`open_grpc_servers` takes the server's settings of where to listen. A call knows the listener it came through by
`RpcContext.listener`. Always true: if one server cannot be opened, none stays open; the first server is the plain one,
where it is on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evenq.errors import SettingsError
from evenq.model import PLAIN_LISTENER, TLS_LISTENER, Listener
from evenq.runtime.clock import Clock
from evenq.serving.front.edges import EDGES, Edges
from evenq.serving.front.grpc_server import GrpcServer
from evenq.serving.front.http2_grpc_server import Http2GrpcServer
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.http2.limits import Totals
from evenq.serving.latency import MethodStats
from evenq.serving.rpc import Rpc
from evenq.serving.tls import ServerTls, TlsSettings
from evenq.wire.addresses import TLS

__all__ = ["GrpcServers", "ListenAddress", "open_grpc_servers", "usual_addresses"]


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a gRPC server is to listen."""

    listener: Listener
    host: str
    port: int
    """0 = any free one."""


class GrpcServers:
    """Running gRPC servers of one program, at least one."""

    def __init__(self, servers: Sequence[GrpcServer | Http2GrpcServer], tls: ServerTls) -> None:
        self._servers = list(servers)
        self._tls = tls

    @property
    def port(self) -> int:
        """Port of the first server: the plain one, where it is on."""
        return self._servers[0].port

    @property
    def listener(self) -> Listener:
        """Of the first server."""
        return self._servers[0].listener

    def port_of(self, listener: str) -> int:
        """Port of the server with this name; 0 if there is none."""
        return next((server.port for server in self._servers if server.listener.name == listener), 0)

    @property
    def ports(self) -> Mapping[Listener, int]:
        """Each server and its port, the first server first."""
        return {server.listener: server.port for server in self._servers}

    def address(self, host: str, *, tls: bool, advertise: str = "") -> str:
        """Where other servers call this one: `advertise`, or else `host` and the port of the first server that speaks
        as `tls` wants it (of the first one, if none does); with `evenqs://` in front if that server has TLS.
        """
        server = next((server for server in self._servers if server.listener.tls == tls), self._servers[0])
        if "://" in advertise:
            return advertise
        called = advertise or (f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}")
        return f"{TLS}{called}" if server.listener.tls else called

    @property
    def serving(self) -> bool:
        """What the health service of all servers says."""
        return all(server.health.serving for server in self._servers)

    def set_serving(self, *, serving: bool, service: str = "") -> None:
        """Let the health service of all servers say so."""
        for server in self._servers:
            server.health.set_serving(serving=serving, service=service)

    def stats(self) -> Mapping[str, MethodStats]:
        """Counters by method, of all servers together: they answer the same calls."""
        if len(self._servers) == 1:
            return self._servers[0].stats
        together: dict[str, MethodStats] = {}
        for server in self._servers:
            for method, counted in server.stats.items():
                together.setdefault(method, MethodStats()).include(counted)
        return together

    @property
    def totals(self) -> list[Totals]:
        """What the connections of each server on the front `http2` hold."""
        return [server.totals for server in self._servers if isinstance(server, Http2GrpcServer)]

    def turn_away(self) -> None:
        """Tell all clients to connect anew, and serve them on if they come back. gRPC's own server cannot."""
        for server in self._servers:
            if isinstance(server, Http2GrpcServer):
                server.turn_away()

    async def stop(self, grace_ms: int = 0) -> None:
        """Take no new calls, end running ones within `grace_ms`, stop watching the TLS files. Idempotent."""
        await self._tls.close()
        await asyncio.gather(*(server.stop(grace_ms) for server in self._servers))


def usual_addresses(host: str, port: int, tls: TlsSettings) -> list[ListenAddress]:
    """The plain server and the TLS server, as far as they are on (-1 = off)."""
    usual = ((PLAIN_LISTENER, port), (TLS_LISTENER, tls.port))
    return [ListenAddress(listener, host, number) for listener, number in usual if number >= 0]


async def open_grpc_servers(
    rpcs: Sequence[Rpc],
    addresses: Sequence[ListenAddress],
    tls: TlsSettings,
    *,
    clock: Clock,
    options: GrpcServerOptions | None = None,
    edges: Edges = EDGES,
) -> GrpcServers:
    """Serve `rpcs` at all `addresses`, and show TLS files that change from then on. Raises PortInUse, SettingsError."""
    if not addresses:
        raise SettingsError("port and tls.port are both -1, so nothing would be served; give one of them")
    server_tls = ServerTls(tls, clock=clock)
    opened: list[GrpcServer | Http2GrpcServer] = []
    try:
        for address in addresses:
            each = replace(options or GrpcServerOptions(), listener=address.listener)
            if address.listener.tls and each.front == "grpcio":
                each = replace(each, credentials=server_tls.credentials())
            elif address.listener.tls:
                each = replace(each, tls=server_tls.contexts())
            opened.append(
                await edges.open_grpc_server(rpcs, host=address.host, port=address.port, clock=clock, options=each)
            )
    except BaseException:
        for server in opened:
            await server.stop()
        raise
    server_tls.start()
    return GrpcServers(opened, server_tls)
