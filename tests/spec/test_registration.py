"""Promises about how brokers tell nameservers of themselves and how clients learn of it: semantics sections 1 to 4.

Whole brokers of several nameservers, and our own SDK; what nameservers do by themselves is in `test_nameserver.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from evenq_proofs.fake_registry import FakeRegistry

import evenq
import evenq.aio
from evenq.client.wiring import ClientContext
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2, groups_pb2


def note(body, topic="t", **fields):
    return evenq.Message(topic=topic, body=str(body).encode(), **fields)


def producer(world, context=None, **options):
    result = evenq.ProducerOptions(linger_ms=0, **options)
    made = evenq.aio.Producer(endpoint="a:8081", context=context or world.context(), options=result)
    world.clients.append(made)
    return made


def second_nameserver(world) -> FakeRegistry:
    registry = FakeRegistry("fake-2")
    world.net.serve("ns:2", registry.rpcs())
    return registry


async def test_ns_4_a_broker_beats_to_every_nameserver_also_while_one_of_them_is_away(world):
    both = [world.registry, second_nameserver(world)]
    await world.start("a", nameservers="ns:1,ns:2")
    await world.start("b", nameservers="ns:1,ns:2")
    assert [sorted(registry.brokers) for registry in both] == [["a", "b"]] * 2
    for registry in both:
        registry.heartbeats.clear()
    await world.clock.advance(10_000)  # they ask for a beat each second
    for registry in both:
        beats = Counter(registry.heartbeats)
        assert set(beats) == {"a", "b"}
        assert all(9 <= count <= 12 for count in beats.values()), beats
    world.net.stop("ns:1")
    both[1].heartbeats.clear()
    await world.clock.advance(10_000)
    assert Counter(both[1].heartbeats)["a"] >= 9, "none waits for another"
    world.registry.forget("fake-1 again")
    world.net.serve("ns:1", world.registry.rpcs())
    await world.until(lambda: sorted(world.registry.brokers) == ["a", "b"], limit_ms=5_000)


async def test_ns_5_a_broker_tells_who_and_where_it_is_and_all_its_topics_and_each_change_at_once(world):
    both = [world.registry, second_nameserver(world)]
    await world.start("a", nameservers="ns:1,ns:2", register_interval_ms=60_000)
    for topic, queues in (("t", 3), ("u", 1)):
        await world.create(topic, queues)
    await world.clock.advance(200)
    for registry in both:
        state = registry.brokers["a"]
        assert (state.broker.name, state.broker.id) == ("a", 0)
        assert [(one.name, one.host, one.port) for one in state.broker.listeners] == [("default", "a", 8081)]
        counts = {topic.name: (topic.read_queues, topic.write_queues) for topic in state.topics}
        assert (counts["t"], counts["u"]) == ((3, 3), (1, 1))
        assert state.broker.incarnation


class Noting:
    """A net that notes where calls of one client go."""

    def __init__(self, net: Any) -> None:
        self.net, self.addresses = net, set()

    async def unary(self, address, method, request, **rest):
        self.addresses.add(address)
        return await self.net.unary(address, method, request, **rest)

    def stream(self, address, method, requests, **rest):
        self.addresses.add(address)
        return self.net.stream(address, method, requests, **rest)


async def test_ns_6_a_client_learns_every_broker_through_any_broker_and_never_calls_a_nameserver(world):
    """`b` is known to the second nameserver only, and `a` watches both."""
    second_nameserver(world)
    await world.start("a", nameservers="ns:1,ns:2")
    await world.start("b", nameservers="ns:2")
    assert list(world.registry.brokers) == ["a"]
    await world.create("t", 1)
    net = Noting(world.net)
    fields = {"group": "g", "subscriptions": {"t": "*"}, "start_from": "FIRST", "endpoint": "a:8081"}
    context = ClientContext(clock=world.clock, rng=world.context().rng, net=net)
    reader = evenq.aio.PushConsumer(listener=print, client_id="me", context=context, **fields)
    world.clients.append(reader)
    await reader.start()
    await world.ready(reader, queues=2)
    sender = producer(world, ClientContext(clock=world.clock, rng=world.context().rng, net=net))
    results = [await world.during(sender.send(note(number))) for number in range(4)]
    assert {result.queue.broker_name for result in results} == {"a", "b"}
    await world.clock.advance(40_000)
    assert net.addresses == {"a:8081", "b:8081"}


async def test_ns_9_rt_10_a_producer_looks_at_its_route_every_30_s_and_then_uses_a_broker_that_came(world):
    await world.start("a")
    await world.create("t", 2)
    sender = producer(world)

    async def used() -> set[str]:
        results = [await world.during(sender.send(note(number))) for number in range(8)]
        return {result.queue.broker_name for result in results}

    assert await used() == {"a"}
    began_ms = world.clock.monotonic_ms()
    await world.start("b")
    await world.create("t", 2)
    await world.clock.advance(began_ms + 28_000 - world.clock.monotonic_ms())
    assert await used() == {"a"}
    await world.clock.advance(3_000)
    await used()  # finds the route old and has it fetched
    await world.clock.advance(100)
    assert await used() == {"a", "b"}
    assert world.calls("QueryRoute") == 2
    for options in (evenq.ProducerOptions, evenq.PushOptions, evenq.PullOptions, evenq.SimpleOptions):
        assert options().route_refresh_ms == 30_000


async def test_rt_5_a_message_queue_is_the_unit_that_is_written_locked_and_accounted_for(world):
    """Queues that differ in one of topic, broker and number are different ones in every respect."""
    for name in "ab":
        await world.start(name)
    for topic in "tu":
        await world.create(topic, 2)
    queues = [evenq.MessageQueue(topic, broker, number) for topic in "tu" for broker in "ab" for number in (0, 1)]
    reader = await world.push(subscriptions={"t": "*", "u": "*"}, options=evenq.PushOptions(commit_interval_ms=100))
    await world.ready(reader, queues=8)
    assert reader.queues == sorted(queues)
    for count, queue in enumerate(queues, start=1):
        fields = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
        assert await world.publish(*range(count), **fields) == 0
    await world.until(lambda: len(world.seen) == sum(range(9)))
    assert Counter(message.queue for message in world.seen) == {
        queue: count for count, queue in enumerate(queues, start=1)
    }
    await world.clock.advance(500)
    for count, queue in enumerate(queues, start=1):
        kept = await world.committed("g", queue.topic, queue.queue_id, queue.broker_name)
        assert kept == count
        assert world.brokers[queue.broker_name].membership.locks.holder("g", queue) == "me"


async def test_rg_4_every_broker_tells_all_members_of_a_group_and_none_of_another(world):
    for name in "ab":
        await world.start(name)
    await world.create("t", 2)
    readers = [await world.push(name) for name in ("two", "one")] + [await world.pull("other", group="h")]
    await world.ready(*readers, queues=8)
    for broker in "ab":
        request = groups_pb2.ListMembersRequest(group="g").SerializeToString()
        raw = world.net.unary(f"{broker}:8081", "/evenq.v1.Groups/ListMembers", request, timeout_ms=1_000)
        answer = groups_pb2.ListMembersResponse.FromString(await world.during(raw))
        assert [member.client_id for member in answer.members] == ["one", "two"]


async def test_tq_1_the_first_send_makes_its_topic_on_every_broker_if_that_is_allowed(world):
    for name in "ab":
        await world.start(name)
    sender = producer(world)
    results = [await world.during(sender.send(note(number, topic="new"))) for number in range(8)]
    assert {result.queue.broker_name for result in results} == {"a", "b"}
    assert all(world.has("new", broker) for broker in "ab")


async def test_tq_1_a_topic_must_be_made_before_its_use_where_that_is_a_setting(world):
    await world.start("a", auto_create_topics=False)
    sender = producer(world)
    with pytest.raises(evenq.errors.TopicNotFound, match="evenq topic create new"):
        await world.during(sender.send(note("x", topic="new")))
    with pytest.raises(evenq.Error, match="new"):
        await world.publish("x", topic="new")
    assert not world.has("new")
    await world.create("new", 1)
    assert (await world.during(sender.send(note("x", topic="new")))).offset == 0


@pytest.mark.parametrize(("asked_ms", "waits_ms"), [(700, 700), (60_000, 2_000)])
async def test_lp_5_a_pull_is_parked_as_long_as_it_asks_for_and_no_longer_than_the_broker_allows(
    world, asked_ms, waits_ms
):
    """The answer says that nothing came, and where to go on."""
    await world.start("a", poll_max_ms=2_000)
    await world.create("t", 1)
    await world.publish("x")
    queue = common_pb2.Queue(topic="t", broker_name="a")
    request = data_pb2.PullRequest(queue=queue, offset=1, committed=-1, wait_ms=asked_ms).SerializeToString()
    began_ms = world.clock.monotonic_ms()
    raw = await world.during(world.net.unary("a:8081", "/evenq.v1.Data/Pull", request, timeout_ms=90_000))
    assert waits_ms <= world.clock.monotonic_ms() - began_ms <= waits_ms + 50
    answer = data_pb2.PullResponse.FromString(raw)
    assert (len(answer.messages), answer.next_offset, answer.max_offset) == (0, 1, 1)
    assert evenq.PushOptions().pull_wait_ms == evenq.PullOptions().pull_wait_ms == 15_000
