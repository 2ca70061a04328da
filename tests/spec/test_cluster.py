"""Promises about routes, members, topics, offsets and polls, kept by brokers that talk to each other.

Whole brokers in one process, over a net without sockets and a clock that the test moves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_broker.broker import Broker
from evenq_broker.settings import BrokerSettings
from evenq_proofs.fake_registry import FakeRegistry
from evenq_proofs.loop_net import LoopNet

from evenq.errors import Error
from evenq.model import BrokerAddress, Generation, Listener, MessageType
from evenq.runtime.clock import FakeClock
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, common_pb2, data_pb2, groups_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
OK = definition_pb2.OK


class World:
    """Brokers, nameservers and calls to them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.during, self.until = self.clock.during, self.clock.until
        self.net = LoopNet(self.clock)
        self.registry = FakeRegistry()
        self.net.serve("ns:1", self.registry.rpcs())
        self.brokers: dict[str, Broker] = {}

    async def start(self, name: str, **settings: Any) -> Broker:
        result = BrokerSettings(broker_name=name, **{"nameservers": "ns:1", **settings})
        broker = Broker(result, clock=self.clock, rng=random.Random(name), net=self.net)
        await broker.open()
        rpcs = broker.rpcs()
        self.net.serve(f"{name}:8081", rpcs)
        self.net.serve(f"{name}:30000", rpcs, listener=Listener("external"))
        await broker.start([BrokerAddress("default", name, 8081), BrokerAddress("external", "localhost", 30000)])
        self.brokers[name] = broker
        await self.until(
            lambda: all(len(b.catalog.routes.brokers()) == len(self.brokers) for b in self.brokers.values())
        )
        return broker

    async def kill(self, name: str) -> None:
        """No goodbye: its address answers no more, the nameserver drops it for its silence."""
        self.net.stop(f"{name}:8081")
        del self.brokers[name]
        self.registry.drop(name)

    async def call(self, broker: str, method: str, request: Any, response: Any, *, timeout_ms: int = 60_000) -> Any:
        """One unary call; raises the error that the answer's status says."""
        raw = await self.net.unary(f"{broker}:8081", method, request.SerializeToString(), timeout_ms=timeout_ms)
        answer = response.FromString(raw)
        check(answer.status)
        return answer

    async def route(self, broker: str, topic: str, typed: str = "", port: int = 8081) -> Any:
        """Asked at the broker's port `port` by a client whose user typed the host `typed`."""
        point = definition_pb2.Endpoints(addresses=[definition_pb2.Address(host=typed or broker, port=8081)])
        request = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name=topic), endpoints=point)
        raw = await self.net.unary(
            f"{broker}:{port}", V2 + "QueryRoute", request.SerializeToString(), timeout_ms=60_000
        )
        answer = service_pb2.QueryRouteResponse.FromString(raw)
        check(answer.status)
        return answer

    async def publish(self, broker: str, topic: str, queue_id: int, *bodies: str, tag: str = "") -> Any:
        queue = common_pb2.Queue(topic=topic, broker_name=broker, queue_id=queue_id)
        request = data_pb2.PublishRequest(queue=queue)
        for body in bodies:
            message = request.messages.add(body=body.encode())
            message.system_properties.message_id = f"id-{body}"
            if tag:
                message.system_properties.tag = tag
        return await self.call(broker, "/evenq.v1.Data/Publish", request, data_pb2.PublishResponse)

    async def pull(self, broker: str, topic: str, queue_id: int, offset: int, **rest: Any) -> Any:
        queue = common_pb2.Queue(topic=topic, broker_name=broker, queue_id=queue_id)
        request = data_pb2.PullRequest(queue=queue, offset=offset, **{"committed": -1, **rest})
        raw = await self.net.unary(
            f"{broker}:8081", "/evenq.v1.Data/Pull", request.SerializeToString(), timeout_ms=60_000
        )
        return data_pb2.PullResponse.FromString(raw)

    async def create(self, broker: str, topic: str, queues: int, **rest: Any) -> Any:
        request = admin_pb2.CreateTopicRequest(topic=topic, queues=queues, **rest)
        return await self.call(broker, "/evenq.v1.Admin/CreateTopic", request, admin_pb2.CreateTopicResponse)


