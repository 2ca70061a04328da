"""Statements of the conformance list (docs/internals/conformance.md) that no other test proves, on real connections.

Each test's docstring names its statements. Two brokers as processes, with TLS beside plain text; a client that knows
only the protocol.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from evenq_proofs.nets import open_net
from evenq_proofs.v2_requests import ack_request, consumer_settings, nack_request, receive_frames, receive_request
from evenq_proofs.waiting import until_async

import evenq
from evenq.errors import Error
from evenq.testing import FreePorts, LocalCluster
from evenq.wire.net import GrpcNet
from evenq.wire.stubs.apache.rocketmq.v2 import definition_pb2, service_pb2
from evenq.wire.tls import Tls

V2 = "/apache.rocketmq.v2.MessagingService/"
OK, NO_MESSAGE = 20000, 40401
PEM = Path(__file__).resolve().parents[1] / "unit" / "evenq" / "serving"
CERTIFICATE, KEY = PEM / "tls_certificate.pem", PEM / "tls_key.pem"
s, d = service_pb2, definition_pb2


pytestmark = pytest.mark.cluster(
    brokers=2,
    rebalancer=False,
    broker_settings={
        "AUTO_CREATE_TOPICS": "true",
        "AUTO_CREATE_GROUPS": "true",
        "DEFAULT_QUEUES": "4",
        "DEFAULT_START_FROM": "FIRST",
    },
)


class Wire:
    """One client at one broker."""

    def __init__(self, net: GrpcNet, address: str, client: str = "c", **headers: str) -> None:
        self.net, self.address = net, address
        self.headers = {"x-mq-client-id": client, "x-mq-language": "JAVA", **headers}

    async def call(self, name: str, request: Any, response: Any) -> Any:
        raw = await self.net.unary(
            self.address, V2 + name, request.SerializeToString(), timeout_ms=60_000, metadata=self.headers
        )
        return response.FromString(raw)

    async def send(self, topic: str, *bodies: bytes, queue: int = 0, group: str = "") -> Any:
        request = s.SendMessageRequest()
        for body in bodies:
            message = request.messages.add(body=body)
            message.topic.name = topic
            message.system_properties.message_id = f"01{time.monotonic_ns():032X}"
            message.system_properties.queue_id = queue
            message.system_properties.message_type = d.FIFO if group else d.NORMAL
            if group:
                message.system_properties.message_group = group
        return await self.call("SendMessage", request, s.SendMessageResponse)

    async def frames(
        self, topic: str, group: str, *, poll_ms: int = 0, push: bool = False, queue: int = -1
    ) -> list[Any]:
        request = receive_request(
            group,
            topic,
            queue=queue,
            poll_ms=poll_ms,
            invisible_ms=None if push else 30_000,
            batch_size=32,
            auto_renew=push,
        )
        return await receive_frames(self.net, self.address, request, metadata=self.headers)

    async def receive(self, topic: str, group: str, **options: Any) -> list[Any]:
        return [one.message for one in await self.frames(topic, group, **options) if one.HasField("message")]

    async def ack(self, topic: str, group: str, *messages: Any) -> Any:
        request = ack_request(group, topic)
        for message in messages:
            system = message.system_properties
            request.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        return await self.call("AckMessage", request, s.AckMessageResponse)

    async def route(self, topic: str) -> Any:
        request = s.QueryRouteRequest()
        request.topic.name = topic
        host, port = self.address.split(":")
        request.endpoints.addresses.add(host=host, port=int(port))
        return await self.call("QueryRoute", request, s.QueryRouteResponse)

    async def queues(self, topic: str, group: str) -> Any:
        request = s.QueryAssignmentRequest()
        request.topic.name, request.group.name = topic, group
        host, port = self.address.split(":")
        request.endpoints.addresses.add(host=host, port=int(port))
        return await self.call("QueryAssignment", request, s.QueryAssignmentResponse)

    async def beat(self, group: str = "") -> int:
        request = s.HeartbeatRequest(client_type=d.SIMPLE_CONSUMER)
        request.group.name = group
        return int((await self.call("Heartbeat", request, s.HeartbeatResponse)).status.code)


def settings_of(group: str, topic: str) -> bytes:
    command = consumer_settings(d.PUSH_CONSUMER, group, topic)
    return command.SerializeToString()


class Stream:
    """A telemetry stream of plain gRPC: as lazy or as half-closed as a test wants it."""

    def __init__(self, channel: Any, client: str, language: str = "JAVA") -> None:
        headers = (("x-mq-client-id", client), ("x-mq-language", language))
        self.call = channel.stream_stream(V2 + "Telemetry")(metadata=headers)

    async def ask(self, group: str, topic: str) -> Any:
        await self.call.write(settings_of(group, topic))
        return s.TelemetryCommand.FromString(await asyncio.wait_for(self.call.read(), 60))


# ------------------------------------------------------------------------------------------------ transport


async def test_plain_text_and_tls_are_served_side_by_side_and_each_is_told_its_own_address(
    net: GrpcNet, tmp_path: Path
) -> None:
    """Checklist 1: with a self-signed certificate."""
    with FreePorts() as ports:
        plain, secure = ports.take(), ports.take()
        settings = {
            "TLS__PORT": str(secure), "TLS__CERTIFICATE": str(CERTIFICATE), "TLS__KEY": str(KEY),
            "AUTO_CREATE_TOPICS": "true",
        }  # fmt: skip
        folder = tmp_path / "cluster"
        with LocalCluster(rebalancer=False, folder=folder, broker_ports=[plain], broker_settings=settings):
            async with open_net(tls=Tls(ca=CERTIFICATE)) as trusting:
                for client, port in (
                    (Wire(net, f"127.0.0.1:{plain}"), plain),
                    (Wire(trusting, f"127.0.0.1:{secure}"), secure),
                ):
                    assert (await client.send("tls", b"hello")).status.code == OK
                    queues = (await client.route("tls")).message_queues
                    assert {queue.broker.endpoints.addresses[0].port for queue in queues} == {port}


@pytest.mark.slow
async def test_a_client_that_pings_all_the_time_and_says_nothing_is_not_hung_up_on(
    net: GrpcNet, cluster: LocalCluster
) -> None:
    """Checklist 2: gRPC's own default counts pings without data, and closes at the third within five minutes."""
    options = [
        ("grpc.keepalive_time_ms", 100), ("grpc.keepalive_timeout_ms", 2_000),
        ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0),
    ]  # fmt: skip
    async with grpc.aio.insecure_channel(cluster.endpoint, options=options) as channel:
        stream = Stream(channel, "pinger")
        assert (await stream.ask("ping", "ping")).status.code == OK
        with pytest.raises(TimeoutError):  # about 30 pings pass, and nothing comes
            await asyncio.wait_for(stream.call.read(), 3)
        channel.get_state()
        again = Stream(channel, "pinger-2")
        assert (await again.ask("ping", "ping")).status.code == OK
        assert channel.get_state() is grpc.ChannelConnectivity.READY


