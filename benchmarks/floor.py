"""The floor: our gRPC server with handlers that do nothing, as the minimum cost of a Python server.

    python benchmarks/floor.py --port 18081 [--body 1024] [--batch 32] [--send-entries 1] [--ack-entries 32] [--relay]
        [--front http2]

SendMessage answers with `--send-entries` entries, ReceiveMessage with status, `--batch` messages of `--body` bytes
and a delivery time, AckMessage with `--ack-entries` entries. All answers are prepared, and requests are received but
not parsed. Only message ids grow, because the load generator counts distinct ones. QueryRoute, QueryAssignment,
Heartbeat and Telemetry answer what clients require; the other calls of a delivery are prepared too. With `--relay` each
sent message goes unparsed to the receive that has waited longest: the minimum between two clients. It prints
`ready 127.0.0.1:PORT` once it serves.
"""

from __future__ import annotations

import argparse
import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from evenq.runtime.clock import SystemClock
from evenq.serving.front.grpc_server import open_grpc_server
from evenq.serving.grpc_server_options import GrpcServerOptions
from evenq.serving.program.run import run
from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext
from evenq.wire.convert import set_duration_ms, set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

SERVICE = "/apache.rocketmq.v2.MessagingService/"
MESSAGE_ID = "01" + "0" * 32
HANDLE = "h" * 120
OK = definition_pb2.Status(code=definition_pb2.OK, message="")
QUEUES = 8
POLL_S = 4.0


def send_answer(entries: int) -> bytes:
    """SendMessageResponse for `entries` messages."""
    response = service_pb2.SendMessageResponse(status=OK)
    for offset in range(entries):
        response.entries.add(status=OK, message_id=MESSAGE_ID, offset=1_000_000 + offset)
    return response.SerializeToString()


