"""What one broker and several promise while one is away (semantics.md section 6), without processes; the same with real
ones is tests/integration/test_replicated_promises.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.settings import StoreSettings

from evenq.errors import Error
from evenq.wire.convert import set_duration_ms
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

RECEIVE = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"
Run = Callable[[Callable[[Any], Awaitable[None]]], None]


async def started(stage: Any, name: str, folder: Path) -> Any:
    store = StoreSettings(path=folder / name, flush="sync", disk_free_min_bytes=0, disk_used_max_ratio=1)
    return await stage.broker(name, store=store, default_start_from="FIRST", default_queues=1)


async def stopped(stage: Any, broker: Any) -> None:
    """Nobody answers at its address any more."""
    await stage.during(broker.close())
    stage.net.stop(f"{broker.runtime.settings.broker_name}:8081")


async def send(stage: Any, body: bytes, broker: str) -> None:
    request = service_pb2.SendMessageRequest()
    message = request.messages.add(body=body)
    message.topic.name, message.system_properties.message_id = "t", body.decode()
    answer = await stage.ask("SendMessage", request, service_pb2.SendMessageResponse, broker=broker)
    assert answer.status.code == 20000


async def receive(stage: Any, broker: str) -> list[bytes]:
    request = service_pb2.ReceiveMessageRequest(batch_size=32)
    request.group.name, request.message_queue.topic.name, request.message_queue.id = "g", "t", -1
    set_duration_ms(request.invisible_duration, 600_000)
    set_duration_ms(request.long_polling_timeout, 0)

    async def frames() -> list[bytes]:
        headers = {"x-mq-client-id": "c", "x-mq-language": "JAVA"}
        stream = stage.net.stream(
            f"{broker}:8081", RECEIVE, request.SerializeToString(), timeout_ms=60_000, metadata=headers
        )
        answers = [service_pb2.ReceiveMessageResponse.FromString(frame) async for frame in stream]
        return [answer.message.body for answer in answers if answer.HasField("message")]

    found: list[bytes] = await stage.during(frames())
    return found


@pytest.mark.spec("HA-3")
async def test_a_single_broker_serves_nobody_while_it_is_away_and_has_all_when_it_is_back(
    stage: Any, tmp_path: Path
) -> None:
    broker = await started(stage, "a", tmp_path)
    await send(stage, b"one", "a")
    await stopped(stage, broker)
    with pytest.raises(Error):
        await send(stage, b"nobody", "a")
    await started(stage, "a", tmp_path)
    await send(stage, b"two", "a")
    assert await receive(stage, "a") == [b"one", b"two"]


@pytest.mark.spec("HA-4")
async def test_of_two_brokers_one_goes_on_and_what_the_other_has_waits_for_it(stage: Any, tmp_path: Path) -> None:
    first = await started(stage, "a", tmp_path)
    await started(stage, "b", tmp_path)
    await send(stage, b"waits", "a")
    await send(stage, b"there", "b")
    await stopped(stage, first)
    await send(stage, b"more", "b")
    assert await receive(stage, "b") == [b"there", b"more"]
    await started(stage, "a", tmp_path)
    assert await receive(stage, "a") == [b"waits"]
