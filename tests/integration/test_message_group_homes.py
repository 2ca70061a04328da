"""The order of message groups while a broker of several stops by SIGTERM and comes back, for producers of any SDK: they
send to whichever broker they like, and again to the next one after an error.
"""

from __future__ import annotations

import asyncio
import time
from itertools import count

import pytest
from evenq_proofs.v2_requests import v2_message

import evenq
from evenq.errors import Error
from evenq.model.lanes import home_of
from evenq.testing.local_cluster import LocalCluster
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2 as v2
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2 as s

SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
EACH, FIRST = 40, 10
LIMIT_S = 60


class Sender:
    """Sends one message group in order."""

    def __init__(self, net: GrpcNet, addresses: list[str], group: str) -> None:
        self._net, self._addresses, self._group = net, addresses, group
        self._turn = count()
        self.refused = 0

    async def send(self, number: int) -> None:
        """Until it is stored; the next try goes to another broker."""
        message = v2_message("orders", f"{self._group}-{number}", b"%d" % number, message_group=self._group)
        request = s.SendMessageRequest(messages=[message]).SerializeToString()
        headers = {"x-mq-client-id": self._group, "x-mq-language": "JAVA"}
        end_s = time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            address = self._addresses[next(self._turn) % len(self._addresses)]
            try:
                answer = await self._net.unary(address, SEND, request, timeout_ms=5_000, metadata=headers)
                if s.SendMessageResponse.FromString(answer).status.code == v2.OK:
                    return
            except Error:  # nobody listens there now
                pass
            self.refused += 1
            await asyncio.sleep(0.05)
        raise AssertionError(f"message {number} of {self._group} was not stored within {LIMIT_S} s")


@pytest.mark.slow
async def test_message_groups_keep_their_broker_and_their_order_while_it_restarts() -> None:
    with LocalCluster(brokers=2, rebalancer=False) as cluster:
        with evenq.Admin(endpoint=cluster.endpoint) as admin:
            admin.create_topic("orders", queues=4, message_type="FIFO")
            admin.create_group("shop", ordered=True)
        groups = [f"order-{number}" for number in range(8)]
        homes = {group: home_of(group, ["broker-a", "broker-b"]) for group in groups}
        assert set(homes.values()) == {"broker-a", "broker-b"}
        net = GrpcNet()
        addresses = [node.address for node in cluster.brokers]
        senders = {group: Sender(net, addresses, group) for group in groups}

        async def all_of(group: str, numbers: range) -> None:
            for number in numbers:
                await senders[group].send(number)

        await asyncio.gather(*(all_of(group, range(FIRST)) for group in groups))
        rest = asyncio.gather(*(all_of(group, range(FIRST, EACH)) for group in groups))
        leaving = cluster.brokers[1]
        await asyncio.to_thread(leaving.stop)
        away = [senders[group] for group in groups if homes[group] == "broker-b"]
        end_s = time.monotonic() + LIMIT_S
        while min(sender.refused for sender in away) < 5:
            assert not rest.done(), "messages of a group were stored while its home was away"
            assert time.monotonic() < end_s
            await asyncio.sleep(0.05)
        await asyncio.to_thread(leaving.start)
        await asyncio.to_thread(cluster.wait_ready)
        await rest
        await net.close()
        found: dict[str, list[int]] = {group: [] for group in groups}
        brokers: dict[str, set[str]] = {group: set() for group in groups}
        end_s = time.monotonic() + LIMIT_S
        with evenq.SimpleConsumer(
            endpoint=cluster.endpoint, group="shop", subscriptions={"orders": "*"}, start_from="FIRST"
        ) as consumer:
            while sum(map(len, found.values())) < EACH * len(groups) and time.monotonic() < end_s:
                for message in consumer.receive(wait_ms=1_000):
                    assert message.message_group is not None
                    found[message.message_group].append(int(message.body))
                    brokers[message.message_group].add(message.queue.broker_name)
                    consumer.ack(message)
        assert found == {group: list(range(EACH)) for group in groups}
        assert brokers == {group: {home} for group, home in homes.items()}
