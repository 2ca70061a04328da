"""Group-wide long polls over real brokers (wire contract 3.9): a receive waits for a message of any broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_proofs.nets import open_net
from evenq_proofs.v2_requests import ack_request, receive_messages, receive_request, send_request

import evenq
import evenq.aio
from evenq.testing import LocalCluster
from evenq.wire.net import GrpcNet
from evenq.wire.status import check
from evenq.wire.stubs.apache.rocketmq.v2 import service_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
FAST = {"HEARTBEAT_INTERVAL_MS": "200", "EXPIRY_MS": "1000"}


@asynccontextmanager
async def running() -> AsyncIterator[tuple[LocalCluster, GrpcNet]]:
    async with LocalCluster(brokers=2, rebalancer=False, nameserver_settings=FAST) as cluster:
        async with evenq.aio.Admin(endpoint=cluster.endpoint) as admin:
            await admin.create_topic("orders", queues=1)
        async with open_net() as net:
            yield cluster, net


async def call(net: GrpcNet, address: str, name: str, request: Any, response: Any) -> Any:
    headers = {"x-mq-client-id": "client", "x-mq-language": "JAVA"}
    raw = await net.unary(address, V2 + name, request.SerializeToString(), timeout_ms=60_000, metadata=headers)
    answer = response.FromString(raw)
    check(answer.status)
    return answer


async def send(net: GrpcNet, address: str, number: int) -> None:
    request = send_request("orders", f"id{number}", b"hello")
    await call(net, address, "SendMessage", request, service_pb2.SendMessageResponse)


def receiving(net: GrpcNet, address: str, *, poll_ms: int) -> asyncio.Task[list[Any]]:
    request = receive_request("g", "orders", queue=0, poll_ms=poll_ms, invisible_ms=30_000, batch_size=16)
    headers = {"x-mq-client-id": "client", "x-mq-language": "JAVA"}

    return asyncio.ensure_future(receive_messages(net, address, request, timeout_ms=poll_ms + 60_000, metadata=headers))


@pytest.mark.slow
async def test_31_a_simple_consumer_at_an_empty_broker_gets_the_other_ones_message_at_once() -> None:
    """Checklist 31; and again after that broker was killed and is back."""
    async with running() as (cluster, net):
        first, second = cluster.brokers
        loop = asyncio.get_running_loop()
        assert await receiving(net, first.address, poll_ms=300) == []
        for number in range(3):
            waiting = receiving(net, first.address, poll_ms=60_000)
            await asyncio.wait({waiting}, timeout=0.3)
            began = loop.time()
            await send(net, second.address, number)
            [got] = await waiting
            assert loop.time() - began < 30, "far below the poll; usually some ms"
            assert got.system_properties.message_id == f"id{number}"
            ack = ack_request("g", "orders")
            ack.entries.add(message_id="x", receipt_handle=got.system_properties.receipt_handle)
            await call(net, first.address, "AckMessage", ack, service_pb2.AckMessageResponse)
        waiting = receiving(net, first.address, poll_ms=60_000)
        second.kill()
        second.restart()
        async with asyncio.timeout(60):
            for number in range(10, 1_000):
                await send(net, second.address, number)
                if (await asyncio.wait({waiting}, timeout=0.5))[0]:
                    break
        got = await waiting
        assert got[0].system_properties.message_id.startswith("id1")
