"""Lite topics over one broker and over two: order, owners, subscriptions at any broker, quotas, expiry, restart."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.core.cluster.routes import RegisteredBroker
from evenq_broker.core.delivery.filters import EVERYTHING
from evenq_broker.core.lite.lite_topics import LITE_QUEUES_FROM
from evenq_broker.loops.dead_letters.replay import Replay
from evenq_proofs.v2_requests import ack_request, nack_request, receive_messages, receive_request, v2_message

from evenq.model import BrokerAddress, MessageType
from evenq.model.lanes import owner_among
from evenq.wire.convert import set_duration_ms, set_ms
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, peers_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
OK, ILLEGAL_TOPIC, CONFLICT, ILLEGAL_LITE_TOPIC = 20000, 40002, 40014, 40020
TOPIC_QUOTA, SUBSCRIPTION_QUOTA = 42901, 42902
ADD, REMOVE, ALL, NONE = range(4)


async def brokers(stage: Any, *names: str, **settings: Any) -> list[Any]:
    """Brokers that carry the LITE topic `p` and know each other."""
    found = [await stage.broker(name, **settings) for name in names or ("a", "b")]
    for broker in found:
        await stage.during(broker.catalog.create_topic("p", message_type=MessageType.LITE))
    for broker in found:
        views = [other.cluster.own.now() for other in found]
        broker.catalog.routes.snapshot("nameserver", "n", views, broker.runtime.clock.monotonic_ms())
        broker.cluster.routes_changed()
    return found


def message(name: str, lite: str = "x") -> Any:
    return v2_message("p", name, name.encode(), lite_topic=lite, message_type=definition_pb2.LITE)


async def send(stage: Any, *messages: Any, broker: str = "a", language: str = "JAVA") -> Any:
    request = service_pb2.SendMessageRequest(messages=messages)
    return await stage.ask("SendMessage", request, service_pb2.SendMessageResponse, broker=broker, language=language)


async def sync(
    stage: Any, action: int, *names: str, broker: str = "a", client: str = "c", language: str = "JAVA", **start: Any
) -> int:
    request = service_pb2.SyncLiteSubscriptionRequest(action=action, lite_topic_set=names)  # type: ignore[arg-type]
    request.topic.name, request.group.name = "p", "g"
    if start:
        request.offset_option.CopyFrom(definition_pb2.OffsetOption(**start))
    answer = await stage.ask(
        "SyncLiteSubscription",
        request,
        service_pb2.SyncLiteSubscriptionResponse,
        broker=broker,
        client=client,
        language=language,
    )
    return int(answer.status.code)


def receiving(
    stage: Any, broker: str = "a", *, client: str = "c", poll_ms: int = 0, count: int = 32, push: bool = False,
    through: str = "",
) -> asyncio.Task[list[Any]]:  # fmt: skip
    """`through`: the broker that is called, unless it is the one that the request names."""
    request = receive_request("g", "p", batch_size=count, auto_renew=push)
    request.message_queue.broker.name = broker
    set_duration_ms(request.long_polling_timeout, poll_ms)
    set_duration_ms(request.invisible_duration, 30_000)
    headers = {"x-mq-client-id": client, "x-mq-language": "JAVA"}

    return asyncio.ensure_future(receive_messages(stage.net, f"{through or broker}:8081", request, metadata=headers))


async def received(stage: Any, broker: str = "a", **options: Any) -> list[Any]:
    found: list[Any] = await stage.during(receiving(stage, broker, **options))
    return found


def names(messages: list[Any]) -> list[str]:
    return [one.system_properties.message_id for one in messages]


async def ack(stage: Any, got: Any, *, broker: str = "a") -> int:
    request = ack_request("g", "p")
    system = got.system_properties
    request.entries.add(
        message_id=system.message_id, receipt_handle=system.receipt_handle, lite_topic=system.lite_topic
    )
    answer = await stage.ask("AckMessage", request, service_pb2.AckMessageResponse, broker=broker)
    return int(answer.status.code)


def lite_of(broker: Any, name: str) -> Any:
    return broker.lite.topics.get(broker.catalog.topics.get("p").topic_id, name)


async def test_a_client_gets_what_it_is_subscribed_to_and_no_more(stage: Any) -> None:
    await brokers(stage, "a")
    await send(stage, message("x1"), message("y1", "y"))
    assert await received(stage) == []
    assert await sync(stage, ADD, "x") == OK
    [got] = await received(stage)
    system = got.system_properties
    assert (got.topic.name, system.lite_topic, system.message_id) == ("p", "x", "x1")
    assert (system.message_type, system.delivery_attempt) == (definition_pb2.LITE, 1)
    assert await ack(stage, got) == OK
    assert await sync(stage, ALL, "y") == OK
    await send(stage, message("x2"))
    assert names(await received(stage)) == ["y1"]
    assert await received(stage, client="other") == []


async def test_order_holds_within_a_lite_topic_and_not_between_them(stage: Any) -> None:
    """The next one comes only after the one before is acknowledged, whatever the group's own order."""
    await brokers(stage, "a")
    await send(stage, *(message(f"{lite}{number}", lite) for lite in "xy" for number in range(3)))
    await sync(stage, ALL, "x", "y")
    await sync(stage, ALL, "x", "y", client="d")
    first = await received(stage)
    assert sorted(names(first)) == ["x0", "y0"]
    assert await received(stage, client="d") == []
    await ack(stage, next(one for one in first if one.system_properties.lite_topic == "x"))
    assert names(await received(stage, client="d")) == ["x1"]
    await stage.clock.advance(30_001)
    again = await received(stage)
    assert sorted((one.system_properties.message_id, one.system_properties.delivery_attempt) for one in again) == [
        ("x1", 2),
        ("y0", 2),
    ]