class Line:
    """A member's open session."""

    def __init__(self, world: World, broker: str, group: str, client_id: str, topics: tuple[str, ...]) -> None:
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        member = groups_pb2.Member(
            client_id=client_id, subscriptions=[groups_pb2.MemberSubscription(topic=topic) for topic in topics]
        )
        self.tell(groups_pb2.SessionRequest(join=groups_pb2.Join(group=group, member=member)))
        self._stream: AsyncGenerator[bytes, None] = world.net.stream(
            f"{broker}:8081", "/evenq.v1.Groups/Session", self._outgoing(), timeout_ms=None
        )

    def tell(self, request: groups_pb2.SessionRequest) -> None:
        self._requests.put_nowait(request.SerializeToString())

    async def next(self) -> groups_pb2.SessionEvent:
        return groups_pb2.SessionEvent.FromString(await anext(self._stream))

    async def rest(self) -> list[groups_pb2.SessionEvent]:
        """What comes until the broker ends the stream."""
        return [groups_pb2.SessionEvent.FromString(event) async for event in self._stream]

    async def cut(self) -> None:
        await self._stream.aclose()

    async def _outgoing(self) -> AsyncIterator[bytes]:
        while (request := await self._requests.get()) is not None:
            yield request


async def joined(world: World, broker: str, group: str, client_id: str, *topics: str) -> Line:
    line = Line(world, broker, group, client_id, topics or ("t",))
    assert (await line.next()).WhichOneof("event") == "welcome"
    return line


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    world = World()
    try:
        yield world
    finally:
        for broker in world.brokers.values():
            await broker.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world() as world:
        yield world


def ids(members: Any) -> list[str]:
    return [member.client_id for member in members]


# ------------------------------------------------------------------------------------------------------ routes (RT)


async def test_rt_1_a_route_tells_addresses_broker_names_and_queues_and_each_queue_id_from_0(world: World) -> None:
    """RT-1, RT-5, RT-6."""
    await world.start("a")
    await world.start("b")
    await world.during(world.create("a", "t", 4))
    for broker in ("a", "b"):
        route = await world.route(broker, "t")
        places = [(queue.broker.name, queue.id, queue.broker.id) for queue in route.message_queues]
        assert places == [(name, queue_id, 0) for name in ("a", "b") for queue_id in range(4)]
        assert {queue.permission for queue in route.message_queues} == {definition_pb2.READ_WRITE}
        assert [queue.broker.endpoints.addresses[0].host for queue in route.message_queues] == ["a"] * 4 + ["b"] * 4


async def test_rt_1_a_route_is_byte_for_byte_the_same_until_something_changes(world: World) -> None:
    await world.start("a")
    await world.create("a", "t", 2)
    first = (await world.route("a", "t")).SerializeToString()
    await world.clock.advance(60_000)
    assert (await world.route("a", "t")).SerializeToString() == first
    await world.create("a", "t", 3)
    assert (await world.route("a", "t")).SerializeToString() != first


async def test_rt_1_clients_of_another_listener_are_told_its_addresses(world: World) -> None:
    await world.start("a")
    await world.create("a", "t", 1)
    for typed in ("localhost", "forwarded.example"):  # the door counts, not what the user typed
        route = await world.route("a", "t", typed, 30000)
        endpoints = route.message_queues[0].broker.endpoints
        assert [(address.host, address.port) for address in endpoints.addresses] == [("localhost", 30000)]
        assert endpoints.scheme == definition_pb2.DOMAIN_NAME
    route = await world.route("a", "t", "localhost")
    assert route.message_queues[0].broker.endpoints.addresses[0].host == "a"


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        (definition_pb2.NORMAL, [1]),
        (definition_pb2.FIFO, [2]),
        (definition_pb2.DELAY, [3]),
        (definition_pb2.TRANSACTION, [4]),
    ],
)
async def test_rt_1_a_route_says_which_messages_a_topic_takes(world: World, kind: Any, accepted: list[int]) -> None:
    await world.start("a")
    await world.create("a", "t", 1, message_type=kind)
    assert list((await world.route("a", "t")).message_queues[0].accept_message_types) == accepted


