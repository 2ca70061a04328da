"""Where topics are made by use, the first message makes them and decides their type; who only reads makes none."""

from __future__ import annotations

from typing import Any

import pytest
from evenq_proofs.v2_requests import receive_frames

import evenq
from evenq.errors import TopicNotFound
from evenq.model import MessageType
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import assignment_pb2, common_pb2, data_pb2, groups_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
POINT = definition_pb2.Endpoints(addresses=[definition_pb2.Address(host="a", port=8081)])
TOPIC = definition_pb2.Resource(name="new")
GROUP = definition_pb2.Resource(name="g")
QUEUE = common_pb2.Queue(topic="new", broker_name="a", queue_id=0)
NOT_FOUND = 40402


async def ask(world: Any, method: str, request: Any, response: Any, client_id: str = "c", **headers: str) -> Any:
    raw = await world.during(
        world.net.unary(
            "a:8081", method, request.SerializeToString(), timeout_ms=3_000,
            metadata={"x-mq-client-id": client_id, **headers},
        )
    )  # fmt: skip
    return response.FromString(raw)


def asking_for_the_route() -> service_pb2.QueryRouteRequest:
    return service_pb2.QueryRouteRequest(topic=TOPIC, endpoints=POINT)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, MessageType.NORMAL),
        ({"message_group": "g"}, MessageType.FIFO),
        ({"delivery_ms": 10**12}, MessageType.DELAY),
        ({"delay": 5}, MessageType.DELAY),
        ({"priority": 3}, MessageType.PRIORITY),
        ({"lite_topic": "ann"}, MessageType.LITE),
    ],
)
async def test_the_first_message_of_our_producer_decides_the_type(
    world: Any, change: dict[str, Any], kind: object
) -> None:
    await world.start("a")
    await world.start("b")
    producer = evenq.aio.Producer(endpoint="a:8081", context=world.context())
    world.clients.append(producer)
    for _ in range(3):
        await world.during(producer.send(evenq.Message(topic="new", body=b"x", **change)))
    for broker in world.brokers.values():
        assert broker.catalog.topics.get("new").message_type is kind


async def test_a_route_before_the_first_message_is_a_prospect_and_makes_no_topic(world: Any) -> None:
    """Official SDKs ask for the route before they send and before they say what they are."""
    await world.start("a")
    await world.start("b")
    response = await ask(world, V2 + "QueryRoute", asking_for_the_route(), service_pb2.QueryRouteResponse)
    assert {queue.broker.name for queue in response.message_queues} == {"a", "b"}
    assert all(broker.catalog.topics.get("new") is None for broker in world.brokers.values())
    send = service_pb2.SendMessageRequest()
    message = send.messages.add(body=b"x", topic=TOPIC)
    message.system_properties.message_id = "one"
    message.system_properties.message_group = "g"
    message.system_properties.message_type = definition_pb2.FIFO
    await ask(world, V2 + "SendMessage", send, service_pb2.SendMessageResponse)
    response = await ask(world, V2 + "QueryRoute", asking_for_the_route(), service_pb2.QueryRouteResponse)
    assert {tuple(queue.accept_message_types) for queue in response.message_queues} == {(definition_pb2.FIFO,)}


@pytest.mark.parametrize("known_by", ["header", "telemetry", "heartbeat"])
async def test_a_known_reader_hears_of_no_topic(world: Any, known_by: str) -> None:
    await world.start("a")
    headers = {"x-evenq-role": "reader"} if known_by == "header" else {}
    if known_by == "telemetry":
        client = world.brokers["a"].clients.table.seen("c", 0, client_type=definition_pb2.PUSH_CONSUMER)
        assert client.client_type == definition_pb2.PUSH_CONSUMER
    if known_by == "heartbeat":
        beat = service_pb2.HeartbeatRequest(group=GROUP, client_type=definition_pb2.SIMPLE_CONSUMER)
        await ask(world, V2 + "Heartbeat", beat, service_pb2.HeartbeatResponse)
    response = await ask(world, V2 + "QueryRoute", asking_for_the_route(), service_pb2.QueryRouteResponse, **headers)
    assert response.status.code == NOT_FOUND
    assert "its first message makes it" in response.status.message


