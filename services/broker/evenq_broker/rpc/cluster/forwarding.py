"""Forwards calls to the broker that owns their queue or handle: every broker is an access point (architecture.md 4).

Problem. A client calls whichever broker its address leads to: one address may serve all brokers, and a route may be
old. But each queue, receipt handle, recall handle and transaction belongs to one broker.

Idea. A handler reads the owner's name from the request (a queue's broker, or the name inside a handle). If the owner is
another broker that is reachable, the handler sends it the bytes of the request and returns its answer unchanged.

Invariants:
- One hop: a forwarded call has the header MARK, and `owner_of` returns None for it. Two brokers with different routes
  cannot send a call back and forth.
- The other broker has less time than the caller: `left_ms` subtracts 200 ms. With 1,000 ms left it gets 800 ms; with
  10,000 ms left and a `peer_timeout_ms` of 2,500 it gets 2,500 ms. So its error arrives before the caller gives up.
- The first broker has checked the grants of the caller. The other one sees a server, and the user's name in ACTS_FOR.
- A handle of a broker that belongs to the cluster but is not reachable is AWAY: the client gets a temporary error. "Not
  valid" would be final for the client, which would never acknowledge a message that it has finished.

Calls that name their broker in a header: `rpc.cluster.directing`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from evenq.errors import ConnectionFailed
from evenq.serving.rpc import ACTS_FOR, RpcContext
from evenq_broker.core.state.handles import broker_of
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.kernel import Kernel
from evenq_broker.runtime import Runtime

MARK = "x-evenq-forwarded"
FOR_ALL = "x-evenq-for-all"
"""With MARK, on a receive forwarded by a broker without the topic: the next broker, which knows the topic's type, looks
at all brokers if the type requires it (`rpc.lite.lite`).
"""
AWAY = ""
"""In place of an address: the broker belongs to the cluster but is not reachable, or is not known yet after a start."""
ROLE, READER = "x-evenq-role", "reader"
"""Header of evenq clients that only read."""
PASSED_ON = ("x-mq-client-id", "x-mq-language", "x-mq-client-version", "x-mq-request-id", ROLE)
"""Headers of the client that are forwarded. Without the namespace: names in a forwarded request are full names."""
MARGIN_MS = 200


def owner_of(kernel: Kernel, broker_name: str, context: RpcContext, *, cluster: ClusterLink) -> str | None:
    """Returns the address of the broker if it is another one that is reachable; None: answer here."""
    if not broker_name or broker_name == kernel.runtime.settings.broker_name or MARK in context.headers:
        return None
    view = kernel.catalog.routes.reachable(broker_name, kernel.runtime.clock.monotonic_ms())
    return None if view is None else cluster.peers.address_of(view)


def owner_of_handle(kernel: Kernel, handle: str, context: RpcContext, *, cluster: ClusterLink) -> str | None:
    """As `owner_of`, for the broker that made the handle; AWAY: that broker is not reachable."""
    name = broker_of(handle) or ""
    address = owner_of(kernel, name, context, cluster=cluster)
    if address is None and name in cluster.known.brokers and MARK not in context.headers:
        return AWAY
    return address


async def forward(runtime: Runtime, address: str, request: bytes, context: RpcContext) -> bytes:
    """Returns the other broker's answer unchanged. Raises ConnectionFailed, RequestTimeout."""
    if address == AWAY:
        raise ConnectionFailed(
            "the broker that delivered the message cannot be reached from here now; retry in a moment"
        )
    timeout_ms = left_ms(runtime, context, runtime.settings.peer_timeout_ms)
    return await runtime.net.unary(address, context.method, request, timeout_ms=timeout_ms, metadata=mark(context))


def forward_stream(
    runtime: Runtime, address: str, request: bytes, context: RpcContext, *, for_all: bool = False
) -> AsyncIterator[bytes]:
    """Returns the other broker's answers as they arrive. `for_all`: see FOR_ALL."""
    timeout_ms = left_ms(runtime, context, runtime.settings.poll_max_ms + runtime.settings.peer_timeout_ms)
    metadata = {**mark(context), FOR_ALL: "1"} if for_all else mark(context)
    return runtime.net.stream(address, context.method, request, timeout_ms=timeout_ms, metadata=metadata)


def left_ms(runtime: Runtime, context: RpcContext, most_ms: int) -> int:
    """Returns the timeout for the other broker: a little less than the caller waits, at most `most_ms`."""
    if context.deadline_ms is None:
        return most_ms
    return max(1, min(most_ms, context.deadline_ms - runtime.clock.monotonic_ms() - MARGIN_MS))


def caller_of(context: RpcContext) -> str:
    """Returns the name of the calling user, also of a forwarded call; empty: calls are not signed."""
    if context.caller is None:
        return ""
    return (context.caller.internal and context.header(ACTS_FOR)) or context.caller.name


def mark(context: RpcContext) -> Mapping[str, str]:
    """Returns the headers of a forwarded call: the mark, its user and its client."""
    headers = context.headers
    caller = caller_of(context)  # the user, not a server that forwarded the call to this one
    user = {ACTS_FOR: caller} if caller else {}
    return {MARK: "1", **user, **{name: headers[name] for name in PASSED_ON if name in headers}}