async def test_a_paused_delivery_is_not_counted(stage: Any) -> None:
    await brokers(stage, "a")
    await send(stage, message("x0"), message("x1"))
    await sync(stage, ADD, "x")
    [got] = await received(stage)
    change = nack_request("g", "p", got.system_properties.receipt_handle, 5_000, lite_topic="x", suspend=True)
    await stage.ask("ChangeInvisibleDuration", change, service_pb2.ChangeInvisibleDurationResponse)
    assert await received(stage) == []
    await stage.clock.advance(5_001)
    [again] = await received(stage)
    assert (names([again]), again.system_properties.delivery_attempt) == (["x0"], 1)


async def test_47_a_subscription_at_any_broker_counts_at_every_one_and_a_receive_there_looks_at_all(stage: Any) -> None:
    """Checklist 47; wire contract 5.6: lite simple consumers ask one broker for ever."""
    a, b = await brokers(stage)
    lite = [f"n{number}" for number in range(12)]
    for at in ("a", "b"):
        answer = await send(stage, *(message(f"{at}{name}", name) for name in lite), broker=at)
        assert answer.status.code == OK
        assert [entry.message_id for entry in answer.entries] == [f"{at}{name}" for name in lite]
    held = {name: [one for one in (a, b) if lite_of(one, name) is not None] for name in lite}
    assert {len(found) for found in held.values()} == {1}, "each lite topic is at one broker"
    assert {found[0] for found in held.values()} == {a, b}
    assert await sync(stage, ALL, *lite, broker="b") == OK
    seen: list[str] = []
    for _ in range(60):
        for got in await received(stage, count=3):
            seen.append(got.system_properties.message_id)
            assert await ack(stage, got) == OK
    assert len(seen) == 24
    assert all(seen.index(f"a{name}") < seen.index(f"b{name}") for name in lite)


async def test_a_receive_that_waits_gets_a_message_of_any_broker_and_of_a_new_lite_topic(stage: Any) -> None:
    await brokers(stage)
    await sync(stage, ALL, *(f"n{number}" for number in range(6)))
    for number in range(6):
        waiting = receiving(stage, "a", poll_ms=10_000)
        await stage.clock.advance(100)
        began = stage.clock.monotonic_ms()
        await send(stage, message(f"m{number}", f"n{number}"), broker="b")
        [got] = await stage.during(waiting)
        assert names([got]) == [f"m{number}"]
        assert stage.clock.monotonic_ms() - began < 200
        assert await ack(stage, got) == OK


