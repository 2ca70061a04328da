"""FindMessages: by id, key, place and time; limits; what a broker without an index says."""

from typing import Any

import pytest

from evenq.errors import BadRequest, ConnectionFailed, NotImplementedYet, TopicNotFound
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, common_pb2

METHOD = "/evenq.v1.Admin/FindMessages"
OK = definition_pb2.Status(code=definition_pb2.OK)


async def send(stage: Any, number: int, *, topic: str = "t", key: str = "k", body: bytes = b"body") -> None:
    request = service_pb2.SendMessageRequest()
    message = request.messages.add(body=body)
    message.topic.name = topic
    message.system_properties.message_id = f"id-{number}"
    message.system_properties.keys.append(key)
    message.system_properties.message_type = definition_pb2.NORMAL
    answer = await stage.ask("SendMessage", request, service_pb2.SendMessageResponse)
    assert answer.status.code == 20000, answer


async def filled(stage: Any, count: int = 5, *, queues: int = 1, **settings: Any) -> Any:
    broker = await stage.broker(**settings)
    await stage.during(broker.catalog.create_topic("t", queues=queues))
    for number in range(count):
        await send(stage, number)
        await stage.clock.advance(1_000)
    return broker


async def find(stage: Any, **result: Any) -> Any:
    request = admin_pb2.FindMessagesRequest(**{"topic": "t", **result})
    return await stage.call(METHOD, request, admin_pb2.FindMessagesResponse)


def ids(answer: Any) -> list[str]:
    return [found.message.system_properties.message_id for found in answer.messages]


async def test_a_message_is_found_by_its_id_with_or_without_its_topic(stage: Any) -> None:
    await filled(stage)
    for topic in ("t", ""):
        answer = await find(stage, topic=topic, message_id="id-3")
        [found] = answer.messages
        assert ids(answer) == ["id-3"]
        assert (found.message.body, found.body_bytes, found.message.topic.name) == (b"body", 4, "t")
        assert found.message.system_properties.queue_offset == 3
        assert found.queue == common_pb2.Queue(topic="t", broker_name="a", queue_id=0)
    assert ids(await find(stage, message_id="id-99")) == []
    assert ids(await find(stage, message_id="k")) == [], "a key is no id"


async def test_messages_are_found_by_key_in_order_and_within_a_time(stage: Any) -> None:
    await filled(stage)
    await send(stage, 9, key="other")
    answer = await find(stage, key="k")
    assert ids(answer) == [f"id-{number}" for number in range(5)]
    assert ids(await find(stage, key="k", newest_first=True, count_max=2)) == ["id-4", "id-3"]
    assert ids(await find(stage, key="k", count_max=2)) == ["id-0", "id-1"]
    times = [found.message.system_properties.store_timestamp.ToMilliseconds() for found in answer.messages]
    assert ids(await find(stage, key="k", begin_ms=times[1], end_ms=times[3])) == ["id-1", "id-2", "id-3"]
    assert ids(await find(stage, key="id-2")) == [], "an id is no key"


async def test_a_time_range_is_read_from_all_queues_in_pages(stage: Any) -> None:
    await filled(stage, 6, queues=2)
    everything = await find(stage)
    assert ids(everything) == [f"id-{number}" for number in range(6)]
    assert not everything.more
    times = [found.message.system_properties.store_timestamp.ToMilliseconds() for found in everything.messages]
    assert ids(await find(stage, begin_ms=times[2], end_ms=times[4])) == ["id-2", "id-3", "id-4"]
    seen: list[str] = []
    positions: list[Any] = []
    for _ in range(9):
        page = await find(stage, count_max=2, positions=positions)
        seen += ids(page)
        positions = list(page.positions)
        if not page.more:
            break
    assert seen == [f"id-{number}" for number in range(6)]
    assert ids(await find(stage, newest_first=True, count_max=2)) == ["id-5", "id-4"]


async def test_a_place_is_read_from_its_offset_on(stage: Any) -> None:
    await filled(stage)
    queue = common_pb2.Queue(broker_name="a", queue_id=0)
    assert ids(await find(stage, queue=queue, by_offset=True, offset=3)) == ["id-3", "id-4"]
    assert ids(await find(stage, queue=queue, by_offset=True, offset=99)) == []
    elsewhere = common_pb2.Queue(broker_name="b", queue_id=0)
    assert ids(await find(stage, queue=elsewhere, by_offset=True, offset=3)) == []


async def test_bodies_are_cut_and_their_size_is_told(stage: Any) -> None:
    await filled(stage, 0)
    await send(stage, 0, body=b"x" * 5_000)
    [found] = (await find(stage, body_max=10)).messages
    assert (found.message.body, found.body_bytes) == (b"x" * 10, 5_000)


