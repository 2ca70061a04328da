"""Calls over gRPC."""

from __future__ import annotations

import os
import threading
from itertools import repeat
from typing import Any

import pytest
from pyspark_evenq import connection

from evenq.errors import ConnectionFailed, NotImplementedYet, RequestTimeout
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


def test_the_thread_that_fetches_ahead_ends_though_its_call_has_more() -> None:
    before = set(threading.enumerate())
    answers = iter(connection._Ahead(repeat(b"block")))
    assert next(answers) == b"block"
    [fetching] = set(threading.enumerate()) - before
    answers.close()  # type: ignore[attr-defined]
    fetching.join(10)
    assert not fetching.is_alive()
