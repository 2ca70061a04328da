"""PRIORITY topics: what they take, where it goes, and that the highest is delivered first, retries included."""

from typing import Any

import pytest
from evenq_proofs.v2_requests import messages_of, nack_request, receive_request, v2_message

from evenq.model import MessageType
from evenq.wire.convert import set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import data_pb2

OK, BAD_REQUEST, CONFLICT = 20000, 40000, 40014


def message(name: str, priority: int | None = None) -> Any:
    made = v2_message("p", name, name.encode())
    if priority is not None:
        made.system_properties.priority = priority
        made.system_properties.message_type = definition_pb2.PRIORITY
    return made


async def sent(stage: Any, *messages: Any) -> Any:
    return await stage.ask(
        "SendMessage", service_pb2.SendMessageRequest(messages=messages), service_pb2.SendMessageResponse
    )


async def received(stage: Any, *, count: int = 32, push: bool = False, queue_id: int = -1) -> list[Any]:
    asked = receive_request("g", "p", queue=queue_id, poll_ms=0, invisible_ms=10_000, batch_size=count, auto_renew=push)
    return messages_of(await stage.frames("ReceiveMessage", asked, service_pb2.ReceiveMessageResponse))


def names(messages: list[Any]) -> list[str]:
    return [one.system_properties.message_id for one in messages]


async def topic(stage: Any, **settings: Any) -> Any:
    broker = await stage.broker(default_start_from="FIRST", **settings)
    await stage.during(broker.catalog.create_topic("p", message_type=MessageType.PRIORITY))
    return broker


async def test_the_highest_comes_first_and_what_has_none_last(stage: Any) -> None:
    await topic(stage)
    for name, priority in (
        ("none", None),
        ("three", 3),
        ("nine", 9),
        ("high", 2**31 - 1),
        ("zero", 0),
        ("five", 5),
    ):
        assert (await sent(stage, message(name, priority))).status.code == OK
    got = await received(stage)
    assert names(got) == ["nine", "high", "five", "three", "none", "zero"], "above the top level is the top level"
    assert [one.system_properties.priority for one in got] == [9, 2**31 - 1, 5, 3, 0, 0]
    assert not got[4].system_properties.HasField("priority")
    assert {one.system_properties.message_type for one in got} == {definition_pb2.PRIORITY}


async def test_a_message_that_comes_back_stands_with_its_own_priority(stage: Any) -> None:
    await topic(stage)
    await sent(stage, message("low", 1), message("high", 8))
    high, low = await received(stage)
    for one in (low, high):
        change = nack_request("g", "p", one.system_properties.receipt_handle, 0)
        await stage.ask("ChangeInvisibleDuration", change, service_pb2.ChangeInvisibleDurationResponse)
    await sent(stage, message("middle", 5), message("higher", 9))
    assert names(await received(stage)) == ["higher", "high", "middle", "low"]


async def test_every_receive_takes_the_highest_whatever_queue_it_names(stage: Any) -> None:
    await topic(stage)
    await sent(stage, message("low", 1), message("high", 8))
    assert names(await received(stage, count=1, push=True, queue_id=1)) == ["high"]
    assert names(await received(stage, count=1, queue_id=0)) == ["low"]


async def test_a_topic_has_ten_levels_unless_told_and_its_queues_are_not_shared_out(stage: Any) -> None:
    broker = await topic(stage)
    await stage.during(broker.catalog.create_group("g", strategy="AVG"))
    point = definition_pb2.Endpoints(addresses=[definition_pb2.Address(host="a", port=8081)])
    resource = definition_pb2.Resource(name="p")
    route = await stage.ask(
        "QueryRoute",
        service_pb2.QueryRouteRequest(topic=resource, endpoints=point),
        service_pb2.QueryRouteResponse,
    )
    assert len(route.message_queues) == 10
    assert {tuple(queue.accept_message_types) for queue in route.message_queues} == {(6,)}
    asked = service_pb2.QueryAssignmentRequest(topic=resource, endpoints=point)
    asked.group.name = "g"
    response = await stage.ask("QueryAssignment", asked, service_pb2.QueryAssignmentResponse)
    [only] = response.assignments
    assert (only.message_queue.id, only.message_queue.permission) == (-1, definition_pb2.READ_WRITE)


async def test_a_first_message_with_a_priority_makes_such_a_topic(stage: Any) -> None:
    broker = await stage.broker(priority_levels=3)
    assert (await sent(stage, message("one", 2))).status.code == OK
    made = broker.catalog.topics.get("p")
    assert (made.message_type, made.write_queues) == (MessageType.PRIORITY, 3)


@pytest.mark.parametrize("field", ["group", "time", "negative", "elsewhere", "undeclared"])
async def test_a_priority_that_cannot_be_is_refused(stage: Any, field: str) -> None:
    broker = await topic(stage)
    wrong = message("x", -1 if field == "negative" else 4)
    code = CONFLICT
    if field == "group":
        wrong.system_properties.message_group = "o"
        wrong.system_properties.message_type = definition_pb2.FIFO
    elif field == "time":
        set_ms(wrong.system_properties.delivery_timestamp, 1_000)
    elif field == "elsewhere":
        await stage.during(broker.catalog.create_topic("n"))
        wrong.topic.name = "n"
    elif field == "undeclared":
        wrong.system_properties.message_type = definition_pb2.NORMAL
    else:
        code = BAD_REQUEST
    answer = await sent(stage, wrong)
    assert (answer.status.code, answer.entries[0].status.code) == (code, code)
    assert answer.status.message


async def test_a_block_goes_to_the_level_of_its_messages(stage: Any) -> None:
    await topic(stage)
    block = data_pb2.PublishRequest(messages=[message("x", 4), message("y", 4)])
    block.queue.topic, block.queue.broker_name, block.queue.queue_id = "p", "a", 7
    answer = await stage.call("/evenq.v1.Data/Publish", block, data_pb2.PublishResponse)
    assert answer.queue.queue_id == 4
    block.messages.append(message("z", 5))
    response = await stage.ask("/evenq.v1.Data/Publish", block, data_pb2.PublishResponse)
    assert "priority" in response.status.message
