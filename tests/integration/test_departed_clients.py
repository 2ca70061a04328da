"""Messages of a push consumer that is gone come again at every broker, also where only its receives were seen.

Raw calls of `apache.rocketmq.v2`, as unmodified SDKs make them: a stream and heartbeats to one broker, receives to both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from evenq_proofs.nets import open_net
from evenq_proofs.v2_requests import consumer_settings, receive_frames, receive_request, send_request

import evenq.aio
from evenq.testing import LocalCluster
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2

V2 = "/apache.rocketmq.v2.MessagingService/"
FAST = {"HEARTBEAT_INTERVAL_MS": "200", "EXPIRY_MS": "1000"}


class Consumer:
    """A push consumer of group `g` and topic `orders`."""

    def __init__(self, net: GrpcNet, client_id: str) -> None:
        self._net = net
        self._metadata = {"x-mq-client-id": client_id, "x-mq-language": "JAVA", "x-mq-client-version": "5.2.0"}
        self._stream: asyncio.Task[None] | None = None

    async def start(self, address: str) -> None:
        """A telemetry stream to this broker only."""
        opened = asyncio.Event()

        async def requests() -> AsyncIterator[bytes]:
            command = consumer_settings(definition_pb2.PUSH_CONSUMER, "g", "orders")
            yield command.SerializeToString()
            await asyncio.Event().wait()

        async def read() -> None:
            async for _ in self._net.stream(
                address, V2 + "Telemetry", requests(), timeout_ms=None, metadata=self._metadata
            ):
                opened.set()

        self._stream = asyncio.ensure_future(read())
        await opened.wait()

    async def die(self) -> None:
        """As by kill -9: its stream breaks, and nothing more is sent."""
        assert self._stream is not None
        self._stream.cancel()
        await asyncio.gather(self._stream, return_exceptions=True)

    async def leave(self, address: str) -> None:
        """A clean end, as the broker with its stream gets it."""
        request = service_pb2.NotifyClientTerminationRequest()
        request.group.name = "g"
        await self._net.unary(
            address,
            V2 + "NotifyClientTermination",
            request.SerializeToString(),
            timeout_ms=60_000,
            metadata=self._metadata,
        )
        await self.die()

    async def receive(self, address: str, *, poll_ms: int = 1_000) -> list[str]:
        """Message ids."""
        request = receive_request("g", "orders", queue=0, poll_ms=poll_ms, batch_size=16, auto_renew=True)
        frames = await receive_frames(self._net, address, request, metadata=self._metadata)
        return [frame.message.system_properties.message_id for frame in frames if frame.HasField("message")]


@asynccontextmanager
async def running() -> AsyncIterator[tuple[LocalCluster, GrpcNet]]:
    settings = {"ATTEMPT_KEEP_MS": "0"}  # so that only the client's life holds a message over a restart
    async with LocalCluster(brokers=2, rebalancer=False, nameserver_settings=FAST, broker_settings=settings) as cluster:
        async with evenq.aio.Admin(endpoint=cluster.endpoint) as admin:
            await admin.create_topic("orders", queues=1)
            await admin.create_group("g", start_from="FIRST")
        async with open_net() as net:
            yield cluster, net


async def send(net: GrpcNet, address: str) -> None:
    request = send_request("orders", "id", b"hello")
    await net.unary(address, V2 + "SendMessage", request.SerializeToString(), timeout_ms=60_000)


async def comes_again(net: GrpcNet, address: str) -> None:
    """The message is delivered to another member; a minute is far less than `client_silence_ms`."""
    heir = Consumer(net, "heir")
    async with asyncio.timeout(60):
        while await heir.receive(address) != ["id"]:
            pass


@pytest.mark.slow
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("restarted", [True, False])
async def test_messages_of_a_departed_member_come_again_at_a_broker_that_saw_only_its_receives(
    clean: bool, restarted: bool
) -> None:
    async with running() as (cluster, net):
        first, second = cluster.brokers
        consumer: Any = Consumer(net, "departing")
        await consumer.start(first.address)
        await send(net, second.address)
        assert await consumer.receive(second.address) == ["id"]
        if restarted:
            second.kill()
        await (consumer.leave(first.address) if clean else consumer.die())
        if restarted:
            second.restart()
        await comes_again(net, second.address)
