"""Delayed messages: not before their time, then once; taken back before it; all of it across a restart."""

import re
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.settings import StoreSettings
from evenq_proofs.v2_requests import messages_of, receive_request

from evenq.model import MessageType, StartFrom
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

OK, BAD_REQUEST = 20000, 40000


def delayed(stage: Any, *delays_ms: int) -> service_pb2.SendMessageRequest:
    request = service_pb2.SendMessageRequest()
    for number, delay_ms in enumerate(delays_ms):
        message = request.messages.add(body=b"later %d" % delay_ms)
        message.topic.name = "t"
        message.system_properties.message_id = f"id{number}"
        message.system_properties.message_type = definition_pb2.DELAY
        set_ms(message.system_properties.delivery_timestamp, stage.clock.now_ms() + delay_ms)
    return request


async def send(stage: Any, *delays_ms: int) -> Any:
    return await stage.ask("SendMessage", delayed(stage, *delays_ms), service_pb2.SendMessageResponse)


async def receive(stage: Any) -> list[Any]:
    request = receive_request("g", "t", queue=-1, poll_ms=0, invisible_ms=600_000, tags="*", batch_size=32)
    return messages_of(await stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse))


async def recall(stage: Any, handle: str, topic: str = "t", broker: str = "a") -> Any:
    request = service_pb2.RecallMessageRequest(recall_handle=handle)
    request.topic.name = topic
    return await stage.ask("RecallMessage", request, service_pb2.RecallMessageResponse, broker=broker)


async def begun(stage: Any, **settings: Any) -> Any:
    broker = await stage.broker(poll_default_ms=1, **settings)
    await stage.during(broker.catalog.create_topic("t", queues=2, message_type=MessageType.DELAY))
    await stage.during(broker.catalog.create_group("g", start_from=StartFrom.FIRST))
    return broker


async def test_a_delayed_message_comes_at_its_time_and_not_before(stage: Any) -> None:
    broker = await begun(stage)
    answer = await send(stage, 60_000, 30_000)
    assert [entry.status.code for entry in answer.entries] == [OK, OK]
    assert all(entry.recall_handle for entry in answer.entries)
    assert await receive(stage) == []
    await stage.clock.advance(20_000)
    assert await receive(stage) == []
    await stage.until(lambda: broker.ledger.store.timers.stats.fired == 1)
    [first] = await receive(stage)
    assert first.body == b"later 30000"
    assert first.system_properties.message_type == definition_pb2.DELAY
    await stage.until(lambda: broker.ledger.store.timers.stats.fired == 2)
    [second] = await receive(stage)
    assert second.body == b"later 60000"
    assert second.system_properties.store_timestamp.ToMilliseconds() >= 60_000
    assert broker.ledger.store.timers.stats.late_max_ms <= 20


async def test_one_in_the_past_comes_at_once_without_a_handle(stage: Any) -> None:
    await begun(stage)
    answer = await send(stage, -1)
    assert answer.entries[0].recall_handle == ""
    assert [message.body for message in await receive(stage)] == [b"later -1"]


async def test_a_recalled_message_never_comes_and_recalling_twice_is_ok(stage: Any) -> None:
    broker = await begun(stage)
    entries = (await send(stage, 5_000, 5_000)).entries
    for _ in range(2):
        answer = await recall(stage, entries[0].recall_handle)
        assert (answer.status.code, answer.message_id) == (OK, "id0")
    await stage.until(lambda: broker.ledger.store.timers.stats.fired == 1)
    assert len(await receive(stage)) == 1
    late = await recall(stage, entries[1].recall_handle)
    assert late.status.code == BAD_REQUEST
    assert "too late" in late.status.message
    assert re.search(r"was due at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", late.status.message)


@pytest.mark.parametrize(("handle", "topic"), [("", "t"), ("d1.a.00", "t"), ("e1.a.00", "t"), (None, "other")])
async def test_a_recall_that_names_nothing_of_ours_is_a_bad_request(stage: Any, handle: str | None, topic: str) -> None:
    await begun(stage)
    response = (await send(stage, 5_000)).entries[0].recall_handle if handle is None else handle
    assert (await recall(stage, response, topic)).status.code == BAD_REQUEST


async def test_delayed_messages_survive_a_restart_and_their_handles_too(stage: Any, tmp_path: Path) -> None:
    store = StoreSettings(path=tmp_path, disk_free_min_bytes=0, disk_used_max_ratio=1)
    broker = await begun(stage, store=store)
    entries = (await send(stage, 60_000, 60_000)).entries
    await stage.during(broker.close())
    again = await stage.broker(store=store)
    assert again.ledger.store.timers.stats.pending == 2
    assert (await recall(stage, entries[0].recall_handle)).status.code == OK
    await stage.clock.advance(50_000)  # the restart took time, too
    assert again.ledger.store.timers.stats.fired == 0
    await stage.clock.advance(10_000)
    await stage.until(lambda: again.ledger.store.timers.stats.fired == 1)
    assert [message.system_properties.message_id for message in await receive(stage)] == ["id1"]


async def test_a_deleted_topic_takes_its_delayed_messages_along(stage: Any) -> None:
    broker = await begun(stage)
    await send(stage, 1_000)
    await stage.during(broker.catalog.delete_topic("t"))
    await stage.until(lambda: broker.ledger.store.timers.stats.pending == 0)
    assert broker.ledger.store.queue_range(1, 0) == broker.ledger.store.queue_range(1, 1) == (0, 0)
