"""What clients see when the store lets old messages go: risen minimum offsets, never an error or a wrong lag."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evenq_broker.settings import StoreSettings
from evenq_proofs.v2_requests import ack_request, receive_request

from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2, data_pb2

BODY = b"x" * 20_000


def settings(folder: Path) -> StoreSettings:
    return StoreSettings(
        path=folder, disk_free_min_bytes=0, disk_used_max_ratio=1, disk_clean_ratio=1, segment_bytes=1 << 16,
        cache_bytes=0, retention_ms=1_000, retention_hour=-1,
    )  # fmt: skip


async def publish(stage: Any, topic: str, count: int) -> None:
    for number in range(count):
        request = data_pb2.PublishRequest(queue=common_pb2.Queue(topic=topic, broker_name="a", queue_id=0))
        request.messages.add(body=b"%d " % number + BODY).system_properties.message_id = f"{topic}{number}"
        await stage.call("/evenq.v1.Data/Publish", request, data_pb2.PublishResponse)


async def receive(stage: Any) -> list[Any]:
    request = receive_request("g", "t", queue=-1, invisible_ms=600_000, tags="*", batch_size=4)
    frames = await stage.frames("ReceiveMessage", request, service_pb2.ReceiveMessageResponse)
    return [frame.message.system_properties for frame in frames if frame.HasField("message")]


async def minutes_pass(stage: Any, state: Callable[[], bool]) -> None:
    """Until the state holds; the store's threads have a moment after each second."""
    for _ in range(500):
        if state():
            return
        await stage.clock.advance(1_000)
        await asyncio.sleep(0.002)
    raise AssertionError("the state did not come")


async def files_go(stage: Any, broker: Any) -> None:
    """Log files are gone."""
    await minutes_pass(stage, lambda: broker.ledger.store.stats.deleted_files > 0)


async def described(stage: Any) -> Any:
    request = admin_pb2.DescribeGroupRequest(group="g", local=True)
    return (await stage.call("/evenq.v1.Admin/DescribeGroup", request, admin_pb2.DescribeGroupResponse)).queues[0]


async def test_a_group_goes_on_where_messages_begin_and_its_lag_counts_only_them(stage: Any, tmp_path: Path) -> None:
    broker = await stage.broker(store=settings(tmp_path))
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("g", start_from="FIRST"))
    await publish(stage, "t", 30)
    held = await receive(stage)
    assert [at.queue_offset for at in held] == [0, 1, 2, 3]
    await files_go(stage, broker)
    low, high = broker.ledger.store.queue_range(1, 0)
    assert 4 < low < high == 30
    found = await described(stage)
    assert (found.lag, found.inflight) == (high - low, 0), "what it holds is deleted: only what there is counts"
    ack = ack_request("g", "t")
    for at in held:
        ack.entries.add(message_id=at.message_id, receipt_handle=at.receipt_handle)
    assert (await stage.ask("AckMessage", ack, service_pb2.AckMessageResponse)).status.code == 20000
    assert [at.queue_offset for at in await receive(stage)] == list(range(low, min(low + 4, high)))
    await stage.during(broker.close())
    again = await stage.broker(store=settings(tmp_path))
    assert again.ledger.store.queue_range(1, 0) == (low, high)


@pytest.mark.parametrize("retention_ms", [0, 86_400_000])
async def test_a_topic_that_keeps_longer_holds_the_files_that_it_is_in(
    stage: Any, tmp_path: Path, retention_ms: int
) -> None:
    broker = await stage.broker(store=settings(tmp_path))
    await stage.during(broker.catalog.create_topic("long", queues=1, retention_ms=retention_ms))
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await publish(stage, "t", 10)
    await publish(stage, "long", 10)
    await publish(stage, "t", 10)
    await files_go(stage, broker)
    await minutes_pass(stage, lambda: broker.ledger.store.queue_range(2, 0)[0] >= 7)
    assert broker.ledger.store.queue_range(1, 0) == (0, 10)
    assert broker.ledger.store.queue_range(2, 0)[0] in range(7, 11), "the files before it are gone"


async def test_a_topic_that_keeps_shorter_frees_the_disk_of_a_store_that_keeps_for_ever(
    stage: Any, tmp_path: Path
) -> None:
    broker = await stage.broker(store=settings(tmp_path).model_copy(update={"retention_ms": 0}))
    await stage.during(broker.catalog.create_topic("short", queues=1, retention_ms=60_000))
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await publish(stage, "short", 20)
    await publish(stage, "t", 3)
    await publish(stage, "short", 10)
    await files_go(stage, broker)
    assert broker.ledger.store.queue_range(1, 0) == (30, 30)
    assert broker.ledger.store.queue_range(2, 0) == (0, 3), "what the other topic keeps is there"
    assert broker.ledger.store.stats.deleted_files >= 5


async def test_a_topic_with_a_table_keeps_what_is_not_exported_also_after_a_restart(stage: Any, tmp_path: Path) -> None:
    broker = await stage.broker(store=settings(tmp_path))
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("evenq-table-t"))
    await publish(stage, "t", 30)
    await commit(stage, 10)
    await stage.during(broker.close())
    broker = await stage.broker(store=settings(tmp_path))
    await files_go(stage, broker)
    assert 0 < broker.ledger.store.queue_range(1, 0)[0] <= 10
    deleted = broker.ledger.store.stats.deleted_files
    await commit(stage, 30)
    await minutes_pass(stage, lambda: broker.ledger.store.stats.deleted_files > deleted)
    assert broker.runtime.stats.topic(1).unexported == 0


async def test_what_is_deleted_before_its_export_is_counted(
    stage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = settings(tmp_path).model_copy(update={"table_wait_ms": 3_600_000})
    broker = await stage.broker(store=store)
    await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("evenq-table-t"))
    await publish(stage, "t", 30)
    stage.clock.jump_wall(2 * 3_600_000)
    await files_go(stage, broker)
    low = broker.ledger.store.queue_range(1, 0)[0]
    assert broker.runtime.stats.topic(1).unexported == low > 0
    assert f"offsets 0 to {low - 1} of queue 0 of topic t, which were not exported" in caplog.text


async def commit(stage: Any, offset: int) -> None:
    request = data_pb2.CommitOffsetsRequest(group="evenq-table-t", client_id="exporter")
    request.offsets.add(queue=common_pb2.Queue(topic="t", broker_name="a", queue_id=0), offset=offset)
    answer = await stage.call("/evenq.v1.Data/CommitOffsets", request, data_pb2.CommitOffsetsResponse)
    assert answer.status.code == 20000
