"""Promises about groups beside each other, members' beats, what a consume request holds, and reserved names.

Each is recognized by what users see: what two groups receive, what a broker knows of a member, what a listener is handed.
"""

from __future__ import annotations

import asyncio

import pytest

import evenq
from evenq.errors import Error
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2

ADMIN = "/evenq.v1.Admin/"
V2 = "/apache.rocketmq.v2.MessagingService/"


async def test_tq_7_every_group_receives_every_message_whatever_the_others_do(world):
    await world.start()
    await world.create("t", 2)
    got = {"billing": [], "audit": [], "late": []}

    def listener(group):
        async def note(messages):
            got[group] += [message.body.decode() for message in messages]

        return note

    for group in ("billing", "audit"):
        await world.push(f"{group}-1", group=group, listener=listener(group))
    for queue in (0, 1):
        await world.publish(*range(queue * 10, queue * 10 + 10), queue=queue)
    await world.until(lambda: all(len(got[group]) == 20 for group in ("billing", "audit")))
    await world.push("late-1", group="late", listener=listener("late"))
    await world.until(lambda: len(got["late"]) == 20)
    everything = sorted(map(str, range(20)))
    assert [sorted(bodies) for bodies in got.values()] == [everything] * 3
    await world.clock.advance(6_000)
    for group in got:
        assert [await world.committed(group, queue=queue) for queue in (0, 1)] == [10, 10]


async def test_rg_2_every_broker_hears_of_a_member_and_goes_on_hearing_of_it(world):
    brokers = [await world.start(name, session_beat_interval_ms=3_000, session_timeout_ms=10_000) for name in "abc"]
    await world.create("t", 1)
    consumer = await world.push("me", subscriptions={"t": "red || blue"})
    await world.ready(consumer, queues=3)
    for broker in brokers:
        member = broker.membership.members.get("g", "me")
        assert member is not None
        assert (member.client_id, member.reads("t"), member.reads("other")) == ("me", True, False)
        assert ("t", "red || blue") in {(one.topic, one.filter.expression) for one in member.subscriptions}
        assert member.model is evenq.MessageModel.CLUSTERING
    beats = {broker.runtime.settings.broker_name: 0 for broker in brokers}
    renew = {name: broker.membership.members.renew for name, broker in world.brokers.items()}

    def counted(name):
        def note(group, client_id, now_ms):
            beats[name] += client_id == "me"
            renew[name](group, client_id, now_ms)

        return note

    for name, broker in world.brokers.items():
        broker.membership.members.renew = counted(name)
    await world.clock.advance(30_000)
    assert all(count >= 9 for count in beats.values()), beats  # 30 s of beats each 3 s; polls alone are fewer
    assert all(broker.membership.members.get("g", "me") is not None for broker in brokers)


@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_rb_1_push_and_pull_members_divide_queues_by_the_same_procedure(world, kind):
    await world.start()
    await world.create("t", 5)
    members = [await getattr(world, kind)(name) for name in ("m1", "m2")]
    await world.ready(*members, queues=5)
    await world.until(lambda: [len(member.queues) for member in members] == [3, 2])
    shares = [[queue.queue_id for queue in member.queues] for member in members]
    assert shares == [[0, 1, 2], [3, 4]]


async def test_oc_4_a_new_owner_handles_nothing_before_the_one_before_it_has_finished(world):
    """Both fetch in order; without the lock the second would finish message 1 while the first still has 0."""
    await world.start()
    await world.create("t", 2)
    running, finished = {}, {0: [], 1: []}
    gate = asyncio.Event()

    def listener(member):
        async def handle(messages):
            queue = messages[0].queue.queue_id
            assert queue not in running, f"{member} handles queue {queue}, which {running[queue]} still handles"
            running[queue] = member
            if member == "one" and queue == 1 and not finished[1]:
                await gate.wait()
            finished[queue] += [(int(message.body), member) for message in messages]
            del running[queue]

        return handle

    options = evenq.PushOptions(consume_batch=1, drain_ms=60_000)
    first = await world.push("one", listener=listener("one"), ordered=True, options=options)
    await world.ready(first, queues=2)
    await world.publish(*range(6), queue=1)
    await world.until(lambda: running.get(1) == "one")
    second = await world.push("two", listener=listener("two"), ordered=True, options=options)
    await world.clock.advance(5_000)
    assert finished[1] == []
    gate.set()
    await world.until(lambda: len(finished[1]) == 6)
    assert [number for number, _ in finished[1]] == list(range(6))
    owners = [member for _, member in finished[1]]
    assert owners == sorted(owners)
    assert owners[0] == "one"
    assert owners[-1] == "two"
    assert [queue.queue_id for queue in second.queues] == [1]


async def test_oc_10_a_consume_request_holds_the_queue_and_takes_what_is_there_when_it_runs(world):
    """One worker: while it is busy with queue 0, a request for queue 1 waits; it finds also what came after it."""
    await world.start()
    await world.create("t", 2)
    calls = []
    gate = asyncio.Event()

    async def listener(messages):
        calls.append([message.body.decode() for message in messages])
        if messages[0].body == b"busy":
            await gate.wait()

    options = evenq.PushOptions(consume_batch=32)
    consumer = await world.push(listener=listener, ordered=True, consume_threads=1, options=options)
    await world.ready(consumer, queues=2)
    await world.publish(*range(400), queue=0)  # a fast listener is handed several at a time
    await world.until(lambda: sum(map(len, calls)) == 400)
    calls.clear()
    await world.publish("busy", queue=0)
    await world.until(lambda: calls == [["busy"]])
    await world.publish("a", queue=1)
    await world.clock.advance(2)
    await world.publish("b", "c", queue=1)
    await world.clock.advance(2)
    assert calls == [["busy"]]
    gate.set()
    await world.until(lambda: len(calls) > 1)
    assert calls[1][:2] == ["a", "b"]


