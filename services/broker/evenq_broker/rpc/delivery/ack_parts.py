"""One acknowledgement of messages of several brokers, as a client can have them since its polls wait for all of them:
each broker gets its own entries, and the answers become one in the order of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from evenq.errors import Error
from evenq.serving.rpc import RpcContext
from evenq.wire.status import status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.loops.cluster.link import ClusterLink
from evenq_broker.loops.state.catalog import Catalog
from evenq_broker.loops.state.ledger import Ledger
from evenq_broker.rpc.answers import for_caller, several
from evenq_broker.rpc.cluster.forwarding import MARK, owner_of_handle
from evenq_broker.runtime import Runtime

__all__ = ["ack_parts", "is_mixed"]


def is_mixed(
    runtime: Runtime,
    catalog: Catalog,
    ledger: Ledger,
    handles: Sequence[str],
    context: RpcContext,
    *,
    cluster: ClusterLink,
) -> bool:
    """True if the handles are of more than one broker, and this is where the client asked."""
    if len(handles) < 2 or MARK in context.headers:
        return False
    if all(map(ledger.handles.is_own, handles)):
        return False
    return len({owner_of_handle(runtime, catalog, handle, context, cluster=cluster) for handle in handles}) > 1


async def ack_parts(
    runtime: Runtime,
    catalog: Catalog,
    request: service_pb2.AckMessageRequest,
    context: RpcContext,
    ack: Callable[[bytes, RpcContext], Awaitable[bytes]],
    *,
    cluster: ClusterLink,
) -> bytes:
    """The answer to a mixed request. `ack` answers a request whose handles are of one broker."""
    places: dict[str | None, list[int]] = {}
    for at, entry in enumerate(request.entries):
        places.setdefault(owner_of_handle(runtime, catalog, entry.receipt_handle, context, cluster=cluster), []).append(
            at
        )

    async def part(places_of: list[int]) -> list[definition_pb2.Status]:
        part_request = service_pb2.AckMessageRequest(group=request.group, topic=request.topic)
        part_request.entries.extend(request.entries[at] for at in places_of)
        try:
            raw = await ack(part_request.SerializeToString(), context)
        except Error as error:
            return [status_of(for_caller(error), context.language)] * len(places_of)
        reply = service_pb2.AckMessageResponse.FromString(raw)
        if len(reply.entries) != len(places_of):
            return [reply.status] * len(places_of)
        return [entry.status for entry in reply.entries]

    parts = await asyncio.gather(*map(part, places.values()))
    statuses: dict[int, definition_pb2.Status] = {}
    for places_of, part_statuses in zip(places.values(), parts, strict=True):
        statuses.update(zip(places_of, part_statuses, strict=True))
    response = service_pb2.AckMessageResponse()
    for at, entry in enumerate(request.entries):
        response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=statuses[at])
    if len({status.code for status in statuses.values()}) == 1:
        response.status.CopyFrom(statuses[0])
    else:
        response.status.CopyFrom(definition_pb2.Status.FromString(several()))
    return response.SerializeToString()
