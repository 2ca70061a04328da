"""Messages of one group end in one order whichever broker their producers chose (checklist 21)."""

from typing import Any

import pytest
from evenq_broker.runtime import Leadership

from evenq.errors import ConnectionFailed, InternalError, StorePoisoned
from evenq.model import MessageType
from evenq.model.lanes import home_of, lane_of
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

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


async def test_whatever_broker_and_queue_producers_choose_a_group_has_one_order(stage: Any) -> None:
    brokers = {broker.runtime.settings.broker_name: broker for broker in await pair(stage)}
    for number in range(8):
        answer = await send(stage, "ab"[number % 2], message(number, "order-1"))
        assert [(entry.status.code, entry.offset) for entry in answer.entries] == [(OK, number)]
    home = home_of("order-1", "ab")
    other = "b" if home == "a" else "a"
    assert await kept(brokers[home]) == {lane_of("order-1", 4): [b"%d" % number for number in range(8)]}
    assert await kept(brokers[other]) == {}


async def test_a_list_for_several_homes_is_taken_apart_and_answered_in_order(stage: Any) -> None:
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


async def test_a_home_that_does_not_answer_fails_the_send_and_nothing_moves(stage: Any) -> None:
    brokers = {broker.runtime.settings.broker_name: broker for broker in await pair(stage)}
    home = home_of("order-1", "ab")
    other = "b" if home == "a" else "a"
    stage.net.stop(f"{home}:8081")
    answer = await send(stage, other, message(1, "order-1"))
    assert answer.status.code == answer.entries[0].status.code != OK
    assert await kept(brokers[other]) == {}


def see(stage: Any, *, sees: str, present: str) -> None:
    """Let one broker receive routes that name these and no others."""
    brokers = {broker.runtime.settings.broker_name: broker for broker in stage.brokers}
    one = brokers[sees]
    views = [brokers[name].cluster.own.now() for name in present]
    one.catalog.routes.snapshot("nameserver", "n", views, one.runtime.clock.monotonic_ms())
    one.cluster.routes_changed()


def group_of(home: str) -> str:
    return next(f"order-{number}" for number in range(100) if home_of(f"order-{number}", "ab") == home)


async def publish(stage: Any, broker: str, *messages: definition_pb2.Message) -> data_pb2.PublishResponse:
    request = data_pb2.PublishRequest(queue=common_pb2.Queue(topic="t", broker_name=broker, queue_id=0))
    request.messages.extend(messages)
    method = "/evenq.v1.Data/Publish"
    answer: data_pb2.PublishResponse = await stage.call(method, request, data_pb2.PublishResponse, broker=broker)
    return answer


async def test_a_home_that_left_the_routes_keeps_its_groups_and_nothing_is_stored_elsewhere(stage: Any) -> None:
    """As it is between a broker's goodbye and its return, or after a kill."""
    brokers = {broker.runtime.settings.broker_name: broker for broker in await pair(stage)}
    stage.net.stop("b:8081")
    see(stage, sees="a", present="a")
    for pause_ms in (0, 100_000, 190_000):  # longer than a broker that left is remembered as reachable
        await stage.clock.advance(pause_ms)
        answer = await send(stage, "a", message(1, group_of("b")))
        assert answer.status.code == answer.entries[0].status.code == ConnectionFailed.code
        assert "broker b is away" in answer.status.message
        with pytest.raises(ConnectionFailed, match="broker b is away"):  # a producer that started meanwhile
            await publish(stage, "a", message(1, group_of("b")))
        assert (await send(stage, "a", message(2, group_of("a")))).status.code == OK
    see(stage, sees="a", present="ab")
    stage.net.serve("b:8081", brokers["b"].rpcs())
    assert (await send(stage, "a", message(3, group_of("b")))).status.code == OK
    assert list((await kept(brokers["b"])).values()) == [[b"3"]]
    assert list((await kept(brokers["a"])).values()) == [[b"2"] * 3]