async def test_the_letters_of_a_name_are_a_name_when_python_sends_them(stage: Any) -> None:
    """The official Python SDK 5.1.2 sends `subscribe_lite("abba")` as a, b, b, a."""
    a, b = await brokers(stage)
    assert await sync(stage, ADD, *"abba", language="PYTHON") == OK
    assert await sync(stage, ADD, "x", language="PYTHON") == OK
    for broker in (a, b):
        assert [count for _, count in broker.lite.subscriptions.sets()] == [2]
        assert broker.lite.subscriptions.is_subscribed("p", "abba")


async def test_a_receive_that_was_answered_leaves_nothing_waiting_elsewhere(stage: Any) -> None:
    a, b = await brokers(stage)
    mine = next(f"n{number}" for number in range(99) if a.lite.owner("p", f"n{number}") == "a")
    await sync(stage, ALL, mine)
    for number in range(8):
        waiting = receiving(stage, poll_ms=20_000)
        await stage.clock.advance(50)
        assert len(b.long_polls.table) == 1
        await send(stage, message(f"m{number}", mine))
        [got] = await stage.during(waiting)
        assert await ack(stage, got) == OK
        await stage.clock.advance(5)
        assert len(a.long_polls.table) == len(b.long_polls.table) == 0


async def test_a_message_that_was_told_to_somebody_who_left_goes_to_another_one(stage: Any) -> None:
    a, b = await brokers(stage)
    theirs = next(f"n{number}" for number in range(99) if a.lite.owner("p", f"n{number}") == "b")
    for client in ("c", "d"):
        await sync(stage, ALL, theirs, client=client)
    response = peers_pb2.LiteReadyRequest(client_id="c", group="g", topic="p", wait_ms=20_000)
    ready = asyncio.ensure_future(
        stage.net.unary("b:8081", "/evenq.v1.Peers/LiteReady", response.SerializeToString(), timeout_ms=60_000)
    )
    await stage.clock.advance(50)
    waiting = receiving(stage, client="d", poll_ms=20_000)
    await stage.clock.advance(50)
    assert len(b.long_polls.table) == 2
    await send(stage, message("m", theirs))
    assert peers_pb2.LiteReadyResponse.FromString(await stage.during(ready)).ready
    began = stage.clock.monotonic_ms()
    assert names(await stage.during(waiting)) == ["m"]
    assert stage.clock.monotonic_ms() - began < 300


async def test_a_receive_that_waits_sees_a_new_subscription(stage: Any) -> None:
    await brokers(stage)
    await send(stage, message("m"))
    waiting = receiving(stage, poll_ms=10_000)
    await stage.clock.advance(100)
    await sync(stage, ADD, "x", broker="b")
    assert names(await stage.during(waiting)) == ["m"]


async def test_two_waiting_clients_of_a_group_each_get_one_of_two_messages(stage: Any) -> None:
    await brokers(stage, "a")
    for client in ("c", "d"):
        await sync(stage, ALL, "x", "y", client=client)
    waiting = [receiving(stage, poll_ms=10_000, count=1, client=client) for client in ("c", "d")]
    await stage.clock.advance(100)
    await send(stage, message("x0"), message("y0", "y"))
    got = [await stage.during(one) for one in waiting]
    assert sorted(names([*got[0], *got[1]])) == ["x0", "y0"]


async def test_a_full_answer_leaves_those_who_wait_on_to_later_messages(stage: Any) -> None:
    await brokers(stage, "a")
    clients = ("c", "d", "e")
    for client in clients:
        await sync(stage, ALL, "x", "y", client=client)
    waiting = [receiving(stage, poll_ms=10_000, count=1, client=client) for client in clients]
    await stage.clock.advance(100)
    await send(stage, message("x0"), message("y0", "y"))
    await stage.clock.advance(100)
    (last,) = (one for one in waiting if not one.done())
    answered = [one.result() for one in waiting if one.done()]
    assert sorted(map(names, answered)) == [["x0"], ["y0"]]
    await send(stage, message("x1"))
    for (got,) in answered:
        assert await ack(stage, got) == OK
    assert names(await stage.during(last)) == ["x1"]