async def test_rt_10_a_broker_that_comes_and_creates_the_topic_grows_the_route_and_one_that_dies_leaves_it(
    world: World,
) -> None:
    """RT-9, RT-10, NS-8."""
    await world.start("a")
    await world.create("a", "t", 2)
    await world.start("b")
    await world.during(world.create("b", "t", 0))
    assert len((await world.route("a", "t")).message_queues) == 4
    await world.kill("b")
    await world.until(lambda: len(world.brokers["a"].catalog.routes.brokers()) == 1)
    assert len((await world.route("a", "t")).message_queues) == 2


@pytest.mark.parametrize(
    ("topic", "endpoint", "code"),
    [
        ("t", ("", 0), 40001),
        ("t", ("a", 0), 40001),
        ("", ("a", 8081), 40002),
        ("a b", ("a", 8081), 40002),
        ("%DLQ%nobody", ("a", 8081), 40402),
        ("unknown", ("a", 8081), 40402),
    ],
)
async def test_rt_1_a_question_without_sense_has_its_own_code(
    world: World, topic: str, endpoint: tuple[str, int], code: int
) -> None:
    await world.start("a", auto_create_topics=False)
    await world.create("a", "t", 1)
    point = definition_pb2.Endpoints(addresses=[definition_pb2.Address(host=endpoint[0], port=endpoint[1])])
    request = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name=topic), endpoints=point)
    with pytest.raises(Error) as caught:
        await world.call("a", V2 + "QueryRoute", request, service_pb2.QueryRouteResponse)
    assert caught.value.code == code
    if topic == "unknown":
        assert "evenq topic create unknown" in caught.value.message


# ------------------------------------------------------------------------------------------------------ topics (TQ)


async def test_tq_2_a_topic_lands_on_every_live_broker_with_equal_counts_and_says_where(world: World) -> None:
    """TQ-2, TQ-4, TQ-5."""
    for name in ("a", "b", "c"):
        await world.start(name)
    created = await world.during(world.create("b", "t", 3))
    landed = [(placement.broker_name, placement.entry.write_queues) for placement in created.placements]
    assert landed == [("a", 3), ("b", 3), ("c", 3)]


async def test_tq_2_a_topic_that_two_brokers_create_at_once_has_equal_counts_and_one_type(world: World) -> None:
    a, b = await world.start("a", default_queues=8), await world.start("b", default_queues=4)
    both = asyncio.gather(
        a.cluster_catalog.ensure_topic("t", message_type=MessageType.FIFO),
        b.cluster_catalog.ensure_topic("t", message_type=MessageType.NORMAL),
    )
    await world.during(both)
    counts = {
        (topic.write_queues, topic.message_type) for broker in (a, b) if (topic := broker.catalog.topics.get("t"))
    }
    assert len(counts) == 1


async def test_tq_2_an_existing_topic_is_widened_everywhere_and_never_narrowed(world: World) -> None:
    a, b = await world.start("a"), await world.start("b")
    await world.during(world.create("a", "t", 4))
    await world.during(world.create("b", "t", 2))
    assert [broker.catalog.topics.get("t").write_queues for broker in (a, b)] == [4, 4]  # type: ignore[union-attr]  # created above
    await world.during(world.create("b", "t", 6))
    assert [broker.catalog.topics.get("t").write_queues for broker in (a, b)] == [6, 6]  # type: ignore[union-attr]  # created above


async def test_tq_2_a_broker_that_does_not_answer_is_named_in_the_placements(world: World) -> None:
    await world.start("a")
    await world.start("b")
    world.net.stop("b:8081")
    created = await world.during(world.create("a", "t", 2))
    assert [bool(placement.error) for placement in created.placements] == [False, True]


async def test_tq_1_the_first_route_query_creates_the_topic_on_all_brokers_at_once(world: World) -> None:
    """TQ-1, TQ-2: the answer already shows every broker, as clients keep it for half a minute."""
    await world.start("a")
    await world.start("b")
    route = await world.during(world.route("b", "fresh"))
    assert {queue.broker.name for queue in route.message_queues} == {"a", "b"}