@pytest.mark.parametrize("language", ["COBOL", "", "RUST", "kotlin/2"])
async def test_whatever_headers_say_a_client_is_served(net: GrpcNet, cluster: LocalCluster, language: str) -> None:
    """Checklist 3: languages and versions that are not known, strange headers, a clock 14 hours off."""
    client = Wire(
        net, cluster.endpoint, **{
            "x-mq-language": language, "x-mq-client-version": "99.9-alpha", "x-mq-protocol": "v7",
            "x-mq-date-time": "20010101T000000Z", "x-something-else": "1", "x-mq-request-id": "no uuid",
        },
    )  # fmt: skip
    assert (await client.send("headers", b"hello")).status.code == OK
    assert await client.beat("headers") == OK


async def test_a_client_that_knows_only_the_access_point_reaches_every_broker(
    net: GrpcNet, cluster: LocalCluster
) -> None:
    """Checklist 5: what lies at the other broker is received, hidden, acknowledged, forwarded through this one."""
    client, there = Wire(net, cluster.endpoint), Wire(net, cluster.brokers[1].address)
    await there.send("far", b"near the other")
    [message] = await until_async(lambda: client.receive("far", "far", poll_ms=1_000))
    change = nack_request("far", "far", message.system_properties.receipt_handle, 20_000)
    changed = await client.call("ChangeInvisibleDuration", change, s.ChangeInvisibleDurationResponse)
    assert changed.status.code == OK
    message.system_properties.receipt_handle = changed.receipt_handle
    assert (await client.ack("far", "far", message)).status.code == OK
    await there.send("far", b"and again")
    request = s.ForwardMessageToDeadLetterQueueRequest(max_delivery_attempts=1, delivery_attempt=1)
    [message] = await until_async(lambda: client.receive("far", "far", poll_ms=1_000, push=True))
    request.group.name, request.topic.name = "far", "far"
    request.message_id = message.system_properties.message_id
    request.receipt_handle = message.system_properties.receipt_handle
    answer = s.ForwardMessageToDeadLetterQueueResponse
    assert (await client.call("ForwardMessageToDeadLetterQueue", request, answer)).status.code == OK


