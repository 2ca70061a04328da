"""The floor: our door with handlers that do nothing, so that one run can compare a broker with the least a Python
server costs.

    python benchmarks/floor.py --port 18081 [--body 100] [--batch 32] [--send-entries 1]

SendMessage answers with `--send-entries` entries, ReceiveMessage with status, `--batch` messages of `--body` bytes
and a delivery time, AckMessage with one entry; all canned, after the request's bytes were received and nothing was
read in them. It prints `ready 127.0.0.1:PORT` once it serves.
"""

import argparse
import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import Any

from evenq.runtime.clock import SystemClock
from evenq.serving.door import open_door
from evenq.serving.rpc import Access, Action, Kind, Resource, Rpc, RpcContext
from evenq.serving.run import run
from evenq.wire.convert import set_duration_ms, set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

SERVICE = "/apache.rocketmq.v2.MessagingService/"
MESSAGE_ID = "01" + "0" * 32
HANDLE = "h" * 120
OK = definition_pb2.Status(code=definition_pb2.OK, message="OK")


def send_answer(entries: int) -> bytes:
    """SendMessageResponse for `entries` messages."""
    answer = service_pb2.SendMessageResponse(status=OK)
    for offset in range(entries):
        answer.entries.add(status=OK, message_id=MESSAGE_ID, transaction_id="", offset=offset)
    return answer.SerializeToString()


def receive_frames(batch: int, body_bytes: int) -> list[bytes]:
    """Status, messages, delivery time: the frames of one ReceiveMessage, in the order of the reference."""
    body = bytes(range(256)) * (body_bytes // 256) + bytes(body_bytes % 256)
    message = definition_pb2.Message(topic=definition_pb2.Resource(name="floor"), body=body)
    system = message.system_properties
    system.tag, system.message_id, system.receipt_handle = "tag", MESSAGE_ID, HANDLE
    system.body_digest.type = definition_pb2.MD5
    system.body_digest.checksum = hashlib.md5(body).hexdigest().upper()
    system.body_encoding, system.message_type = definition_pb2.IDENTITY, definition_pb2.NORMAL
    system.queue_id, system.queue_offset, system.delivery_attempt = 1, 1_000_000, 1
    set_ms(system.born_timestamp, 1_700_000_000_000)
    set_ms(system.store_timestamp, 1_700_000_000_001)
    set_duration_ms(system.invisible_duration, 30_000)
    last = service_pb2.ReceiveMessageResponse()
    set_ms(last.delivery_timestamp, 1_700_000_000_002)
    frames = [service_pb2.ReceiveMessageResponse(status=OK)]
    frames += [service_pb2.ReceiveMessageResponse(message=message) for _ in range(batch)]
    return [frame.SerializeToString() for frame in [*frames, last]]


def ack_answer() -> bytes:
    """AckMessageResponse with one entry."""
    answer = service_pb2.AckMessageResponse(status=OK)
    answer.entries.add(status=OK, message_id=MESSAGE_ID, receipt_handle=HANDLE)
    return answer.SerializeToString()


def rpcs(*, send_entries: int, batch: int, body_bytes: int) -> list[Rpc]:
    """The three calls, empty."""
    sent, frames, acked = send_answer(send_entries), receive_frames(batch, body_bytes), ack_answer()

    async def send(_request: bytes, _context: RpcContext) -> bytes:
        return sent

    async def receive(_request: bytes, _context: RpcContext) -> AsyncIterator[bytes]:
        for frame in frames:
            yield frame

    async def ack(_request: bytes, _context: RpcContext) -> bytes:
        return acked

    access = Access(resource=Resource.TOPIC, action=Action.PUBLISH)
    rows: list[tuple[str, Kind, Any, type[Any]]] = [
        ("SendMessage", Kind.UNARY, send, service_pb2.SendMessageResponse),
        ("ReceiveMessage", Kind.SERVER_STREAM, receive, service_pb2.ReceiveMessageResponse),
        ("AckMessage", Kind.UNARY, ack, service_pb2.AckMessageResponse),
    ]
    return [
        Rpc(method=SERVICE + name, kind=kind, handler=handler, response=response, access=access)
        for name, kind, handler, response in rows
    ]


def main() -> int:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser(description="A server that does nothing, to compare with.")
    parser.add_argument("--port", type=int, default=0, help="0 = any free one, printed")
    parser.add_argument("--body", type=int, default=100, help="bytes of a received message's body")
    parser.add_argument("--batch", type=int, default=32, help="messages in one ReceiveMessage")
    parser.add_argument("--send-entries", type=int, default=1, help="entries in one SendMessage answer")
    asked = parser.parse_args()

    async def serve(stop: asyncio.Event) -> None:
        served = rpcs(send_entries=asked.send_entries, batch=asked.batch, body_bytes=asked.body)
        door = await open_door(served, host="127.0.0.1", port=asked.port, clock=SystemClock())
        print(f"ready 127.0.0.1:{door.port}", flush=True)
        await stop.wait()
        await door.stop()

    return run(serve, program="floor")


if __name__ == "__main__":
    raise SystemExit(main())
