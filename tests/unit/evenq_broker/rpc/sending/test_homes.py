"""Messages of one group end in one order whichever broker their producers chose (checklist 21)."""

from collections.abc import Awaitable, Callable
from typing import Any

from evenq.model import MessageType
from evenq.model.lanes import home_of, lane_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

Run = Callable[[Callable[[Any], Awaitable[None]]], None]
OK = definition_pb2.OK
V2 = "/apache.rocketmq.v2.MessagingService/"


async def pair(stage: Any, **settings: Any) -> list[Any]:
    brokers = [await stage.broker(name, **settings) for name in "ab"]
    for broker in brokers:
        await stage.during(broker.catalog.create_topic("t", queues=4, message_type=MessageType.FIFO))
    views = [broker.cluster.own.now() for broker in brokers]
    for broker in brokers:
        broker.catalog.routes.snapshot("nameserver", "n", views, broker.runtime.clock.monotonic_ms())
        broker.cluster.routes_changed()
    return brokers


def message(number: int, group: str) -> definition_pb2.Message:
    made = definition_pb2.Message(body=b"%d" % number)
    made.topic.name = "t"
    made.system_properties.message_id, made.system_properties.message_group = f"id{number}", group
    made.system_properties.queue_id = number % 4  # each SDK hashes in its own way; the broker decides
    return made


async def send(stage: Any, broker: str, *messages: definition_pb2.Message) -> service_pb2.SendMessageResponse:
    response = service_pb2.SendMessageRequest(messages=messages)
    answer: service_pb2.SendMessageResponse = await stage.ask(
        "SendMessage", response, service_pb2.SendMessageResponse, broker=broker
    )
    return answer


async def kept(broker: Any) -> dict[int, list[bytes]]:
    topic = broker.catalog.topics.get("t")
    found: dict[int, list[bytes]] = {}
    for queue_id in range(4):
        offsets = range(broker.ledger.store.queue_range(topic.topic_id, queue_id)[1])
        messages = await broker.ledger.store.read_at(topic.topic_id, queue_id, offsets)
        if messages:
            found[queue_id] = [definition_pb2.Message.FromString(one.head).body for one in messages]
    return found


def test_whatever_broker_and_queue_producers_choose_a_group_has_one_order(run: Run) -> None:
    async def story(stage: Any) -> None:
        brokers = {broker.runtime.settings.broker_name: broker for broker in await pair(stage)}
        for number in range(8):
            answer = await send(stage, "ab"[number % 2], message(number, "order-1"))
            assert [(entry.status.code, entry.offset) for entry in answer.entries] == [(OK, number)]
        home = home_of("order-1", "ab")
        other = "b" if home == "a" else "a"
        assert await kept(brokers[home]) == {lane_of("order-1", 4): [b"%d" % number for number in range(8)]}
        assert await kept(brokers[other]) == {}

    run(story)


def test_a_list_for_several_homes_is_taken_apart_and_answered_in_order(run: Run) -> None:
    async def story(stage: Any) -> None:
        brokers = {broker.runtime.settings.broker_name: broker for broker in await pair(stage)}
        groups = [f"order-{number % 4}" for number in range(12)]
        assert len({home_of(group, "ab") for group in groups}) == 2
        sent = [message(number, group) for number, group in enumerate(groups)]
        answer = await send(stage, "a", *sent)
        assert answer.status.code == OK
        assert [entry.message_id for entry in answer.entries] == [f"id{number}" for number in range(12)]
        found = [bodies for broker in brokers.values() for bodies in (await kept(broker)).values()]
        assert sorted(int(body) for bodies in found for body in bodies) == list(range(12))
        assert all(bodies == sorted(bodies, key=int) for bodies in found)
        sent[5].body = b""
        mixed = await send(stage, "a", *sent)
        assert mixed.status.code == definition_pb2.MULTIPLE_RESULTS
        assert [entry.status.code for entry in mixed.entries].index(definition_pb2.MESSAGE_BODY_EMPTY) == 5

    run(story)


def test_a_home_that_does_not_answer_fails_the_send_and_nothing_moves(run: Run) -> None:
    async def story(stage: Any) -> None:
        brokers = {broker.runtime.settings.broker_name: broker for broker in await pair(stage)}
        home = home_of("order-1", "ab")
        other = "b" if home == "a" else "a"
        stage.net.stop(f"{home}:8081")
        answer = await send(stage, other, message(1, "order-1"))
        assert answer.status.code == answer.entries[0].status.code != OK
        assert await kept(brokers[other]) == {}

    run(story)


def test_with_the_setting_they_stay_where_they_were_sent(run: Run) -> None:
    async def story(stage: Any) -> None:
        brokers = await pair(stage, message_group_home="broker")
        for number in range(8):
            await send(stage, "ab"[number % 2], message(number, "order-1"))
        assert [list((await kept(broker)).values()) for broker in brokers] == [
            [[b"%d" % number for number in range(first, 8, 2)]] for first in (0, 1)
        ]

    run(story)
