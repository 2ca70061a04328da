"""A broker that ends hands out nothing more and waits for the acks of what is in hand, no longer than it must."""

import asyncio
from typing import Any

import pytest
from evenq_proofs.v2_requests import (
    ack_request,
    consumer_settings,
    messages_of,
    nack_request,
    receive_request,
    v2_message,
)

from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2


async def filled(stage: Any, count: int) -> Any:
    broker = await stage.broker(default_start_from="FIRST", default_queues=1)
    send = service_pb2.SendMessageRequest(messages=[v2_message("t", f"id{number}") for number in range(count)])
    await stage.ask("SendMessage", send, service_pb2.SendMessageResponse)
    return broker


async def receive(stage: Any, *, push: bool = False, poll_ms: int = 0) -> list[Any]:
    asked = receive_request(
        "g", "t", queue=-1, poll_ms=poll_ms, invisible_ms=None if push else 30_000, batch_size=2, auto_renew=push
    )
    return messages_of(await stage.frames("ReceiveMessage", asked, service_pb2.ReceiveMessageResponse))


async def ack(stage: Any, message: Any) -> None:
    asked = ack_request("g", "t", message.system_properties.receipt_handle)
    answer = await stage.ask("AckMessage", asked, service_pb2.AckMessageResponse)
    assert answer.status.code == definition_pb2.OK


async def nack(stage: Any, message: Any, pause_ms: int) -> None:
    asked = nack_request("g", "t", message.system_properties.receipt_handle, pause_ms)
    answer = await stage.ask("ChangeInvisibleDuration", asked, service_pb2.ChangeInvisibleDurationResponse)
    assert answer.status.code == definition_pb2.OK


@pytest.mark.parametrize("push", [False, True])
async def test_it_hands_out_nothing_and_ends_its_wait_with_the_last_ack(stage: Any, push: bool) -> None:
    broker = await filled(stage, 4)
    taken = await receive(stage, push=push)
    assert len(taken) == 2
    broker.ending.begin()
    waiting = asyncio.ensure_future(broker.ending.nothing_in_hand(10_000))
    started = stage.clock.monotonic_ms()
    assert await receive(stage, push=push, poll_ms=5_000) == []
    assert 200 <= stage.clock.monotonic_ms() - started <= 300, "soon, but not at once: clients ask again"
    await ack(stage, taken[0])
    assert not waiting.done()
    await ack(stage, taken[1])
    assert await stage.during(waiting) == 0
    assert stage.clock.monotonic_ms() - started < 1_000


async def test_parked_polls_are_answered_at_its_begin(stage: Any) -> None:
    broker = await filled(stage, 1)
    (message,) = await receive(stage)
    await ack(stage, message)
    poll = asyncio.ensure_future(receive(stage, poll_ms=20_000))
    await stage.until(lambda: len(broker.long_polls.table) == 1)
    started = stage.clock.monotonic_ms()
    broker.ending.begin()
    assert await stage.during(poll) == []
    assert stage.clock.monotonic_ms() - started < 100


async def test_a_receive_that_waits_for_the_disk_at_its_begin_gets_nothing(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await filled(stage, 2)
    read = broker.ledger.store.read

    async def slowly(*place: Any, **options: Any) -> Any:
        found = await read(*place, **options)
        broker.ending.begin()
        return found

    monkeypatch.setattr(broker.ledger.store, "read_hot", lambda *_, **__: None)  # nothing of it is in memory
    monkeypatch.setattr(broker.ledger.store, "read", slowly)
    assert await receive(stage) == []
    assert await stage.during(broker.ending.nothing_in_hand(9_000)) == 0


async def test_a_simple_consumer_in_the_group_makes_it_wait_for_no_retry_of_a_push_consumer(stage: Any) -> None:
    broker = await filled(stage, 4)
    for message in await receive(stage, push=True):
        await nack(stage, message, 30_000)
    beat = service_pb2.HeartbeatRequest(client_type=definition_pb2.SIMPLE_CONSUMER)
    beat.group.name = "g"
    await stage.ask("Heartbeat", beat, service_pb2.HeartbeatResponse, client="simple")
    started = stage.clock.monotonic_ms()
    assert await stage.during(broker.ending.nothing_in_hand(9_000)) == 0
    assert stage.clock.monotonic_ms() - started < 100


async def test_it_does_not_wait_for_a_client_that_is_lost(stage: Any) -> None:
    broker = await filled(stage, 2)
    assert len(await receive(stage, push=True)) == 2
    broker.clients.table.lose("c")
    started = stage.clock.monotonic_ms()
    assert await stage.during(broker.ending.nothing_in_hand(9_000)) == 0
    assert stage.clock.monotonic_ms() - started < 100


async def test_its_wait_ends_at_its_limit_with_what_is_still_in_hand(stage: Any) -> None:
    broker = await filled(stage, 2)
    await receive(stage)
    broker.ending.begin()
    started = stage.clock.monotonic_ms()
    assert await stage.during(broker.ending.nothing_in_hand(3_000)) == 2
    assert 3_000 <= stage.clock.monotonic_ms() - started <= 3_100


async def test_it_waits_neither_for_retries_nor_for_clients_that_are_gone(stage: Any) -> None:
    broker = await filled(stage, 4)
    settings = consumer_settings(definition_pb2.PUSH_CONSUMER, "g")
    frames = stage.net.stream(
        "a:8081",
        "/apache.rocketmq.v2.MessagingService/Telemetry",
        _once(settings.SerializeToString()),
        timeout_ms=None,
        metadata={"x-mq-client-id": "c", "x-mq-language": "JAVA"},
    )
    await stage.during(anext(frames))
    for message in await receive(stage, push=True):
        await nack(stage, message, 30_000)
    assert await stage.during(broker.ending.nothing_in_hand(9_000)) == 0
    assert len(await receive(stage, push=True)) == 2
    await stage.ask(
        "NotifyClientTermination",
        service_pb2.NotifyClientTerminationRequest(),
        service_pb2.NotifyClientTerminationResponse,
    )
    started = stage.clock.monotonic_ms()
    assert await stage.during(broker.ending.nothing_in_hand(9_000)) == 0
    assert stage.clock.monotonic_ms() - started < 2_000
    await frames.aclose()


async def _once(request: bytes) -> Any:
    yield request
    await asyncio.Event().wait()
