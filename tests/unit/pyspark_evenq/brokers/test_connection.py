"""Calls over gRPC."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from pyspark_evenq.brokers import connection

from evenq.errors import ConnectionFailed, NotImplementedYet, RequestTimeout
from evenq.wire.blocking_stream import StreamSocket
from evenq.wire.credentials import Credentials
from evenq.wire.signature import Secret, fits, read_claim
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2


def test_a_silent_address_is_named_with_a_hint() -> None:
    with pytest.raises(ConnectionFailed, match=r"127.0.0.1:1: .*is a broker running there\?"):
        connection.unary("127.0.0.1:1", "/evenq.v1.Data/QueryOffsets", b"", timeout_ms=5_000)


def test_failures_of_grpc_become_errors_of_ours(broker: Any) -> None:
    with pytest.raises(NotImplementedYet):
        connection.unary(broker.endpoint, "/evenq.v1.Data/Nothing", b"", timeout_ms=5_000)
    waiting = data_pb2.QueryOffsetsRequest(
        queues=[common_pb2.Queue(topic="flights", broker_name="broker-a", queue_id=0)], known_max=[0], wait_ms=1_000
    )
    with pytest.raises(RequestTimeout):
        connection.unary(broker.endpoint, "/evenq.v1.Data/QueryOffsets", waiting.SerializeToString(), timeout_ms=50)


def test_a_broker_whose_first_bytes_take_a_while_is_waited_for(broker: Any) -> None:
    """As on a busy machine, or behind a distant link."""
    host, _, port = broker.endpoint.rpartition(":")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def forward() -> None:
            client, _ = listening.accept()
            with client, socket.create_connection((host, int(port))) as server:
                up = threading.Thread(target=pump, args=(client, server), daemon=True)
                up.start()
                time.sleep(0.5)
                pump(server, client)

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)

        threading.Thread(target=forward, daemon=True).start()
        known = data_pb2.QueryOffsetsRequest(queues=[common_pb2.Queue(topic="flights", broker_name="broker-a")])
        slow = f"127.0.0.1:{listening.getsockname()[1]}"
        assert connection.unary(slow, "/evenq.v1.Data/QueryOffsets", known.SerializeToString(), timeout_ms=60_000)


def test_a_forked_process_makes_channels_of_its_own(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = connection._channel(broker.endpoint)
    assert connection._channel(broker.endpoint) is parents
    monkeypatch.setattr(os, "getpid", lambda: -1)
    childs = connection._channel(broker.endpoint)
    assert childs is not parents
    parents.close()
    childs.close()
    connection._channels.clear()


def test_calls_are_signed_as_the_task_of_the_process_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_signer", None)
    connection.sign_with(Credentials(access_key="spark", secret_key="s3cret-key"))
    headers = dict(connection._metadata())
    claim = read_claim(headers["authorization"])
    assert claim is not None
    assert claim.user == "spark"
    assert fits(claim, Secret("s3cret-key"), headers["x-mq-date-time"])
    connection.sign_with(None)
    assert "authorization" not in dict(connection._metadata())


def test_each_call_says_that_it_reads() -> None:
    assert dict(connection._metadata())["x-evenq-role"] == "reader"


SCAN = "/evenq.v1.Data/Scan"


def scan(broker: Any) -> bytes:
    queue = common_pb2.Queue(topic="flights", broker_name="broker-a", queue_id=0)
    return data_pb2.ScanRequest(queue=queue, start=0, end=3, block_bytes=1 << 10).SerializeToString()


def offsets() -> bytes:
    queue = common_pb2.Queue(topic="flights", broker_name="broker-a", queue_id=0)
    return data_pb2.QueryOffsetsRequest(queues=[queue]).SerializeToString()


def test_failures_of_streams_are_those_of_single_calls(broker: Any) -> None:
    with pytest.raises(ConnectionFailed, match=r"127.0.0.1:1: .*is a broker running there\?"):
        list(connection.stream("127.0.0.1:1", SCAN, b"", timeout_ms=5_000))
    with pytest.raises(NotImplementedYet):
        list(connection.stream(broker.endpoint, "/evenq.v1.Data/Nothing", b"", timeout_ms=5_000))
    broker.send("one")
    broker.send("two")
    broker.send("three")
    broker.cut_scans = 1
    with pytest.raises(ConnectionFailed, match="cut by the test"):
        list(connection.stream(broker.endpoint, SCAN, scan(broker), timeout_ms=5_000))
    assert not connection._idle


@pytest.mark.parametrize("meant", ["", "#broker-a"], ids=["its own address", "an address of several brokers"])
def test_the_calls_of_a_task_go_over_one_connection_that_ends_with_it(
    broker: Any, monkeypatch: pytest.MonkeyPatch, meant: str
) -> None:
    endpoint = broker.endpoint + meant
    for text in ("one", "two", "three"):
        broker.send(text)
    opened: list[StreamSocket] = []
    first = StreamSocket.open

    def opening(*given: Any, **more: Any) -> StreamSocket:
        opened.append(first(*given, **more))
        return opened[-1]

    monkeypatch.setattr(StreamSocket, "open", opening)
    monkeypatch.setattr(connection, "_channel", None)  # no call is to be made by grpc
    for _ in range(2):
        blocks = list(map(bytes, connection.stream(endpoint, SCAN, scan(broker), timeout_ms=5_000)))
        assert [len(data_pb2.ScanBlock.FromString(block).messages) for block in blocks] == [3]
    response = connection.unary(endpoint, "/evenq.v1.Data/QueryOffsets", offsets(), timeout_ms=5_000)
    assert data_pb2.QueryOffsetsResponse.FromString(response).offsets[0].max_offset == 3
    assert len(opened) == 1
    connection.end_streams()
    assert opened[0]._socket.fileno() == -1
    assert not connection._idle


def test_a_stream_that_is_left_early_leaves_no_connection(broker: Any) -> None:
    for number in range(40):
        broker.send(str(number))
    queue = common_pb2.Queue(topic="flights", broker_name="broker-a", queue_id=0)
    request = data_pb2.ScanRequest(queue=queue, start=0, end=40, block_bytes=1 << 10).SerializeToString()
    blocks = connection.stream(broker.endpoint, SCAN, request, timeout_ms=5_000)
    assert next(blocks)
    blocks.close()
    assert not connection._idle


def test_a_forked_process_leaves_its_parents_connections_alone(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("one", "two", "three"):
        broker.send(text)
    list(connection.stream(broker.endpoint, SCAN, scan(broker), timeout_ms=5_000))
    [(_, parents)] = connection._idle.values()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert connection._kept(broker.endpoint) is None
    assert parents.is_fresh()
    parents.close()
