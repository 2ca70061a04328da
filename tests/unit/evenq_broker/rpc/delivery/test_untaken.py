"""Answers that push consumers did not take: what comes again at once, and what stays as it is."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.rpc.answers import OK_STATUS
from evenq_proofs.v2_requests import ack_request, nack_request

from evenq.model import BrokerAddress, StartFrom
from evenq.serving.rpc import RpcContext
from evenq.wire.convert import set_duration_ms, set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

END = service_pb2.ReceiveMessageResponse()
set_ms(END.delivery_timestamp, 1)


def request(*, push: bool = True, **fields: Any) -> Any:
    made = service_pb2.ReceiveMessageRequest(batch_size=32, auto_renew=push, **fields)
    made.group.name, made.message_queue.topic.name, made.message_queue.id = "g", "t", -1
    set_duration_ms(made.long_polling_timeout, 0)
    if not push:
        set_duration_ms(made.invisible_duration, 60_000)
    return made


async def filled(stage: Any, count: int = 3, *, ordered: bool = False) -> Any:
    broker = await stage.broker(default_start_from="FIRST", default_queues=1, client_lost_ms=120_000)
    # One for all calls of a story: it remembers attempts.
    [stage.receiving] = [rpc.handler for rpc in broker.rpcs() if rpc.method.endswith("/ReceiveMessage")]
    await stage.during(broker.catalog.create_group("g", ordered=ordered, start_from=StartFrom.FIRST))
    send = service_pb2.SendMessageRequest()
    for number in range(count):
        message = send.messages.add(body=b"x")
        message.topic.name = "t"
        message.system_properties.message_id = f"id{number}"
        if ordered:
            message.system_properties.message_group = "lane"
    await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    return broker


async def answered(stage: Any, asked: Any, **headers: str) -> tuple[list[Any], Any]:
    """The messages of one answer, and what is to be called if it is not taken."""
    metadata = [("x-mq-client-id", "c"), *((key.replace("_", "-"), value) for key, value in headers.items())]
    context = RpcContext("m", metadata, "127.0.0.1:1", None)

    async def collect() -> list[Any]:
        frames: list[bytes] = []
        async for piece in stage.receiving(asked.SerializeToString(), context):
            frames += piece if isinstance(piece, list) else [piece]
        read = [service_pb2.ReceiveMessageResponse.FromString(frame) for frame in frames]
        return [one.message for one in read if one.WhichOneof("content") == "message"]

    return await stage.during(collect()), getattr(context, "untaken", None)


def places(messages: list[Any]) -> list[tuple[int, int]]:
    """Offset and attempt."""
    return [(one.system_properties.queue_offset, one.system_properties.delivery_attempt) for one in messages]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("piece_bytes", [0, 128 << 10])
async def test_an_answer_that_was_not_taken_comes_again_at_once_and_uncounted(
    stage: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, piece_bytes: int, ordered: bool
) -> None:
    monkeypatch.setattr("evenq_broker.rpc.delivery.receive._PIECE_BYTES", piece_bytes)
    caplog.set_level(logging.INFO)
    await filled(stage, ordered=ordered)
    first, untaken = await answered(stage, request())
    expected = [(0, 1)] if ordered else [(0, 1), (1, 1), (2, 1)]
    assert places(first) == expected
    assert (await answered(stage, request()))[0] == []
    await stage.clock.advance(60_000)
    untaken()
    assert f"client c did not read an answer: {len(expected)} messages are redelivered" in caplog.text
    again, _ = await answered(stage, request())
    assert places(again) == expected
    untaken()
    assert (await answered(stage, request()))[0] == [], "they are of another answer now"


async def test_what_was_finished_or_changed_meanwhile_stays_so(stage: Any) -> None:
    await filled(stage)
    first, untaken = await answered(stage, request())
    handles = [one.system_properties.receipt_handle for one in first]
    ack = ack_request("g", "t", handles[0])
    change = nack_request("g", "t", handles[1], 30_000)
    await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse)
    await stage.ask("ChangeInvisibleDuration", change, service_pb2.ChangeInvisibleDurationResponse)
    untaken()
    assert places((await answered(stage, request()))[0]) == [(2, 1)]
    await stage.clock.advance(31_000)
    assert places((await answered(stage, request()))[0]) == [(1, 2)]


async def test_an_answer_that_was_given_again_under_its_attempt_is_not_given_back(stage: Any) -> None:
    """The client lost the connection's first answer and has the second: its messages are in work."""
    await filled(stage)
    _, untaken = await answered(stage, request(attempt_id="x"))
    await stage.clock.advance(10)
    again, untaken_again = await answered(stage, request(attempt_id="x"))
    assert len(again) == 3
    untaken()
    assert (await answered(stage, request()))[0] == []
    untaken_again()
    assert len((await answered(stage, request(attempt_id="x")))[0]) == 3


async def test_what_a_client_that_is_gone_had_waits_for_its_time(stage: Any) -> None:
    broker = await filled(stage)
    _, untaken = await answered(stage, request())
    broker.ledger.progress.release("c", stage.clock.now_ms() + 5_000)
    untaken()
    assert (await answered(stage, request()))[0] == []


async def test_a_group_that_was_made_anew_and_a_broker_that_stops_are_left_alone(stage: Any) -> None:
    broker = await filled(stage)
    _, untaken = await answered(stage, request())
    broker.runtime.closing = True
    untaken()
    broker.runtime.closing = False
    assert (await answered(stage, request()))[0] == []
    await stage.during(broker.catalog.delete_group("g"))
    await stage.during(broker.catalog.create_group("g"))
    untaken()


async def test_only_what_a_clients_life_holds_asks_to_be_told(stage: Any) -> None:
    await filled(stage)
    messages, untaken = await answered(stage, request(push=False))
    assert len(messages) == 3
    assert untaken is None
    await stage.clock.advance(61_000)
    messages, untaken = await answered(stage, request(), x_evenq_forwarded="1")
    assert len(messages) == 3
    assert untaken is None, "the broker that the client called is told"
    assert (await answered(stage, request()))[1] is None, "an empty poll"


class OtherBroker:
    """A net that leads to a broker with two messages."""

    def __init__(self) -> None:
        self.changed: list[Any] = []

    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[bytes]:
        yield OK_STATUS
        for handle in ("h1", "h2"):
            response = service_pb2.ReceiveMessageResponse()
            response.message.system_properties.receipt_handle = handle
            yield response.SerializeToString()
        yield END.SerializeToString()

    async def unary(self, address: str, method: str, request: bytes, **_: Any) -> bytes:
        assert (address, method.rpartition("/")[2]) == ("b:8081", "ChangeInvisibleDuration")
        self.changed.append(service_pb2.ChangeInvisibleDurationRequest.FromString(request))
        return b""


@pytest.mark.parametrize("push", [True, False])
async def test_messages_of_another_broker_go_back_there(stage: Any, push: bool) -> None:
    broker = await filled(stage)
    view = RegisteredBroker(name="b", addresses=(BrokerAddress("default", "b", 8081),))
    broker.catalog.routes.snapshot("n", "n", [view], 0)
    kept, other = broker.runtime.net, OtherBroker()
    broker.runtime.net = other
    try:
        asked = request(push=push)
        asked.message_queue.broker.name = "b"
        messages, untaken = await answered(stage, asked)
        assert len(messages) == 2
        assert not other.changed
        if push:
            untaken()
            await stage.clock.advance(5)
            assert [one.receipt_handle for one in other.changed] == ["h1", "h2"]
            assert all(one.suspend for one in other.changed)
        else:
            assert untaken is None
    finally:
        broker.runtime.net = kept
