"""Every broker is an access point: a call about another broker's queue or handle goes on to it (architecture.md 4).

One hop only: a forwarded call carries a mark and is never forwarded again, so two brokers that disagree cannot play
ball.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from evenq.errors import ConnectionFailed
from evenq.serving.rpc import ACTS_FOR, RpcContext
from evenq_broker.core.state.handles import broker_of
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.runtime import Runtime

__all__ = [
    "AWAY",
    "FOR_ALL",
    "MARK",
    "caller_of",
    "forward",
    "forward_stream",
    "left_ms",
    "mark",
    "owner_of",
    "owner_of_handle",
]

MARK = "x-evenq-forwarded"
FOR_ALL = "x-evenq-for-all"
"""Beside MARK, of a receive that a broker without the topic passes on: it cannot know that its kind wants a look
at all brokers (`rpc.lite.lite`). The next one does.
"""
AWAY = ""
"""In place of an address: a broker that belongs to the cluster and is not there, or of which a broker that has just
started has not heard yet.
"""
PASSED_ON = ("x-mq-client-id", "x-mq-language", "x-mq-client-version", "x-mq-request-id")
"""No namespace among them: the names of a request that is passed on are full."""
MARGIN_MS = 200


def owner_of(
    runtime: Runtime, catalog: Catalog, broker_name: str, context: RpcContext, *, cluster: ClusterLink
) -> str | None:
    """The address of the broker named, if it is another one that we know; None = answer here."""
    if not broker_name or broker_name == runtime.settings.broker_name or MARK in context.headers:
        return None
    view = catalog.routes.reachable(broker_name, runtime.clock.monotonic_ms())
    return None if view is None else cluster.peers.address_of(view)


def owner_of_handle(
    runtime: Runtime, catalog: Catalog, handle: str, context: RpcContext, *, cluster: ClusterLink
) -> str | None:
    """The address of the broker that made the handle, if it is another one that we know; AWAY while that one is not
    there. To a client, a handle that is not valid is final: it would never acknowledge what it has finished.
    """
    name = broker_of(handle) or ""
    address = owner_of(runtime, catalog, name, context, cluster=cluster)
    if address is None and name in cluster.known.brokers and MARK not in context.headers:
        return AWAY
    return address


async def forward(runtime: Runtime, address: str, request: bytes, context: RpcContext) -> bytes:
    """The other broker's answer, as it is. Raises ConnectionFailed, RequestTimeout."""
    if address == AWAY:
        raise ConnectionFailed(
            "the broker that delivered the message cannot be reached from here now; call again in a moment"
        )
    timeout_ms = left_ms(runtime, context, runtime.settings.peer_timeout_ms)
    return await runtime.net.unary(address, context.method, request, timeout_ms=timeout_ms, metadata=mark(context))


def forward_stream(
    runtime: Runtime, address: str, request: bytes, context: RpcContext, *, for_all: bool = False
) -> AsyncIterator[bytes]:
    """The other broker's answers, as they come. `for_all`: see FOR_ALL."""
    timeout_ms = left_ms(runtime, context, runtime.settings.poll_max_ms + runtime.settings.peer_timeout_ms)
    metadata = {**mark(context), FOR_ALL: "1"} if for_all else mark(context)
    return runtime.net.stream(address, context.method, request, timeout_ms=timeout_ms, metadata=metadata)


def left_ms(runtime: Runtime, context: RpcContext, most_ms: int) -> int:
    """How long the other broker may take: a little less than the caller waits, at most `most_ms`."""
    if context.deadline_ms is None:
        return most_ms
    return max(1, min(most_ms, context.deadline_ms - runtime.clock.monotonic_ms() - MARGIN_MS))


def caller_of(context: RpcContext) -> str:
    """Name of the user whose call it is, also of one that another server passed on; empty: calls are not signed."""
    if context.caller is None:
        return ""
    return (context.caller.internal and context.header(ACTS_FOR)) or context.caller.name


def mark(context: RpcContext) -> Mapping[str, str]:
    """The headers of a call that is passed on: whose it is, and that it went on once."""
    headers = context.headers
    caller = caller_of(context)  # not the server's that passed it on to us
    user = {ACTS_FOR: caller} if caller else {}
    return {MARK: "1", **user, **{name: headers[name] for name in PASSED_ON if name in headers}}
