"""What unmodified 5.x push consumers see of a group with a strategy: queues of their own, sticky, and clean moves.

Raw calls of `apache.rocketmq.v2`, as the SDKs make them (wire contract 3.9, 6.1, 6.3).
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_proofs.v2_requests import receive_frames
from evenq_proofs.waiting import until_async

import evenq
from evenq.testing.local_cluster import LocalCluster
from evenq.wire.convert import set_duration_ms
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import common_pb2, data_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
Queue = tuple[str, int]


class Sdk:
    """One push consumer as the servers see it."""

    def __init__(self, cluster: LocalCluster, net: GrpcNet, client_id: str, group: str, topic: str) -> None:
        self._cluster = cluster
        self._net = net
        self._metadata = {"x-mq-client-id": client_id, "x-mq-language": "JAVA", "x-mq-client-version": "5.0.7"}
        self.client_id = client_id
        self.group = definition_pb2.Resource(name=group)
        self.topic = definition_pb2.Resource(name=topic)
        self._end = asyncio.Event()
        self._lines: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Telemetry and heartbeats to every broker."""
        for broker in self._cluster.brokers:
            self._lines.append(asyncio.ensure_future(self._telemetry(broker.address)))
            beat = service_pb2.HeartbeatRequest(group=self.group, client_type=definition_pb2.PUSH_CONSUMER)
            await self._call("Heartbeat", beat, service_pb2.HeartbeatResponse, broker.address)

    async def die(self) -> None:
        """Its streams break; no goodbye."""
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def leave(self) -> None:
        request = service_pb2.NotifyClientTerminationRequest(group=self.group)
        for broker in self._cluster.brokers:
            response = service_pb2.NotifyClientTerminationResponse
            await self._call("NotifyClientTermination", request, response, broker.address)
        await self.die()

    async def assigned(self) -> dict[Queue, definition_pb2.MessageQueue]:
        """Broker and id of each assigned queue."""
        host, _, port = self._cluster.endpoint.partition(":")
        request = service_pb2.QueryAssignmentRequest(topic=self.topic, group=self.group)
        request.endpoints.addresses.add(host=host, port=int(port))
        answer = await self._call(
            "QueryAssignment", request, service_pb2.QueryAssignmentResponse, self._cluster.endpoint
        )
        assert answer.status.code == definition_pb2.OK, answer.status
        return {(one.message_queue.broker.name, one.message_queue.id): one.message_queue for one in answer.assignments}

    async def receive(
        self, queue: definition_pb2.MessageQueue, *, poll_ms: int, push: bool = True
    ) -> tuple[int, list[bytes]]:
        """One long poll: the status code and the bodies."""
        request = service_pb2.ReceiveMessageRequest(
            group=self.group, message_queue=queue, batch_size=32, auto_renew=push, attempt_id=f"{time.monotonic()}"
        )
        request.filter_expression.expression = "*"
        if not push:
            set_duration_ms(request.invisible_duration, 30_000)
        set_duration_ms(request.long_polling_timeout, poll_ms)
        address = queue.broker.endpoints.addresses[0]
        frames = await receive_frames(
            self._net, f"{address.host}:{address.port}", request, timeout_ms=poll_ms + 60_000, metadata=self._metadata
        )
        return frames[0].status.code, [frame.message.body for frame in frames if frame.HasField("message")]

    async def _call(self, name: str, request: Any, response: Any, address: str) -> Any:
        raw = await self._net.unary(
            address, V2 + name, request.SerializeToString(), timeout_ms=60_000, metadata=self._metadata
        )
        return response.FromString(raw)

    async def _telemetry(self, address: str) -> None:
        async def requests() -> AsyncIterator[bytes]:
            command = service_pb2.TelemetryCommand()
            command.settings.client_type = definition_pb2.PUSH_CONSUMER
            subscription = command.settings.subscription
            subscription.group.CopyFrom(self.group)
            subscription.subscriptions.add(topic=self.topic).expression.expression = "*"
            yield command.SerializeToString()
            await self._end.wait()

        stream = self._net.stream(address, V2 + "Telemetry", requests(), timeout_ms=None, metadata=self._metadata)
        async for _ in stream:
            pass


class Stage:
    """A group with a strategy on two brokers with four queues each."""

    def __init__(self, cluster: LocalCluster, net: GrpcNet, name: str) -> None:
        self._cluster, self._net, self.name = cluster, net, name
        self.sdks: list[Sdk] = []

    async def join(self, name: str) -> Sdk:
        sdk = Sdk(self._cluster, self._net, name, self.name, self.name)
        await sdk.start()
        self.sdks.append(sdk)
        return sdk

    async def shares(self, *sdks: Sdk) -> list[set[Queue]]:
        return [set(await sdk.assigned()) for sdk in sdks]

    async def send(self, queue: Queue, body: bytes) -> None:
        """A message in one queue."""
        request = data_pb2.PublishRequest(queue=common_pb2.Queue(topic=self.name, broker_name=queue[0]))
        request.queue.queue_id = queue[1]
        request.messages.add(body=body).system_properties.message_id = f"id-{body.decode()}"
        (address,) = [broker.address for broker in self._cluster.brokers if broker.name == queue[0]]
        raw = await self._net.unary(address, "/evenq.v1.Data/Publish", request.SerializeToString(), timeout_ms=60_000)
        assert data_pb2.PublishResponse.FromString(raw).status.code == definition_pb2.OK

    async def until_shared(self, *sdks: Sdk) -> list[set[Queue]]:
        """Each queue once, and no member has all."""

        async def shared() -> bool:
            shares = await self.shares(*sdks)
            ids = [queue for share in shares for queue in share]
            return sorted(ids) == sorted((b, n) for b in ("broker-a", "broker-b") for n in range(4))

        await until_async(shared, what=f"{len(sdks)} clients share 8 queues")
        return await self.shares(*sdks)


