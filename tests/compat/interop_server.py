"""gRPC's own `grpc.testing.TestService` on our HTTP/2 server, for the conformance programs of others.

`python interop_server.py [LIMIT=VALUE ...]` says `{"port": N}` on a line and serves until it is ended. The
messages are read and written by hand, field by field: their numbers stand beside the names.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from evenq.runtime.clock import SystemClock
from evenq.serving.fields import read_fields, write_bytes, write_varint
from evenq.serving.http2.calls import Call, Method
from evenq.serving.http2.limits import Http2Limits
from evenq.serving.http2.messages import GrpcFault
from evenq.serving.http2.server import Http2Server
from evenq.serving.program.run import run
from evenq.serving.rpc import CallKind

INITIAL, TRAILING = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
SERVICE = "/grpc.testing.TestService/"


def payload(size: int) -> bytes:
    """A field payload (number 1 in each answer) of `size` bytes (body = 2)."""
    return write_bytes(1, write_bytes(2, bytes(size)))


def echo_metadata(call: Call) -> None:
    for name, value in call.metadata:
        if name == INITIAL:
            call.initial_metadata = [(INITIAL, value)]
        elif name == TRAILING:
            call.trailers = [(TRAILING, value)]


def fail_as_asked(fields: dict[int, Any]) -> None:
    """`response_status` (7): code = 1, message = 2."""
    if 7 in fields:
        status = dict(read_fields(fields[7]))
        if status.get(1):
            raise GrpcFault(status[1], status.get(2, b"").decode())


async def empty(_request: bytes, call: Call) -> bytes:
    echo_metadata(call)
    return b""


async def unary(request: bytes, call: Call) -> bytes:
    """`response_size` = 2."""
    echo_metadata(call)
    fields = dict(read_fields(request))
    fail_as_asked(fields)
    return payload(fields.get(2, 0))


async def answer_parts(request: bytes, call: Call) -> None:
    """Each of `response_parameters` (2): size = 1, interval_us = 2."""
    fields = list(read_fields(request))
    fail_as_asked(dict(fields))
    for number, value in fields:
        if number == 2 and isinstance(value, bytes):
            part = dict(read_fields(value))
            if part.get(2):
                await asyncio.sleep(part[2] / 1_000_000)  # type: ignore[operator]  # a varint
            await call.send(payload(part.get(1, 0)))  # type: ignore[arg-type]  # a varint


async def both_ways(requests: AsyncIterator[bytes], call: Call) -> None:
    echo_metadata(call)
    async for request in requests:
        await answer_parts(request, call)


async def together(requests: AsyncIterator[bytes], call: Call) -> None:
    """StreamingInputCall: the sizes of all payloads (1, body = 2), added up (1)."""
    total = 0
    async for request in requests:
        for number, value in read_fields(request):
            if number == 1 and isinstance(value, bytes):
                total += len(dict(read_fields(value)).get(2, b""))  # type: ignore[arg-type]  # bytes
    await call.send(write_varint(1, total))


METHODS = {
    SERVICE + "EmptyCall": Method(CallKind.UNARY, empty),
    SERVICE + "UnaryCall": Method(CallKind.UNARY, unary),
    SERVICE + "StreamingOutputCall": Method(CallKind.SERVER_STREAM, answer_parts),
    SERVICE + "FullDuplexCall": Method(CallKind.BIDI, both_ways),
    SERVICE + "StreamingInputCall": Method(CallKind.BIDI, together),  # on the wire the same, with one answer
}


async def serve(stop: asyncio.Event) -> None:
    limits = Http2Limits(**{name: int(value) for name, _, value in (word.partition("=") for word in sys.argv[1:])})
    server = Http2Server(METHODS, clock=SystemClock(), limits=limits)
    port = await server.start("127.0.0.1", 0)
    print(json.dumps({"port": port}), flush=True)
    await stop.wait()
    await server.stop(1_000)


if __name__ == "__main__":
    raise SystemExit(run(serve, program="interop"))