async def test_what_two_brokers_gave_at_once_is_not_lost(stage: Any) -> None:
    await brokers(stage)
    lite = [f"n{number}" for number in range(20)]
    await sync(stage, ALL, *lite)
    waiting = receiving(stage, poll_ms=10_000, count=1)
    await stage.clock.advance(100)
    await send(stage, *(message(name, name) for name in lite))
    seen = await stage.during(waiting)
    await stage.clock.advance(500)
    for _ in range(60):
        seen += await received(stage, count=1)
    assert sorted(names(seen)) == sorted(lite)
    assert {one.system_properties.delivery_attempt for one in seen} == {1}


async def test_push_consumers_take_from_the_broker_they_ask(stage: Any) -> None:
    await brokers(stage)
    lite = [f"n{number}" for number in range(8)]
    await send(stage, *(message(name, name) for name in lite))
    await sync(stage, ALL, *lite)
    got = {at: names(await received(stage, at, push=True)) for at in ("a", "b")}
    assert got["a"]
    assert got["b"]
    assert sorted(got["a"] + got["b"]) == sorted(lite)
    point = definition_pb2.Endpoints(addresses=[definition_pb2.Address(host="a", port=8081)])
    asked = service_pb2.QueryAssignmentRequest(endpoints=point)
    asked.topic.name, asked.group.name = "p", "g"
    response = await stage.ask("QueryAssignment", asked, service_pb2.QueryAssignmentResponse)
    assert [(one.message_queue.broker.name, one.message_queue.id) for one in response.assignments] == [
        ("a", -1),
        ("b", -1),
    ]
    route = service_pb2.QueryRouteRequest(endpoints=point)
    route.topic.name = "p"
    queues = (await stage.ask("QueryRoute", route, service_pb2.QueryRouteResponse)).message_queues
    assert [(queue.id, list(queue.accept_message_types)) for queue in queues] == [(0, [5]), (0, [5])]


async def test_when_the_owner_changes_old_messages_are_still_delivered(stage: Any) -> None:
    a, b = await brokers(stage)
    name = next(f"n{number}" for number in range(99) if a.lite.owner("p", f"n{number}") == "b")
    a.catalog.routes.snapshot("nameserver", "n", [a.cluster.own.now()], stage.clock.monotonic_ms())
    await send(stage, message("old", name))
    a.catalog.routes.snapshot("nameserver", "n", [a.cluster.own.now(), b.cluster.own.now()], stage.clock.monotonic_ms())
    await send(stage, message("new", name))
    assert lite_of(a, name) is not None
    assert lite_of(b, name) is not None
    await sync(stage, ADD, name)
    seen = [*await received(stage), *await received(stage)]
    assert sorted(names(seen)) == ["new", "old"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ({}, "m0"),
        ({"policy": 0}, "m0"),
        ({"policy": 1}, "m0"),
        ({"policy": 2}, ""),
        ({"offset": 2}, "m2"),
        ({"offset": 99}, ""),
        ({"tail_n": 1}, "m3"),
        ({"timestamp": 0}, "m0"),
    ],
)
async def test_a_subscription_begins_where_it_is_told(stage: Any, start: dict[str, Any], expected: str) -> None:
    await brokers(stage)
    await send(stage, *(message(f"m{number}") for number in range(4)))
    assert await sync(stage, ADD, "x", broker="b", **start) == OK
    assert names([*await received(stage), *await received(stage)]) == ([expected] if expected else [])


async def test_a_start_does_not_move_a_lite_topic_that_the_group_reads(stage: Any) -> None:
    await brokers(stage, "a")
    await send(stage, message("m0"), message("m1"))
    await sync(stage, ADD, "x")
    [got] = await received(stage)
    await sync(stage, ADD, "x", client="d", policy=2)
    await ack(stage, got)
    assert names(await received(stage, client="d")) == ["m1"]
    assert await sync(stage, ADD, "z", tail_n=-1) == 40019


@pytest.mark.parametrize(("language", "code"), [("JAVA", 40020), ("RUST", 40000), ("DOTNET", 40000), ("HTTP", 40000)])
async def test_a_name_that_cannot_be_is_refused_in_the_words_of_the_language(
    stage: Any, language: str, code: int
) -> None:
    await brokers(stage, "a")
    for name in ("", "a b", "x" * 65):
        wrong = message("m", name)
        answer = await send(stage, wrong, language=language)
        assert (answer.status.code, answer.entries[0].status.code) == (code, code)
        if language == "JAVA":
            assert await sync(stage, ADD, name) == code