async def test_a_group_created_at_one_broker_exists_on_all_with_its_settings(world: World) -> None:
    a, b = await world.start("a", auto_create_groups=False), await world.start("b", auto_create_groups=False)
    request = admin_pb2.CreateGroupRequest(group="g", ordered=True, max_attempts=3, strategy="AVG")
    await world.call("a", "/evenq.v1.Admin/CreateGroup", request, admin_pb2.CreateGroupResponse)
    for broker in (a, b):
        group = broker.catalog.groups.get("g")
        assert group is not None
        assert (group.ordered, group.max_attempts, group.strategy) == (True, 3, "AVG")


async def test_tq_9_a_queue_has_one_holder_and_passes_on_when_the_holder_lets_go_or_dies(world: World) -> None:
    await world.start("a")
    await world.create("a", "t", 1)
    first, second = await joined(world, "a", "g", "one"), await joined(world, "a", "g", "two")
    assert ids((await first.next()).members_changed.members) == ["one", "two"]
    queue = common_pb2.Queue(topic="t", broker_name="a", queue_id=0)

    async def lock(client_id: str, wait_ms: int) -> Any:
        request = groups_pb2.LockQueuesRequest(group="g", client_id=client_id, queues=[queue], wait_ms=wait_ms)
        answer = await world.call("a", "/evenq.v1.Groups/LockQueues", request, groups_pb2.LockQueuesResponse)
        return answer.queues[0]

    assert (await lock("one", 0)).granted
    refused = await world.during(lock("two", 20))
    assert (refused.granted, refused.holder) == (False, "one")
    assert (await first.next()).queue_wanted.queue == queue

    waiting = asyncio.ensure_future(lock("two", 60_000))
    await world.clock.advance(10)
    request = groups_pb2.UnlockQueuesRequest(group="g", client_id="one", queues=[queue])
    await world.call("a", "/evenq.v1.Groups/UnlockQueues", request, groups_pb2.UnlockQueuesResponse)
    assert (await waiting).granted

    waiting = asyncio.ensure_future(lock("one", 60_000))
    await world.clock.advance(10)
    await second.cut()
    assert (await world.during(waiting)).granted, "a member whose stream broke frees its queues"


async def test_oc_18_a_commit_under_an_overtaken_generation_is_refused(world: World) -> None:
    a = await world.start("a")
    await world.create("a", "t", 1)
    await world.publish("a", "t", 0, "x")
    await joined(world, "a", "g", "old")
    await joined(world, "a", "g", "new")
    sessions = a.sessions
    (topic, queue) = "t", common_pb2.Queue(topic="t", broker_name="a", queue_id=0)
    place = next(iter(a.catalog.routes.readable(topic)))
    assert await sessions.locking.lock("g", "old", [place], wait_ms=0, generation=Generation(1, 1)) == [True]
    sessions.locking.unlock("g", "old", [place])
    assert await sessions.locking.lock("g", "new", [place], wait_ms=0, generation=Generation(1, 2)) == [True]
    request = data_pb2.CommitOffsetsRequest(
        group="g",
        client_id="old",
        offsets=[data_pb2.CommitOffset(queue=queue, offset=1)],
        generation=common_pb2.Generation(epoch=1, counter=1),
    )
    with pytest.raises(Error) as caught:
        await world.call("a", "/evenq.v1.Data/CommitOffsets", request, data_pb2.CommitOffsetsResponse)
    assert caught.value.code == 42800


# ------------------------------------------------------------------------------------------------------ members (RG)


async def test_rg_4_any_member_may_ask_for_all_members_in_ascending_order(world: World) -> None:
    await world.start("a")
    for client_id in ("c", "a", "b"):
        await joined(world, "a", "g", client_id)
    request = groups_pb2.ListMembersRequest(group="g")
    answer = await world.call("a", "/evenq.v1.Groups/ListMembers", request, groups_pb2.ListMembersResponse)
    assert ids(answer.members) == ["a", "b", "c"]


