"""Clients of the broker rounds, at a broker that never had a message or refuses all calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from evenq_proofs.kill_loop.clients import GROUPS, Clients

from evenq.errors import InternalError
from evenq.runtime.clock import FakeClock
from evenq.testing.checker import check
from evenq.testing.history import HistoryAction, Op, Recorder, read_history
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2


class Refusing:
    """Answers every call with one status."""

    def __init__(self, code: int) -> None:
        self._status = definition_pb2.Status(code=code)  # type: ignore[arg-type]

    async def unary(self, _address: str, method: str, _request: bytes, **_: Any) -> bytes:
        assert method.endswith("QueryOffsets"), "there is nothing to pull"
        return data_pb2.QueryOffsetsResponse(status=self._status).SerializeToString()

    async def stream(self, _address: str, method: str, _request: bytes, **_: Any) -> AsyncIterator[bytes]:
        assert method.endswith("ReceiveMessage"), "there is nothing to scan"
        yield service_pb2.ReceiveMessageResponse(status=self._status).SerializeToString()


def drained(code: int, history: Path) -> None:
    recorder, net = Recorder(history, clock=FakeClock()), Refusing(code)
    clients = Clients("h:1", recorder, random.Random(1), name="drain", net=net, clock=FakeClock())  # type: ignore[arg-type]
    try:
        asyncio.run(clients.drain())
    finally:
        recorder.close()


def test_a_broker_that_was_killed_before_its_first_message_is_drained(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    drained(definition_pb2.TOPIC_NOT_FOUND, history)
    ends = [one.group for one in read_history(history) if one.op == Op.ADMIN and one.action == HistoryAction.DRAIN]
    assert set(GROUPS) <= set(ends)
    assert check(read_history(history)).anomalies == []


def test_a_broker_that_refuses_to_be_drained_fails_its_round(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="does not let its queues be drained: code 50001"):
        drained(definition_pb2.INTERNAL_SERVER_ERROR, tmp_path / "history.jsonl")