async def test_limits_are_told_with_their_codes(stage: Any) -> None:
    await brokers(stage, "a", lite_topics_per_topic_max=2, lite_subscriptions_max=2)
    answer = await send(stage, message("x", "x"), message("y", "y"), message("z", "z"), message("x2", "x"))
    assert [entry.status.code for entry in answer.entries] == [OK, OK, TOPIC_QUOTA, OK]
    assert await sync(stage, ADD, "x", "y") == OK
    assert await sync(stage, ADD, "z") == SUBSCRIPTION_QUOTA
    assert (await send(stage, message("z", "z"), language="RUST")).status.code == 42900


async def test_kinds_that_do_not_fit_are_refused(stage: Any) -> None:
    [a] = await brokers(stage, "a")
    await stage.during(a.catalog.create_topic("n"))
    elsewhere = message("m")
    elsewhere.topic.name = "n"
    assert (await send(stage, elsewhere)).status.code == CONFLICT
    late = message("m")
    set_ms(late.system_properties.delivery_timestamp, 1)
    assert (await send(stage, late)).status.code == CONFLICT
    late.system_properties.message_type = definition_pb2.DELAY
    assert (await send(stage, late)).status.code == CONFLICT
    plain = message("m")
    plain.system_properties.ClearField("lite_topic")
    assert (await send(stage, plain)).status.code == ILLEGAL_LITE_TOPIC
    plain.system_properties.message_type = definition_pb2.NORMAL
    assert (await send(stage, plain)).status.code == CONFLICT
    request = service_pb2.SyncLiteSubscriptionRequest(lite_topic_set=["x"])
    request.topic.name, request.group.name = "n", "g"
    answer = await stage.ask("SyncLiteSubscription", request, service_pb2.SyncLiteSubscriptionResponse)
    assert answer.status.code == ILLEGAL_TOPIC


async def test_lite_topics_are_listed_only_when_asked_for_and_their_lag_is_the_groups(stage: Any) -> None:
    await brokers(stage)
    await send(stage, *(message(f"{lite}{number}", lite) for lite in ("n0", "n1", "n2") for number in range(2)))
    await sync(stage, ALL, "n1", "n2")
    [got] = await received(stage, count=1)
    await ack(stage, got)
    response = admin_pb2.ListTopicsRequest()
    plain = await stage.call("/evenq.v1.Admin/ListTopics", response, admin_pb2.ListTopicsResponse)
    [parent] = plain.topics
    assert (parent.topic, parent.queues, parent.messages, len(plain.lite_topics)) == ("p", 2, 6, 0)
    response.lite = True
    answer = await stage.call("/evenq.v1.Admin/ListTopics", response, admin_pb2.ListTopicsResponse, broker="b")
    assert [(one.topic, one.lite_topic, one.messages, one.subscribers) for one in answer.lite_topics] == [
        ("p", "n0", 2, 0),
        ("p", "n1", 2, 1),
        ("p", "n2", 2, 1),
    ]
    await received(stage)  # the group has begun on both at both brokers
    await received(stage)
    group = await stage.call(
        "/evenq.v1.Admin/DescribeGroup", admin_pb2.DescribeGroupRequest(group="g"), admin_pb2.DescribeGroupResponse
    )
    assert group.summary.lag == 3


async def test_an_idle_lite_topic_expires_unless_somebody_is_subscribed(stage: Any) -> None:
    [a] = await brokers(stage, "a", lite_topic_idle_ms=200_000)
    await send(stage, message("x0", "x"), message("y0", "y"))
    for _ in range(10):
        await sync(stage, ALL, "y")
        await stage.clock.advance(29_000)
    assert lite_of(a, "x") is None
    assert lite_of(a, "y") is not None
    assert names(await received(stage)) == ["y0"], "what a live subscription may read is kept"
    await send(stage, message("z0", "z"))
    assert lite_of(a, "z").queue_id == LITE_QUEUES_FROM, "the number is used again"
    await sync(stage, ALL, "z")
    assert names(await received(stage)) == ["z0"], "and the old message is not part of it"
    await stage.clock.advance(400_000)
    assert len(a.lite.topics) == 0
    assert len(a.lite.subscriptions) == 0


