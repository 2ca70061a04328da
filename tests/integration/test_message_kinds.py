"""PRIORITY and LITE topics on real brokers, through the generated stubs and the SDK (wire contract 3.14, 5.6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_proofs.nets import open_net
from evenq_proofs.v2_requests import ack_request, receive_messages, receive_request, send_request

import evenq
from evenq.testing import LocalCluster
from evenq.wire.net import GrpcNet
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.stubs.evenq.v1 import admin_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
FAST = {"HEARTBEAT_INTERVAL_MS": "200", "EXPIRY_MS": "1000"}
NAMES = [f"chat-{number}" for number in range(8)]


@asynccontextmanager
async def running() -> AsyncIterator[tuple[LocalCluster, Client]]:
    async with LocalCluster(brokers=2, rebalancer=False, nameserver_settings=FAST) as cluster, open_net() as net:
        yield cluster, Client(net, cluster.brokers[0].address)


class Client:
    """A client that tells and asks one broker for ever, as a lite simple consumer does."""

    def __init__(self, net: GrpcNet, address: str) -> None:
        self.net, self.address = net, address
        self.headers = {"x-mq-client-id": "client", "x-mq-language": "JAVA"}

    async def call(self, method: str, request: Any, response: Any) -> Any:
        name = method if method.startswith("/") else V2 + method
        raw = await self.net.unary(
            self.address, name, request.SerializeToString(), timeout_ms=60_000, metadata=self.headers
        )
        answer = response.FromString(raw)
        check(answer.status)
        return answer

    async def send(self, body: str, lite: str) -> None:
        request = send_request(
            "chats", f"{lite}.{body}", body.encode(), lite_topic=lite, message_type=definition_pb2.LITE
        )
        await self.call("SendMessage", request, service_pb2.SendMessageResponse)

    async def subscribe(self) -> None:
        request = service_pb2.SyncLiteSubscriptionRequest(action=definition_pb2.COMPLETE_ADD, lite_topic_set=NAMES)
        request.topic.name, request.group.name = "chats", "g"
        await self.call("SyncLiteSubscription", request, service_pb2.SyncLiteSubscriptionResponse)

    async def receive(self, *, poll_ms: int = 1_000) -> list[Any]:
        request = receive_request("g", "chats", poll_ms=poll_ms, invisible_ms=30_000, batch_size=16)
        return await receive_messages(
            self.net, self.address, request, timeout_ms=poll_ms + 3_000, metadata=self.headers
        )

    async def ack(self, got: Any) -> None:
        request = ack_request("g", "chats")
        system = got.system_properties
        request.entries.add(
            message_id=system.message_id, receipt_handle=system.receipt_handle, lite_topic=system.lite_topic
        )
        await self.call("AckMessage", request, service_pb2.AckMessageResponse)

    async def take(self, count: int) -> dict[str, list[str]]:
        """So many messages, acknowledged one by one; bodies by lite topic, in the order of their coming."""
        taken: dict[str, list[str]] = {}
        async with asyncio.timeout(60):
            while sum(map(len, taken.values())) < count:
                for got in await self.receive():
                    taken.setdefault(got.system_properties.lite_topic, []).append(got.body.decode())
                    await self.ack(got)
        return taken


async def make(client: Client) -> None:
    request = admin_pb2.CreateTopicRequest(topic="chats", message_type=definition_pb2.LITE)
    await client.call("/evenq.v1.Admin/CreateTopic", request, admin_pb2.CreateTopicResponse)


@pytest.mark.slow
async def test_47_lite_topics_of_two_brokers_come_in_order_through_one_of_them_also_after_a_restart() -> None:
    """Checklist 47. What the killed broker owned is there again with its progress."""
    async with running() as (cluster, client):
        await make(client)
        for number in range(4):
            for name in NAMES:
                await client.send(str(number), name)
        await client.subscribe()
        first = await client.take(16)
        second = cluster.brokers[1]
        second.kill()
        second.restart()
        taken = first
        async with asyncio.timeout(60):  # it learns from the other one what the client wants
            while any(len(taken.get(name, ())) < 4 for name in NAMES):
                taken = await _more(client, taken)
        assert {name: bodies[:4] for name, bodies in taken.items()} == {name: list("0123") for name in NAMES}


async def _more(client: Client, taken: dict[str, list[str]]) -> dict[str, list[str]]:
    for got in await client.receive(poll_ms=300):
        taken.setdefault(got.system_properties.lite_topic, []).append(got.body.decode())
        await client.ack(got)
    return taken


async def test_a_waiting_lite_receive_is_answered_with_a_message_of_the_other_broker_at_once() -> None:
    async with running() as (_cluster, client):
        await make(client)
        await client.subscribe()
        loop = asyncio.get_running_loop()
        for name in NAMES:  # some of them are the other broker's
            waiting = asyncio.ensure_future(client.receive(poll_ms=60_000))
            await asyncio.wait({waiting}, timeout=0.1)
            began = loop.time()
            await client.send("hello", name)
            [got] = await waiting
            assert loop.time() - began < 30, "far below the poll; usually some ms"
            assert got.system_properties.lite_topic == name
            await client.ack(got)


def test_a_consumer_of_the_sdk_takes_the_highest_priority_first() -> None:
    with LocalCluster(brokers=1, rebalancer=False, nameserver_settings=FAST) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("jobs", message_type="PRIORITY")
        with evenq.SimpleConsumer(endpoint=cluster.endpoint, group="workers", subscriptions={"jobs": "*"}) as consumer:
            assert consumer.receive(wait_ms=10) == []
            with evenq.Producer(endpoint=cluster.endpoint) as producer:
                for number in (1, 5, None, 9, 5, 40, 0):
                    producer.send(evenq.Message(topic="jobs", body=str(number).encode(), priority=number))
            got: list[evenq.ReceivedMessage] = []
            while len(got) < 7:
                got += (messages := consumer.receive(wait_ms=2_000))
                for message in messages:
                    consumer.ack(message)
        assert [message.priority for message in got] == [9, 40, 5, 5, 1, None, 0]
        assert [message.body for message in got][:2] == [b"9", b"40"]
