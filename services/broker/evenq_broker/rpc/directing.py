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
from evenq.serving.rpc import Bidi, Frames, Kind, Rpc, RpcContext, ServerStream, Unary
from evenq.wire.addresses import BROKER_HEADER
from evenq_broker.rpc.access import MESSAGING
from evenq_broker.rpc.forwarding import MARK, left_ms, mark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from evenq_broker.broker import Broker

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
    }
)
"""Other calls of the public protocol name a queue or a handle, and find its broker by that (`rpc.forwarding`). Nothing
that is checked against the caller's rights behind the guard may stand here: the next broker sees a server.
"""


def directed(broker: Broker, rpcs: Sequence[Rpc]) -> list[Rpc]:
    """The same calls; those of `DIRECTED` go on to the broker that their header names."""
    director = _Director(broker)
    return [director.of(rpc) if rpc.method in DIRECTED else rpc for rpc in rpcs]


class _Director:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._own = broker.settings.broker_name
        self._running: Counter[str] = Counter()

    def of(self, rpc: Rpc) -> Rpc:
        match rpc.kind:
            case Kind.UNARY:
                return replace(rpc, handler=self._unary(cast("Unary", rpc.handler)))
            case Kind.SERVER_STREAM:
                return replace(rpc, handler=self._server_stream(cast("ServerStream", rpc.handler)))
            case Kind.BIDI:
                return replace(rpc, handler=self._bidi(cast("Bidi", rpc.handler)))

    def _unary(self, handler: Unary) -> Unary:
        def call(request: bytes, context: RpcContext) -> Awaitable[bytes]:
            name = context.header(BROKER_HEADER)
            if not name or not self._elsewhere(name, context):
                return handler(request, context)
            return self._pass(name, request, context)

        return call

    def _server_stream(self, handler: ServerStream) -> ServerStream:
        def call(request: bytes, context: RpcContext) -> AsyncIterator[Frames]:
            name = context.header(BROKER_HEADER)
            if not name or not self._elsewhere(name, context):
                return handler(request, context)
            return self._stream(name, request, context, left_ms(self._broker, context, SCAN_MAX_MS))

        return call

    def _bidi(self, handler: Bidi) -> Bidi:
        def call(requests: AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
            name = context.header(BROKER_HEADER)
            if not name or not self._elsewhere(name, context):
                return handler(requests, context)
            return self._stream(name, requests, context, None)

        return call

    def _elsewhere(self, name: str, context: RpcContext) -> bool:
        if MARK not in context.headers:
            return name != self._own
        peer = context.headers.get(PEER, "")
        if peer and (context.caller is None or context.caller.internal):
            context.peer = peer
        return False

    async def _pass(self, name: str, request: bytes, context: RpcContext) -> bytes:
        broker = self._broker
        with self._one_more(name) as address:
            timeout_ms = left_ms(broker, context, broker.settings.poll_max_ms + broker.settings.peer_timeout_ms)
            return await broker.net.unary(
                address, context.method, request, timeout_ms=timeout_ms, metadata=_metadata(name, context)
            )

    async def _stream(
        self, name: str, requests: AsyncIterator[bytes] | bytes, context: RpcContext, timeout_ms: int | None
    ) -> AsyncIterator[bytes]:
        refused: list[Error] = []
        with self._one_more(name) as address:
            told = requests if isinstance(requests, bytes) else _told(requests, refused)
            frames = self._broker.net.stream(
                address, context.method, told, timeout_ms=timeout_ms, metadata=_metadata(name, context)
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
        view = self._broker.routes.reachable(name, self._broker.clock.monotonic_ms())
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
            yield self._broker.cluster.address_of(view)
        finally:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]


async def _told(requests: AsyncIterator[bytes], refused: list[Error]) -> AsyncIterator[bytes]:
    """The requests; an error among them (the guard looks at each) is kept: the stream would only say that it broke."""
    try:
        async for request in requests:
            yield request
    except Error as error:
        refused.append(error)
        raise


def _metadata(name: str, context: RpcContext) -> Mapping[str, str]:
    return {**mark(context), BROKER_HEADER: name, PEER: context.peer}
