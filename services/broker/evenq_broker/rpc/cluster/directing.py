"""Directs calls to the broker that their header names: one address may lead to any broker (decision 31).

Problem. Behind a load balancer or a tunnel a client cannot choose a broker by its address. Most calls of `evenq.v1` are
about queues and members of one broker, and only that broker can answer them.

Idea. The client sends the broker's name in the header `x-evenq-broker`. `directed` wraps the handlers of the calls
whose row says so (`evenq.serving.auth.calls`). It runs after the guard: the call has been checked with its caller's own
grants, and the next broker receives it from a server. Handlers do not know of it. The cases of such a call:
1. Without the header, or with this broker's name: it is answered here.
2. With another name: it is sent to that broker, with MARK and the address of the client (PEER).
3. With MARK: it is answered here, whatever its name. PEER becomes the peer of the call, if a server sent it.

Invariants:
- One hop: a call with MARK is never sent on.
- At most `RUNNING_MAX` directed calls run to one other broker; further ones are refused (TooManyRequests).
- A call without the header costs one lookup in its metadata.
- An error that the guard finds in a stream of requests reaches the caller as it is, not as a broken stream.

Example: a member at 10.0.0.7:51412 opens a Session with `x-evenq-broker: broker-b`, and the load balancer chooses
broker-a. broker-a opens the same call at broker-b with `x-evenq-broker: broker-b`, `x-evenq-forwarded: 1` and
`x-evenq-peer: 10.0.0.7:51412`, and copies the messages of both sides. broker-b lists the member at 10.0.0.7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from evenq.errors import ConnectionFailed, Error, TooManyRequests
from evenq.runtime.net import close_frames
from evenq.serving.auth.calls import CALLS
from evenq.serving.rpc import Bidi, CallKind, Frames, Rpc, RpcContext, ServerStream, Unary
from evenq.wire.addresses import BROKER_HEADER
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.rpc.cluster.forwarding import MARK, left_ms, mark

if TYPE_CHECKING:
    from collections.abc import Iterator


PEER = "x-evenq-peer"
"""Header with the `host:port` of the client, as the first broker sees it."""
RUNNING_MAX = 3_000
"""Fewer than the calls that a broker accepts on one connection: other calls between brokers use it as well."""
SCAN_MAX_MS = 600_000
DIRECTED = frozenset(method for method, call in CALLS.items() if call.directed)


def directed(kernel: Kernel, rpcs: Sequence[Rpc], *, cluster: ClusterLink) -> list[Rpc]:
    """Returns the calls; those of `DIRECTED` are sent to the broker that their header names."""
    director = _Director(kernel, cluster=cluster)
    return [director.of(rpc) if rpc.method in DIRECTED else rpc for rpc in rpcs]


class _Director:
    def __init__(self, kernel: Kernel, *, cluster: ClusterLink) -> None:
        self._runtime, self._catalog = kernel.runtime, kernel.catalog
        self._cluster = cluster
        self._own = kernel.runtime.settings.broker_name
        self._running: Counter[str] = Counter()
        """Directed calls that run now, by broker; a broker without any has no entry."""

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
        if MARK not in context.headers:  # cases 1 and 2
            return name != self._own
        peer = context.headers.get(PEER, "")  # case 3
        # Only from a server: otherwise a client could claim any address.
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
                await close_frames(frames)

    @contextmanager
    def _one_more(self, name: str) -> Iterator[str]:
        """Counts one more call while it runs; gives the broker's address. Raises ConnectionFailed, TooManyRequests."""
        view = self._catalog.routes.reachable(name, self._runtime.clock.monotonic_ms())
        if view is None:
            raise ConnectionFailed(
                f"broker {name[:255]!r}, which the call is for, is not alive: broker {self._own} knows no broker with "
                "this name; query the route again"
            )
        if self._running[name] >= RUNNING_MAX:
            raise TooManyRequests(
                f"broker {self._own} already forwards {RUNNING_MAX} calls to broker {name}, its maximum; retry after a "
                "pause, or give each broker its own address"
            )
        self._running[name] += 1
        try:
            yield self._cluster.peers.address_of(view)
        finally:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]


async def _until_refused(requests: AsyncIterator[bytes], refused: list[Error]) -> AsyncIterator[bytes]:
    """Yields the requests. An error among them (the guard checks each) is kept: the stream itself only breaks."""
    try:
        async for request in requests:
            yield request
    except Error as error:
        refused.append(error)
        raise


def _metadata(name: str, context: RpcContext) -> Mapping[str, str]:
    return {**mark(context), BROKER_HEADER: name, PEER: context.peer}
