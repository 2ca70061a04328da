"""The pull path of v2 (wire contract 7): offsets that are not there, waiting, and progress that never goes back."""

import asyncio
from typing import Any

import pytest
from evenq_broker.core.delivery.tags import tag_hash

from evenq.store import Append
from evenq.wire.convert import set_duration_ms, set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

OK = 20000


async def filled(stage: Any) -> Any:
    broker = await stage.broker()
    topic = await stage.during(broker.catalog.create_topic("t", queues=1))
    await stage.during(broker.catalog.create_group("g"))
    for _ in range(3):
        await stage.during(broker.ledger.store.append([Append(topic.topic_id, 0, 0, 0, b"", b"")]))
        await stage.clock.advance(1_000)
    return broker


def named(request: Any, queue_id: int = 0, group: str = "g", topic: str = "t") -> Any:
    request.message_queue.topic.name, request.message_queue.id = topic, queue_id
    if hasattr(request, "group"):
        request.group.name = group
    return request


async def pull(stage: Any, offset: int, *, queue_id: int = 0, poll_ms: int = 0, batch: int = 32) -> list[Any]:
    request = named(service_pb2.PullMessageRequest(offset=offset, batch_size=batch), queue_id)
    set_duration_ms(request.long_polling_timeout, poll_ms)
    found: list[Any] = await stage.frames("PullMessage", request, service_pb2.PullMessageResponse)
    return found


async def test_the_next_offset_is_told_with_and_without_messages(stage: Any) -> None:
    await filled(stage)
    some = await pull(stage, 1, batch=1)
    assert [frame.WhichOneof("content") for frame in some] == ["status", "message", "next_offset"]
    assert some[-1].next_offset == 2
    started = stage.clock.monotonic_ms()
    none = await pull(stage, 3, poll_ms=800)
    assert (none[0].status.code, none[-1].next_offset) == (40401, 3)
    assert stage.clock.monotonic_ms() - started >= 800


@pytest.mark.parametrize(("offset", "queue_id", "code"), [(4, 0, 40019), (-1, 0, 40019), (0, 1, 40000), (0, -1, 40000)])
async def test_a_place_that_is_not_there_is_refused(stage: Any, offset: int, queue_id: int, code: int) -> None:
    await filled(stage)
    [only] = await pull(stage, offset, queue_id=queue_id)
    assert only.status.code == code


async def test_a_groups_offset_is_kept_and_never_goes_back(stage: Any) -> None:
    await filled(stage)

    async def update(offset: int, **places: Any) -> int:
        request = named(service_pb2.UpdateOffsetRequest(offset=offset), **places)
        return int((await stage.ask("UpdateOffset", request, service_pb2.UpdateOffsetResponse)).status.code)

    async def get() -> Any:
        return await stage.ask("GetOffset", named(service_pb2.GetOffsetRequest()), service_pb2.GetOffsetResponse)

    assert (await get()).status.code == 40404
    assert [await update(2), await update(1)] == [OK, OK]
    assert (await get()).offset == 2
    assert [await update(4), await update(-1)] == [40019, 40019]
    assert await update(1, group="nobody") == 40403
    assert await update(1, topic="nowhere") == 40402


async def test_offsets_are_found_by_end_and_by_time(stage: Any) -> None:
    await filled(stage)
    begin_ms = stage.clock.now_ms() - 3_000

    async def query(policy: Any, at_ms: int | None = None) -> Any:
        request = named(service_pb2.QueryOffsetRequest(query_offset_policy=policy))
        if at_ms is not None:
            set_ms(request.timestamp, at_ms)
        return await stage.ask("QueryOffset", request, service_pb2.QueryOffsetResponse)

    assert (await query(definition_pb2.BEGINNING)).offset == 0
    assert (await query(definition_pb2.END)).offset == 3
    assert (await query(definition_pb2.TIMESTAMP, begin_ms - 10_000)).offset == 0
    assert (await query(definition_pb2.TIMESTAMP, begin_ms + 500)).offset == 1
    assert (await query(definition_pb2.TIMESTAMP, begin_ms + 10_000)).offset == 3
    assert (await query(definition_pb2.TIMESTAMP)).status.code == 40000


async def test_a_pull_waits_on_when_what_came_does_not_fit_its_filter(stage: Any) -> None:
    broker = await filled(stage)
    topic = broker.catalog.topics.get("t")
    request = named(service_pb2.PullMessageRequest(offset=0, batch_size=8))
    request.filter_expression.expression = "wanted"
    set_duration_ms(request.long_polling_timeout, 5_000)
    asking = asyncio.ensure_future(stage.frames("PullMessage", request, service_pb2.PullMessageResponse))
    await stage.clock.advance(500)
    assert not asking.done()
    head = definition_pb2.Message(body=b"x").SerializeToString()
    system = definition_pb2.SystemProperties(tag="wanted").SerializeToString()
    await stage.during(broker.ledger.store.append([Append(topic.topic_id, 0, tag_hash("wanted"), 0, head, system)]))
    frames = await stage.during(asking)
    assert [frame.WhichOneof("content") for frame in frames] == ["status", "message", "next_offset"]
    assert frames[-1].next_offset == 4


async def test_a_pull_of_a_topic_that_is_deleted_meanwhile_ends_with_that(stage: Any) -> None:
    broker = await filled(stage)
    asking = asyncio.ensure_future(pull(stage, 3, poll_ms=30_000))
    await stage.clock.advance(50)
    await stage.during(broker.catalog.delete_topic("t"))
    [only] = await stage.during(asking)
    assert only.status.code == 40402


@pytest.mark.parametrize(("language", "code"), [("JAVA", 40019), ("RUST", 40000)])
async def test_the_range_is_named_and_rust_gets_a_code_it_knows(stage: Any, language: str, code: int) -> None:
    """Wire contract 10: Rust 5.0.0 panics on codes that its older proto lacks."""
    await filled(stage)
    request = named(service_pb2.PullMessageRequest(offset=9))
    [only] = await stage.frames("PullMessage", request, service_pb2.PullMessageResponse, language=language)
    assert only.status.code == code
    assert "outside 0 to 3" in only.status.message
    lost = named(service_pb2.GetOffsetRequest(), group="nobody")
    answer = await stage.ask("GetOffset", lost, service_pb2.GetOffsetResponse, language=language)
    assert answer.status.code == {"JAVA": 40404, "RUST": 40400}[language]


async def test_another_brokers_queue_is_never_answered_from_here(stage: Any) -> None:
    await filled(stage)
    for method, request, response in (
        ("UpdateOffset", service_pb2.UpdateOffsetRequest(offset=1), service_pb2.UpdateOffsetResponse),
        ("GetOffset", service_pb2.GetOffsetRequest(), service_pb2.GetOffsetResponse),
        ("QueryOffset", service_pb2.QueryOffsetRequest(), service_pb2.QueryOffsetResponse),
    ):
        named(request).message_queue.broker.name = "gone"
        answer = await stage.ask(method, request, response)
        assert (answer.status.code, "'gone'" in answer.status.message) == (42800, True)


async def test_an_unknown_policy_is_refused(stage: Any) -> None:
    await filled(stage)
    request = named(service_pb2.QueryOffsetRequest())
    request.query_offset_policy = 7
    answer = await stage.ask("QueryOffset", request, service_pb2.QueryOffsetResponse)
    assert (answer.status.code, "BEGINNING" in answer.status.message) == (40000, True)