# ------------------------------------------------------------------------------------------------ start


async def test_telemetry_answers_with_its_headers_before_anything_is_asked(net: GrpcNet, cluster: LocalCluster) -> None:
    """Checklist 7: the fastest of five, so that a busy machine does not fail the test."""
    async with grpc.aio.insecure_channel(cluster.endpoint) as channel:
        await asyncio.wait_for(channel.channel_ready(), 60)
        took = []
        for number in range(5):
            begun = time.monotonic()
            stream = Stream(channel, f"early-{number}")
            await asyncio.wait_for(stream.call.initial_metadata(), 60)
            took.append(time.monotonic() - begun)
            stream.call.cancel()
        assert min(took) < 3


async def test_the_tenth_settings_of_a_stream_is_answered_like_the_first(net: GrpcNet, cluster: LocalCluster) -> None:
    """Checklist 8, 10."""
    async with grpc.aio.insecure_channel(cluster.endpoint) as channel:
        stream = Stream(channel, "ten")
        answers = [await stream.ask("ten", "ten") for _ in range(10)]
        assert {answer.status.code for answer in answers} == {OK}
        assert all(answer.settings.WhichOneof("pub_sub") == "subscription" for answer in answers)
        assert all(answer.settings.HasField("backoff_policy") for answer in answers)
        assert all(answer.settings.subscription.receive_batch_size > 0 for answer in answers)
        assert all(answer.settings.subscription.long_polling_timeout.seconds > 0 for answer in answers)


@pytest.mark.slow
async def test_clients_go_on_without_telemetry_and_settings_also_after_a_restart(net: GrpcNet, tmp_path: Path) -> None:
    """Checklist 11, 12: nothing but receives, acks and sends, before and after the broker was killed."""
    settings = {"AUTO_CREATE_TOPICS": "true", "AUTO_CREATE_GROUPS": "true", "DEFAULT_START_FROM": "FIRST"}
    with LocalCluster(rebalancer=False, folder=tmp_path / "cluster", broker_settings=settings) as alone:
        client = Wire(net, alone.endpoint)
        async with grpc.aio.insecure_channel(alone.endpoint) as channel:
            stream = Stream(channel, "c")
            assert (await stream.ask("on", "on")).status.code == OK
        for _ in range(2):  # the second time at a broker that has never heard of its settings
            assert (await client.send("on", b"hello")).status.code == OK
            messages = await until_async(lambda: client.receive("on", "on", poll_ms=1_000, push=True))
            assert [one.body for one in messages] == [b"hello"]
            assert (await client.ack("on", "on", *messages)).status.code == OK
            alone.brokers[0].kill()
            alone.brokers[0].restart()
            await until_async(lambda: beating(client))


