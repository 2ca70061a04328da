"""What one broker and several promise while one is away (semantics.md section 6), without processes; the same with real
ones is tests/integration/test_replicated_promises.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from evenq_broker.settings import StoreSettings
from evenq_proofs.v2_requests import receive_messages, receive_request, send_request

from evenq.errors import Error
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

RECEIVE = "/apache.rocketmq.v2.MessagingService/ReceiveMessage"


async def started(stage: Any, name: str, folder: Path) -> Any:
    store = StoreSettings(path=folder / name, flush="sync", disk_free_min_bytes=0, disk_used_max_ratio=1)
    return await stage.broker(name, store=store, default_start_from="FIRST", default_queues=1)


async def stopped(stage: Any, broker: Any) -> None:
    """Nobody answers at its address any more."""
    await stage.during(broker.close())
    stage.net.stop(f"{broker.runtime.settings.broker_name}:8081")


async def send(stage: Any, body: bytes, broker: str) -> None:
    request = send_request("t", body.decode(), body)
    answer = await stage.ask("SendMessage", request, service_pb2.SendMessageResponse, broker=broker)
    assert answer.status.code == 20000


async def receive(stage: Any, broker: str) -> list[bytes]:
    request = receive_request("g", "t", queue=-1, poll_ms=0, invisible_ms=600_000, batch_size=32)

    headers = {"x-mq-client-id": "c", "x-mq-language": "JAVA"}
    reading = receive_messages(stage.net, f"{broker}:8081", request, metadata=headers)
    return [message.body for message in await stage.during(reading)]


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
