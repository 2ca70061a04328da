"""What a producer of transactions says on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from evenq.client.core.transactions.half_messages import HalfMessage
from evenq.client.rpc.messages import encode
from evenq.client.rpc.transactions import RpcTransactionCalls
from evenq.errors import InternalError, InvalidTransactionId
from evenq.model import Message, MessageQueue, TransactionResolution
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from tests.unit.evenq.client.rpc.test_lite import Net

QUEUE = MessageQueue("t", "a", 3)
ENCODED = encode(Message(topic="t", body=b"b", tag="x"), message_id="id", born_ms=1, born_host="h")


def calls(*answers: Any) -> tuple[RpcTransactionCalls, Net]:
    net = Net(*answers)
    return RpcTransactionCalls(net, endpoint="ap:8081", client_id="c"), net  # type: ignore[arg-type]  # as much as is asked


def sent(**entry: Any) -> service_pb2.SendMessageResponse:
    response = service_pb2.SendMessageResponse(status=v2.Status(code=v2.OK))
    response.entries.add(status=v2.Status(code=v2.OK), message_id="id", **entry)
    return response


def test_a_half_message_is_a_transaction_message_and_its_answer_names_the_transaction() -> None:
    made, net = calls(sent(transaction_id="t1.a.00"))
    half = asyncio.run(made.send_half("a:1", QUEUE, "id", ENCODED))
    assert half == HalfMessage("t", "id", "t1.a.00", "a:1")
    ((address, method, request),) = net.calls
    (message,) = service_pb2.SendMessageRequest.FromString(request).messages
    system = message.system_properties
    assert (address, method) == ("a:1", "SendMessage")
    assert (system.message_type, system.message_id, system.tag, system.queue_id) == (v2.TRANSACTION, "id", "x", 3)


def test_an_answer_without_a_transaction_id_is_a_mistake_of_the_server() -> None:
    made, _ = calls(sent())
    with pytest.raises(InternalError):
        asyncio.run(made.send_half("a:1", QUEUE, "id", ENCODED))


@pytest.mark.parametrize(("checked", "source"), [(True, v2.SOURCE_SERVER_CHECK), (False, v2.SOURCE_CLIENT)])
def test_a_decision_says_what_and_why(checked: bool, source: int) -> None:
    made, net = calls(service_pb2.EndTransactionResponse(status=v2.Status(code=v2.OK)))
    half = HalfMessage("t", "id", "t1.a.00", "a:1")
    asyncio.run(made.end_transaction(half, TransactionResolution.ROLLBACK, checked=checked))
    ((address, _, request),) = net.calls
    asked = service_pb2.EndTransactionRequest.FromString(request)
    assert (address, asked.topic.name, asked.message_id, asked.transaction_id) == ("a:1", "t", "id", "t1.a.00")
    assert (asked.resolution, asked.source) == (v2.ROLLBACK, source)


def test_a_refused_decision_raises_and_the_access_point_takes_it_too() -> None:
    made, net = calls(service_pb2.EndTransactionResponse(status=v2.Status(code=v2.INVALID_TRANSACTION_ID)))
    half = HalfMessage("t", "id", "x", "a:1")
    with pytest.raises(InvalidTransactionId):
        asyncio.run(made.end_transaction_anywhere(half, TransactionResolution.COMMIT))
    assert net.calls[0][0] == "ap:8081"


async def test_the_line_tells_the_topics_and_gives_the_checks() -> None:
    check = service_pb2.TelemetryCommand()
    asked = check.recover_orphaned_transaction_command
    asked.transaction_id = "t1.a.00"
    asked.message.ParseFromString(ENCODED)
    made, net = calls(service_pb2.TelemetryCommand(status=v2.Status(code=v2.OK)), check)

    async def tellings() -> AsyncIterator[Iterable[str]]:
        yield ["t", "u"]

    (found,) = [found async for found in made.checks("b:1", tellings())]
    assert found.half == HalfMessage("t", "id", "t1.a.00", "b:1")
    assert (found.message.body, found.message.tag) == (b"b", "x")
    settings = net.sent[0].settings
    assert settings.client_type == v2.PRODUCER
    assert [topic.name for topic in settings.publishing.topics] == ["t", "u"]
