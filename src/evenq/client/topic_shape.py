"""Type and number of queues of a topic, from its route. `evenq produce` reads them before and after it sends, and so
can report that its message created the topic.

A query for a route with the header of a reader creates no topic, so it needs only the grant to describe the topic.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from evenq.client.rpc.calls import Calls
from evenq.client.rpc.transport import V2
from evenq.client.wiring import ClientContext, new_client_id
from evenq.errors import Error, TopicNotFound
from evenq.runtime.clock import SystemClock
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2


@dataclass(frozen=True, slots=True)
class TopicShape:
    """Type and number of queues; `kind` is empty for a topic that does not exist."""

    kind: str
    queues: int

    def sentence(self, topic: str) -> str:
        """Returns `created topic orders (NORMAL, 8 queues)`."""
        return f"created topic {topic} ({self.kind}, {self.queues} queue{'s' * (self.queues != 1)})"


SETTLED_MS, SETTLE_MS = 200, 2_000


def shape_of(topic: str, endpoint: str, *, timeout_ms: int) -> TopicShape | None:
    """Returns the shape; None if it is unknown, for example because the grant for the route is missing."""
    return asyncio.run(_shape_of(topic, endpoint, timeout_ms))


def settled_shape_of(topic: str, endpoint: str, *, timeout_ms: int) -> TopicShape | None:
    """Returns the shape of a topic that was just created. Its brokers register it one by one, so the answer counts that
    is the same twice within SETTLED_MS, or otherwise the last one after SETTLE_MS.
    """
    clock = SystemClock()

    async def settled() -> TopicShape | None:
        give_up_ms = clock.monotonic_ms() + SETTLE_MS
        shape = await _shape_of(topic, endpoint, timeout_ms)
        while clock.monotonic_ms() < give_up_ms:
            await clock.sleep_ms(SETTLED_MS)
            before, shape = shape, await _shape_of(topic, endpoint, timeout_ms)
            if shape == before:
                break
        return shape

    return asyncio.run(settled())


async def _shape_of(topic: str, endpoint: str, timeout_ms: int) -> TopicShape | None:
    context = ClientContext.of(None, None, endpoint=endpoint)
    calls = Calls(
        context.open_net(),
        endpoint=context.endpoint,
        client_id=new_client_id(context.clock),
        timeout_ms=timeout_ms,
        reads=True,
    )
    try:
        request = service_pb2.QueryRouteRequest(endpoints=calls.endpoints())
        request.topic.name = topic
        raw = await calls.at_access_point(V2 + "QueryRoute", request.SerializeToString())
        response = service_pb2.QueryRouteResponse.FromString(raw)
        check(response.status)
    except TopicNotFound:
        return TopicShape("", 0)
    except Error:
        return None
    finally:
        await context.let_go(calls.net)
    types = response.message_queues[0].accept_message_types if response.message_queues else ()
    kind = "MIXED" if len(types) > 1 else "".join(definition_pb2.MessageType.Name(one) for one in types)
    return TopicShape(kind, len(response.message_queues))
