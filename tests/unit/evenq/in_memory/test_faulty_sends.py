"""The answers of divided requests, for producers of every SDK: `SendMessage`, one entry for each message."""

from __future__ import annotations

from typing import Any

import pytest

from evenq.errors import Error, TooManyRequests
from evenq.in_memory.faults import SendFaults
from evenq.in_memory.faulty_sends import SEND, FaultySends
from evenq.runtime.clock import SystemClock
from evenq.serving.rpc import Access, Action, CallKind, Resource, Rpc, RpcContext
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2


class Store:
    """Stores whatever comes."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.code: Any = definition_pb2.OK

    async def send(self, data: bytes, _: RpcContext) -> bytes:
        if self.code != definition_pb2.OK:
            status = definition_pb2.Status(code=self.code)
            refused: bytes = service_pb2.SendMessageResponse(status=status).SerializeToString()
            return refused
        entries = []
        for message in service_pb2.SendMessageRequest.FromString(data).messages:
            self.stored.append(message.system_properties.message_id)
            status = definition_pb2.Status(code=definition_pb2.OK)
            entries.append(
                service_pb2.SendResultEntry(status=status, message_id=self.stored[-1], offset=len(self.stored))
            )
        answer: bytes = service_pb2.SendMessageResponse(
            status=definition_pb2.Status(code=definition_pb2.OK), entries=entries
        ).SerializeToString()
        return answer


def made(store: Store, faults: SendFaults) -> Any:
    rpc = Rpc(
        method=SEND,
        kind=CallKind.UNARY,
        handler=store.send,
        response=service_pb2.SendMessageResponse,
        access=Access(Resource.TOPIC, Action.PUBLISH),
    )
    (around,) = FaultySends(faults, SystemClock()).around([rpc])
    return around.handler


async def send(handler: Any, *ids: str) -> list[tuple[str, int]]:
    request = service_pb2.SendMessageRequest()
    for one in ids:
        message = request.messages.add()
        message.topic.name = "t"
        message.system_properties.message_id = one
    data = await handler(request.SerializeToString(), RpcContext(SEND, [], "127.0.0.1:1", None))
    entries = service_pb2.SendMessageResponse.FromString(data).entries
    return [(entry.message_id, entry.offset) for entry in entries]


async def test_an_answer_has_one_entry_for_each_message_in_their_order() -> None:
    store, faults = Store(), SendFaults()
    handler = made(store, faults)
    faults.drop()
    faults.duplicate()
    assert await send(handler, "a", "b", "c") == [("a", -1), ("b", 1), ("c", 3)]
    assert store.stored == ["b", "b", "c"]


async def test_a_message_that_was_stored_is_not_stored_again_when_others_of_its_request_are_refused() -> None:
    store, faults = Store(), SendFaults()
    handler = made(store, faults)
    faults.fail_sends(2, attempts=1)
    for _ in range(2):
        with pytest.raises(TooManyRequests):
            await send(handler, "a", "b")
    assert await send(handler, "a", "b") == [("a", 1), ("b", 2)]
    assert store.stored == ["a", "b"]


async def test_a_retry_meets_the_fault_of_its_first_attempt() -> None:
    store, faults = Store(), SendFaults()
    handler = made(store, faults)
    faults.duplicate()
    assert await send(handler, "a") == await send(handler, "a")
    faults.fail_sends()
    for _ in range(3):
        try:
            await send(handler, "b")
        except Error as error:
            text = str(error)
        assert "the test planned it" in text
    assert await send(handler, "c") == [("c", 3)]
    assert store.stored == ["a", "a", "c"]


async def test_an_attempt_that_the_broker_rejects_is_stored_by_the_next_one() -> None:
    store, faults = Store(), SendFaults()
    handler = made(store, faults)
    faults.duplicate()
    store.code = definition_pb2.TOO_MANY_REQUESTS
    await send(handler, "a")
    store.code = definition_pb2.OK
    await send(handler, "a")
    assert store.stored == ["a", "a"]