async def test_rg_5_all_members_are_told_at_once_when_one_joins_leaves_or_dies(world: World) -> None:
    a = await world.start("a")
    one = await joined(world, "a", "g", "one")
    two = await joined(world, "a", "g", "two")
    assert ids((await one.next()).members_changed.members) == ["one", "two"]
    two.tell(groups_pb2.SessionRequest(leave=groups_pb2.Leave()))
    assert ids((await one.next()).members_changed.members) == ["one"]
    three = await joined(world, "a", "g", "three")
    assert ids((await one.next()).members_changed.members) == ["one", "three"]
    await three.cut()
    assert len(a.membership.members.members("g")) == 2, "a broken stream has a grace"
    await world.until(lambda: len(a.membership.members.members("g")) == 1)
    assert ids((await one.next()).members_changed.members) == ["one"]


async def test_rg_10_a_member_that_beats_stays_and_a_silent_one_expires(world: World) -> None:
    a = await world.start("a")
    alive, silent = await joined(world, "a", "g", "alive"), await joined(world, "a", "g", "silent")
    await alive.next()
    for _ in range(6):
        alive.tell(groups_pb2.SessionRequest(beat=groups_pb2.Beat()))
        await world.clock.advance(2_000)
    assert ids(a.membership.members.members("g")) == ["alive"]
    assert not await silent.rest(), "the broker ends the stream of a member it dropped"


async def test_a_member_that_comes_back_within_the_grace_keeps_its_queues_and_nobody_is_told(world: World) -> None:
    a = await world.start("a")
    await world.create("a", "t", 1)
    line = await joined(world, "a", "g", "me")
    queue = a.catalog.routes.readable("t")[0]
    await a.sessions.locking.lock("g", "me", [queue], wait_ms=0)
    version = a.membership.members.version("g")
    await line.cut()
    await world.clock.advance(500)
    await joined(world, "a", "g", "me")
    await world.clock.advance(5_000)
    assert a.membership.locks.holder("g", queue) == "me"
    assert a.membership.members.version("g") == version


async def test_rg_3_a_session_without_a_join_or_an_id_is_refused_with_a_sentence(world: World) -> None:
    await world.start("a")
    line = Line(world, "a", "g", "", ("t",))
    assert (await line.next()).refused.status.code == definition_pb2.CLIENT_ID_REQUIRED
    line = Line(world, "a", "bad group!", "me", ("t",))
    assert (await line.next()).refused.status.code == definition_pb2.ILLEGAL_CONSUMER_GROUP


async def test_rg_3_a_member_that_does_not_read_its_events_is_dropped(world: World) -> None:
    a = await world.start("a")
    deaf = await joined(world, "a", "g", "deaf")
    for number in range(12):  # more than the net holds for it
        await joined(world, "a", "g", f"m{number:02}")
        await world.clock.advance(1)
    for _ in range(12):
        deaf.tell(groups_pb2.SessionRequest(beat=groups_pb2.Beat()))
        await world.clock.advance(1_000)
    assert "deaf" not in ids(a.membership.members.members("g"))


# ------------------------------------------------------------------------------------------------------ offsets, polls


async def test_lp_4_a_pull_at_the_end_is_parked_and_answered_by_the_next_message(world: World) -> None:
    """LP-1, LP-3, LP-4: offset 7, maximum 7: parked; a message comes, maximum 8: answered with it."""
    await world.start("a")
    await world.create("a", "t", 1)
    await world.publish("a", "t", 0, *(f"m{number}" for number in range(7)))
    parked = asyncio.ensure_future(world.pull("a", "t", 0, 7, wait_ms=10_000))
    await world.clock.advance(100)
    assert not parked.done()
    await world.publish("a", "t", 0, "m7")
    answer = await world.during(parked)
    assert [message.body for message in answer.messages] == [b"m7"]
    assert (answer.next_offset, answer.max_offset) == (8, 8)


async def test_lp_1_a_pull_with_messages_is_answered_at_once_in_ascending_offsets(world: World) -> None:
    await world.start("a")
    await world.create("a", "t", 1)
    published = await world.publish("a", "t", 0, "x", "y", "z")
    assert published.first_offset == 0
    answer = await world.pull("a", "t", 0, 1, wait_ms=10_000)
    assert [(m.body, m.system_properties.queue_offset) for m in answer.messages] == [(b"y", 1), (b"z", 2)]
    assert answer.messages[0].topic.name == "t"
    assert answer.messages[0].system_properties.HasField("store_timestamp")


