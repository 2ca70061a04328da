"""Two real brokers and a nameserver on loopback: routes merge, topics land on both, queues change hands, the dead
leave.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_proofs.nets import open_net
from evenq_proofs.waiting import until_async

from evenq.testing import LocalCluster
from evenq.wire.net import GrpcNet
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2, assignment_pb2, common_pb2, data_pb2, groups_pb2

FAST = {"HEARTBEAT_INTERVAL_MS": "200", "EXPIRY_MS": "1000"}
SESSIONS = {"SESSION_GRACE_MS": "200"}


class Session:
    """A member's open stream at one broker."""

    def __init__(self, net: GrpcNet, address: str, client_id: str) -> None:
        self._requests: asyncio.Queue[bytes] = asyncio.Queue()
        member = groups_pb2.Member(client_id=client_id, subscriptions=[groups_pb2.MemberSubscription(topic="flights")])
        join = groups_pb2.SessionRequest(join=groups_pb2.Join(group="g", member=member))
        self._requests.put_nowait(join.SerializeToString())
        self._stream = net.stream(address, "/evenq.v1.Groups/Session", self._outgoing(), timeout_ms=None)

    async def next(self) -> groups_pb2.SessionEvent:
        async with asyncio.timeout(60):
            return groups_pb2.SessionEvent.FromString(await anext(self._stream))

    async def close(self) -> None:
        await self._stream.aclose()  # type: ignore[attr-defined]  # a generator in truth

    async def _outgoing(self) -> AsyncIterator[bytes]:
        while True:
            yield await self._requests.get()


@asynccontextmanager
async def running(*, rebalancer: bool = False) -> AsyncIterator[tuple[LocalCluster, GrpcNet]]:
    async with (
        LocalCluster(brokers=2, rebalancer=rebalancer, nameserver_settings=FAST, broker_settings=SESSIONS) as cluster,
        open_net() as net,
    ):
        yield cluster, net


async def call(net: GrpcNet, address: str, method: str, request: Any, response: Any) -> Any:
    answer = response.FromString(await net.unary(address, method, request.SerializeToString(), timeout_ms=60_000))
    check(answer.status)
    return answer


async def route(net: GrpcNet, address: str, topic: str) -> list[tuple[str, int]]:
    host, _, port = address.partition(":")
    point = definition_pb2.Endpoints(addresses=[definition_pb2.Address(host=host, port=int(port))])
    request = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name=topic), endpoints=point)
    method = "/apache.rocketmq.v2.MessagingService/QueryRoute"
    answer = await call(net, address, method, request, service_pb2.QueryRouteResponse)
    return [(queue.broker.name, queue.id) for queue in answer.message_queues]


async def is_route(net: GrpcNet, address: str, topic: str, queues: list[tuple[str, int]]) -> bool:
    return await route(net, address, topic) == queues