@pytest.mark.parametrize("how", ["the time is over", "it is forgotten", "it was drained", "the setting is 0"])
async def test_the_home_moves_when_it_need_not_be_waited_for(stage: Any, how: str) -> None:
    a, b = await pair(stage, message_group_away_ms=0 if how == "the setting is 0" else 300_000)
    if how == "it was drained":
        b.catalog.draining = True
        b.cluster.own._view = None
        see(stage, sees="a", present="ab")
    see(stage, sees="a", present="a")
    if how == "it is forgotten":
        await stage.during(a.cluster.known.forget("b"))
    if how == "the time is over":
        await stage.clock.advance(300_001)
    assert (await send(stage, "a", message(1, group_of("b")))).status.code == OK
    await publish(stage, "a", message(2, group_of("b")))
    assert sum(map(len, (await kept(a)).values())) == 2


async def test_a_broker_that_stops_takes_no_messages_of_its_groups_and_the_others_do_not_either(stage: Any) -> None:
    """From SIGTERM on: what it took then would be delivered after its restart only."""
    a, b = await pair(stage)
    b.ending.begin()
    for broker in "ab":
        answer = await send(stage, broker, message(1, group_of("b")))
        assert answer.status.code == answer.entries[0].status.code == ConnectionFailed.code
        assert "broker b is stopping" in answer.status.message
        both = await send(stage, broker, message(2, group_of("a")), message(3, group_of("b")))
        assert [entry.status.code for entry in both.entries] == [OK, ConnectionFailed.code]
    assert (await kept(b), sum(map(len, (await kept(a)).values()))) == ({}, 2)


async def test_a_broker_that_is_alone_or_has_copies_takes_messages_of_groups_until_it_ends(stage: Any) -> None:
    alone = await stage.broker("a")
    await stage.during(alone.catalog.create_topic("t", queues=4, message_type=MessageType.FIFO))
    alone.ending.begin()
    assert (await send(stage, "a", message(1, "order-1"))).status.code == OK
    await stage.end(alone)
    a, _ = await pair(stage)
    a.runtime.leadership = Leadership(copies=3)
    a.ending.begin()
    assert (await send(stage, "a", message(1, group_of("a")))).status.code == OK


async def test_each_message_of_a_list_for_several_homes_has_the_answer_of_its_own_home(stage: Any) -> None:
    a, _ = await pair(stage)
    stage.net.stop("b:8081")
    groups = [group_of("ab"[number % 2]) for number in range(12)]
    answer = await send(stage, "a", *(message(number, group) for number, group in enumerate(groups)))
    assert answer.status.code == definition_pb2.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [OK, ConnectionFailed.code] * 6
    assert [entry.message_id for entry in answer.entries] == [f"id{number}" for number in range(12)]
    assert sorted(body for bodies in (await kept(a)).values() for body in bodies) == sorted(
        b"%d" % number for number in range(0, 12, 2)
    )


async def test_an_error_of_one_part_that_is_not_for_callers_is_an_answer_of_its_messages_only(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await pair(stage)

    async def broken(*_: Any, **__: Any) -> None:
        raise StorePoisoned("/secret/path: the last write failed")

    monkeypatch.setattr(a.ledger.store, "append", broken)
    answer = await send(stage, "a", message(1, group_of("a")), message(2, group_of("b")))
    assert [entry.status.code for entry in answer.entries] == [InternalError.code, OK]
    assert "/secret" not in answer.entries[0].status.message
    assert list((await kept(b)).values()) == [[b"2"]]


async def test_with_the_setting_they_stay_where_they_were_sent(stage: Any) -> None:
    brokers = await pair(stage, message_group_home="broker")
    for number in range(8):
        await send(stage, "ab"[number % 2], message(number, "order-1"))
    assert [list((await kept(broker)).values()) for broker in brokers] == [
        [[b"%d" % number for number in range(first, 8, 2)]] for first in (0, 1)
    ]