async def test_lp_5_a_pull_that_finds_nothing_says_so_when_its_time_is_over(world: World) -> None:
    await world.start("a")
    await world.create("a", "t", 1)
    answer = await world.during(world.pull("a", "t", 0, 0, wait_ms=200))
    assert answer.status.code == definition_pb2.MESSAGE_NOT_FOUND
    assert (answer.next_offset, answer.max_offset) == (0, 0)


async def test_lp_1_what_the_filter_leaves_out_is_skipped_for_good(world: World) -> None:
    await world.start("a")
    await world.create("a", "t", 1)
    await world.publish("a", "t", 0, "x", "y", tag="no")
    await world.publish("a", "t", 0, "z", tag="yes")
    await world.publish("a", "t", 0, "w", tag="no")
    wanted = common_pb2.Filter(expression="yes || maybe")
    answer = await world.pull("a", "t", 0, 0, filter=wanted)
    assert [message.body for message in answer.messages] == [b"z"]
    rest = await world.pull("a", "t", 0, answer.next_offset, filter=wanted)
    assert rest.status.code == definition_pb2.MESSAGE_NOT_FOUND
    assert rest.next_offset == 4


@pytest.mark.parametrize(("offset", "following"), [(-1, 0), (9, 2)])
async def test_lp_1_a_pull_outside_the_queue_is_told_its_range(world: World, offset: int, following: int) -> None:
    await world.start("a")
    await world.create("a", "t", 1)
    await world.publish("a", "t", 0, "x", "y")
    answer = await world.pull("a", "t", 0, offset)
    assert answer.status.code == definition_pb2.ILLEGAL_OFFSET
    assert (answer.min_offset, answer.max_offset, answer.next_offset) == (0, 2, following)


async def test_of_1_progress_is_kept_per_group_topic_and_queue(world: World) -> None:
    await world.start("a")
    for topic in ("t", "u"):
        await world.create("a", topic, 2)
        for queue_id in (0, 1):
            await world.publish("a", topic, queue_id, "x", "y")
    queue = common_pb2.Queue(topic="t", broker_name="a", queue_id=0)
    request = data_pb2.CommitOffsetsRequest(group="g", offsets=[data_pb2.CommitOffset(queue=queue, offset=2)])
    await world.call("a", "/evenq.v1.Data/CommitOffsets", request, data_pb2.CommitOffsetsResponse)
    assert await committed(world, "g") == [2, -1]
    assert await committed(world, "g", "u") == [-1, -1]
    assert await committed(world, "other") == [-1, -1]


async def test_of_2_progress_rides_on_a_pull_and_never_goes_back_by_itself(world: World) -> None:
    await world.start("a")
    await world.create("a", "t", 1)
    await world.publish("a", "t", 0, "x", "y", "z")
    await world.pull("a", "t", 0, 2, group="g", client_id="me", committed=2)
    assert await committed(world, "g") == [2]
    await world.pull("a", "t", 0, 0, group="g", client_id="me", committed=1)
    assert await committed(world, "g") == [2]
    queue = common_pb2.Queue(topic="t", broker_name="a", queue_id=0)
    request = data_pb2.CommitOffsetsRequest(
        group="g", offsets=[data_pb2.CommitOffset(queue=queue, offset=1)], allow_backward=True
    )
    await world.call("a", "/evenq.v1.Data/CommitOffsets", request, data_pb2.CommitOffsetsResponse)
    assert await committed(world, "g") == [1]


async def committed(world: World, group: str, topic: str = "t") -> list[int]:
    request = data_pb2.QueryOffsetsRequest(group=group, topic=topic)
    answer = await world.call("a", "/evenq.v1.Data/QueryOffsets", request, data_pb2.QueryOffsetsResponse)
    return [at.committed for at in answer.offsets]