READERS: list[tuple[str, Any, Any]] = [
    (
        V2 + "QueryAssignment",
        service_pb2.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=POINT),
        service_pb2.QueryAssignmentResponse,
    ),
    (
        "/evenq.v1.Assignment/Query",
        assignment_pb2.AssignmentRequest(group="g", topic="new", client_id="c"),
        assignment_pb2.AssignmentResponse,
    ),
    (
        "/evenq.v1.Data/Pull",
        data_pb2.PullRequest(group="g", client_id="c", queue=QUEUE, batch_max=1),
        data_pb2.PullResponse,
    ),
    (
        "/evenq.v1.Data/QueryOffsets",
        data_pb2.QueryOffsetsRequest(group="g", queues=[QUEUE]),
        data_pb2.QueryOffsetsResponse,
    ),
    (
        "/evenq.v1.Groups/LockQueues",
        groups_pb2.LockQueuesRequest(group="g", client_id="c", queues=[QUEUE]),
        groups_pb2.LockQueuesResponse,
    ),
    (
        V2 + "SyncLiteSubscription",
        service_pb2.SyncLiteSubscriptionRequest(topic=TOPIC, group=GROUP, lite_topic_set=["ann"]),
        service_pb2.SyncLiteSubscriptionResponse,
    ),
]


@pytest.mark.parametrize(("method", "request_", "response"), READERS, ids=[row[0] for row in READERS])
async def test_no_call_of_a_reader_makes_a_topic(world: Any, method: str, request_: Any, response: Any) -> None:
    await world.start("a")
    answered = await ask(world, method, request_, response)
    assert answered.status.code == NOT_FOUND
    assert world.brokers["a"].catalog.topics.get("new") is None


async def test_a_simple_consumer_that_came_before_the_topic_reads_it_from_its_first_message(world: Any) -> None:
    await world.start("a")
    consumer = evenq.aio.SimpleConsumer(
        group="g", endpoint="a:8081", subscriptions={"new": "*"}, context=world.context()
    )
    world.clients.append(consumer)
    with pytest.raises(TopicNotFound):
        await world.during(consumer.receive(wait_ms=100))
    assert world.brokers["a"].catalog.topics.get("new") is None
    producer = evenq.aio.Producer(endpoint="a:8081", context=world.context())
    world.clients.append(producer)
    await world.during(producer.send(evenq.Message(topic="new", body=b"first")))
    got = await world.during(consumer.receive(wait_ms=100))
    assert [message.body for message in got] == [b"first"]


async def test_a_group_of_another_sdk_that_waited_for_the_topic_reads_it_whole_though_it_begins_at_the_end(
    world: Any,
) -> None:
    """Its receive was answered TOPIC_NOT_FOUND, and that made its client a member."""

    async def receive(world: Any) -> list[Any]:
        request = service_pb2.ReceiveMessageRequest(group=GROUP, batch_size=8)
        request.message_queue.topic.name, request.message_queue.id = "new", -1
        request.invisible_duration.seconds = 10

        async def collect() -> list[Any]:
            return await receive_frames(
                world.net, "a:8081", request, timeout_ms=3_000, metadata={"x-mq-client-id": "c"}
            )

        frames: list[Any] = await world.during(collect())
        return frames

    await world.start("a")
    [refused] = await receive(world)
    assert refused.status.code == NOT_FOUND
    await world.clock.advance(1_000)
    producer = evenq.aio.Producer(endpoint="a:8081", context=world.context())
    world.clients.append(producer)
    await world.during(producer.send(evenq.Message(topic="new", body=b"first")))
    assert [frame.message.body for frame in await receive(world) if frame.HasField("message")] == [b"first"]


async def test_a_group_of_our_own_that_waited_begins_at_the_first_message_and_so_it_is_committed_though_it_says_last(
    world: Any,
) -> None:
    """Its start is committed before it has the queue: a member that dies then must not leave the end behind."""
    await world.start("a")
    consumer = await world.push(group="g", subscriptions={"new": "*"}, start_from="LAST")
    await world.clock.advance(5_000)
    assert not world.has("new")
    producer = evenq.aio.Producer(endpoint="a:8081", context=world.context())
    world.clients.append(producer)
    for number in range(3):
        await world.during(producer.send(evenq.Message(topic="new", body=b"%d" % number)))
    await world.until(lambda: sorted(world.saw()) == ["0", "1", "2"], limit_ms=60_000)
    topic = world.brokers["a"].catalog.topics.get("new")
    group = world.brokers["a"].catalog.groups.get("g")
    assert all(
        world.brokers["a"].ledger.progress.queue(group.group_id, topic.topic_id, one) is not None
        for one in range(topic.read_queues)
    )
    await world.during(consumer.close())


