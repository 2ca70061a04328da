"""Streams of a thread over real connections, from both fronts, in plain text and with TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from evenq_proofs.rpcs import fake_rpc

from evenq.model import PLAIN_LISTENER, TLS_LISTENER
from evenq.runtime.clock import SystemClock
from evenq.serving.front.grpc_servers import open_grpc_servers, usual_addresses
from evenq.serving.grpc_server_options import Front, GrpcServerOptions
from evenq.serving.rpc import CallKind, Frames, MessagePieces, RpcContext
from evenq.serving.tls import TlsSettings
from evenq.testing.certificates import Authority
from evenq.wire.blocking_stream import StreamSocket
from evenq.wire.http2.answers import request_headers
from evenq.wire.http2.codes import Status
from evenq.wire.stubs.evenq.v1 import registry_pb2
from evenq.wire.tls import Tls
from evenq.wire.tls_channels import TlsChannels

METHOD = "/evenq.v1.Registry/WatchRoutes"
now_ms = SystemClock().monotonic_ms


async def pour(request: bytes, _context: RpcContext) -> AsyncIterator[Frames]:
    """As many messages as it is asked for, each larger than the last; every second one in pieces."""
    if request == b"hang":
        await asyncio.sleep(30)
    for number in range(int(request)):
        body = bytes([number % 251]) * (number * 40_009)
        yield MessagePieces([body[:7], memoryview(body)[7:], b""]) if number % 2 else body


RPC = fake_rpc(METHOD, pour, registry_pb2.RouteEvent, kind=CallKind.SERVER_STREAM)


@pytest.mark.parametrize("front", ["http2", "grpcio"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
async def test_messages_come_as_they_were_sent_and_streams_end_as_they_should(
    front: Front, encrypted: bool, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server", hosts=("localhost", "127.0.0.1"))
    channels = TlsChannels(Tls(ca=authority.ca), now_ms=now_ms)

    def calls(port: int) -> None:
        target = f"127.0.0.1:{port}"
        secure = channels.secure_socket(target) if encrypted else None
        connection = StreamSocket.open(target, secure, until_ms=now_ms() + 10_000)
        for count in (0, 1, 40):
            sizes = []
            for message in ask(connection, target, b"%d" % count):
                number = len(sizes)
                assert bytes(message) == bytes([number % 251]) * (number * 40_009)
                sizes.append(len(message))
            assert len(sizes) == count
            assert (connection.core.status, connection.is_fresh()) == (0, True)
        try:
            assert list(ask(connection, target, b"hang", timeout_ms=300)) == []
        except TimeoutError:
            connection.give_up()
        else:  # its clock was a little faster
            assert connection.core.status in {Status.DEADLINE_EXCEEDED, Status.CANCELLED}
            connection.close()
        connection = StreamSocket.open(target, secure, until_ms=now_ms() + 10_000)
        assert list(ask(connection, target, b"no number")) == []
        assert connection.core.status == Status.INTERNAL
        connection.close()

    def ask(connection: StreamSocket, target: str, request: bytes, timeout_ms: int = 20_000) -> Iterator[memoryview]:
        headers = request_headers(METHOD, scheme="http", authority=target, timeout_ms=timeout_ms, metadata=[])
        return connection.messages(headers, request, timeout_ms=timeout_ms, until_ms=now_ms() + timeout_ms)

    tls = TlsSettings(port=0, certificate=pair.certificate, key=pair.key)
    options = GrpcServerOptions(front=front)
    servers = await open_grpc_servers(
        [RPC], usual_addresses("127.0.0.1", 0, tls), tls, clock=SystemClock(), options=options
    )
    try:
        await asyncio.to_thread(calls, servers.port_of((TLS_LISTENER if encrypted else PLAIN_LISTENER).name))
    finally:
        await servers.stop()