async def beating(client: Wire) -> bool:
    try:
        return await client.beat("on") == OK
    except Error:
        return False


async def test_several_telemetry_streams_of_one_client_are_served_half_closed_ones_too(
    net: GrpcNet, cluster: LocalCluster
) -> None:
    """Checklist 14."""
    async with grpc.aio.insecure_channel(cluster.endpoint) as channel:
        streams = [Stream(channel, "many") for _ in range(3)]
        for stream in streams:
            assert (await stream.ask("many", "many")).status.code == OK
        await streams[0].call.done_writing()
        for stream in streams[1:]:
            assert (await stream.ask("many", "many")).status.code == OK
    assert await Wire(net, cluster.endpoint, "many").beat("many") == OK


async def test_a_client_that_never_reads_its_telemetry_slows_nobody(net: GrpcNet, cluster: LocalCluster) -> None:
    """Checklist 13: ten thousand answers wait for it; others are served meanwhile."""
    async with grpc.aio.insecure_channel(cluster.endpoint) as channel:
        lazy = Stream(channel, "lazy")

        async def talk() -> None:
            for _ in range(10_000):
                await lazy.call.write(settings_of("lazy", "lazy"))

        talking = asyncio.ensure_future(talk())
        try:
            other = Wire(net, cluster.endpoint, "busy")
            for _ in range(30):
                begun = time.monotonic()
                assert (await other.send("lazy", b"hello")).status.code == OK
                assert time.monotonic() - begun < 30
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)


# ------------------------------------------------------------------------------------------------ route


async def test_each_queue_of_a_route_is_whole_and_two_routes_are_the_same_bytes(
    net: GrpcNet, cluster: LocalCluster
) -> None:
    """Checklist 15, 16, 18."""
    client = Wire(net, cluster.endpoint)
    await client.send("whole", b"hello")
    route = await client.route("whole")
    assert route.status.code == OK
    assert len(route.message_queues) == 8
    for queue in route.message_queues:
        assert queue.topic.name == "whole"
        assert queue.permission == d.READ_WRITE
        assert queue.broker.id == 0
        assert queue.broker.endpoints.scheme == d.IPv4
        assert len(queue.broker.endpoints.addresses) == 1
        assert list(queue.accept_message_types) == [d.NORMAL]
    for broker in cluster.brokers:
        ids = [queue.id for queue in route.message_queues if queue.broker.name == broker.name]
        assert ids == [0, 1, 2, 3], "Node.js asks for queue 0 of each broker and no other"
    again = await client.route("whole")
    assert route.SerializeToString() == again.SerializeToString()


async def test_a_topic_that_is_not_there_is_told_so(net: GrpcNet, cluster: LocalCluster) -> None:
    """Checklist 17: never OK without queues."""
    client = Wire(net, cluster.endpoint)
    for topic in ("%RETRY%nobody", "a" * 200, ""):
        answer = await client.route(topic)
        assert answer.status.code != OK
        assert not answer.message_queues


# ------------------------------------------------------------------------------------------------ send, receive


async def test_a_message_group_has_one_queue_whatever_queue_its_producers_name(
    net: GrpcNet, cluster: LocalCluster
) -> None:
    """Checklist 21: each SDK has a hash of its own."""
    one, two = (Wire(net, broker.address) for broker in cluster.brokers)
    for number in range(12):
        sender = (one, two)[number % 2]
        answer = await sender.send("hashes", str(number).encode(), queue=number % 4, group="same")
        assert answer.status.code == OK, answer
    seen: list[Any] = []
    for _ in range(20):
        if len(seen) == 12:
            break
        messages = await one.receive("hashes", "hashes", poll_ms=1_000)
        seen += messages
        if messages:
            assert (await one.ack("hashes", "hashes", *messages)).status.code == OK
    assert len({message.system_properties.queue_id for message in seen}) == 1
    offsets = {int(message.body): message.system_properties.queue_offset for message in seen}
    assert sorted(offsets) == list(range(12))
    assert [offsets[number] for number in range(12)] == sorted(offsets.values())