async def test_a_namespace_is_part_of_the_topic_that_is_made_and_of_the_one_that_is_waited_for(world: Any) -> None:
    """A reader of the same name in another namespace hears of no topic; who waited in this one reads it whole."""

    async def receive(world: Any, client_id: str, **headers: str) -> list[Any]:
        request = service_pb2.ReceiveMessageRequest(group=GROUP, batch_size=8)
        request.message_queue.topic.name, request.message_queue.id = "new", -1
        request.invisible_duration.seconds = 10

        async def collect() -> list[Any]:
            return await receive_frames(
                world.net, "a:8081", request, timeout_ms=3_000, metadata={"x-mq-client-id": client_id, **headers}
            )

        frames: list[Any] = await world.during(collect())
        return frames

    await world.start("a")
    mine = {"x-mq-namespace": "mine"}
    [refused] = await receive(world, "reader", **mine)
    assert refused.status.code == NOT_FOUND
    await world.clock.advance(1_000)
    route = (V2 + "QueryRoute", asking_for_the_route(), service_pb2.QueryRouteResponse)
    response = await ask(world, *route, client_id="writer", **mine)
    assert {queue.topic.name for queue in response.message_queues} == {"new"}
    send = service_pb2.SendMessageRequest()
    message = send.messages.add(body=b"first", topic=TOPIC)
    message.system_properties.message_id = "one"
    await ask(world, V2 + "SendMessage", send, service_pb2.SendMessageResponse, client_id="writer", **mine)
    assert world.has("mine%new")
    assert not world.has("new")
    response = await ask(world, *route, client_id="stranger", **{"x-evenq-role": "reader"})
    assert response.status.code == NOT_FOUND
    response = await ask(world, *route, client_id="reader", **{"x-evenq-role": "reader"}, **mine)
    assert response.status.code == 20000
    got = await receive(world, "reader", **mine)
    assert [frame.message.body for frame in got if frame.HasField("message")] == [b"first"]


async def test_a_group_begins_at_all_brokers_at_once_also_where_its_first_receive_does_not_come(world: Any) -> None:
    await world.start("a")
    await world.start("b")
    await world.create("t")
    producer = evenq.aio.Producer(endpoint="a:8081", context=world.context())
    world.clients.append(producer)
    for number in range(2):
        await world.during(producer.send(evenq.Message(topic="t", body=b"%d" % number)))
    bodies = []
    for start in ("FIRST", None):  # the second consumer says nothing, the group has begun everywhere
        consumer = evenq.aio.SimpleConsumer(
            group="g", endpoint="a:8081", subscriptions={"t": "*"}, context=world.context(), start_from=start
        )
        [message] = await world.during(consumer.receive(max_messages=1, wait_ms=100))
        await world.during(consumer.ack(message))
        bodies.append(message.body)
        await world.during(consumer.close())
    assert sorted(bodies) == [b"0", b"1"]


@pytest.mark.parametrize(
    ("start", "bodies"), [("FIRST", [b"0", b"1"]), ("LAST", []), (None, []), ("TIMESTAMP", [b"1"])]
)
async def test_a_simple_consumer_says_where_its_group_begins(
    world: Any, start: str | None, bodies: list[bytes]
) -> None:
    await world.start("a")
    await world.create("t")
    producer = evenq.aio.Producer(endpoint="a:8081", context=world.context())
    world.clients.append(producer)
    await world.during(producer.send(evenq.Message(topic="t", body=b"0")))
    await world.clock.advance(10_000)
    since_ms = world.clock.now_ms()
    await world.clock.advance(10_000)
    await world.during(producer.send(evenq.Message(topic="t", body=b"1")))
    consumer = evenq.aio.SimpleConsumer(
        group="g", endpoint="a:8081", subscriptions={"t": "*"}, context=world.context(), start_from=start,
        start_timestamp_ms=since_ms,
    )  # fmt: skip
    world.clients.append(consumer)
    got = await world.during(consumer.receive(wait_ms=100))
    assert sorted(message.body for message in got) == bodies


@pytest.mark.parametrize("pulls", [True, False])
async def test_a_new_group_reads_dead_letters_from_the_first_one(world: Any, pulls: bool) -> None:
    await world.start("a")
    broker = world.brokers["a"]
    await world.during(broker.catalog.create_topic("%DLQ%g", queues=1, system=True))
    append = broker.catalog.topics.get("%DLQ%g")
    from evenq.store import Append

    frame = definition_pb2.Message(topic=definition_pb2.Resource(name="%DLQ%g"), body=b"dead")
    entry = Append(append.topic_id, 0, 0, world.clock.now_ms(), frame.SerializeToString(), b"")
    await world.during(broker.ledger.store.append((entry,)))
    if pulls:
        consumer = evenq.aio.PullConsumer(
            group="look", endpoint="a:8081", subscriptions={"%DLQ%g": "*"}, context=world.context()
        )
        world.clients.append(consumer)
        await consumer.start()
        got = await world.during(consumer.poll(wait_ms=5_000))
    else:
        simple = evenq.aio.SimpleConsumer(
            group="look", endpoint="a:8081", subscriptions={"%DLQ%g": "*"}, context=world.context()
        )
        world.clients.append(simple)
        got = await world.during(simple.receive(wait_ms=100))
    assert [message.body for message in got] == [b"dead"]