async def parked(cluster: LocalCluster, count: int) -> bool:
    """So many long polls wait at all brokers."""

    def page(port: int) -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return answer.read().decode().splitlines()

    pages = await asyncio.gather(*(asyncio.to_thread(page, broker.metrics_port) for broker in cluster.brokers))
    lines = [line for page in pages for line in page if line.startswith("evenq_broker_polls_parked{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines) == count


@asynccontextmanager
async def a_stage(cluster: LocalCluster, name: str) -> AsyncIterator[Stage]:
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic(name, queues=4)
        admin.create_group(name, strategy="STICKY", start_from="FIRST")
    net = GrpcNet()
    stage = Stage(cluster, net, name)
    try:
        yield stage
    finally:
        for sdk in stage.sdks:
            await sdk.die()
        await net.close()


pytestmark = pytest.mark.cluster(brokers=2)


async def test_each_client_gets_queues_of_its_own_and_a_join_moves_only_what_the_newcomer_gets(
    cluster: LocalCluster,
) -> None:
    """Wire contract 6.3: real ids, per client, sticky."""
    async with a_stage(cluster, "sticky-sdks") as stage:
        one, two = await stage.join("one"), await stage.join("two")
        before = await stage.until_shared(one, two)
        assert [len(share) for share in before] == [4, 4]
        three = await stage.join("three")
        after = await stage.until_shared(one, two, three)
        assert sorted(len(share) for share in after) == [2, 3, 3]
        assert after[0] <= before[0]
        assert after[1] <= before[1]
        await three.leave()
        again = await stage.until_shared(one, two)
        assert after[0] <= again[0]
        assert after[1] <= again[1]


@pytest.mark.slow
async def test_a_moved_queues_old_owner_is_told_at_once_and_the_new_one_gets_what_comes(cluster: LocalCluster) -> None:
    async with a_stage(cluster, "moved-sdks") as stage:
        one = await stage.join("one")
        await stage.until_shared(one)
        places = await one.assigned()
        polls = {queue: asyncio.ensure_future(one.receive(place, poll_ms=60_000)) for queue, place in places.items()}
        await until_async(lambda: parked(cluster, 8), what="every poll waits")
        began = time.monotonic()
        two = await stage.join("two")
        _, moved = await stage.until_shared(one, two)
        done, _ = await asyncio.wait([polls[queue] for queue in moved], timeout=60)
        assert len(done) == len(moved) == 4
        assert {task.result()[0] for task in done} == {definition_pb2.MESSAGE_NOT_FOUND}
        assert time.monotonic() - began < 55
        assert all(not task.done() for queue, task in polls.items() if queue not in moved)

        queue = min(moved)
        late = asyncio.ensure_future(one.receive(places[queue], poll_ms=10_000))
        await until_async(lambda: parked(cluster, 5), what="the four that stayed, and the late one")
        await stage.send(queue, b"for two")
        got = await two.receive((await two.assigned())[queue], poll_ms=50_000)
        assert got == (definition_pb2.OK, [b"for two"])
        assert (await late)[0] == definition_pb2.MESSAGE_NOT_FOUND
        for task in polls.values():
            task.cancel()


async def test_simple_consumers_are_not_bound_to_the_queue_they_name(cluster: LocalCluster) -> None:
    async with a_stage(cluster, "simple-sdks") as stage:
        one = await stage.join("one")
        await stage.until_shared(one)
        place = (await one.assigned())["broker-b", 0]
        await stage.send(("broker-b", 3), b"in queue 3")
        simple = Sdk(cluster, stage._net, "simple", stage.name, stage.name)
        assert (await simple.receive(place, poll_ms=50_000, push=False))[1] == [b"in queue 3"]


@pytest.mark.slow
async def test_a_client_whose_streams_broke_loses_its_queues_within_the_grace(cluster: LocalCluster) -> None:
    async with a_stage(cluster, "dead-sdks") as stage:
        one, two = await stage.join("one"), await stage.join("two")
        await stage.until_shared(one, two)
        began = time.monotonic()
        await two.die()
        await stage.until_shared(one)
        assert time.monotonic() - began < 60, "not after 120 s of silence"


@pytest.mark.slow
async def test_trouble_with_the_rebalancer_is_no_error_and_moves_nothing(cluster: LocalCluster) -> None:
    """XO-3, wire contract 6.1: Go drops everything on an error."""
    async with a_stage(cluster, "trouble-sdks") as stage:
        one, two = await stage.join("one"), await stage.join("two")
        before = await stage.until_shared(one, two)
        assert cluster.rebalancer is not None
        cluster.rebalancer.kill()
        for _ in range(5):
            assert await stage.shares(one, two) == before
            await asyncio.sleep(0.1)
        place = (await one.assigned())[min(before[0])]
        await stage.send(min(before[0]), b"still")
        assert (await one.receive(place, poll_ms=5_000))[1] == [b"still"]
        cluster.rebalancer.start()
        cluster.rebalancer.wait_ready()
        for _ in range(10):
            assert await stage.shares(one, two) == before
            await asyncio.sleep(0.1)
