"""One acknowledgement of messages of several brokers, as a client can have them since its polls wait for all of them:
each broker gets its own entries, and the answers become one in the order of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from evenq.errors import Error
from evenq.serving.rpc import RpcContext
from evenq.wire.status import status_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq_broker.rpc.answers import several
from evenq_broker.rpc.forwarding import MARK, forward, owner_of_handle

if TYPE_CHECKING:
    from evenq_broker.broker import Broker

__all__ = ["ack_parts", "is_mixed"]


def is_mixed(broker: Broker, handles: Sequence[str], context: RpcContext) -> bool:
    """True if the handles are of more than one broker, and this is where the client asked."""
    if len(handles) < 2 or MARK in context.headers:
        return False
    if all(map(broker.handles.is_own, handles)):
        return False
    return len({owner_of_handle(broker, handle, context) for handle in handles}) > 1


async def ack_parts(
    broker: Broker,
    asked: service_pb2.AckMessageRequest,
    context: RpcContext,
    ack_here: Callable[[bytes, RpcContext], Awaitable[bytes]],
) -> bytes:
    """The answer to a mixed request."""
    places: dict[str | None, list[int]] = {}
    for at, entry in enumerate(asked.entries):
        places.setdefault(owner_of_handle(broker, entry.receipt_handle, context), []).append(at)

    async def part(address: str | None, places_of: list[int]) -> list[definition_pb2.Status]:
        told = service_pb2.AckMessageRequest(group=asked.group, topic=asked.topic)
        told.entries.extend(asked.entries[at] for at in places_of)
        request = told.SerializeToString()
        try:
            if address is None:
                raw = await ack_here(request, context)
            else:
                raw = await forward(broker, address, request, context)
        except Error as error:
            return [status_of(error, context.language)] * len(places_of)
        answer = service_pb2.AckMessageResponse.FromString(raw)
        if len(answer.entries) != len(places_of):
            return [answer.status] * len(places_of)
        return [entry.status for entry in answer.entries]

    parts = await asyncio.gather(*(part(address, places_of) for address, places_of in places.items()))
    statuses: dict[int, definition_pb2.Status] = {}
    for places_of, found in zip(places.values(), parts, strict=True):
        statuses.update(zip(places_of, found, strict=True))
    response = service_pb2.AckMessageResponse()
    for at, entry in enumerate(asked.entries):
        response.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=statuses[at])
    if len({status.code for status in statuses.values()}) == 1:
        response.status.CopyFrom(statuses[0])
    else:
        response.status.CopyFrom(definition_pb2.Status.FromString(several()))
    return response.SerializeToString()