async def test_rd_19_dead_letters_are_kept_and_come_back_by_nothing_but_a_replay(world):
    await world.start()
    await world.create("t")
    await world.group("g", max_attempts=1)

    async def listener(messages):
        return False

    await world.publish("poison")
    consumer = await world.push(listener=listener)
    await world.until(lambda: world.has("%DLQ%g"))
    for _ in range(6):
        await world.clock.advance(10 * 60_000)
    assert world.saw() == ["poison"]
    await world.during(consumer.close())
    world.clients.remove(consumer)
    await world.push("again")
    await world.clock.advance(60_000)
    assert world.saw() == ["poison"]
    assert await world.bodies("%DLQ%g") == ["poison"]


async def test_rt_6_a_topic_has_eight_queues_by_default_for_writers_and_readers_with_ids_from_0(world):
    """Decision 121; four in the source."""
    await world.start()
    await world.create("t", 0)
    point = definition_pb2.Endpoints(addresses=[definition_pb2.Address(host="a", port=8081)])
    request = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name="t"), endpoints=point)
    raw = world.net.unary("a:8081", V2 + "QueryRoute", request.SerializeToString(), timeout_ms=5_000)
    route = service_pb2.QueryRouteResponse.FromString(await world.during(raw))
    assert [queue.id for queue in route.message_queues] == list(range(8))
    assert {queue.permission for queue in route.message_queues} == {definition_pb2.READ_WRITE}


@pytest.mark.parametrize("name", ["%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX"])
async def test_tq_13_reserved_names_are_the_brokers_own(world, name):
    """Neither made nor written by anybody else, on either protocol."""
    await world.start()
    with pytest.raises(Error) as made:
        await world.call("/evenq.v1.Admin/CreateTopic", admin_pb2.CreateTopicRequest(topic=name, queues=1))
    with pytest.raises(Error) as written:
        await world.publish("x", topic=name)
    assert {type(made.value).__name__, type(written.value).__name__} <= {"IllegalTopic", "Forbidden", "BadRequest"}
    for error in (made.value, written.value):
        assert name in error.message
    message = definition_pb2.Message(
        topic=definition_pb2.Resource(name=name),
        body=b"x",
        system_properties=definition_pb2.SystemProperties(message_id="1" * 32),
    )
    request = service_pb2.SendMessageRequest(messages=[message])
    raw = world.net.unary("a:8081", V2 + "SendMessage", request.SerializeToString(), timeout_ms=5_000)
    answer = service_pb2.SendMessageResponse.FromString(await world.during(raw))
    assert answer.status.code in {definition_pb2.FORBIDDEN, definition_pb2.ILLEGAL_TOPIC}
    assert not world.has(name)


async def test_tq_4_a_topics_queues_on_several_brokers_are_independent_and_as_many_as_the_user_chose(world):
    await world.start("a")
    await world.start("b")
    await world.create("t", 1)
    await world.scale(3, broker="b")
    consumer = await world.push()
    await world.ready(consumer, queues=4)
    assert sorted((queue.broker_name, queue.queue_id) for queue in consumer.queues) == [
        ("a", 0),
        ("b", 0),
        ("b", 1),
        ("b", 2),
    ]
    for broker, queues in (("a", 1), ("b", 3)):
        for queue in range(queues):
            assert await world.publish(f"{broker}{queue}", queue=queue, broker=broker) == 0
    await world.until(lambda: sorted(world.saw()) == ["a0", "b0", "b1", "b2"])
    world.cut("b")
    assert await world.publish("still", queue=0, broker="a") == 1
    await world.until(lambda: "still" in world.saw())


@pytest.mark.parametrize("settled", [True, False])
async def test_rd_2_a_group_that_was_deleted_and_made_again_gets_no_retries_of_the_one_before(world, settled):
    """RD-2: the retry topic is the group's, so it ends with it, and with it what still waits for its delay."""
    await world.start()
    await world.create("t")
    failed = set()

    async def fail_first(messages):
        for message in messages:
            if message.body not in failed:
                failed.add(message.body)
                raise ValueError(message.body)

    consumer = await world.push(listener=fail_first, start_from="LAST")
    await world.ready(consumer)
    await world.publish("old")
    await world.until(lambda: world.saw() == (["old"] * 2 if settled else ["old"]))
    await world.until(lambda: world.calls("SendBack") == 1)
    await world.during(consumer.close(), step_ms=50)
    world.clients.remove(consumer)
    await world.call(ADMIN + "DeleteGroup", admin_pb2.DeleteGroupRequest(group="g"))
    assert not world.has("%RETRY%g")
    world.seen.clear()
    await world.ready(await world.push("again", start_from="LAST"))
    await world.clock.advance(60_000)
    await world.publish("new")
    await world.until(lambda: "new" in world.saw())
    assert world.saw() == ["new"]