async def test_any_broker_recalls_a_delayed_message_of_any_other(net: GrpcNet, cluster: LocalCluster) -> None:
    """Checklist 26: some SDKs ask the access point, some the broker."""
    with evenq.Admin(endpoint=cluster.endpoint) as admin:
        admin.create_topic("recalled", message_type="DELAY")
    one, two = (Wire(net, broker.address) for broker in cluster.brokers)
    for sender, recaller in ((one, two), (two, one), (one, one)):
        request = s.SendMessageRequest()
        message = request.messages.add(body=b"later")
        message.topic.name = "recalled"
        message.system_properties.message_id = f"01{time.monotonic_ns():032X}"
        message.system_properties.message_type = d.DELAY
        message.system_properties.delivery_timestamp.seconds = int(time.time()) + 60
        sent = await sender.call("SendMessage", request, s.SendMessageResponse)
        assert sent.status.code == OK, sent
        recall = s.RecallMessageRequest(recall_handle=sent.entries[0].recall_handle)
        recall.topic.name = "recalled"
        for _ in range(2):  # a second time is fine
            answer = await recaller.call("RecallMessage", recall, s.RecallMessageResponse)
            assert (answer.status.code, answer.message_id) == (OK, message.system_properties.message_id)


async def test_a_receive_is_status_messages_and_delivery_time_in_this_order(
    net: GrpcNet, cluster: LocalCluster
) -> None:
    """Checklist 28: an empty one has a status alone."""
    client = Wire(net, cluster.endpoint)
    await client.send("order", b"1", b"2", b"3")
    frames = await until_async(lambda: full(client))
    kinds = [frame.WhichOneof("content") for frame in frames]
    assert kinds == ["status", *["message"] * (len(kinds) - 2), "delivery_timestamp"]
    assert frames[0].status.code == OK
    assert frames[-1].delivery_timestamp.seconds > 1_600_000_000


async def full(client: Wire) -> list[Any]:
    frames = await client.frames("order", "order", poll_ms=1_000)
    return frames if len(frames) > 2 else []


async def test_a_push_consumer_that_asks_for_what_cannot_be_is_answered_once_a_second(
    net: GrpcNet, cluster: LocalCluster
) -> None:
    """Checklist 34: Go asks again after 20 ms."""
    client = Wire(net, cluster.endpoint)
    begun = time.monotonic()
    for _ in range(3):
        [frame] = await client.frames("no such!", "loop", push=True)
        assert frame.status.code not in {OK, NO_MESSAGE}, frame
    assert time.monotonic() - begun > 2


@pytest.mark.parametrize("queue", [0, -1, 3])
async def test_a_simple_consumer_reaches_all_queues_whichever_it_names(
    net: GrpcNet, cluster: LocalCluster, queue: int
) -> None:
    """Checklist 31."""
    client, topic = Wire(net, cluster.endpoint), f"reach{queue}"
    for number in range(8):
        await client.send(topic, str(number).encode(), queue=number % 4)
    seen: list[Any] = []
    while len(seen) < 8:
        messages = await until_async(lambda: client.receive(topic, topic, poll_ms=1_000, queue=queue))
        assert (await client.ack(topic, topic, *messages)).status.code == OK
        seen += messages
    assert sorted(int(message.body) for message in seen) == list(range(8))
    assert {message.system_properties.queue_id for message in seen} - {queue}, "others, too"