def received_message(body_bytes: int) -> bytes:
    """One frame of ReceiveMessage with a message, as large as the broker's."""
    body = bytes(range(256)) * (body_bytes // 256) + bytes(body_bytes % 256)
    message = definition_pb2.Message(topic=definition_pb2.Resource(name="bench"), body=body)
    system = message.system_properties
    system.message_id, system.receipt_handle = MESSAGE_ID, HANDLE
    system.body_digest.type, system.body_digest.checksum = definition_pb2.CRC32, f"{zlib.crc32(body):08X}"
    system.body_encoding, system.message_type = definition_pb2.IDENTITY, definition_pb2.NORMAL
    system.born_host, system.store_host = "localhost", "127.0.0.1:8081"
    system.queue_id, system.queue_offset, system.delivery_attempt = 1, 1_000_000, 1
    set_ms(system.born_timestamp, 1_700_000_000_001)
    set_ms(system.store_timestamp, 1_700_000_000_002)
    set_duration_ms(system.invisible_duration, 60_000)
    return service_pb2.ReceiveMessageResponse(message=message).SerializeToString()


def ack_answer(entries: int) -> bytes:
    """AckMessageResponse with `entries` entries."""
    response = service_pb2.AckMessageResponse(status=OK)
    for _ in range(entries):
        response.entries.add(status=OK, message_id=MESSAGE_ID, receipt_handle=HANDLE)
    return response.SerializeToString()


def route(port: int) -> bytes:
    """QueryRouteResponse: eight queues here, one broker."""
    response = service_pb2.QueryRouteResponse(status=OK)
    for queue_id in range(QUEUES):
        queue = response.message_queues.add(
            id=queue_id, permission=definition_pb2.READ_WRITE, accept_message_types=[definition_pb2.NORMAL]
        )
        queue.topic.name, queue.broker.name = "bench", "floor"
        queue.broker.endpoints.scheme = definition_pb2.IPv4
        queue.broker.endpoints.addresses.add(host="127.0.0.1", port=port)
    return response.SerializeToString()


def assignment(port: int) -> bytes:
    """QueryAssignmentResponse: the same queues."""
    known = service_pb2.QueryRouteResponse.FromString(route(port))
    response = service_pb2.QueryAssignmentResponse(status=OK)
    for queue in known.message_queues:
        response.assignments.add(message_queue=queue)
    return response.SerializeToString()


def unary(answer: Callable[[], bytes]) -> Callable[[bytes, RpcContext], Any]:
    """A handler that does not parse requests."""
    canned = b""

    async def handle(_request: bytes, _context: RpcContext) -> bytes:
        nonlocal canned
        canned = canned or answer()
        return canned

    return handle


def receive(batch: int, body_bytes: int) -> Callable[[bytes, RpcContext], AsyncIterator[bytes]]:
    """Status, messages, delivery time: the frames of one ReceiveMessage, in the order of the reference."""
    status = service_pb2.ReceiveMessageResponse(status=OK).SerializeToString()
    end = service_pb2.ReceiveMessageResponse()
    set_ms(end.delivery_timestamp, 1_700_000_000_002)
    last = end.SerializeToString()
    before, _, after = received_message(body_bytes).partition(MESSAGE_ID[-8:].encode())
    sent = 0

    async def handle(_request: bytes, _context: RpcContext) -> AsyncIterator[bytes]:
        nonlocal sent
        first, sent = sent, sent + batch
        yield status
        for number in range(first, first + batch):
            yield b"%b%08X%b" % (before, number, after)
        yield last

    return handle


def pull(batch: int, body_bytes: int) -> Callable[[bytes, RpcContext], AsyncIterator[bytes]]:
    """Status, messages, next offset: the frames of one PullMessage."""
    status = service_pb2.PullMessageResponse(status=OK).SerializeToString()
    message = received_message(body_bytes)
    last = service_pb2.PullMessageResponse(next_offset=1_000_000).SerializeToString()

    async def handle(_request: bytes, _context: RpcContext) -> AsyncIterator[bytes]:
        yield status
        for _ in range(batch):
            yield message
        yield last

    return handle


class Relay:
    """Forwards each sent message to one receiver, without parsing."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.sent = send_answer(1)

    async def send(self, request: bytes, _context: RpcContext) -> bytes:
        self.messages.put_nowait(b"\x12" + request[1:])  # field 1 of the request is field 2 of the answer
        return self.sent

    async def receive(self, _request: bytes, _context: RpcContext) -> AsyncIterator[bytes]:
        try:
            message = await asyncio.wait_for(self.messages.get(), POLL_S)
        except TimeoutError:
            return
        yield service_pb2.ReceiveMessageResponse(status=OK).SerializeToString()
        yield message


async def telemetry(requests: AsyncIterator[bytes], _context: RpcContext) -> AsyncIterator[bytes]:
    """Echoes the settings unchanged."""
    async for request in requests:
        yield request


def rpcs(options: argparse.Namespace, port: Callable[[], int]) -> list[Rpc]:
    """Returns the empty calls."""
    access = Access(resource=Resource.NONE, action=Action.DESCRIBE)
    s = service_pb2
    done = service_pb2.EndTransactionResponse(status=OK).SerializeToString()
    changed = service_pb2.ChangeInvisibleDurationResponse(status=OK, receipt_handle=HANDLE).SerializeToString()
    relay = Relay() if options.relay else None
    rows: list[tuple[str, CallKind, Any, type[Any]]] = [
        (
            "SendMessage",
            CallKind.UNARY,
            relay.send if relay else unary(lambda: send_answer(options.send_entries)),
            s.SendMessageResponse,
        ),
        (
            "ReceiveMessage",
            CallKind.SERVER_STREAM,
            relay.receive if relay else receive(options.batch, options.body),
            s.ReceiveMessageResponse,
        ),
        ("PullMessage", CallKind.SERVER_STREAM, pull(options.batch, options.body), s.PullMessageResponse),
        ("EndTransaction", CallKind.UNARY, unary(lambda: done), s.EndTransactionResponse),
        ("ChangeInvisibleDuration", CallKind.UNARY, unary(lambda: changed), s.ChangeInvisibleDurationResponse),
        (
            "ForwardMessageToDeadLetterQueue",
            CallKind.UNARY,
            unary(lambda: done),
            s.ForwardMessageToDeadLetterQueueResponse,
        ),
        ("AckMessage", CallKind.UNARY, unary(lambda: ack_answer(options.ack_entries)), s.AckMessageResponse),
        ("QueryRoute", CallKind.UNARY, unary(lambda: route(port())), s.QueryRouteResponse),
        ("QueryAssignment", CallKind.UNARY, unary(lambda: assignment(port())), s.QueryAssignmentResponse),
        ("Heartbeat", CallKind.UNARY, unary(s.HeartbeatResponse(status=OK).SerializeToString), s.HeartbeatResponse),
        ("Telemetry", CallKind.BIDI, telemetry, definition_pb2.Status),
    ]
    return [
        Rpc(method=SERVICE + name, kind=kind, handler=handler, response=response, access=access)
        for name, kind, handler, response in rows
    ]


def main() -> int:
    """Serves until a signal."""
    parser = argparse.ArgumentParser(description="A server that does nothing, to compare with.")
    parser.add_argument("--port", type=int, default=0, help="0 = any free one, printed")
    parser.add_argument("--body", type=int, default=1024, help="bytes of a received message's body")
    parser.add_argument("--batch", type=int, default=32, help="messages in one ReceiveMessage")
    parser.add_argument("--send-entries", type=int, default=1, help="entries in one SendMessage answer")
    parser.add_argument("--ack-entries", type=int, default=32, help="entries in one AckMessage answer")
    parser.add_argument("--front", choices=("grpcio", "http2"), default="grpcio", help="implementation of HTTP/2")
    parser.add_argument("--relay", action="store_true", help="pass messages on from sends to receives")
    options = parser.parse_args()

    async def serve(stop: asyncio.Event) -> None:
        served = rpcs(options, lambda: server.port)
        server = await open_grpc_server(
            served,
            host="127.0.0.1",
            port=options.port,
            clock=SystemClock(),
            options=GrpcServerOptions(front=options.front),
        )
        print(f"ready 127.0.0.1:{server.port}", flush=True)
        await stop.wait()
        await server.stop()

    return run(serve, program="floor")


if __name__ == "__main__":
    raise SystemExit(main())
