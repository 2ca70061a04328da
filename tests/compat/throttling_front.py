"""A front before a broker that refuses each message's first tries with TOO_MANY_REQUESTS, and passes on all else.

    python throttling_front.py BROKER REFUSALS      prints its own address; ends with its standard input

It is in the route that clients receive, so that every call comes by.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator

from evenq.runtime.clock import SystemClock
from evenq.serving.front.grpc_server import open_grpc_server
from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
TIMEOUT_MS = 60_000


class Front:
    """Everything that the service has."""

    def __init__(self, broker: str, refusals: int) -> None:
        self.net = GrpcNet()
        self.port = 0
        self._broker = broker
        self._refusals = refusals
        self._tries: Counter[str] = Counter()

    def rpcs(self) -> list[Rpc]:
        kinds = {(False, False): CallKind.UNARY, (False, True): CallKind.SERVER_STREAM, (True, True): CallKind.BIDI}
        handlers = {CallKind.UNARY: self.unary, CallKind.SERVER_STREAM: self.stream, CallKind.BIDI: self.stream}
        access = Access(resource=Resource.NONE, action=Action.OPERATE)
        made = []
        for method in SERVICE.methods:
            kind = kinds[method.client_streaming, method.server_streaming]
            path = f"/{SERVICE.full_name}/{method.name}"
            response = getattr(service_pb2, method.output_type.name)
            made.append(Rpc(method=path, kind=kind, handler=handlers[kind], response=response, access=access))
        return made

    async def unary(self, request: bytes, context: RpcContext) -> bytes:
        if context.method.endswith("/SendMessage"):
            refused = self._refuse(service_pb2.SendMessageRequest.FromString(request))
            if refused:
                return refused
        response = await self.net.unary(
            self._broker, context.method, request, timeout_ms=TIMEOUT_MS, metadata=told(context)
        )
        if context.method.endswith("/QueryRoute"):
            route = service_pb2.QueryRouteResponse.FromString(response)
            for queue in route.message_queues:
                queue.broker.endpoints.addresses[0].port = self.port
            return route.SerializeToString()
        return response

    async def stream(self, request: bytes | AsyncIterator[bytes], context: RpcContext) -> AsyncIterator[bytes]:
        frames = self.net.stream(self._broker, context.method, request, timeout_ms=None, metadata=told(context))
        async for frame in frames:
            yield frame

    def _refuse(self, request: service_pb2.SendMessageRequest) -> bytes:
        message_id = request.messages[0].system_properties.message_id
        self._tries[message_id] += 1
        if self._tries[message_id] > self._refusals:
            return b""
        response = service_pb2.SendMessageResponse()
        response.status.code, response.status.message = 42900, "too fast"
        for message in request.messages:
            entry = response.entries.add(message_id=message.system_properties.message_id)
            entry.status.CopyFrom(response.status)
        return response.SerializeToString()


def told(context: RpcContext) -> dict[str, str]:
    return {name: value for name, value in context.headers.items() if name.startswith("x-mq-")}


async def main(broker: str, refusals: str) -> None:
    front = Front(broker, int(refusals))
    door = await open_grpc_server(front.rpcs(), host="127.0.0.1", port=0, clock=SystemClock())
    front.port = door.port
    print(f"127.0.0.1:{door.port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await door.stop()
    await front.net.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
