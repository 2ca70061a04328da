"""Calls that name the broker they are for: where one address leads to any broker, they go on to the one meant.

A client that cannot choose a broker by its address says its name in the header `x-evenq-broker`. `directed` puts this
in front of the handlers and behind the guard: a call has been checked with its caller's own rights when it goes on, and
the next broker takes it from a server. Only calls about one broker's queues and members are directed; any broker
answers the others itself. Handlers do not know of it.

Always true: one hop, a directed call that went on once is answered where it came; at most `RUNNING_MAX` of them run to
one other broker; a call without the header costs one look at its metadata.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from evenq.errors import ConnectionFailed, Error, TooManyRequests
from evenq.serving.rpc import Bidi, CallKind, Frames, Rpc, RpcContext, ServerStream, Unary
from evenq.wire.addresses import BROKER_HEADER
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.rpc.access import MESSAGING
from evenq_broker.rpc.cluster.forwarding import MARK, left_ms, mark
from evenq_broker.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["directed"]

PEER = "x-evenq-peer"
"""`host:port` of the client, as the first broker sees it."""
RUNNING_MAX = 3_000
"""Less than the calls at once that the other broker takes on one connection: what brokers ask each other goes over the
same.
"""
SCAN_MAX_MS = 600_000
DIRECTED = frozenset(
    {
        *(f"/evenq.v1.Data/{name}" for name in ("Publish", "Pull", "Scan", "QueryOffsets", "CommitOffsets")),
        *(f"/evenq.v1.Data/{name}" for name in ("SendBack", "CountDeliveries")),
        *(f"/evenq.v1.Groups/{name}" for name in ("Session", "ListMembers", "LockQueues", "UnlockQueues")),
        *(f"/evenq.v1.Staging/{name}" for name in ("Begin", "Stage", "Decide", "Abandon")),
        *(MESSAGING + name for name in ("Heartbeat", "NotifyClientTermination")),
        "/evenq.v1.Backup/Fetch",
    }
)
"""Other calls of the public protocol name a queue or a handle, and find its broker by that (`rpc.cluster.forwarding`).
Nothing that is checked against the caller's rights behind the guard may stand here: the next broker sees a server, and
of the user only the name (`rpc.cluster.forwarding.caller_of`).
"""


def directed(runtime: Runtime, catalog: Catalog, rpcs: Sequence[Rpc], *, cluster: ClusterLink) -> list[Rpc]:
    """The same calls; those of `DIRECTED` go on to the broker that their header names."""
    director = _Director(runtime, catalog, cluster=cluster)
    return [director.of(rpc) if rpc.method in DIRECTED else rpc for rpc in rpcs]


class _Director:
    def __init__(self, runtime: Runtime, catalog: Catalog, *, cluster: ClusterLink) -> None:
        self._runtime, self._catalog = runtime, catalog
        self._cluster = cluster
        self._own = runtime.settings.broker_name
        self._running: Counter[str] = Counter()

    def of(self, rpc: Rpc) -> Rpc:
        match rpc.kind:
            case CallKind.UNARY:
                return replace(rpc, handler=self._unary(cast("Unary", rpc.handler)))
            case CallKind.SERVER_STREAM:
                return replace(rpc, handler=self._server_stream(cast("ServerStream", rpc.handler)))
            case CallKind.BIDI:
                return replace(rpc, handler=self._bidi(cast("Bidi", rpc.handler)))

    def _unary(self, handler: Unary) -> Unary:
        def call(data: bytes, context: RpcContext) -> Awaitable[bytes]:
            name = context.header(BROKER_HEADER)
            if not name or not self._elsewhere(name, context):
                return handler(data, context)
            return self._pass(name, data, context)

        return call

    def _server_stream(self, handler: ServerStream) -> ServerStream:
        def call(data: bytes, context: RpcContext) -> AsyncIterator[Frames]:
            name = context.header(BROKER_HEADER)
            if not name or not self._elsewhere(name, context):
                return handler(data, context)
            return self._stream(name, data, context, left_ms(self._runtime, context, SCAN_MAX_MS))

        return call

    def _bidi(self, handler: Bidi) -> Bidi:
        def call(requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[Frames]:
            name = context.header(BROKER_HEADER)
            if not name or not self._elsewhere(name, context):
                return handler(requests, context)
            return self._stream(name, requests, context, None)

        return call

    def _elsewhere(self, name: str, context: RpcContext) -> bool:
        if MARK not in context.headers:
            return name != self._own
        peer = context.headers.get(PEER, "")
        # Only from a server: a client could else claim any address.
        if peer and (context.caller is None or context.caller.internal):
            context.peer = peer
        return False

    async def _pass(self, name: str, request: bytes, context: RpcContext) -> bytes:
        with self._one_more(name) as address:
            timeout_ms = left_ms(
                self._runtime, context, self._runtime.settings.poll_max_ms + self._runtime.settings.peer_timeout_ms
            )
            return await self._runtime.net.unary(
                address, context.method, request, timeout_ms=timeout_ms, metadata=_metadata(name, context)
            )

    async def _stream(
        self, name: str, requests: AsyncIterator[bytes] | bytes, context: RpcContext, timeout_ms: int | None
    ) -> AsyncIterator[bytes]:
        refused: list[Error] = []
        with self._one_more(name) as address:
            outgoing = requests if isinstance(requests, bytes) else _until_refused(requests, refused)
            frames = self._runtime.net.stream(
                address, context.method, outgoing, timeout_ms=timeout_ms, metadata=_metadata(name, context)
            )
            try:
                async for frame in frames:
                    yield frame
            except Error as error:
                raise (refused or [error])[0] from error
            finally:
                close = getattr(frames, "aclose", None)
                if close is not None:
                    await close()

    @contextmanager
    def _one_more(self, name: str) -> Iterator[str]:
        """Where the broker is called. Raises ConnectionFailed, TooManyRequests."""
        view = self._catalog.routes.reachable(name, self._runtime.clock.monotonic_ms())
        if view is None:
            raise ConnectionFailed(
                f"broker {name[:255]!r}, which the call is for, is not alive: broker {self._own} knows none of that "
                "name; ask for the route again"
            )
        if self._running[name] >= RUNNING_MAX:
            raise TooManyRequests(
                f"broker {self._own} passes {RUNNING_MAX} calls on to broker {name} at once, its maximum; try again "
                "after a pause, or give each broker an address of its own"
            )
        self._running[name] += 1
        try:
            yield self._cluster.peers.address_of(view)
        finally:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]


async def _until_refused(requests: AsyncIterator[bytes], refused: list[Error]) -> AsyncIterator[bytes]:
    """The requests; an error among them (the guard looks at each) is kept: the stream would only say that it broke."""
    try:
        async for request in requests:
            yield request
    except Error as error:
        refused.append(error)
        raise


def _metadata(name: str, context: RpcContext) -> Mapping[str, str]:
    return {**mark(context), BROKER_HEADER: name, PEER: context.peer}