async def test_an_empty_poll_is_one_frame_at_its_time(net: GrpcNet, cluster: LocalCluster) -> None:
    """Checklist 27."""
    client = Wire(net, cluster.endpoint)
    await client.send("empty", b"hello")
    await until_async(lambda: client.receive("empty", "empty", poll_ms=1_000))
    begun = time.monotonic()
    [frame] = await client.frames("empty", "empty", poll_ms=700)
    assert frame.status.code == NO_MESSAGE
    assert 0.6 < time.monotonic() - begun < 30


# ------------------------------------------------------------------------------------------------ assignment and others


def brokers_of(answer: service_pb2.QueryAssignmentResponse) -> set[str]:
    return {one.message_queue.broker.name for one in answer.assignments}


async def test_assignments_are_the_same_bytes_each_time_at_every_broker(net: GrpcNet, cluster: LocalCluster) -> None:
    """Checklist 44: an answer that flickers makes Go drop all queues."""
    clients = [Wire(net, broker.address) for broker in cluster.brokers]
    await clients[0].send("share", b"hello")
    everybody = {broker.name for broker in cluster.brokers}
    for client in clients:

        async def reaches_all(client: Wire = client) -> bool:
            return brokers_of(await client.queues("share", "share")) == everybody

        await until_async(reaches_all)  # routes are pushed: the topic is there a moment later
        answers = [await client.queues("share", "share") for _ in range(3)]
        assert {answer.status.code for answer in answers} == {OK}
        assert len({answer.SerializeToString() for answer in answers}) == 1
        assert brokers_of(answers[0]) == everybody


def parked(cluster: LocalCluster) -> float:
    """Polls that wait at the access point now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.brokers[0].metrics_port}/metrics", timeout=60) as answer:
        [count] = re.findall(r"^evenq_broker_polls_parked\S* (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(count)


async def test_a_goodbye_ends_the_clients_open_polls_at_once(net: GrpcNet, cluster: LocalCluster) -> None:
    """Checklist 49."""
    client = Wire(net, cluster.endpoint, "leaving")
    await client.send("bye", b"hello")
    messages = await until_async(lambda: client.receive("bye", "bye", poll_ms=1_000))
    await client.ack("bye", "bye", *messages)
    before = parked(cluster)
    poll = asyncio.ensure_future(client.frames("bye", "bye", poll_ms=55_000))
    await until_async(lambda: asyncio.to_thread(lambda: parked(cluster) > before), seconds=60)
    assert not poll.done()
    begun = time.monotonic()
    request = s.NotifyClientTerminationRequest()
    request.group.name = "bye"
    end = await client.call("NotifyClientTermination", request, s.NotifyClientTerminationResponse)
    assert end.status.code == OK
    [frame] = await poll
    assert frame.status.code == NO_MESSAGE
    assert time.monotonic() - begun < 30


async def test_heartbeats_are_always_ok(net: GrpcNet, cluster: LocalCluster) -> None:
    """Checklist 50: empty, without client id, of a group that is not known."""
    assert await Wire(net, cluster.endpoint, "").beat() == OK
    assert await Wire(net, cluster.endpoint).beat("nobody-knows") == OK
    empty = await net.unary(cluster.endpoint, V2 + "Heartbeat", b"", timeout_ms=60_000, metadata={})
    assert s.HeartbeatResponse.FromString(empty).status.code == OK


async def nothing() -> AsyncIterator[bytes]:
    """No command at all."""
    return
    yield b""


async def test_a_telemetry_stream_that_says_nothing_harms_nobody(net: GrpcNet, cluster: LocalCluster) -> None:
    """Checklist 14: opened and half-closed at once, as Rust does while it looks for a broker."""
    headers = {"x-mq-client-id": "mute", "x-mq-language": "RUST"}
    result = net.stream(cluster.endpoint, V2 + "Telemetry", nothing(), timeout_ms=60_000, metadata=headers)
    assert [frame async for frame in result] == []
    assert await Wire(net, cluster.endpoint, "mute").beat("g") == OK
