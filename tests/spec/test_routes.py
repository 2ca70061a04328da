"""Promises about queue counts, permissions and routes, kept by whole brokers and our own SDK."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import evenq
import evenq.aio
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, groups_pb2

ADMIN = "/evenq.v1.Admin/"
QUICK = evenq.PushOptions(commit_interval_ms=100)


def producer(world, **options):
    made = evenq.aio.Producer(
        endpoint="a:8081", context=world.context(), options=evenq.ProducerOptions(linger_ms=0, **options)
    )
    world.clients.append(made)
    return made


def note(body, **fields):
    return evenq.Message(topic="t", body=str(body).encode(), **fields)


async def scaled(world, queues: int):
    """Scale until it is done."""
    for _ in range(2_000):
        found = await world.scale(queues)
        if all(one.entry.read_queues == queues for one in found):
            return
        await world.clock.advance(20)
    raise AssertionError(f"never ended: {found}")


async def test_rt_3_7_11_rt_9_counts_are_per_broker_and_the_example_has_six_queues_that_share_the_load(world):
    """RT-9: `a` 4/4 and `b` 2/2: six message queues, each gets the same, so `a` gets twice as much as `b`."""
    for name in "ab":
        await world.start(name)
    await world.create("t", 4)
    [response] = await world.scale(2, broker="b")
    assert (response.broker_name, response.entry.write_queues, response.entry.read_queues) == ("b", 2, 2)
    await world.until(lambda: len(world.brokers["a"].catalog.routes.readable("t")) == 6)
    sender = producer(world)
    results = [await world.during(sender.send(note(number))) for number in range(60)]
    per_queue = Counter((result.queue.broker_name, result.queue.queue_id) for result in results)
    assert sorted(per_queue) == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("b", 1)]
    assert set(per_queue.values()) == {10}
    reader = await world.push()
    await world.ready(reader, queues=6)
    await world.until(lambda: len(world.saw()) == 60)


async def test_rt_2_3_7_while_it_shrinks_a_route_has_more_queues_for_consumers_than_for_producers(world):
    await world.start()
    await world.create("t", 4)
    reader = await world.push(listener=lambda _: asyncio.Event().wait())  # it never finishes anything
    await world.ready(reader, queues=4)
    await world.publish("x", queue=3)
    await world.until(lambda: world.saw() == ["x"])
    await world.scale(2)
    sender = producer(world)
    results = [await world.during(sender.send(note(number))) for number in range(8)]
    assert {result.queue.queue_id for result in results} == {0, 1}
    assert len(world.brokers["a"].catalog.routes.readable("t")) == 4
    assert len(reader.queues) == 4


async def test_rt_12_a_queue_is_there_from_its_first_message_on_and_reading_before_is_no_error(world):
    broker = await world.start()
    await world.create("t", 2)
    reader = await world.push()
    await world.ready(reader, queues=2)
    topic = broker.catalog.topics.get("t")
    assert broker.ledger.store.queue_range(topic.topic_id, 1) == (0, 0)
    await world.publish("first", queue=1)
    assert broker.ledger.store.queue_range(topic.topic_id, 1) == (0, 1)
    await world.until(lambda: world.saw() == ["first"])


@pytest.mark.parametrize("assignment", ["client", "server"])
async def test_rt_8_better_a_topic_grows_and_shrinks_in_steps_and_no_message_is_lost_or_read_twice(world, assignment):
    """4 to 8 to 3 queues, with keys and without, while a group of three reads."""
    await world.start()
    await world.create("t", 4)
    readers = [await world.push(name, options=QUICK, assignment=assignment) for name in ("one", "two", "three")]
    await world.ready(*readers, queues=4)
    sender = producer(world, route_refresh_ms=600_000)  # its route is old all the time
    sent = 0

    async def send(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            await world.during(sender.send(note(sent), sharding_key=f"key-{sent % 5}" if sent % 2 else None))
            sent += 1

    await send(20)
    await world.scale(8)
    await world.ready(*readers, queues=8)
    await world.publish("new-queue", queue=7)
    await send(20)
    await world.scale(3)
    await send(20)
    await scaled(world, 3)
    await world.ready(*readers, queues=3)
    await send(20)
    await world.until(lambda: len(world.saw()) >= sent + 1)
    await world.clock.advance(30_000)
    assert sorted(world.saw()) == sorted([*map(str, range(sent)), "new-queue"])


async def test_rt_8_better_messages_that_nobody_can_read_are_reported_and_read_when_the_topic_grows(world):
    await world.start()
    await world.create("t", 4)
    first = await world.push(options=QUICK)
    await world.ready(first, queues=4)
    await world.during(first.close())
    world.clients.remove(first)
    await world.publish("a", "b", queue=3)
    [response] = await world.scale(2)
    assert [(left.group, left.queue.queue_id, left.lag) for left in response.unfinished] == [("g", 3, 2)]
    assert (response.entry.write_queues, response.entry.read_queues) == (2, 4), "it waits"
    await world.scale(2, force=True)
    shown = await world.call(ADMIN + "DescribeTopic", admin_pb2.DescribeTopicRequest(topic="t"))
    assert shown.stranded == 2
    assert [queue.queue.queue_id for queue in shown.queues] == [0, 1, 3]
    assert shown.queues[2].permission == definition_pb2.NONE
    second = await world.push("again", options=QUICK)
    await world.ready(second, queues=2)
    await world.scale(4)
    await world.until(lambda: sorted(world.saw()) == ["a", "b"])


async def test_tq_14_permissions_say_what_queues_are_for_and_the_sdk_goes_elsewhere(world):
    for name in "ab":
        await world.start(name)
    await world.create("t", 2)
    reader = await world.push(options=QUICK)
    await world.ready(reader, queues=4)
    sender = producer(world, route_refresh_ms=600_000)
    await world.during(sender.send(note("before")))
    read_only = admin_pb2.PermitTopicRequest(topic="t", permission=definition_pb2.READ, broker_name="b")
    await world.call(ADMIN + "PermitTopic", read_only)
    results = [await world.during(sender.send(note(number))) for number in range(8)]
    assert {result.queue.broker_name for result in results} == {"a"}
    assert len(reader.queues) == 4, "it is read on"
    closed = admin_pb2.PermitTopicRequest(topic="t", permission=definition_pb2.WRITE, broker_name="b")
    await world.call(ADMIN + "PermitTopic", closed)
    await world.ready(reader, queues=2)
    nowhere = admin_pb2.PermitTopicRequest(topic="t", permission=definition_pb2.READ)
    await world.call(ADMIN + "PermitTopic", nowhere)
    with pytest.raises(evenq.errors.Forbidden):
        await world.during(sender.send(note("nobody takes it")))


async def test_tq_14_tq_5_a_drained_broker_is_read_empty_and_its_end_costs_nothing(world):
    for name in "ab":
        await world.start(name)
    await world.create("t", 2)
    reader = await world.push(options=QUICK)
    await world.ready(reader, queues=4)
    sender = producer(world, route_refresh_ms=600_000)
    for number in range(10):
        await world.during(sender.send(note(number), sharding_key=f"key-{number}"))
    request = admin_pb2.DrainBrokerRequest(broker_name="b", change=admin_pb2.DrainBrokerRequest.DRAIN)
    answer = await world.call(ADMIN + "DrainBroker", request)
    for number in range(10, 20):
        result = await world.during(sender.send(note(number), sharding_key=f"key-{number}"))
        assert result.queue.broker_name == "a", "keys move when their broker says so"
    for _ in range(1_000):
        answer = await world.call(ADMIN + "DrainBroker", request)
        if answer.empty:
            break
        await world.clock.advance(20)
    assert (answer.empty, answer.writers) == (True, 1)
    broker = world.brokers.pop("b")
    await world.during(broker.close())
    world.net.stop("b:8081")
    await world.ready(reader, queues=2)
    for number in range(20, 30):
        await world.during(sender.send(note(number), sharding_key=f"key-{number}"))
    await world.until(lambda: len(world.saw()) >= 30)
    assert sorted(map(int, world.saw())) == list(range(30))


async def test_ns_8_owners_learn_of_a_lost_and_a_returned_broker_at_once(world):
    """RT-10."""
    for name in "ab":
        await world.start(name)
    await world.create("t", 2)
    readers = [await world.push(name) for name in ("one", "two")]
    await world.ready(*readers, queues=4)
    back = world.cut("b")
    world.registry.drop("b")
    began_ms = world.clock.monotonic_ms()
    await world.until(lambda: all(q.broker_name == "a" for reader in readers for q in reader.queues))
    assert world.clock.monotonic_ms() - began_ms < 1_000
    back()
    await world.until(lambda: len(world.brokers["a"].catalog.routes.brokers()) == 2)
    began_ms = world.clock.monotonic_ms()
    await world.ready(*readers, queues=4)
    assert world.clock.monotonic_ms() - began_ms < 3_000


async def test_rg_1_messages_never_pass_through_a_nameserver_and_flow_on_without_one(world):
    await world.start()
    await world.create("t", 2)
    reader = await world.push()
    await world.ready(reader, queues=2)
    before = len(world.net.calls)
    world.net.stop("ns:1")
    sender = producer(world)
    for number in range(6):
        await world.during(sender.send(note(number)))
    await world.until(lambda: len(world.saw()) == 6)
    asked = {method for address, method in world.net.calls[before:] if address == "ns:1"}
    assert not [method for method in asked if not method.startswith("/evenq.v1.Registry/")]
    assert {address for address, method in world.net.calls if method.endswith(("Publish", "Pull"))} == {"a:8081"}


async def test_rg_6_a_changed_subscription_has_a_newer_version_at_every_broker_at_once(world):
    for name in "ab":
        await world.start(name)
    await world.create("t", 1)
    await world.create("u", 1)
    reader = await world.push("me")
    await world.ready(reader, queues=2)

    def report(broker: str) -> dict[str, int]:
        member = world.brokers[broker].membership.members.get("g", "me")
        return {subscription.topic: subscription.version for subscription in member.subscriptions}

    first = {name: report(name)["t"] for name in "ab"}
    assert first["a"] == first["b"] > 0
    await world.clock.advance(1_000)
    began_ms, changed_ms = world.clock.monotonic_ms(), world.clock.now_ms()
    reader.subscribe("u")
    await world.until(lambda: all("u" in report(name) for name in "ab"))
    assert world.clock.monotonic_ms() - began_ms < 100, "no heartbeat is waited for"
    assert {version for name in "ab" for version in report(name).values()} == {changed_ms}
    await world.clock.advance(30_000)  # rounds and heartbeats
    assert {version for name in "ab" for version in report(name).values()} == {changed_ms}, "nothing has changed"


async def test_rg_6_changes_in_quick_succession_reach_each_broker_in_their_order_the_last_one_stays(world):
    for name in "ab":
        await world.start(name)
    for topic in ("t", "u", "v"):
        await world.create(topic, 1)
    reader = await world.push("me")
    await world.ready(reader, queues=2)
    heard = {name: [] for name in "ab"}
    for name, broker in world.brokers.items():

        def noted(group, member, put=broker.membership.members.join, name=name, **more):
            heard[name].append(
                ({one.topic for one in member.subscriptions}, {one.version for one in member.subscriptions})
            )
            return put(group, member, **more)

        broker.membership.members.join = noted
    first_ms = world.clock.now_ms()
    reader.subscribe("u")
    world.clock.jump_wall(1)
    reader.subscribe("v")
    world.clock.jump_wall(1)
    reader.unsubscribe("u")
    await world.until(lambda: all(len(response) == 3 for response in heard.values()))
    retry = "%RETRY%g"
    assert (
        heard["a"]
        == heard["b"]
        == [
            ({"t", "u", retry}, {first_ms}),
            ({"t", "u", "v", retry}, {first_ms + 1}),
            ({"t", "v", retry}, {first_ms + 2}),
        ]
    )


async def test_rg_7_one_process_holds_many_producers_and_consumers(world):
    """Of one group and of several, beside each other and without names."""
    await world.start()
    await world.create("t", 4)
    readers = [await world.push("", group=group) for group in ("g", "g", "h")]
    await world.until(lambda: [len(reader.queues) for reader in readers] == [2, 2, 4])
    assert len({reader.client_id for reader in readers}) == 3
    senders = [producer(world), producer(world)]
    for number in range(8):
        await world.during(senders[number % 2].send(note(number)))
    await world.until(lambda: len(world.saw()) == 16)
    assert Counter(world.saw()) == {str(number): 2 for number in range(8)}


async def test_tq_6_a_queue_is_first_in_first_out(world):
    await world.start()
    await world.create("t", 1)
    for number in range(50):
        assert await world.publish(number) == number
    reader = await world.pull()
    await world.ready(reader)
    found: list[str] = []
    while len(found) < 50:
        found += [message.body.decode() for message in await world.during(reader.poll(7, wait_ms=1_000))]
    assert found == [str(number) for number in range(50)]


async def test_tq_8_clustering_gives_a_message_to_one_member_and_broadcasting_to_each(world, tmp_path):
    await world.start()
    await world.create("t", 2)
    heard: Counter[str] = Counter()

    def listener(name):
        async def listen(messages):
            heard.update(f"{name}-{message.body.decode()}" for message in messages)

        return listen

    shared = [await world.push(name, listener=listener("shared")) for name in ("one", "two")]
    each = [
        await world.push(
            name,
            group="all",
            model="BROADCASTING",
            listener=listener(name),
            options=evenq.PushOptions(offsets_folder=tmp_path / name),
        )
        for name in ("three", "four")
    ]
    await world.ready(*shared, *each, queues=2 + 4)
    for number in range(4):
        await world.publish(number, queue=number % 2)
    await world.until(lambda: heard.total() >= 12)
    expected = {f"{who}-{number}": 1 for who in ("shared", "three", "four") for number in range(4)}
    assert heard == expected


async def test_tq_11_three_queues_and_three_members_have_one_each(world):
    await world.start()
    await world.create("t", 3)
    readers = [await world.push(name) for name in ("one", "two", "three")]
    await world.until(lambda: [len(reader.queues) for reader in readers] == [1, 1, 1])
    assert len({queue for reader in readers for queue in reader.queues}) == 3


async def test_tq_12_push_is_pull_underneath(world):
    """Both kinds ask the broker with the same call; the broker never calls them."""
    await world.start()
    await world.create("t", 1)
    pushed = await world.push("push")
    pulled = await world.pull("pull", group="h")
    await world.ready(pushed, pulled, queues=2)
    before = world.calls("/Pull")
    await world.publish("x")
    await world.until(lambda: world.saw() == ["x"])
    [message] = await world.during(pulled.poll(1, wait_ms=1_000))
    assert message.body == b"x"
    assert world.calls("/Pull") >= before + 2
    assert {address for address, _ in world.net.calls} <= {"a:8081", "ns:1"}


async def test_xo_9_rb_23_a_pull_consumer_stores_a_lost_queues_offset_forgets_it_and_tells_the_user(world):
    """XO-9: sorted by topic, broker and id."""
    await world.start()
    await world.create("t", 4)
    events: list[tuple[str, list[int]]] = []

    def tell(gained, lost):
        events.append(("gained", [queue.queue_id for queue in gained]))
        events.append(("lost", [queue.queue_id for queue in lost]))

    first = await world.pull("one", on_rebalance=tell)
    await world.ready(first, queues=4)
    for queue in range(4):
        await world.publish(f"m{queue}", queue=queue)
    found = 0
    while found < 4:
        found += len(await world.during(first.poll(4, wait_ms=1_000)))
    await world.during(first.poll(1, wait_ms=0))  # asking again says that these are done
    second = await world.pull("two")
    polling = asyncio.ensure_future(first.poll(1, wait_ms=20_000))
    await world.until(lambda: [len(first.queues), len(second.queues)] == [2, 2])
    assert first.queues == sorted(first.queues)
    gone = sorted(set(range(4)) - {queue.queue_id for queue in first.queues})
    for queue in gone:
        assert await world.committed("g", queue=queue) == 1
    assert sorted(queue for what, ids in events for queue in ids if what == "lost") == gone
    assert {queue for what, ids in events for queue in ids if what == "gained"} == set(range(4))
    assert all(ids == sorted(ids) for _, ids in events)
    await world.during(polling)


async def test_rg_3_the_broker_knows_the_members_that_its_route_led_to_it(world):
    await world.start()
    await world.create("t", 2)
    readers = [await world.push(name) for name in ("one", "two")]
    await world.ready(*readers, queues=2)
    raw = world.net.unary(
        "a:8081",
        "/evenq.v1.Groups/ListMembers",
        groups_pb2.ListMembersRequest(group="g").SerializeToString(),
        timeout_ms=1_000,
    )
    answer = groups_pb2.ListMembersResponse.FromString(await world.during(raw))
    assert [member.client_id for member in answer.members] == ["one", "two"]