async def test_lite_topics_and_progress_survive_a_restart(stage: Any, tmp_path: Any) -> None:
    store = {"path": str(tmp_path)}
    [a] = await brokers(stage, "a", store=store, lite_topic_idle_ms=100_000)
    await send(stage, message("gone", "gone"))
    await stage.clock.advance(110_000)
    await send(stage, message("x0"), message("x1"), message("y0", "y"))
    await sync(stage, ADD, "x")
    [got] = await received(stage)
    await ack(stage, got)
    before = list(a.lite.topics.dump())
    assert [one.name for one in before] == ["x", "y"]
    await stage.end(a)
    again = Broker(a.runtime.settings, clock=stage.clock, rng=random.Random(2), net=stage.net)
    await again.open()
    stage.net.serve("a:8081", again.rpcs())
    await stage.during(again.start([BrokerAddress("default", "a", 8081)]))
    stage.brokers.append(again)
    assert list(again.lite.topics.dump()) == before
    await sync(stage, ALL, "x", "y")
    assert sorted(names(await received(stage))) == ["x1", "y0"]


async def test_a_message_that_always_fails_goes_to_the_dead_letters_and_back_into_its_lite_topic(stage: Any) -> None:
    [a] = await brokers(stage, "a")
    await stage.during(a.catalog.create_group("g", max_attempts=1))
    await sync(stage, ALL, "x", "y")
    await send(stage, message("x0"), message("x1"))
    [got] = await received(stage)
    forward = service_pb2.ForwardMessageToDeadLetterQueueRequest(
        receipt_handle=got.system_properties.receipt_handle, lite_topic="x", max_delivery_attempts=1
    )
    forward.group.name, forward.topic.name = "g", "p"
    answer = await stage.ask(
        "ForwardMessageToDeadLetterQueue", forward, service_pb2.ForwardMessageToDeadLetterQueueResponse
    )
    assert answer.status.code == OK
    [got] = await received(stage)
    assert names([got]) == ["x1"], "the next one goes on"
    replay = Replay(
        a.kernel,
        "g",
        message_filter=EVERYTHING,
        to_topic="",
        per_second=0,
        max_count=0,
        cluster_catalog=a.cluster_catalog,
        lite=a.lite,
    )

    async def replayed() -> int:
        async for count in replay.run():
            assert count.error == ""
        return replay.count.replayed

    assert await stage.during(replayed()) == 1
    await ack(stage, got)
    [again] = await received(stage)
    assert (names([again]), again.system_properties.lite_topic) == (["x0"], "x")


async def test_an_operator_moves_a_group_on_lite_topics_too(stage: Any) -> None:
    await brokers(stage)
    await sync(stage, ALL, "x", "y")
    await send(stage, message("x0"), message("x1"), message("y0", "y"))
    for _ in range(4):
        for got in await received(stage):
            await ack(stage, got)
    assert [*await received(stage), *await received(stage)] == []
    asked = admin_pb2.ResetOffsetsRequest(group="g", topic="p", to=admin_pb2.EARLIEST)
    answer = await stage.call("/evenq.v1.Admin/ResetOffsets", asked, admin_pb2.ResetOffsetsResponse)
    moves = sorted((move.note, move.before, move.after) for move in answer.moves if move.note)
    assert moves == [("lite topic x", 2, 0), ("lite topic y", 1, 0)]
    assert sorted(names([*await received(stage), *await received(stage)])) == ["x0", "y0"]


async def with_one_without_the_topic(stage: Any) -> tuple[Any, Any, Any]:
    """`brokers`, and "c", which only has the topic in its routes."""
    a, b = await brokers(stage)
    c = await stage.broker("c")
    views = [other.cluster.own.now() for other in (a, b, c)]
    c.catalog.routes.snapshot("nameserver", "n", views, stage.clock.monotonic_ms())
    return a, b, c


async def test_a_broker_without_the_topic_passes_a_subscription_on(stage: Any) -> None:
    a, b, c = await with_one_without_the_topic(stage)
    assert await sync(stage, ADD, "x", broker="c") == OK
    assert [len(broker.lite.subscriptions) for broker in (a, b, c)] == [1, 1, 0]
    assert await sync(stage, ADD, "a b", broker="c") == ILLEGAL_LITE_TOPIC