async def test_large_answers_are_cut_by_bytes_and_go_on(stage: Any) -> None:
    await filled(stage, 0)
    for number in range(4):
        await send(stage, number, body=b"x" * (3 << 20))
    page = await find(stage)
    assert page.more
    assert 1 <= len(page.messages) < 4
    assert ids(await find(stage, positions=list(page.positions)))[0] == f"id-{len(page.messages)}"


async def test_a_broker_without_an_index_says_what_to_do(stage: Any) -> None:
    await filled(stage, store={"message_index": False})
    with pytest.raises(NotImplementedYet, match="message_index is off"):
        await find(stage, key="k")
    assert len(ids(await find(stage))) == 5


async def test_a_broker_that_is_silent_is_named(stage: Any) -> None:
    broker = await filled(stage, 1)

    async def ask_peers(method: str, request: bytes, **_: Any) -> list[tuple[str, Any]]:
        assert admin_pb2.FindMessagesRequest.FromString(request).local
        there = admin_pb2.FindMessagesResponse(status=OK)
        message = there.messages.add(queue=common_pb2.Queue(topic="t", broker_name="b"))
        message.message.system_properties.message_id = "far"
        return [("b", there.SerializeToString()), ("c", ConnectionFailed("no"))]

    broker.cluster.peers.ask_peers = ask_peers
    answer = await find(stage)
    assert (ids(answer), list(answer.silent)) == (["far", "id-0"], ["c"])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"topic": "nowhere"}, TopicNotFound),
        ({"topic": ""}, BadRequest),
        ({"count_max": 1_001}, BadRequest),
        ({"count_max": -1}, BadRequest),
        ({"begin_ms": 5, "end_ms": 4}, BadRequest),
        ({"message_id": "a", "key": "b"}, BadRequest),
        ({"by_offset": True}, BadRequest),
        ({"body_max": -1}, BadRequest),
        ({"queue": common_pb2.Queue(queue_id=7)}, BadRequest),
    ],
)
async def test_what_makes_no_sense_is_refused(stage: Any, given: dict[str, Any], error: type[Exception]) -> None:
    await filled(stage, 1)
    with pytest.raises(error):
        await find(stage, **given)


async def test_bodies_are_for_those_who_may_consume_the_topic_that_they_come_from(stage: Any) -> None:
    """Whatever the request names, and also where it says that another broker asks."""
    broker = await filled(stage)
    await stage.during(broker.catalog.create_topic("mine", queues=1))
    await send(stage, 3, topic="mine", body=b"my own")

    async def by(grants: str, **result: Any) -> list[bytes]:
        request = admin_pb2.FindMessagesRequest(message_id="id-3", **result)
        answer = await stage.as_user(grants, METHOD, request, admin_pb2.FindMessagesResponse)
        return sorted(found.message.body for found in answer.messages)

    for local in (False, True):
        assert await by("topic:* consume", local=local) == [b"body", b"my own"]
        assert await by("topic:mine consume", local=local) == [b"my own"]
        assert await by("topic:* describe", local=local) == []
        assert await by("topic:mine consume", local=local, topic="t") == []


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("place", ["queue", "positions"])
async def test_a_queue_of_another_topic_than_the_requests_is_refused(stage: Any, place: str, local: bool) -> None:
    await filled(stage)
    queue = common_pb2.Queue(topic="mine", broker_name="a")
    response: Any = {"queue": queue} if place == "queue" else {"positions": [admin_pb2.QueuePosition(queue=queue)]}
    for topic in ("t", ""):
        with pytest.raises(BadRequest, match="names a queue of 'mine'"):
            await find(stage, topic=topic, message_id="id-3", local=local, **response)
    with pytest.raises(BadRequest, match="names no topic"):
        await find(stage, topic="", key="k", local=local)


async def test_the_newest_messages_are_the_newest_ones_however_large_they_are(stage: Any) -> None:
    """20 messages of 1 MiB: an answer has 4 MiB, and had the four oldest of the twenty that were asked for."""
    await filled(stage, 0)
    for number in range(20):
        await send(stage, number, body=bytes(1 << 20))
    answer = await find(stage, newest_first=True, count_max=20, body_max=10)
    assert ids(answer) == [f"id-{number}" for number in range(19, 19 - len(answer.messages), -1)]
    assert len(answer.messages) >= 3
    assert answer.more


async def test_no_newest_message_is_left_out_between_those_of_other_queues(stage: Any) -> None:
    await filled(stage, 0, queues=2)
    for number in range(12):
        await send(stage, number, body=bytes(1 << 20 if number % 2 else 10))
        await stage.clock.advance(1_000)
    answer = await find(stage, newest_first=True, count_max=12, body_max=10)
    found = ids(answer)
    assert found == [f"id-{number}" for number in range(11, 11 - len(found), -1)], "without a gap"
    assert 0 < len(found) < 12
    assert answer.more