@pytest.mark.slow
async def test_a_topic_lands_on_both_brokers_and_a_killed_broker_leaves_the_route_until_it_is_back() -> None:
    """TQ-2, RT-10, NS-8."""
    async with running() as (cluster, net):
        first, second = cluster.brokers
        request = admin_pb2.CreateTopicRequest(topic="flights", queues=2)
        created = await call(net, first.address, "/evenq.v1.Admin/CreateTopic", request, admin_pb2.CreateTopicResponse)
        assert [(p.broker_name, p.entry.write_queues) for p in created.placements] == [("broker-a", 2), ("broker-b", 2)]
        both = [("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1)]
        # Routes are pushed, so the other broker has a topic a moment later.
        await until_async(lambda: is_route(net, second.address, "flights", both))

        async def made() -> bool:
            asked = await route(net, second.address, "made-by-asking")
            return {name for name, _ in asked} == {"broker-a", "broker-b"}

        await until_async(made)

        second.kill()
        await until_async(lambda: is_route(net, first.address, "flights", both[:2]))
        second.restart()
        await until_async(lambda: is_route(net, first.address, "flights", both))
        second.stop()
        assert await route(net, first.address, "flights") == both[:2], "who says goodbye is gone at once"


@pytest.mark.slow  # brokers go and come back
async def test_a_broker_that_was_down_while_groups_were_changed_has_their_settings_when_it_is_back() -> None:
    async with running() as (cluster, net):
        first, second = cluster.brokers

        async def change(group: str, **settings: Any) -> None:
            request = admin_pb2.CreateGroupRequest(group=group, **settings)
            await call(net, first.address, "/evenq.v1.Admin/CreateGroup", request, admin_pb2.CreateGroupResponse)

        async def there(group: str) -> tuple[str, int]:
            request = admin_pb2.DescribeGroupRequest(group=group, local=True)
            method = "/evenq.v1.Admin/DescribeGroup"
            answer = await call(net, second.address, method, request, admin_pb2.DescribeGroupResponse)
            return answer.summary.strategy, answer.summary.max_attempts

        await change("billing", strategy="STICKY", max_attempts=5)
        assert await there("billing") == ("STICKY", 5)
        second.stop()
        await change("billing", strategy="NONE")
        await change("new", strategy="AVG")
        second.restart()
        assert await there("billing") == ("", 5), "before it says that it is ready"
        assert await there("new") == ("AVG", 17)
        first.stop()
        second.stop()
        for one in (first, second):  # each has it by itself by now
            one.restart()
        assert await there("billing") == ("", 5)


async def test_a_lock_passes_to_the_waiting_member_when_the_holders_stream_breaks() -> None:
    """TQ-9, RG-5."""
    async with running() as (cluster, net):
        address = cluster.brokers[0].address
        create = admin_pb2.CreateTopicRequest(topic="flights", queues=1)
        await call(net, address, "/evenq.v1.Admin/CreateTopic", create, admin_pb2.CreateTopicResponse)
        async with open_net() as other:
            one, two = Session(net, address, "one"), Session(other, address, "two")
            assert (await one.next()).HasField("welcome")
            assert (await two.next()).HasField("welcome")
            queue = common_pb2.Queue(topic="flights", broker_name="broker-a", queue_id=0)

            async def lock(client_id: str, wait_ms: int) -> Any:
                request = groups_pb2.LockQueuesRequest(group="g", client_id=client_id, queues=[queue], wait_ms=wait_ms)
                method = "/evenq.v1.Groups/LockQueues"
                answer = await call(net, address, method, request, groups_pb2.LockQueuesResponse)
                return answer.queues[0]

            assert (await lock("two", 0)).granted
            waiting = asyncio.ensure_future(lock("one", 9_000))
            assert (await two.next()).WhichOneof("event") in {"members_changed", "queue_wanted"}
            await other.close()
            assert (await waiting).granted
            async with asyncio.timeout(60):
                while True:
                    event = await one.next()
                    if [m.client_id for m in event.members_changed.members] == ["one"]:
                        break
            await one.close()


@pytest.mark.slow
async def test_blocks_are_published_pulled_and_scanned_and_progress_survives_a_kill() -> None:
    """LP-3, OF-1, CL: what was acknowledged is there after `kill -9`."""
    async with running() as (cluster, net):
        broker = cluster.brokers[1]
        queue = common_pb2.Queue(topic="flights", broker_name="broker-b", queue_id=1)
        request = data_pb2.PublishRequest(queue=queue)
        for number in range(200):
            message = request.messages.add(body=f"flight {number}".encode() * 20)
            message.system_properties.message_id = f"id-{number}"
            message.system_properties.tag = "AA" if number % 2 else "UA"
        pull = data_pb2.PullRequest(queue=queue, offset=200, wait_ms=8_000, committed=-1)
        first = await call(net, broker.address, "/evenq.v1.Data/Publish", request, data_pb2.PublishResponse)
        assert first.first_offset == 0
        parked = asyncio.ensure_future(call(net, broker.address, "/evenq.v1.Data/Pull", pull, data_pb2.PullResponse))
        for number, message in enumerate(request.messages, 200):  # the same ids again would be one producer's retry
            message.system_properties.message_id = f"id-{number}"
        await call(net, broker.address, "/evenq.v1.Data/Publish", request, data_pb2.PublishResponse)
        woken = await parked
        assert woken.messages[0].system_properties.queue_offset == 200

        scan = data_pb2.ScanRequest(
            queue=queue, start=0, end=400, block_bytes=16 << 10, filter=common_pb2.Filter(expression="AA")
        )
        bodies: list[bytes] = []
        following = 0
        async for raw in net.stream(broker.address, "/evenq.v1.Data/Scan", scan.SerializeToString(), timeout_ms=60_000):
            block = data_pb2.ScanBlock.FromString(raw)
            check(block.status)
            assert block.first_offset == following
            following = block.next_offset
            bodies += [message.body for message in block.messages]
        assert following == 400
        assert bodies == [f"flight {number}".encode() * 20 for number in range(200) if number % 2] * 2

        commit = data_pb2.CommitOffsetsRequest(group="g", offsets=[data_pb2.CommitOffset(queue=queue, offset=123)])
        await call(net, broker.address, "/evenq.v1.Data/CommitOffsets", commit, data_pb2.CommitOffsetsResponse)
        broker.kill()
        broker.restart()
        asked = data_pb2.QueryOffsetsRequest(group="g", queues=[queue])
        response = await call(net, broker.address, "/evenq.v1.Data/QueryOffsets", asked, data_pb2.QueryOffsetsResponse)
        assert (response.offsets[0].max_offset, response.offsets[0].committed) == (400, 123)


@pytest.mark.slow  # waits for a rebalancer that is gone
async def test_members_are_told_of_decisions_and_keep_their_queues_when_the_rebalancer_dies() -> None:
    """SR-1, XO-3, XO-7: one versioned answer per group at every broker; trouble on the way changes no owner."""
    async with running(rebalancer=True) as (cluster, net):
        first, second = (broker.address for broker in cluster.brokers)
        create = admin_pb2.CreateTopicRequest(topic="flights", queues=2)
        await call(net, first, "/evenq.v1.Admin/CreateTopic", create, admin_pb2.CreateTopicResponse)
        group = admin_pb2.CreateGroupRequest(group="g", strategy="AVG")
        await call(net, first, "/evenq.v1.Admin/CreateGroup", group, admin_pb2.CreateGroupResponse)

        async def shares(address: str, *client_ids: str) -> list[list[tuple[str, int]]]:
            events = []
            for client_id in client_ids:
                request = assignment_pb2.AssignmentRequest(group="g", topic="flights", client_id=client_id)
                method = "/evenq.v1.Assignment/Query"
                answer = await call(net, address, method, request, assignment_pb2.AssignmentResponse)
                events.append([(at.queue.broker_name, at.queue.queue_id) for at in answer.queues])
            return events

        everything = [("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1)]
        ones = [Session(net, address, "one") for address in (first, second)]
        for session in ones:
            assert (await session.next()).HasField("welcome")

        async def alone() -> bool:
            return await shares(second, "one") == [everything]

        await until_async(alone)
        twos = [Session(net, address, "two") for address in (first, second)]
        for session in twos:
            assert (await session.next()).HasField("welcome")

        async def shared() -> bool:
            return await shares(first, "one", "two") == [everything[:2], everything[2:]]

        await until_async(shared)
        events = set()
        while "assignment_changed" not in events:
            events.add((await ones[0].next()).WhichOneof("event"))
        before = await shares(second, "one", "two")
        assert cluster.rebalancer is not None
        cluster.rebalancer.kill()
        for _ in range(3):
            assert await shares(second, "one", "two") == before
        cluster.rebalancer.restart()
        await until_async(shared)
        for session in (*ones, *twos):
            await session.close()
