"""All gRPC servers of one program: plain text, TLS, and further listeners; opened, counted and closed together.

Handlers find the listener of a call in `RpcContext.listener`. Always true: if one server cannot be opened, none stays
open; the first server is the plain one, if it is on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evenq.errors import SettingsError
from evenq.model import PLAIN_LISTENER, TLS_LISTENER, Listener
from evenq.runtime.clock import Clock
from evenq.serving.front.grpc_server import GrpcServer
from evenq.serving.front.http2_grpc_server import Http2GrpcServer
from evenq.serving.front.port_openers import PORT_OPENERS, PortOpeners
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.http2.limits import Totals
from evenq.serving.latency import MethodStats
from evenq.serving.rpc import Rpc
from evenq.serving.tls import ServerTls, TlsSettings
from evenq.wire.addresses import TLS


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Address at which a gRPC server listens."""

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
        """Port of the first server, which is the plain one if it is on."""
        return self._servers[0].port

    @property
    def listener(self) -> Listener:
        """Listener of the first server."""
        return self._servers[0].listener

    def port_of(self, listener: str) -> int:
        """Returns the port of the server with this name; 0 if there is none."""
        return next((server.port for server in self._servers if server.listener.name == listener), 0)

    @property
    def ports(self) -> Mapping[Listener, int]:
        """Each server and its port, in order."""
        return {server.listener: server.port for server in self._servers}

    def address(self, host: str, *, tls: bool, advertise: str = "") -> str:
        """Returns the address for other servers: `advertise`, or `host` and the port of the first server with TLS as in
        `tls` (otherwise of the first server); with `evenqs://` in front if that server has TLS.
        """
        server = next((server for server in self._servers if server.listener.tls == tls), self._servers[0])
        if "://" in advertise:
            return advertise
        called = advertise or (f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}")
        return f"{TLS}{called}" if server.listener.tls else called

    @property
    def serving(self) -> bool:
        """State that the health services of all servers report."""
        return all(server.health.serving for server in self._servers)

    def set_serving(self, *, serving: bool, service: str = "") -> None:
        """Sets the state in the health services of all servers."""
        for server in self._servers:
            server.health.set_serving(serving=serving, service=service)

    def stats(self) -> Mapping[str, MethodStats]:
        """Returns the counters by method, summed over all servers, which answer the same calls."""
        if len(self._servers) == 1:
            return self._servers[0].stats
        together: dict[str, MethodStats] = {}
        for server in self._servers:
            for method, counted in server.stats.items():
                together.setdefault(method, MethodStats()).include(counted)
        return together

    @property
    def totals(self) -> list[Totals]:
        """Totals of the connections of each server on the front `http2`."""
        return [server.totals for server in self._servers if isinstance(server, Http2GrpcServer)]

    def turn_away(self) -> None:
        """Makes all clients reconnect; they are served again. Not possible in gRPC's own server."""
        for server in self._servers:
            if isinstance(server, Http2GrpcServer):
                server.turn_away()

    async def stop(self, grace_ms: int = 0) -> None:
        """Accepts no new calls, ends running ones within `grace_ms`, stops watching the TLS files. Idempotent."""
        await self._tls.close()
        await asyncio.gather(*(server.stop(grace_ms) for server in self._servers))


def usual_addresses(host: str, port: int, tls: TlsSettings) -> list[ListenAddress]:
    """Returns the plain and the TLS server, as far as they are on (-1 = off)."""
    usual = ((PLAIN_LISTENER, port), (TLS_LISTENER, tls.port))
    return [ListenAddress(listener, host, number) for listener, number in usual if number >= 0]


async def open_grpc_servers(
    rpcs: Sequence[Rpc],
    addresses: Sequence[ListenAddress],
    tls: TlsSettings,
    *,
    clock: Clock,
    options: GrpcServerOptions | None = None,
    edges: PortOpeners = PORT_OPENERS,
) -> GrpcServers:
    """Serves `rpcs` at all `addresses`, and reloads changed TLS files from then on. Raises PortInUse, SettingsError."""
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