async def test_a_receive_through_a_broker_without_the_topic_looks_at_all(stage: Any) -> None:
    """Wire contract 5.6: behind one address for all brokers a client may have come to any, and names one for ever."""
    a, b, _ = await with_one_without_the_topic(stage)
    lite = [f"n{number}" for number in range(12)]
    await send(stage, *(message(f"m{name}", name) for name in lite))
    assert {bool(lite_of(a, name)) for name in lite} == {True, False}, "each of the two has some"
    assert await sync(stage, ALL, *lite, broker="c") == OK
    seen: list[str] = []
    for _ in range(3):
        for got in await received(stage, "a", through="c", poll_ms=1_000):
            seen.append(got.system_properties.lite_topic)
            assert await ack(stage, got, broker="c") == OK
    assert sorted(seen) == sorted(lite)
    waiting = receiving(stage, "a", through="c", poll_ms=10_000)
    await stage.clock.advance(100)
    await send(stage, message("late", next(name for name in lite if lite_of(b, name))), broker="b")
    assert names(await stage.during(waiting)) == ["late"]


async def test_a_broker_that_starts_learns_what_clients_want_from_the_others(stage: Any) -> None:
    a, b = await brokers(stage)
    await sync(stage, ALL, "x", "y", client="c")
    await stage.clock.advance(60_000)
    await sync(stage, ALL, "z", client="d")
    b.lite.end_client("c")
    b.lite.end_client("d")
    waiting = receiving(stage, "b", client="d", poll_ms=20_000)
    await stage.clock.advance(100)
    later = RegisteredBroker(
        name="a",
        addresses=a.runtime.addresses,
        incarnation="another",
        start_ms=2**40,
        topics=a.cluster.own.now().topics,
    )
    b.catalog.routes.snapshot("nameserver", "n", [later, b.cluster.own.now()], stage.clock.monotonic_ms())
    b.cluster.routes_changed()
    await stage.until(lambda: len(b.lite.subscriptions) == 3)
    await send(stage, message("m", "z"), broker="b")
    assert names(await stage.during(waiting)) == ["m"]
    await stage.clock.advance(36_000)
    assert [who.client_id for who, _ in b.lite.subscriptions.sets()] == ["d"], "their age is reported, too"


async def test_the_end_of_a_client_and_of_the_topic_leaves_nothing(stage: Any) -> None:
    [a] = await brokers(stage, "a")
    await send(stage, message("x0"))
    await sync(stage, ADD, "x")
    await stage.ask(
        "NotifyClientTermination",
        service_pb2.NotifyClientTerminationRequest(),
        service_pb2.NotifyClientTerminationResponse,
    )
    assert len(a.lite.subscriptions) == 0
    await stage.during(a.catalog.delete_topic("p"))
    assert len(a.lite.topics) == 0


@pytest.mark.parametrize("through", ["a", "b"])
async def test_a_receive_that_waits_looks_at_a_broker_that_comes_meanwhile(stage: Any, through: str) -> None:
    """A topic that was just made, or a broker that started again: routes know it a moment later."""
    found = await brokers(stage, "a", "b")
    other = "b" if through == "a" else "a"
    mine = next(broker for broker in found if broker.runtime.settings.broker_name == through)
    views = [broker.cluster.own.now() for broker in found]
    mine.catalog.routes.snapshot("nameserver", "n", [mine.cluster.own.now()], mine.runtime.clock.monotonic_ms())
    mine.cluster.routes_changed()
    assert await sync(stage, ADD, "x", broker=through) == OK
    waiting = receiving(stage, through, poll_ms=20_000)
    await stage.clock.advance(200)
    name = next(f"n{number}" for number in range(100) if owner_among("ab", "p", f"n{number}") == other)
    mine.catalog.routes.snapshot("nameserver", "n", views, mine.runtime.clock.monotonic_ms())
    mine.cluster.routes_changed()
    await stage.clock.advance(10)
    assert await sync(stage, ADD, name, broker=through) == OK
    await send(stage, message("m", name), broker=other)
    began_ms = stage.clock.now_ms()
    assert names(await stage.during(waiting)) == ["m"]
    assert stage.clock.now_ms() - began_ms < 1_000