async def test_rd_5_a_message_whose_attempts_are_over_goes_to_the_dead_letter_topic(world: World) -> None:
    """RD-5, RD-19: it stays there, nothing brings it back."""
    await world.start("a")
    await world.create("a", "t", 1)
    await world.publish("a", "t", 0, "x")
    create = admin_pb2.CreateGroupRequest(group="g", max_attempts=3)
    await world.call("a", "/evenq.v1.Admin/CreateGroup", create, admin_pb2.CreateGroupResponse)
    queue = common_pb2.Queue(topic="t", broker_name="a", queue_id=0)

    async def send_back(**rest: Any) -> Any:
        request = data_pb2.SendBackRequest(group="g", queue=queue, queue_offset=0, **rest)
        return await world.call("a", "/evenq.v1.Data/SendBack", request, data_pb2.SendBackResponse)

    assert not (await send_back(attempts=1)).dead_lettered
    assert (await send_back(attempts=3)).dead_lettered
    assert (await send_back(attempts=1, delay_level=-1)).dead_lettered
    letters = await world.pull("a", "%DLQ%g", 0, 0)
    assert [message.body for message in letters.messages] == [b"x", b"x"]
    assert letters.messages[0].system_properties.dead_letter_queue.topic == "t"


# ------------------------------------------------------------------------------------------------------ assignment (SR)


async def assignment(world: World, broker: str, group: str, topic: str, client_id: str) -> Any:
    request = assignment_pb2.AssignmentRequest(group=group, topic=topic, client_id=client_id)
    return await world.call(broker, "/evenq.v1.Assignment/Query", request, assignment_pb2.AssignmentResponse)


async def test_sr_1_without_a_rebalancer_every_member_gets_every_broker(world: World) -> None:
    """SR-1, wire contract 6.2."""
    await world.start("a")
    await world.start("b")
    await world.during(world.create("a", "t", 2))
    answer = await assignment(world, "a", "g", "t", "me")
    assert [(q.queue.broker_name, q.queue.queue_id) for q in answer.queues] == [("a", -1), ("b", -1)]
    point = definition_pb2.Endpoints(addresses=[definition_pb2.Address(host="a", port=8081)])
    request = service_pb2.QueryAssignmentRequest(
        topic=definition_pb2.Resource(name="t"), group=definition_pb2.Resource(name="g"), endpoints=point
    )
    response = await world.call("a", V2 + "QueryAssignment", request, service_pb2.QueryAssignmentResponse)
    queues = [entry.message_queue for entry in response.assignments]
    assert [(queue.broker.name, queue.id) for queue in queues] == [("a", -1), ("b", -1)]
    assert {queue.permission for queue in queues} == {definition_pb2.READ_WRITE}


@pytest.mark.spec("RB-11")
async def test_sr_3_a_groups_strategy_shares_the_queues_of_all_brokers_alike_at_any_broker(world: World) -> None:
    """SR-3, RB-11, AL-4: whichever broker is asked."""
    await world.start("a")
    await world.start("b")
    await world.during(world.create("a", "t", 3))
    create = admin_pb2.CreateGroupRequest(group="g", strategy="AVG")
    await world.call("a", "/evenq.v1.Admin/CreateGroup", create, admin_pb2.CreateGroupResponse)
    for broker in ("a", "b"):
        for client_id in ("x", "y"):
            await joined(world, broker, "g", client_id)
    shares: list[list[tuple[str, int]]] = []
    for client_id in ("x", "y"):
        answers = [await assignment(world, broker, "g", "t", client_id) for broker in ("a", "b")]
        both = [[(q.queue.broker_name, q.queue.queue_id) for q in answer.queues] for answer in answers]
        assert both[0] == both[1]
        shares.append(both[0])
    assert sorted(shares[0] + shares[1]) == [(name, queue_id) for name in ("a", "b") for queue_id in range(3)]
    assert len(shares[0]) == 3


async def test_xo_3_a_rebalancer_that_is_away_is_no_error_for_the_client(world: World) -> None:
    """XO-3: never an error for trouble on the way; the answer is computed here."""
    await world.start("a", rebalancer="nowhere:1")
    await world.create("a", "t", 1)
    answer = await world.during(assignment(world, "a", "g", "t", "me"))
    assert [(q.queue.broker_name, q.queue.queue_id) for q in answer.queues] == [("a", -1)]
